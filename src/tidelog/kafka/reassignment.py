"""AlterPartitionReassignments and ListPartitionReassignments: move replicas to other nodes."""

from collections.abc import Iterable, Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from tidelog.cluster.model import MAX_MEMBERS, PartitionState, TopicState
from tidelog.kafka.admin import Deadline, bounded_parts, by_topic, distinct, for_each, tried
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE
from tidelog.raft.types import NodeId

# --- AlterPartitionReassignments ------------------------------------------------------------------


async def handle_alter_partition_reassignments(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    deadline = Deadline(request.timeout)
    may_resize = getattr(request, "allow_replication_factor_change", True)
    asked = await bounded_parts(request.topics)

    async def work(item: tuple[str, Any]) -> tuple[str, Any]:
        name, part = item
        _, outcome = await tried(_reassign(context, name, part, may_resize, deadline))
        return name, answers(
            "ReassignablePartitionResponse",
            partition_index=part.partition_index,
            error_code=outcome.code,
            error_message=outcome.message,
        )

    return answers(
        "AlterPartitionReassignmentsResponse",
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=may_resize,
        error_code=ErrorCode.none,
        error_message=None,
        responses=await by_topic(
            await for_each(asked, work),
            lambda name, partitions: answers(
                "ReassignableTopicResponse", name=name, partitions=partitions
            ),
        ),
    )


async def _reassign(
    context: Context, name: str, part: Any, may_resize: bool, deadline: Deadline
) -> None:
    node = context.node
    index = part.partition_index
    partition = node.state.partition_at(name, index)
    if part.replicas is None:
        await node.controller.cancel_reassign(name, index, timeout=deadline.left())
        return
    before = len(partition.target or partition.replicas)
    if not may_resize and len(part.replicas) != before:
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"{name}/{index} has {before} replicas, and the request allows no other number than"
            f" that: not {len(part.replicas)}",
        )
    if len(part.replicas) > MAX_MEMBERS:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"{len(part.replicas)} replicas for {name}/{index}: a cluster has at most"
            f" {MAX_MEMBERS} nodes",
        )
    replicas = [NodeId(each) for each in part.replicas]
    await node.controller.reassign(name, index, replicas, timeout=deadline.left())


# --- ListPartitionReassignments -------------------------------------------------------------------


async def handle_list_partition_reassignments(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    turns = Turns()
    moving = [
        (topic.name, partition)
        for topic, partition in await turns.each(await _wanted(context, request.topics))
        if partition.moves
    ]
    told = await turns.map(lambda each: (each[0], _ongoing(answers, each[1])), moving)
    return answers(
        "ListPartitionReassignmentsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        topics=await by_topic(
            told,
            lambda name, partitions: answers(
                "OngoingTopicReassignment", name=name, partitions=partitions
            ),
        ),
    )


async def _wanted(
    context: Context, asked: Iterable[Any] | None
) -> Iterator[tuple[TopicState, PartitionState]]:
    """Return the partitions that a request is about; those that do not exist are not moving."""
    if asked is None:
        # As they are now: topics may come and go while this request takes turns.
        topics = sorted(context.node.state.topics.items())
        return ((topic, partition) for _, topic in topics for partition in topic.partitions)
    places = await distinct(await bounded_parts(asked, parts="partition_indexes"))

    def exists(place: tuple[str, int]) -> bool:
        topic = context.node.state.topics.get(place[0])
        return topic is not None and 0 <= place[1] < len(topic.partitions)

    existing = await Turns().pick(exists, places)
    known = context.node.state.topics
    return (
        (topic, topic.partitions[index])
        for name, index in existing
        if (topic := known.get(name)) is not None and index < len(topic.partitions)
    )


def _ongoing(answers: Answers, partition: PartitionState) -> Any:
    before = partition.nodes
    after = tuple(replica.id for replica in partition.target or ())
    return answers(
        "OngoingPartitionReassignment",
        partition_index=partition.index,
        # Kafka's order: where the replicas shall be, then those that will go.
        replicas=tuple(dict.fromkeys((*after, *before))),
        adding_replicas=tuple(node for node in after if node not in before),
        removing_replicas=tuple(node for node in before if node not in after),
    )
