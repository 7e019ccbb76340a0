"""Metadata and DescribeTopicPartitions: which topics there are, and who leads their partitions."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.cluster.configs import ClusterConfig
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import PartitionState, TopicState, check_topic_name
from tidelog.kafka import view
from tidelog.kafka.admin import bounded, catch_up
from tidelog.kafka.codec import Answers
from tidelog.kafka.creation import ensure_topic
from tidelog.kafka.dispatch import Context, Disconnect
from tidelog.kafka.errors import code_of
from tidelog.kafka.fresh import Fresh
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE

# Topics that one request may bring into being; the client asks again for the others.
MAX_CREATED: Final = 64
# The first version whose answers may leave out the name of a topic that is known by its id alone.
FIRST_NAMELESS: Final = 12
# Partitions in one answer of DescribeTopicPartitions, whatever the client asks for.
MAX_DESCRIBED: Final = 2000


class MetadataHandlers:
    """What clients learn from one listener."""

    def __init__(self) -> None:
        self._fresh = Fresh()

    async def metadata(self, context: Context, request: Any) -> Any:
        if request.topics and not _may_create(context, request):
            await catch_up(context, (each.name for each in request.topics))
        wanted = await _wanted(context, request)
        await self._fresh.led(context, wanted)
        return await _metadata(context, request, wanted)

    async def describe_topic_partitions(self, context: Context, request: Any) -> Any:
        """Describe topics page by page: the cursor of an answer is where the next one goes on."""
        names = [topic.name for topic in bounded(request.topics)]
        await catch_up(context, names)
        topics = context.node.state.topics
        there = (topics[name] for name in names if name in topics)
        await self._fresh.led(context, list(islice(there, MAX_DESCRIBED)))
        return await _describe(context, request)


async def _metadata(context: Context, request: Any, wanted: "list[TopicState | Missing]") -> Any:
    answers = Answers.to(request)
    turns = Turns()
    _check_knows(context, request, wanted)
    topics = await turns.wait(lambda topic: _topic(context, answers, request, topic, turns), wanted)
    return answers(
        "MetadataResponse",
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            answers(
                "MetadataResponseBroker",
                node_id=broker.id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
            )
            for broker in view.brokers(context, recent=True)
        ),
        cluster_id=context.node.state.cluster_id,
        controller_id=view.controller_id(context),
        topics=topics,
        cluster_authorized_operations=(
            view.CLUSTER_OPERATIONS
            if getattr(request, "include_cluster_authorized_operations", False)
            else view.UNKNOWN_OPERATIONS
        ),
        error_code=ErrorCode.none,
    )


def _check_knows(context: Context, request: Any, wanted: "list[TopicState | Missing]") -> None:
    """Send a client elsewhere that asks a node without contact for leaders that it knows not.

    Clients ask whom they asked last for as long as that one answers, so such an answer would be
    worse than none. Those who ask for all topics only want to see them.
    """
    if not request.topics or not view.is_cut_off(context):
        return
    for topic in wanted:
        if isinstance(topic, Missing):
            continue
        for partition in topic.partitions:
            if context.node.leader_of(topic.name, partition.index)[0] is None:
                raise Disconnect(
                    "this node has no contact with most of the others and cannot say who leads"
                    f" {topic.name}/{partition.index}"
                )


class Missing:
    """A topic that was asked for and is not there, and why."""

    __slots__ = ("error", "id", "name")

    def __init__(self, name: str | None, topic_id: UUID | None, error: ErrorCode) -> None:
        self.name = name
        self.id = topic_id
        self.error = error


async def _wanted(context: Context, request: Any) -> list[TopicState | Missing]:
    """Return the topics that a request asks for, each once."""
    state = context.node.state
    asked = request.topics
    if asked is None or (request.__version__ == 0 and not asked):
        return [topic for _, topic in sorted(state.topics.items())]
    found: list[TopicState | Missing] = []
    seen: set[str | UUID] = set()
    created = 0
    turns = Turns()
    for each in asked:
        await turns.done()
        # An id counts before a name: Java's clients send an empty name with it, others null.
        topic_id: UUID | None = getattr(each, "topic_id", None)
        key = topic_id or each.name
        if key is None or key in seen:
            continue
        seen.add(key)
        if topic_id is not None:
            by_id = state.topics_by_id.get(topic_id)
            # Answers could not leave the name out at first, though requests could.
            no_name = None if request.__version__ >= FIRST_NAMELESS else ""
            found.append(by_id or Missing(no_name, topic_id, ErrorCode.unknown_topic_id))
        elif (by_name := state.topics.get(each.name)) is not None:
            found.append(by_name)
        elif created < MAX_CREATED:
            created += 1
            found.append(await _absent(context, request, each.name))
        else:
            found.append(Missing(each.name, None, ErrorCode.leader_not_available))
    return found


async def _absent(context: Context, request: Any, name: str) -> TopicState | Missing:
    """Create a topic that is not there if the client wants it and the cluster allows it."""
    try:
        check_topic_name(name)
        if not _may_create(context, request):
            return Missing(name, None, ErrorCode.unknown_topic_or_partition)
        return await ensure_topic(context, name)
    except ClusterError as error:
        if error.problem in {Problem.TIMEOUT, Problem.UNAVAILABLE, Problem.NOT_CONTROLLER}:
            return Missing(name, None, ErrorCode.leader_not_available)
        return Missing(name, None, code_of(error))


def _may_create(context: Context, request: Any) -> bool:
    """Tell whether the client wants a missing topic to be created, and the cluster allows it."""
    allowed: bool = getattr(request, "allow_auto_topic_creation", True)
    return allowed and ClusterConfig.from_strings(context.node.state.config).auto_create_topics


async def _topic(
    context: Context, answers: Answers, request: Any, topic: TopicState | Missing, turns: Turns
) -> Any:
    missing = isinstance(topic, Missing)
    return answers(
        "MetadataResponseTopic",
        error_code=topic.error if isinstance(topic, Missing) else ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=False if isinstance(topic, Missing) else topic.internal,
        partitions=()
        if isinstance(topic, Missing)
        else await turns.map(
            lambda each: _partition(context, answers, topic, each), topic.partitions
        ),
        topic_authorized_operations=(
            view.TOPIC_OPERATIONS
            if not missing and getattr(request, "include_topic_authorized_operations", False)
            else view.UNKNOWN_OPERATIONS
        ),
    )


def _partition(
    context: Context, answers: Answers, topic: TopicState, partition: PartitionState
) -> Any:
    seen = view.view(context, topic, partition)
    return answers(
        "MetadataResponsePartition",
        error_code=seen.error,
        partition_index=seen.index,
        leader_id=seen.leader,
        leader_epoch=seen.epoch,
        replica_nodes=seen.replicas,
        isr_nodes=seen.in_sync,
        offline_replicas=seen.offline,
    )


# --- DescribeTopicPartitions ----------------------------------------------------------------------


async def _describe(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    turns = Turns()
    left = max(1, min(request.response_partition_limit, MAX_DESCRIBED))
    topics: list[Any] = []
    cursor = None
    for name, first in _places(context, request):
        topic = context.node.state.topics.get(name)
        if topic is not None and left == 0:
            cursor = answers("Cursor", topic_name=name, partition_index=first)
            break
        chosen = () if topic is None else topic.partitions[first : first + left]
        topics.append(await _described(context, answers, name, topic, chosen, turns))
        await turns.done()
        left -= len(chosen)
        if topic is not None and first + len(chosen) < len(topic.partitions):
            cursor = answers("Cursor", topic_name=name, partition_index=first + len(chosen))
            break
    return answers(
        "DescribeTopicPartitionsResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(topics),
        next_cursor=cursor,
    )


def _places(context: Context, request: Any) -> Iterator[tuple[str, int]]:
    """Return the topics in order of their names, each with the partition to begin at."""
    names = {topic.name for topic in request.topics} or set(context.node.state.topics)
    cursor = request.cursor
    for name in sorted(names):
        if cursor is None or name > cursor.topic_name:
            yield name, 0
        elif name == cursor.topic_name:
            yield name, max(0, cursor.partition_index)


async def _described(
    context: Context,
    answers: Answers,
    name: str,
    topic: TopicState | None,
    partitions: tuple[PartitionState, ...],
    turns: Turns,
) -> Any:
    if topic is None:
        return answers(
            "DescribeTopicPartitionsResponseTopic",
            error_code=_why_unknown(name),
            name=name,
            topic_id=None,
            partitions=(),
        )
    return answers(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=await turns.map(
            lambda each: _described_partition(context, answers, topic, each), partitions
        ),
        topic_authorized_operations=view.TOPIC_OPERATIONS,
    )


def _why_unknown(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except ClusterError as error:
        return code_of(error)
    return ErrorCode.unknown_topic_or_partition


def _described_partition(
    context: Context, answers: Answers, topic: TopicState, partition: PartitionState
) -> Any:
    seen = view.view(context, topic, partition)
    return answers(
        "DescribeTopicPartitionsResponsePartition",
        error_code=seen.error,
        partition_index=seen.index,
        leader_id=seen.leader,
        leader_epoch=seen.epoch,
        replica_nodes=seen.replicas,
        isr_nodes=seen.in_sync,
        # Raft may elect any replica that has what is committed, so there is no such list apart.
        # Empty, not null, though null is allowed: Kafka's own tools fail on it.
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=seen.offline,
    )
