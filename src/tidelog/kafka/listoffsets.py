"""ListOffsets: where a log begins and ends, and where a time is in it.

A time below zero is a question of its own. Those about tiered storage are answered as Kafka answers
them for a topic that has none.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused, leader_for
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition

MIN_VERSION: Final = 1
MAX_VERSION: Final = 11
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
# The version that brought each question.
_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
# Older clients do not know the code for "come again", but this one they come again after.
_FIRST_WITH_NOT_AVAILABLE: Final = 5
_DEBUGGER: Final = -2  # Kafka's id for tools that ask any replica


class Found(NamedTuple):
    offset: int
    time: int
    epoch: int


NOTHING: Final = Found(-1, -1, -1)


async def handle_list_offsets(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    turns = Turns()

    async def answer(topic: Any) -> Any:
        return answers(
            "ListOffsetsTopicResponse",
            name=topic.name,
            partitions=await turns.map(
                lambda each: _partition(context, answers, request, topic.name, each),
                topic.partitions,
            ),
        )

    return answers(
        "ListOffsetsResponse",
        throttle_time=NO_THROTTLE,
        topics=await turns.wait(answer, request.topics),
    )


def _partition(context: Context, answers: Answers, request: Any, topic: str, asked: Any) -> Any:
    error, found = ErrorCode.none, NOTHING
    try:
        replica = _replica(context, request, topic, asked)
        found = _find(replica, request.__version__, asked.timestamp)
    except Refused as refused:
        error = refused.code
    except OSError:
        error = ErrorCode.kafka_storage_error
    return answers(
        "ListOffsetsPartitionResponse",
        partition_index=asked.partition_index,
        error_code=error,
        timestamp=found.time,
        offset=found.offset,
        leader_epoch=found.epoch,
    )


def _replica(context: Context, request: Any, topic: str, asked: Any) -> "Partition":
    """Return the partition to ask; raises `Refused`."""
    epoch = getattr(asked, "current_leader_epoch", -1)
    replica = leader_for(context, topic, asked.partition_index, epoch)
    if replica is ErrorCode.not_leader_or_follower and request.replica_id == _DEBUGGER:
        replica = context.node.partition(topic, asked.partition_index) or replica
    if isinstance(replica, ErrorCode):
        raise Refused(replica, None)
    return replica


def _find(partition: "Partition", version: int, timestamp: int) -> Found:
    if timestamp < 0 and version < _SINCE.get(timestamp, MAX_VERSION + 1):
        raise Refused(ErrorCode.unsupported_version, f"{timestamp} is no time in version {version}")
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log_start
        return Found(start, -1, partition.term_of(start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    if timestamp == LATEST:
        _check_settled(partition, version)
        return Found(partition.high_watermark, -1, partition.epoch)
    found = (
        partition.latest_time()
        if timestamp == MAX_TIMESTAMP
        else partition.offset_at_time(timestamp)
    )
    if found is None:
        _check_settled(partition, version)
        return NOTHING
    return Found(*found)


def _check_settled(partition: "Partition", version: int) -> None:
    """Refuse to name an end that may be less than a former leader showed its readers."""
    core = partition.core
    if core.leading is not None and core.readable < core.term_start:
        raise Refused(
            ErrorCode.offset_not_available
            if version >= _FIRST_WITH_NOT_AVAILABLE
            else ErrorCode.leader_not_available,
            "the leader is new and does not show all that its predecessor showed yet",
        )
