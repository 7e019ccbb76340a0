"""DescribeLogDirs: what the replicas of this node take on its disk, and what is left of it."""

import asyncio
import shutil
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.partition import Partition
from tidelog.kafka.admin import bounded_parts, by_topic, distinct
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE

# Kafka's "I do not know".
_UNKNOWN: Final = -1


async def handle_describe_log_dirs(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    # Sizes first: while the disk is asked, partitions may come and go.
    hosted = await _hosted(context, request)
    topics = await by_topic(
        await Turns().map(lambda each: (each.topic, _partition(answers, each)), hosted),
        lambda name, partitions: answers("DescribeLogDirsTopic", name=name, partitions=partitions),
    )
    directory = context.node.config.data
    error, total, free = ErrorCode.none, _UNKNOWN, _UNKNOWN
    try:
        usage = await asyncio.to_thread(shutil.disk_usage, directory)
        total, free = usage.total, usage.free
    except OSError:
        error = ErrorCode.kafka_storage_error
    return answers(
        "DescribeLogDirsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=(
            answers(
                "DescribeLogDirsResult",
                error_code=error,
                log_dir=str(directory),
                topics=topics,
                total_bytes=total,
                usable_bytes=free,
                is_cordoned=False,
            ),
        ),
    )


async def _hosted(context: Context, request: Any) -> list[Partition]:
    """Return the replicas on this node that a request is about, in order."""
    if request.topics is None:
        return sorted(context.node.partitions(), key=lambda each: (each.topic, each.index))
    asked = await distinct(await bounded_parts(request.topics, name="topic"))
    found = await Turns().map(lambda place: context.node.partition(*place), asked)
    return [partition for partition in found if partition is not None]


def _partition(answers: Answers, partition: Partition) -> Any:
    return answers(
        "DescribeLogDirsPartition",
        partition_index=partition.index,
        partition_size=partition.size,
        offset_lag=max(0, partition.high_watermark - partition.end),
        is_future_key=False,
    )
