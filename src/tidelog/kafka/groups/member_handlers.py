"""What members ask: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ConsumerGroupHeartbeat."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.groups.classic_types import Join, JoinAnswer, Leaving, Sync, SyncAnswer
from tidelog.kafka.groups.consumer_types import JOINING, Beat, BeatAnswer
from tidelog.kafka.groups.records import Assigned, by_topic
from tidelog.kafka.groups.shard_types import LeaveAnswer
from tidelog.kafka.groups.unavailable import Unavailable
from tidelog.kafka.versions import NO_THROTTLE

if TYPE_CHECKING:
    from tidelog.kafka.groups.coordinator import Coordinator

MILLISECOND: Final = timedelta(milliseconds=1)
# A client id is a label. It becomes the beginning of member ids, which travel with every heartbeat.
MAX_CLIENT_ID: Final = 200
# Protocols that a member of a classic group may offer; clients offer those that they are configured
# with, which are one or two.
MAX_PROTOCOLS: Final = 100
# Topics and partitions that one heartbeat of the new protocol may name.
MAX_NAMED: Final = 10_000
# From these versions on ...
_JOIN_WITH_ID: Final = 4  # a member is told its id before it joins (KIP-394)
_JOIN_NULL_PROTOCOL: Final = 7  # there may be no protocol in the answer to a join
_JOIN_WITH_SKIP: Final = 9  # a leader may be told to leave the assignment as it is (KIP-814)
_LEAVE_MANY: Final = 3  # several members leave with one request (KIP-345)
_BEAT_WITH_ID: Final = 1  # members of consumer groups choose their own ids (KIP-1082)


class MemberHandlers:
    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator

    # --- The classic protocol ---------------------------------------------------------------------

    async def join(self, context: Context, request: Any) -> Any:
        group: str = request.group_id
        try:
            if len(request.protocols) > MAX_PROTOCOLS:
                raise Unavailable(ErrorCode.invalid_request)
            join = _join(context, request)
            answer: JoinAnswer = await self._coordinator.wait(
                group, lambda shard, ticket, now: shard.join(group, join, ticket, now)
            )
        except Unavailable as error:
            answer = JoinAnswer(error.code, member_id=request.member_id)
        answers = Answers.to(request)
        nullable = request.__version__ >= _JOIN_NULL_PROTOCOL
        return answers(
            "JoinGroupResponse",
            throttle_time=NO_THROTTLE,
            error_code=answer.error,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol if nullable else answer.protocol or "",
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=tuple(
                answers(
                    "JoinGroupResponseMember",
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata,
                )
                for member in answer.members
            ),
        )

    async def sync(self, _context: Context, request: Any) -> Any:
        group: str = request.group_id
        try:
            if len(request.assignments) > self._coordinator.config.max_members:
                raise Unavailable(ErrorCode.invalid_request)
            sync = Sync(
                request.member_id,
                getattr(request, "group_instance_id", None),
                request.generation_id,
                getattr(request, "protocol_type", None),
                getattr(request, "protocol_name", None),
                tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
            )
            answer: SyncAnswer = await self._coordinator.wait(
                group, lambda shard, ticket, now: shard.sync(group, sync, ticket, now)
            )
        except Unavailable as error:
            answer = SyncAnswer(error.code)
        return Answers.to(request)(
            "SyncGroupResponse",
            throttle_time=NO_THROTTLE,
            error_code=answer.error,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    async def heartbeat(self, _context: Context, request: Any) -> Any:
        group: str = request.group_id
        instance_id = getattr(request, "group_instance_id", None)
        try:
            error = await self._coordinator.ask(
                group,
                lambda shard, now: shard.heartbeat(
                    group, request.member_id, instance_id, request.generation_id, now
                ),
            )
        except Unavailable as unavailable:
            error = unavailable.code
        return Answers.to(request)("HeartbeatResponse", throttle_time=NO_THROTTLE, error_code=error)

    async def leave(self, _context: Context, request: Any) -> Any:
        group: str = request.group_id
        answers = Answers.to(request)
        many = request.__version__ >= _LEAVE_MANY
        try:
            if many and len(request.members) > self._coordinator.config.max_members:
                raise Unavailable(ErrorCode.invalid_request)
            leaving = (
                tuple(Leaving(one.member_id, one.group_instance_id) for one in request.members)
                if many
                else (Leaving(request.member_id),)
            )
            answer = await self._coordinator.ask(
                group, lambda shard, now: shard.leave(group, leaving, now)
            )
        except Unavailable as error:
            answer = LeaveAnswer(error.code)
            leaving = ()
        members = () if answer.error is not ErrorCode.none else answer.members
        if not many and members:
            return answers("LeaveGroupResponse", throttle_time=NO_THROTTLE, error_code=members[0])
        return answers(
            "LeaveGroupResponse",
            throttle_time=NO_THROTTLE,
            error_code=answer.error,
            members=tuple(
                answers(
                    "MemberResponse",
                    member_id=one.member_id,
                    group_instance_id=one.instance_id,
                    error_code=code,
                )
                for one, code in zip(leaving, members, strict=False)
            ),
        )

    # --- The new protocol -------------------------------------------------------------------------

    async def consumer_heartbeat(self, context: Context, request: Any) -> Any:
        group: str = request.group_id
        try:
            _check_size(request)
            beat = self._beat(context, request)
            answer = await self._coordinator.ask(
                group, lambda shard, now: shard.beat(group, beat, now)
            )
        except Unavailable as error:
            answer = BeatAnswer(error.code)
        answers = Answers.to(request)
        config = self._coordinator.config
        interval = (
            config.consumer_waiting_interval if answer.waits else config.consumer_heartbeat_interval
        )
        succeeded = answer.error is ErrorCode.none
        return answers(
            "ConsumerGroupHeartbeatResponse",
            throttle_time=NO_THROTTLE,
            error_code=answer.error,
            error_message=answer.message,
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval=interval * MILLISECOND if succeeded else timedelta(0),
            assignment=None
            if answer.assignment is None
            else answers(
                "Assignment",
                topic_partitions=tuple(
                    answers("TopicPartitions", topic_id=topic, partitions=tuple(partitions))
                    for topic, partitions in by_topic(answer.assignment).items()
                ),
            ),
        )

    def _beat(self, context: Context, request: Any) -> Beat:
        member_id: str = request.member_id
        if not member_id and request.member_epoch == JOINING:
            member_id = self._coordinator.new_id() if request.__version__ < _BEAT_WITH_ID else ""
        timeout = request.rebalance_timeout // MILLISECOND
        return Beat(
            member_id,
            request.member_epoch,
            client_id(context),
            client_host(context),
            request.instance_id,
            request.rack_id,
            None if timeout < 0 else timeout,
            request.subscribed_topic_names,
            getattr(request, "subscribed_topic_regex", None),
            request.server_assignor,
            None if request.topic_partitions is None else _owned(request.topic_partitions),
        )


def _check_size(beat: Any) -> None:
    """Raise unless a heartbeat names no more than one step of the coordinator takes."""
    topics = beat.topic_partitions or ()
    named = len(beat.subscribed_topic_names or ()) + len(topics)
    if named <= MAX_NAMED:
        named += sum([len(topic.partitions) for topic in topics])
    if named > MAX_NAMED:
        raise Unavailable(ErrorCode.invalid_request)


def client_id(context: Context) -> str:
    return (context.client_id or "")[:MAX_CLIENT_ID]


def client_host(context: Context) -> str:
    """Return where a client is, with the slash that Kafka's tools show."""
    return f"/{context.client_host}"


def _join(context: Context, request: Any) -> Join:
    version = request.__version__
    session_timeout = request.session_timeout // MILLISECOND
    # Version 0 has one timeout for both.
    rebalance_timeout = (
        request.rebalance_timeout // MILLISECOND if version >= 1 else session_timeout
    )
    return Join(
        request.member_id,
        getattr(request, "group_instance_id", None),
        client_id(context),
        client_host(context),
        max(rebalance_timeout, 0),
        session_timeout,
        request.protocol_type,
        tuple((one.name, bytes(one.metadata)) for one in request.protocols),
        wants_id_first=version >= _JOIN_WITH_ID,
        knows_skip=version >= _JOIN_WITH_SKIP,
    )


def _owned(topics: Any) -> Assigned:
    return frozenset(
        (topic.topic_id, partition)
        for topic in topics
        if topic.topic_id is not None
        for partition in topic.partitions
    )
