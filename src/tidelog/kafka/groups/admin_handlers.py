"""What tools ask about groups, and where to find them: FindCoordinator, List, Describe, Delete."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.cluster.errors import ClusterError
from tidelog.cluster.model import TopicState
from tidelog.kafka import view
from tidelog.kafka.codec import Answers, Malformed
from tidelog.kafka.creation import ensure_groups_topic
from tidelog.kafka.dispatch import Context
from tidelog.kafka.groups.classic_types import ClassicView, State
from tidelog.kafka.groups.consumer_types import ConsumerMemberView, ConsumerView, GroupState
from tidelog.kafka.groups.hashing import GROUPS_TOPIC, partition_for
from tidelog.kafka.groups.records import Assigned, by_topic
from tidelog.kafka.groups.shard_types import Listed
from tidelog.kafka.groups.unavailable import Unavailable
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE

if TYPE_CHECKING:
    from tidelog.kafka.groups.coordinator import Coordinator

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
NO_PORT: Final = -1
# What everybody may do with a group, as Kafka's bit set: read, delete, describe, and its settings.
GROUP_OPERATIONS: Final = sum(1 << bit for bit in (3, 6, 8, 10, 11))
# How long the client that causes the internal topic to be created is kept waiting for its leaders.
FIRST_LEADER_S: Final = 2.0
_LOOK_AGAIN_S: Final = 0.02
# States, or types, that a list may be limited to: several times as many as there are.
MAX_FILTERS: Final = 100
_CONSUMER_MEMBER: Final = 1  # as opposed to a member that speaks the classic protocol
# From these versions on ...
_FIND_MANY: Final = 4
_DESCRIBE_WITH_MESSAGE: Final = 6  # a group that is not there is an error (KIP-1043)


class AdminHandlers:
    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator

    # --- FindCoordinator --------------------------------------------------------------------------

    async def find_coordinator(self, context: Context, request: Any) -> Any:
        answers = Answers.to(request)
        key_type = getattr(request, "key_type", GROUP_KEY)
        if request.__version__ < _FIND_MANY:
            found = await self._find(context, key_type, request.key)
            return answers("FindCoordinatorResponse", throttle_time=NO_THROTTLE, **found)

        async def find(key: str) -> Any:
            return answers("Coordinator", key=key, **await self._find(context, key_type, key))

        return answers(
            "FindCoordinatorResponse",
            throttle_time=NO_THROTTLE,
            coordinators=await Turns().wait(find, request.coordinator_keys),
        )

    async def _find(self, context: Context, key_type: int, key: str) -> Mapping[str, object]:
        if key_type == TRANSACTION_KEY:
            return _nowhere(
                ErrorCode.invalid_request,
                "transactions are not served: use a producer without transactional.id",
            )
        if key_type != GROUP_KEY:
            return _nowhere(ErrorCode.invalid_request, f"{key_type} is no kind of coordinator")
        if len(key) > self._coordinator.config.max_name_bytes:
            return _nowhere(ErrorCode.invalid_group_id, "the name of the group is too long")
        is_new = GROUPS_TOPIC not in context.node.state.topics
        try:
            topic = await ensure_groups_topic(context)
        except ClusterError as error:
            return _nowhere(ErrorCode.coordinator_not_available, str(error))
        leader = _leader(context, topic, key)
        if leader is None and is_new:
            leader = await _first_leader(context, topic, key)
        if leader is None:
            return _nowhere(
                ErrorCode.coordinator_not_available, "the group has no coordinator at the moment"
            )
        where = view.address(context, leader)
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": leader,
            "host": where.host,
            "port": where.port,
        }

    # --- ListGroups -------------------------------------------------------------------------------

    async def list(self, _context: Context, request: Any) -> Any:
        answers = Answers.to(request)
        states = _lowered(getattr(request, "states_filter", ()))
        types = _lowered(getattr(request, "types_filter", ()))
        error = ErrorCode.none
        turns = Turns()
        listed: list[Any] = []
        try:
            for shard in tuple(self._coordinator.shards()):
                for one in tuple(shard.listed()):
                    await turns.done()
                    if (not states or one.state.lower() in states) and (
                        not types or one.type.lower() in types
                    ):
                        listed.append(_listed(answers, one))
        except Unavailable as unavailable:
            error, listed = unavailable.code, []
        return answers(
            "ListGroupsResponse",
            throttle_time=NO_THROTTLE,
            error_code=error,
            groups=tuple(listed),
        )

    # --- DescribeGroups, ConsumerGroupDescribe ----------------------------------------------------

    async def describe(self, _context: Context, request: Any) -> Any:
        turns = Turns()
        return Answers.to(request)(
            "DescribeGroupsResponse",
            throttle_time=NO_THROTTLE,
            groups=await turns.wait(
                lambda group: self._describe(request, group, turns), request.groups
            ),
        )

    async def _describe(self, request: Any, group: str, turns: Turns) -> Any:
        error, message, seen = ErrorCode.none, None, None
        try:
            seen = await self._coordinator.ask(
                group, lambda shard, _: shard.describe_classic(group)
            )
            if seen is None and request.__version__ >= _DESCRIBE_WITH_MESSAGE:
                error = ErrorCode.group_id_not_found
                message = f"there is no classic group {group}"
        except Unavailable as unavailable:
            error = unavailable.code
        # Before there was an error for it, a group that is not there was called dead.
        dead = State.DEAD.value if error in _DEAD else ""
        view = seen or ClassicView(dead, "", "", ())
        return await _classic_group(request, group, error, message, view, turns)

    async def consumer_describe(self, context: Context, request: Any) -> Any:
        turns = Turns()
        return Answers.to(request)(
            "ConsumerGroupDescribeResponse",
            throttle_time=NO_THROTTLE,
            groups=await turns.wait(
                lambda group: self._consumer_describe(context, request, group, turns),
                request.group_ids,
            ),
        )

    async def _consumer_describe(
        self, context: Context, request: Any, group: str, turns: Turns
    ) -> Any:
        error, message, seen = ErrorCode.none, None, None
        try:
            seen = await self._coordinator.ask(
                group, lambda shard, _: shard.describe_consumer(group)
            )
            if seen is None:
                error = ErrorCode.group_id_not_found
                message = f"there is no consumer group {group}"
        except Unavailable as unavailable:
            error = unavailable.code
        dead = ConsumerView(GroupState.DEAD.value if error in _DEAD else "", 0, 0, "", ())
        return await _consumer_group(context, request, group, error, message, seen or dead, turns)

    # --- DeleteGroups -----------------------------------------------------------------------------

    async def delete(self, _context: Context, request: Any) -> Any:
        answers = Answers.to(request)

        async def delete(group: str) -> Any:
            error = await self._delete(group)
            return answers("DeletableGroupResult", group_id=group, error_code=error)

        return answers(
            "DeleteGroupsResponse",
            throttle_time=NO_THROTTLE,
            results=await Turns().wait(delete, request.groups_names),
        )

    async def _delete(self, group: str) -> ErrorCode:
        try:
            return await self._coordinator.ask(group, lambda shard, _: shard.delete(group))
        except Unavailable as error:
            return error.code


_DEAD: Final = {ErrorCode.none, ErrorCode.group_id_not_found}


def _leader(context: Context, topic: TopicState, group: str) -> int | None:
    """Return the node that leads the partition of this group, if clients can reach it."""
    node = context.node
    leader, _ = node.leader_of(topic.name, partition_for(group, len(topic.partitions)))
    if leader is None or leader not in node.state.members:
        return None
    return leader if leader == node.id or node.is_alive(leader) else None


def _lowered(names: Sequence[str]) -> frozenset[str]:
    """Return what is to be listed, of states or of types; there are a few of either."""
    if len(names) > MAX_FILTERS:
        raise Malformed(f"{len(names)} states or types of groups: at most {MAX_FILTERS}")
    return frozenset(name.lower() for name in names)


async def _first_leader(context: Context, topic: TopicState, group: str) -> int | None:
    """Wait for the first leaders of a topic that was just created."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FIRST_LEADER_S
    while (leader := _leader(context, topic, group)) is None and loop.time() < deadline:
        await asyncio.sleep(_LOOK_AGAIN_S)
    return leader


def _nowhere(error: ErrorCode, message: str) -> Mapping[str, object]:
    return {
        "error_code": error,
        "error_message": message,
        "node_id": view.NO_NODE,
        "host": "",
        "port": NO_PORT,
    }


def _operations(request: Any) -> int:
    asked = getattr(request, "include_authorized_operations", False)
    return GROUP_OPERATIONS if asked else view.UNKNOWN_OPERATIONS


def _listed(answers: Answers, one: Listed) -> Any:
    return answers(
        "ListedGroup",
        group_id=one.group,
        protocol_type=one.protocol_type,
        group_state=one.state,
        group_type=one.type,
    )


async def _classic_group(
    request: Any,
    group: str,
    error: ErrorCode,
    message: str | None,
    seen: ClassicView,
    turns: Turns,
) -> Any:
    answers = Answers.to(request)
    return answers(
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=group,
        group_state=seen.state,
        protocol_type=seen.protocol_type,
        protocol_data=seen.protocol,
        members=await turns.map(
            lambda member: answers(
                "DescribedGroupMember",
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            ),
            seen.members,
        ),
        authorized_operations=_operations(request),
    )


async def _consumer_group(
    context: Context,
    request: Any,
    group: str,
    error: ErrorCode,
    message: str | None,
    seen: ConsumerView,
    turns: Turns,
) -> Any:
    answers = Answers.to(request)
    return answers(
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=group,
        group_state=seen.state,
        group_epoch=seen.epoch,
        assignment_epoch=seen.target_epoch,
        assignor_name=seen.assignor,
        members=await turns.map(
            lambda member: _consumer_member(context, answers, member), seen.members
        ),
        authorized_operations=_operations(request),
    )


def _consumer_member(context: Context, answers: Answers, member: ConsumerMemberView) -> Any:
    topics = context.node.state.topics_by_id
    return answers(
        "Member",
        member_id=member.member_id,
        instance_id=member.value.instance_id,
        rack_id=member.value.rack_id,
        member_epoch=member.epoch,
        client_id=member.value.client_id,
        client_host=member.value.client_host,
        subscribed_topic_names=member.value.topics,
        subscribed_topic_regex=member.value.regex,
        assignment=_assignment(answers, topics, member.assigned),
        target_assignment=_assignment(answers, topics, member.target),
        member_type=_CONSUMER_MEMBER,
    )


def _assignment(answers: Answers, topics: Mapping[UUID, TopicState], assigned: Assigned) -> Any:
    """Return partitions under the names of their topics; those of deleted topics are left out."""
    return answers(
        "Assignment",
        topic_partitions=tuple(
            answers(
                "TopicPartitions",
                topic_id=topic_id,
                topic_name=topics[topic_id].name,
                partitions=tuple(partitions),
            )
            for topic_id, partitions in by_topic(assigned).items()
            if topic_id in topics
        ),
    )
