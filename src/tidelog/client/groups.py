"""Groups of consumers: which there are, who is in them, where they stand, and moving them.

A group is either *classic* (members share out partitions among themselves) or *consumer* (the
cluster does, since Kafka 4). What there is to know is asked by the call that fits the kind, and
told in one form.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.consumer_protocol_assignment.v0 import ConsumerProtocolAssignment
from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Cluster
from tidelog.client.errors import BadAnswer, ClientError, Refused, Unsupported, check
from tidelog.client.messages import Api, Maker, decode
from tidelog.client.model import TopicPartition
from tidelog.client.retry import Deadline

# Who commits for a group without being in it.
NO_MEMBER: Final = ""
NO_GENERATION: Final = -1
NO_OFFSET: Final = -1
_VERSION_BYTES: Final = 2  # an assignment begins with its version
_CONSUMER: Final = "consumer"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group, as a list of groups tells of it."""

    name: str
    kind: str  # classic, consumer, ...; "" where the cluster does not say
    protocol: str  # what its members are: "consumer" for consumers of topics
    state: str  # "" where the cluster does not say
    coordinator: int


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, and what it was given."""

    id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group and its members."""

    name: str
    kind: str
    state: str
    assignor: str
    members: tuple[Member, ...]


class GroupAdmin:
    """The administrator's calls on groups."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def groups(self, *, timeout: float = 0) -> list[GroupListing]:
        """Return all groups, by name. Each node knows those it coordinates."""
        deadline = self._cluster.deadline(timeout)
        metadata = await self._cluster.metadata((), timeout=timeout)
        lists = await asyncio.gather(
            *(self._groups_of(node_id, deadline) for node_id in metadata.nodes)
        )
        return sorted((group for found in lists for group in found), key=lambda group: group.name)

    async def describe(self, group: str, *, timeout: float = 0) -> GroupInfo:
        """Return a group and its members; raises `Refused` if there is none."""
        deadline = self._cluster.deadline(timeout)
        try:
            return await self._describe_consumer(group, deadline)
        except Unsupported:
            return await self._describe_classic(group, deadline)
        except Refused as error:
            if error.code is not ErrorCode.group_id_not_found:
                raise
            return await self._describe_classic(group, deadline)

    async def delete(self, group: str, *, timeout: float = 0) -> None:
        """Delete a group without members, and its offsets."""

        def judge(answer: Any) -> None:
            for each in answer.results:
                check(each.error_code, f"group {group}")

        await self._cluster.ask_coordinator(
            group,
            Api.DELETE_GROUPS,
            lambda make: make("DeleteGroupsRequest", groups_names=(group,)),
            self._cluster.deadline(timeout),
            judge,
        )

    async def offsets(self, group: str, *, timeout: float = 0) -> dict[TopicPartition, int]:
        """Return where a group stands: the next offset that it reads, where it has one."""
        return await committed_offsets(self._cluster, group, self._cluster.deadline(timeout))

    async def set_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, timeout: float = 0
    ) -> None:
        """Move a group that has no members."""
        try:
            await commit(self._cluster, group, offsets, self._cluster.deadline(timeout))
        except Refused as error:
            if error.code is ErrorCode.unknown_member_id:
                raise Refused(ErrorCode.non_empty_group, f"group {group}") from None
            raise

    async def _groups_of(self, node_id: int, deadline: Deadline) -> list[GroupListing]:
        async def attempt() -> Any:
            node = self._cluster.nodes[node_id]
            answer = await self._cluster.ask(
                node,
                Api.LIST_GROUPS,
                lambda make: make("ListGroupsRequest", states_filter=(), types_filter=()),
                deadline,
            )
            check(answer.error_code, "the list of groups")
            return answer

        answer = await self._cluster.persist(attempt, deadline)
        return [
            GroupListing(
                each.group_id,
                getattr(each, "group_type", "").lower(),
                each.protocol_type,
                getattr(each, "group_state", ""),
                node_id,
            )
            for each in answer.groups
        ]

    async def _describe_consumer(self, group: str, deadline: Deadline) -> GroupInfo:
        def judge(answer: Any) -> None:
            check(answer.groups[0].error_code, f"group {group}", answer.groups[0].error_message)

        answer = await self._cluster.ask_coordinator(
            group,
            Api.CONSUMER_GROUP_DESCRIBE,
            lambda make: make(
                "ConsumerGroupDescribeRequest",
                group_ids=(group,),
                include_authorized_operations=False,
            ),
            deadline,
            judge,
        )
        found = answer.groups[0]
        members = tuple(
            Member(
                each.member_id,
                each.client_id,
                each.client_host,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in each.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for each in found.members
        )
        return GroupInfo(group, _CONSUMER, found.group_state, found.assignor_name, members)

    async def _describe_classic(self, group: str, deadline: Deadline) -> GroupInfo:
        def judge(answer: Any) -> None:
            found = answer.groups[0]
            check(found.error_code, f"group {group}")
            if found.group_state == "Dead":  # what clusters say that have no code for it
                raise Refused(ErrorCode.group_id_not_found, f"group {group}")

        answer = await self._cluster.ask_coordinator(
            group,
            Api.DESCRIBE_GROUPS,
            lambda make: make(
                "DescribeGroupsRequest", groups=(group,), include_authorized_operations=False
            ),
            deadline,
            judge,
        )
        found = answer.groups[0]
        members = tuple(
            Member(
                each.member_id,
                each.client_id,
                each.client_host,
                read_assignment(each.member_assignment) if found.protocol_type == _CONSUMER else (),
            )
            for each in found.members
        )
        return GroupInfo(group, "classic", found.group_state, found.protocol_data, members)


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions that a classic group gave to a member; none if nobody can tell."""
    if len(data) <= _VERSION_BYTES:
        return ()
    try:
        # Later versions only add fields at the end.
        assignment = decode(ConsumerProtocolAssignment, data, _VERSION_BYTES)
    except BadAnswer:
        return ()
    return tuple(
        TopicPartition(topic.topic, index)
        for topic in assignment.assigned_partitions
        for index in topic.partitions
    )


async def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    member: str = NO_MEMBER,
    generation: int = NO_GENERATION,
) -> None:
    """Say where a group stands: for a member, or from outside for a group without members."""

    def judge(answer: Any) -> None:
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code is ErrorCode.unknown_topic_or_partition:
                    raise ClientError(
                        f"Partition {topic.name}/{each.partition_index} does not exist."
                    )
                check(each.error_code, f"group {group}")

    def build(make: Maker) -> Any:
        by_topic: defaultdict[str, list[Any]] = defaultdict(list)
        for partition, offset in offsets.items():
            by_topic[partition.topic].append(
                make(
                    "OffsetCommitRequestPartition",
                    partition_index=partition.index,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                )
            )
        return make(
            "OffsetCommitRequest",
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=None,
            topics=tuple(
                make("OffsetCommitRequestTopic", name=name, partitions=tuple(partitions))
                for name, partitions in by_topic.items()
            ),
        )

    if offsets:
        await cluster.ask_coordinator(group, Api.OFFSET_COMMIT, build, deadline, judge)


async def committed_offsets(
    cluster: Cluster,
    group: str,
    deadline: Deadline,
    partitions: Iterable[TopicPartition] | None = None,
) -> dict[TopicPartition, int]:
    """Return where a group stands in these partitions, or in all; those it never read are out."""

    def judge(answer: Any) -> None:
        check(getattr(_only_group(answer), "error_code", ErrorCode.none), f"group {group}")
        for topic in _only_group(answer).topics:
            for each in topic.partitions:
                check(each.error_code, f"group {group}")

    answer = await cluster.ask_coordinator(
        group,
        Api.OFFSET_FETCH,
        lambda make: _offset_fetch(make, group, partitions),
        deadline,
        judge,
    )
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in _only_group(answer).topics
        for each in topic.partitions
        if each.committed_offset != NO_OFFSET
    }


def _only_group(answer: Any) -> Any:
    return answer.groups[0] if hasattr(answer, "groups") else answer


def _offset_fetch(make: Maker, group: str, partitions: Iterable[TopicPartition] | None) -> Any:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for partition in partitions or ():
        by_topic[partition.topic].append(partition.index)
    grouped = make.version >= 8
    kind = "OffsetFetchRequestTopics" if grouped else "OffsetFetchRequestTopic"
    topics = tuple(
        make(kind, name=name, partition_indexes=tuple(indexes))
        for name, indexes in by_topic.items()
    )
    # Before version 2 there is no way to ask for all; an empty list is none.
    wanted = topics if partitions is not None or make.version < 2 else None
    if grouped:
        return make(
            "OffsetFetchRequest",
            groups=(
                make(
                    "OffsetFetchRequestGroup",
                    group_id=group,
                    member_id=None,
                    member_epoch=-1,
                    topics=wanted,
                ),
            ),
            require_stable=False,
        )
    return make("OffsetFetchRequest", group_id=group, topics=wanted, require_stable=False)
