"""OffsetForLeaderEpoch: where an epoch ended, so that clients notice when a log was cut."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import leader_for
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE

MIN_VERSION: Final = 2
MAX_VERSION: Final = 4
_UNDEFINED: Final = (-1, -1)


async def handle_offset_for_leader_epoch(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    turns = Turns()

    async def answer(topic: Any) -> Any:
        return answers(
            "OffsetForLeaderTopicResult",
            topic=topic.topic,
            partitions=await turns.map(
                lambda each: _partition(context, answers, topic.topic, each), topic.partitions
            ),
        )

    return answers(
        "OffsetForLeaderEpochResponse",
        throttle_time=NO_THROTTLE,
        topics=await turns.wait(answer, request.topics),
    )


def _partition(context: Context, answers: Answers, topic: str, asked: Any) -> Any:
    partition = leader_for(context, topic, asked.partition, asked.current_leader_epoch)
    error = ErrorCode.none
    epoch, end = _UNDEFINED
    if isinstance(partition, ErrorCode):
        error = partition
    elif partition.failed is not None:
        error = ErrorCode.kafka_storage_error
    else:
        epoch, end = partition.end_of_epoch(asked.leader_epoch) or _UNDEFINED
    return answers(
        "EpochEndOffset",
        error_code=error,
        partition=asked.partition,
        leader_epoch=epoch,
        end_offset=end,
    )
