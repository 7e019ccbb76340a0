"""CreateTopics, DeleteTopics, CreatePartitions."""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.cluster.configs import describe_topic
from tidelog.cluster.model import MAX_MEMBERS, MAX_PARTITIONS, TopicState
from tidelog.kafka.admin import (
    Deadline,
    Outcome,
    bounded,
    catch_up,
    distinct,
    for_each,
    once,
    refuse_internal,
    tried,
)
from tidelog.kafka.codec import Answers
from tidelog.kafka.creation import led
from tidelog.kafka.describeconfigs import SOURCES
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused
from tidelog.kafka.versions import NO_THROTTLE
from tidelog.raft.types import NodeId

# Kafka's "as many as the cluster's default says", and its "I do not tell".
DEFAULT: Final = -1
UNKNOWN: Final = -1
# How long a new topic's answer waits for leaders. They are elected within a second, unless a
# majority of the replicas is down.
LEADERS_TIMEOUT: Final = 5.0
# What the creation or growth of one topic costs, as `Turns` count it.
CREATION_COST: Final = 20
# Partitions of one topic for which a request may say where their replicas go, and its settings.
MAX_PLACED: Final = MAX_PARTITIONS
MAX_SETTINGS: Final = 200
_TWICE: Final = Outcome(
    ErrorCode.invalid_request, "the request names this topic twice: name it once"
)

# --- CreateTopics ---------------------------------------------------------------------------------


async def handle_create_topics(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    deadline = Deadline(request.timeout)
    topics, twice = await once(bounded(request.topics), _name)

    async def work(topic: Any) -> tuple[Any, TopicState | None]:
        if topic.name in twice:
            return _created(context, answers, topic.name, None, _TWICE), None
        made, outcome = await tried(_create(context, topic, request.validate_only, deadline))
        return _created(context, answers, topic.name, made, outcome), made

    # One after the other: where the partitions of a topic go depends on those that are there.
    results = await for_each(topics, work, parallel=1, cost=CREATION_COST)
    if not request.validate_only:
        await _led(context, [made for _, made in results if made is not None], deadline)
    return answers(
        "CreateTopicsResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple([result for result, _ in results]),
    )


async def _led(context: Context, topics: Sequence[TopicState], deadline: Deadline) -> None:
    """Let the answer wait for leaders, for as long as the client waits for the answer."""
    await led(context, topics, deadline.share(LEADERS_TIMEOUT))


async def _create(
    context: Context, topic: Any, validate_only: bool, deadline: Deadline
) -> TopicState:
    refuse_internal(topic.name, None, "created by a client")
    _check_size(topic.assignments, topic.configs)
    unset = [each.name for each in topic.configs if each.value is None]
    if unset:
        raise Refused(
            ErrorCode.invalid_config, f"{', '.join(unset)}: a new topic's settings need values"
        )
    if topic.assignments and (topic.num_partitions, topic.replication_factor) != (DEFAULT, DEFAULT):
        raise Refused(
            ErrorCode.invalid_request,
            "with an explicit replica assignment, num_partitions and replication_factor must be -1",
        )
    return await context.node.controller.create_topic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {each.name: each.value for each in topic.configs},
        assignment=_in_order(topic.assignments) if topic.assignments else None,
        validate_only=validate_only,
        timeout=deadline.left(),
    )


def _check_size(assignments: Sequence[Any], configs: Sequence[Any]) -> None:
    if len(configs) > MAX_SETTINGS:
        raise Refused(
            ErrorCode.invalid_config,
            f"{len(configs)} settings for one topic: at most {MAX_SETTINGS} at a time",
        )
    if len(assignments) > MAX_PLACED or any(
        len(each.broker_ids) > MAX_MEMBERS for each in assignments
    ):
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"a topic has at most {MAX_PLACED} partitions, and one of them at most {MAX_MEMBERS}"
            " replicas",
        )


def _name(topic: Any) -> str:
    name: str = topic.name
    return name


def _in_order(assignments: Sequence[Any]) -> list[tuple[NodeId, ...]]:
    """Return the nodes of each partition, which may come in any order but must all be there."""
    by_index = {each.partition_index: _nodes(each) for each in assignments}
    if sorted(by_index) != list(range(len(assignments))):
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"replicas for partitions {sorted(each.partition_index for each in assignments)[:20]}:"
            " name each partition once, from 0 on without a gap",
        )
    _check_widths(by_index.values(), len(by_index[0]))
    return [by_index[index] for index in range(len(by_index))]


def _check_widths(assignment: Iterable[tuple[NodeId, ...]], width: int) -> None:
    for nodes in assignment:
        if len(nodes) != width:
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                f"a partition with {len(nodes)} replicas and one with {width}: all partitions of a"
                " topic have equally many",
            )


def _nodes(assignment: Any) -> tuple[NodeId, ...]:
    return tuple(NodeId(node) for node in assignment.broker_ids)


def _created(
    context: Context, answers: Answers, name: str, topic: TopicState | None, outcome: Outcome
) -> Any:
    if topic is None:
        return answers(
            "CreatableTopicResult",
            name=name,
            topic_id=None,
            error_code=outcome.code,
            error_message=outcome.message,
            num_partitions=UNKNOWN,
            replication_factor=UNKNOWN,
            configs=(),
        )
    return answers(
        "CreatableTopicResult",
        name=name,
        topic_id=topic.id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        configs=_settings(context, answers, topic),
    )


def _settings(context: Context, answers: Answers, topic: TopicState) -> tuple[Any, ...]:
    if not answers.has("CreatableTopicResult", "configs"):
        return ()
    return tuple(
        answers(
            "CreatableTopicConfigs",
            name=each.name,
            value=each.value,
            read_only=False,
            config_source=SOURCES[each.source],
            is_sensitive=False,
        )
        for each in describe_topic(topic.config, context.node.state.config)
    )


# --- DeleteTopics ---------------------------------------------------------------------------------


async def handle_delete_topics(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    deadline = Deadline(request.timeout)
    if request.__version__ < 6:
        asked = [(name, None) for name in bounded(request.topic_names)]
    else:
        asked = [(topic.name, topic.topic_id) for topic in bounded(request.topics)]
    await catch_up(context, (name for name, _ in asked))
    _, twice = await once(asked, lambda each: _meant(context, *each))

    async def work(asked: tuple[str | None, UUID | None]) -> Any:
        name, topic_id = asked
        meant = _meant(context, name, topic_id)
        topic = None if meant is None else context.node.state.topics.get(meant)
        outcome = _TWICE
        if meant is None or meant not in twice:
            _, outcome = await tried(_delete(context, name, topic_id, meant, deadline))
        return answers(
            "DeletableTopicResult",
            name=meant,
            topic_id=topic_id if topic is None else topic.id,
            error_code=outcome.code,
            error_message=outcome.message,
        )

    return answers(
        "DeleteTopicsResponse",
        throttle_time=NO_THROTTLE,
        responses=tuple(await for_each(await distinct(asked), work)),
    )


def _meant(context: Context, name: str | None, topic_id: UUID | None) -> str | None:
    """Return the name of the topic that is meant; None if the id is of none."""
    if name is not None or topic_id is None:
        return name
    topic = context.node.state.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


async def _delete(
    context: Context,
    name: str | None,
    topic_id: UUID | None,
    meant: str | None,
    deadline: Deadline,
) -> None:
    if (name is None) == (topic_id is None):
        raise Refused(
            ErrorCode.invalid_request, "name a topic by its name or by its id: one of both"
        )
    if meant is None:
        raise Refused(ErrorCode.unknown_topic_id, f"there is no topic of id {topic_id}")
    refuse_internal(meant, context.node.state.topics.get(meant), "deleted")
    await context.node.controller.delete_topic(meant, timeout=deadline.left())


# --- CreatePartitions -----------------------------------------------------------------------------


async def handle_create_partitions(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    deadline = Deadline(request.timeout)
    topics, twice = await once(bounded(request.topics), _name)
    await catch_up(context, (topic.name for topic in topics))

    async def work(topic: Any) -> tuple[Any, TopicState | None]:
        grown, outcome = None, _TWICE
        if topic.name not in twice:
            grown, outcome = await tried(_grow(context, topic, request.validate_only, deadline))
        result = answers(
            "CreatePartitionsTopicResult",
            name=topic.name,
            error_code=outcome.code,
            error_message=outcome.message,
        )
        return result, grown

    results = await for_each(topics, work, parallel=1, cost=CREATION_COST)
    if not request.validate_only:
        await _led(context, [grown for _, grown in results if grown is not None], deadline)
    return answers(
        "CreatePartitionsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple([result for result, _ in results]),
    )


async def _grow(
    context: Context, topic: Any, validate_only: bool, deadline: Deadline
) -> TopicState:
    known = context.node.state.topics.get(topic.name)
    refuse_internal(topic.name, known, "given more partitions: its groups would be lost")
    assignment = None
    _check_size(topic.assignments or (), ())
    if topic.assignments is not None:
        assignment = [_nodes(each) for each in topic.assignments]
        if known is not None:
            _check_widths(assignment, known.replication_factor)
    return await context.node.controller.add_partitions(
        topic.name,
        topic.count,
        assignment=assignment,
        validate_only=validate_only,
        timeout=deadline.left(),
    )
