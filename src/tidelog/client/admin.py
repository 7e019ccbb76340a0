"""What administrators ask of a cluster: topics, settings, moves and elections.

Groups and their offsets are in `groups.py`. Each method is one call of Kafka's protocol and raises
`Refused` with the cluster's own sentence where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Cluster
from tidelog.client.errors import check
from tidelog.client.messages import Api
from tidelog.client.model import TopicPartition

DEFAULT_COUNT: Final = -1  # partitions or replicas: what the cluster gives by default
# Seconds that the cluster gets less than we wait, so that its own answer arrives in time.
ANSWER_SECONDS: Final = 2.0
_SET: Final = 0
_UNSET: Final = 1
_PREFERRED: Final = 0


class Resource(IntEnum):
    """What a setting belongs to."""

    TOPIC = 2
    BROKER = 4  # one node by its id, or the whole cluster under the empty name


WHOLE_CLUSTER: Final = ""

# Where a setting's value comes from, as the protocol numbers it.
SOURCES: Final = {
    1: "topic",
    2: "node",
    3: "cluster",
    4: "start",
    5: "default",
    6: "logger",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting and where its value comes from."""

    name: str
    value: str | None  # None if it has none, or if it is a secret
    source: str  # topic, node, cluster, start (the node's file) or default
    read_only: bool
    sensitive: bool
    documentation: str | None

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class Move:
    """A partition on its way to other nodes."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Admin:
    """The administrator's calls on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # --- Topics -----------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = DEFAULT_COUNT,
        replication: int = DEFAULT_COUNT,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
        timeout: float = 0,
    ) -> None:
        """Create a topic."""
        deadline = self._cluster.deadline(timeout)

        def judge(answer: Any) -> None:
            for each in answer.topics:
                check(each.error_code, f"topic {name}", each.error_message)

        await self._cluster.ask_controller(
            Api.CREATE_TOPICS,
            lambda make: make(
                "CreateTopicsRequest",
                topics=(
                    make(
                        "CreatableTopic",
                        name=name,
                        num_partitions=partitions,
                        replication_factor=replication,
                        assignments=(),
                        configs=tuple(
                            make("CreatableTopicConfig", name=key, value=value)
                            for key, value in (config or {}).items()
                        ),
                    ),
                ),
                timeout=_server_time(deadline.seconds),
                validate_only=validate_only,
            ),
            deadline,
            judge,
        )

    async def delete_topic(self, name: str, *, timeout: float = 0) -> None:
        """Delete a topic and all that is in it."""
        deadline = self._cluster.deadline(timeout)

        def judge(answer: Any) -> None:
            for each in answer.responses:
                check(each.error_code, f"topic {name}", getattr(each, "error_message", None))

        await self._cluster.ask_controller(
            Api.DELETE_TOPICS,
            lambda make: make(
                "DeleteTopicsRequest",
                topic_names=(name,),
                topics=(make("DeleteTopicState", name=name, topic_id=None),)
                if make.version >= 6
                else (),
                timeout=_server_time(deadline.seconds),
            ),
            deadline,
            judge,
        )
        self._cluster.forget(name)

    async def add_partitions(self, name: str, total: int, *, timeout: float = 0) -> None:
        """Give a topic more partitions, `total` in all."""
        deadline = self._cluster.deadline(timeout)

        def judge(answer: Any) -> None:
            for each in answer.results:
                check(each.error_code, f"topic {name}", each.error_message)

        await self._cluster.ask_controller(
            Api.CREATE_PARTITIONS,
            lambda make: make(
                "CreatePartitionsRequest",
                topics=(make("CreatePartitionsTopic", name=name, count=total, assignments=None),),
                timeout=_server_time(deadline.seconds),
                validate_only=False,
            ),
            deadline,
            judge,
        )

    async def delete_records(
        self, partition: TopicPartition, before: int, *, timeout: float = 0
    ) -> int:
        """Drop the records before an offset (-1: all that there are); return the new start."""
        deadline = self._cluster.deadline(timeout)

        def judge(answer: Any) -> None:
            for topic in answer.topics:
                for each in topic.partitions:
                    check(each.error_code, f"partition {partition}")

        answer = await self._cluster.ask_leader(
            partition,
            Api.DELETE_RECORDS,
            lambda info: (
                lambda make: make(
                    "DeleteRecordsRequest",
                    topics=(
                        make(
                            "DeleteRecordsTopic",
                            name=partition.topic,
                            partitions=(
                                make(
                                    "DeleteRecordsPartition",
                                    partition_index=info.index,
                                    offset=before,
                                ),
                            ),
                        ),
                    ),
                    timeout=_server_time(deadline.seconds),
                )
            ),
            deadline,
            judge,
        )
        return int(answer.topics[0].partitions[0].low_watermark)

    # --- Settings ---------------------------------------------------------------------------------

    async def settings(
        self,
        resource: Resource,
        name: str = WHOLE_CLUSTER,
        *,
        explain: bool = False,
        timeout: float = 0,
    ) -> list[Setting]:
        """Return the settings of a topic, a node or the whole cluster, by name."""
        what = _resource_name(resource, name)
        answer = await self._cluster.ask_any(
            Api.DESCRIBE_CONFIGS,
            lambda make: make(
                "DescribeConfigsRequest",
                resources=(
                    make(
                        "DescribeConfigsResource",
                        resource_type=resource,
                        resource_name=name,
                        configuration_keys=None,
                    ),
                ),
                include_synonyms=False,
                include_documentation=explain,
            ),
            self._cluster.deadline(timeout),
        )
        found: list[Setting] = []
        for result in answer.results:
            check(result.error_code, what, result.error_message)
            found.extend(
                Setting(
                    each.name,
                    each.value,
                    SOURCES.get(each.config_source, "unknown"),
                    each.read_only,
                    each.is_sensitive,
                    getattr(each, "documentation", None),
                )
                for each in result.configs
            )
        return sorted(found, key=lambda setting: setting.name)

    async def change_settings(
        self,
        resource: Resource,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        timeout: float = 0,
    ) -> None:
        """Change settings; None puts one back to its default. The others stay."""
        what = _resource_name(resource, name)

        def judge(answer: Any) -> None:
            for each in answer.responses:
                check(each.error_code, what, each.error_message)

        await self._cluster.ask_controller(
            Api.INCREMENTAL_ALTER_CONFIGS,
            lambda make: make(
                "IncrementalAlterConfigsRequest",
                resources=(
                    make(
                        "AlterConfigsResource",
                        resource_type=resource,
                        resource_name=name,
                        configs=tuple(
                            make(
                                "AlterableConfig",
                                name=key,
                                config_operation=_UNSET if value is None else _SET,
                                value=value,
                            )
                            for key, value in changes.items()
                        ),
                    ),
                ),
                validate_only=validate_only,
            ),
            self._cluster.deadline(timeout),
            judge,
        )

    # --- Moves and elections ----------------------------------------------------------------------

    async def reassign(
        self, partition: TopicPartition, replicas: Sequence[int] | None, *, timeout: float = 0
    ) -> None:
        """Move a partition to these nodes; None calls a move off."""
        deadline = self._cluster.deadline(timeout)
        what = f"partition {partition}"

        def judge(answer: Any) -> None:
            check(answer.error_code, what, answer.error_message)
            for topic in answer.responses:
                for each in topic.partitions:
                    check(each.error_code, what, each.error_message)

        await self._cluster.ask_controller(
            Api.ALTER_PARTITION_REASSIGNMENTS,
            lambda make: make(
                "AlterPartitionReassignmentsRequest",
                timeout=_server_time(deadline.seconds),
                allow_replication_factor_change=True,
                topics=(
                    make(
                        "ReassignableTopic",
                        name=partition.topic,
                        partitions=(
                            make(
                                "ReassignablePartition",
                                partition_index=partition.index,
                                replicas=None if replicas is None else tuple(replicas),
                            ),
                        ),
                    ),
                ),
            ),
            deadline,
            judge,
        )

    async def moves(self, *, timeout: float = 0) -> list[Move]:
        """Return the partitions that are on their way to other nodes."""
        deadline = self._cluster.deadline(timeout)

        def judge(answer: Any) -> None:
            check(answer.error_code, "the list of moves", answer.error_message)

        answer = await self._cluster.ask_controller(
            Api.LIST_PARTITION_REASSIGNMENTS,
            lambda make: make(
                "ListPartitionReassignmentsRequest",
                timeout=_server_time(deadline.seconds),
                topics=None,
            ),
            deadline,
            judge,
        )
        return [
            Move(
                TopicPartition(topic.name, each.partition_index),
                tuple(each.replicas),
                tuple(each.adding_replicas),
                tuple(each.removing_replicas),
            )
            for topic in answer.topics
            for each in topic.partitions
        ]

    async def elect_preferred(self, partition: TopicPartition, *, timeout: float = 0) -> bool:
        """Hand leadership to the preferred replica; return whether that changed anything."""
        deadline = self._cluster.deadline(timeout)
        what = f"partition {partition}"
        codes: list[ErrorCode] = []

        def judge(answer: Any) -> None:
            check(getattr(answer, "error_code", ErrorCode.none), what)
            for topic in answer.replica_election_results:
                for each in topic.partition_result:
                    codes.append(each.error_code)
                    if each.error_code is not ErrorCode.election_not_needed:
                        check(each.error_code, what, each.error_message)

        await self._cluster.ask_controller(
            Api.ELECT_LEADERS,
            lambda make: make(
                "ElectLeadersRequest",
                election_type=_PREFERRED,
                topic_partitions=(
                    make("TopicPartitions", topic=partition.topic, partitions=(partition.index,)),
                ),
                timeout=_server_time(deadline.seconds),
            ),
            deadline,
            judge,
        )
        return ErrorCode.election_not_needed not in codes


def _server_time(seconds: float) -> timedelta:
    return timedelta(seconds=max(seconds - ANSWER_SECONDS, seconds / 2))


def _resource_name(resource: Resource, name: str) -> str:
    if resource is Resource.TOPIC:
        return f"topic {name}"
    return f"node {name}" if name else "the cluster"
