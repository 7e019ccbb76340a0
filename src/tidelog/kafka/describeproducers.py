"""DescribeProducers: who writes to a partition with sequence numbers, as this replica remembers.

What is remembered is a fold of the log and has no clock, so the time of a last write is not known.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.errors import ClusterError
from tidelog.cluster.model import check_topic_name
from tidelog.cluster.partition import Partition
from tidelog.kafka.admin import DONE, Outcome, bounded_parts, by_topic, distinct
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE
from tidelog.machines import Producers
from tidelog.machines.producers import Producer

# Producers in one answer, about 10 MB of objects while it is written.
MAX_DESCRIBED: Final = 50_000
# Kafka's "unknown" and "none".
_NONE: Final = -1


async def handle_describe_producers(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    asked = await bounded_parts(request.topics, parts="partition_indexes")
    left = MAX_DESCRIBED
    turns = Turns()
    parts: list[tuple[str, Any]] = []
    for name, index in await distinct(asked):
        partition = context.node.partition(name, index)
        producers = None if partition is None else _producers(partition)
        count = 0 if producers is None else len(producers)
        outcome = _outcome(context, name, index, partition)
        if count > left:
            producers, outcome = None, _TOO_MANY
        else:
            left -= count
        part = answers(
            "PartitionResponse",
            partition_index=index,
            error_code=outcome.code,
            error_message=outcome.message,
            active_producers=await turns.map(
                lambda each: _producer(answers, *each), tuple(producers or ())
            ),
        )
        parts.append((name, part))
        await turns.done()
    return answers(
        "DescribeProducersResponse",
        throttle_time=NO_THROTTLE,
        topics=await by_topic(
            parts,
            lambda name, partitions: answers("TopicResponse", name=name, partitions=partitions),
        ),
    )


_TOO_MANY: Final = Outcome(
    ErrorCode.invalid_request,
    f"more than {MAX_DESCRIBED} producers are too many for one answer: ask for fewer partitions",
)


def _producers(partition: Partition) -> Producers:
    machines = partition.replica.machines.machines
    return next(machine for machine in machines if isinstance(machine, Producers))


def _outcome(context: Context, name: str, index: int, partition: Partition | None) -> Outcome:
    if partition is not None:
        return DONE
    try:
        check_topic_name(name)
        context.node.state.partition_at(name, index)
    except ClusterError as error:
        return Outcome.of(error)
    return Outcome(ErrorCode.not_leader_or_follower, f"this node has no replica of {name}/{index}")


def _producer(answers: Answers, producer_id: int, producer: Producer) -> Any:
    return answers(
        "ProducerState",
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.window[-1].last_sequence if producer.window else _NONE,
        last_timestamp=_NONE,
        coordinator_epoch=_NONE,
        current_txn_start_offset=_NONE,
    )
