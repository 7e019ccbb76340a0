"""DeleteRecords: make a partition begin later."""

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.partition import Partition, ProduceFailed
from tidelog.kafka.admin import Deadline, bounded_parts, by_topic, for_each, refuse_internal, tried
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused, leader_for
from tidelog.kafka.versions import NO_THROTTLE
from tidelog.raft.events import Refusal

# Kafka's "all that readers may see".
HIGH_WATERMARK: Final = -1
_NO_OFFSET: Final = -1
# What is not here means that somebody else leads by now.
_FAILURES: Final = {
    Refusal.STORAGE: ErrorCode.kafka_storage_error,
    Refusal.BUSY: ErrorCode.request_timed_out,
    Refusal.UNKNOWN: ErrorCode.request_timed_out,
}


async def handle_delete_records(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    deadline = Deadline(request.timeout)
    asked = await bounded_parts(request.topics)

    async def work(item: tuple[str, Any]) -> tuple[str, Any]:
        name, part = item
        start, outcome = await tried(_delete(context, name, part, deadline))
        return name, answers(
            "DeleteRecordsPartitionResult",
            partition_index=part.partition_index,
            low_watermark=_NO_OFFSET if start is None else start,
            error_code=outcome.code,
        )

    return answers(
        "DeleteRecordsResponse",
        throttle_time=NO_THROTTLE,
        topics=await by_topic(
            await for_each(asked, work),
            lambda name, partitions: answers(
                "DeleteRecordsTopicResult", name=name, partitions=partitions
            ),
        ),
    )


async def _delete(context: Context, name: str, part: Any, deadline: Deadline) -> int:
    """Return where the partition begins now."""
    refuse_internal(name, context.node.state.topics.get(name), "cut by a client")
    partition = leader_for(context, name, part.partition_index)
    if isinstance(partition, ErrorCode):
        raise Refused(partition, f"this node does not lead {name}/{part.partition_index}")
    if not partition.config.deletes:
        raise Refused(
            ErrorCode.policy_violation,
            f"topic {name} is compacted and nothing of it is deleted: add delete to cleanup.policy",
        )
    end = partition.high_watermark
    offset = end if part.offset == HIGH_WATERMARK else part.offset
    if not 0 <= offset <= end:
        raise Refused(
            ErrorCode.offset_out_of_range,
            f"offset {offset} of {name}/{part.partition_index} is not within 0 and {end}",
        )
    return await _start_at(partition, offset, deadline)


async def _start_at(partition: Partition, offset: int, deadline: Deadline) -> int:
    done: asyncio.Future[int | ProduceFailed] = asyncio.get_running_loop().create_future()

    def resolve(outcome: int | ProduceFailed) -> None:
        if not done.done():
            done.set_result(outcome)

    partition.delete_before(offset, resolve)
    try:
        async with asyncio.timeout(deadline.left()):
            outcome = await done
    except TimeoutError:
        raise Refused(
            ErrorCode.request_timed_out, "the deletion may still be known to a majority, or not"
        ) from None
    if isinstance(outcome, ProduceFailed):
        raise Refused(
            _FAILURES.get(outcome.why, ErrorCode.not_leader_or_follower), outcome.why.value
        )
    return outcome
