"""DescribeConfigs: settings of topics, of nodes and of the cluster, where they come from, what for.

Kafka knows a default for all brokers (a broker without a name) and settings of single ones. Here
the former are the cluster's settings, which every node obeys, and the latter are what a node was
started with, which can only be read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.configs import Described, Source, describe_cluster, describe_topic
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.model import check_topic_name
from tidelog.cluster.options import OptionType
from tidelog.kafka.admin import DONE, Outcome, bounded, catch_up, for_each, once
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused
from tidelog.kafka.versions import NO_THROTTLE


class Resource(IntEnum):
    """What has settings, in Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


# What one resource costs with all its settings, as `Turns` count it.
RESOURCE_COST: Final = 50
# Where a value comes from, in Kafka's numbers.
SOURCES: Final = {Source.TOPIC: 1, Source.CLUSTER: 3, Source.DEFAULT: 5}
_STATIC: Final = 4
TYPES: Final = {
    OptionType.BOOLEAN: 1,
    OptionType.STRING: 2,
    OptionType.INT: 3,
    OptionType.SHORT: 4,
    OptionType.LONG: 5,
    OptionType.DOUBLE: 6,
    OptionType.LIST: 7,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as an answer tells it."""

    name: str
    value: str | None
    source: int
    type: OptionType
    doc: str
    synonyms: tuple[tuple[str, str | None, int], ...]  # name, value, source; the one in force first


async def handle_describe_configs(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    resources, _ = await once(
        bounded(request.resources), lambda each: (each.resource_type, each.resource_name)
    )
    await catch_up(context, topics_of(request))

    async def work(resource: Any) -> Any:
        return _resource(context, answers, request, resource)

    return answers(
        "DescribeConfigsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(await for_each(resources, work, cost=RESOURCE_COST)),
    )


def topics_of(request: Any) -> list[str]:
    """Return the topics among the resources that a request is about."""
    return [
        resource.resource_name
        for resource in request.resources
        if resource.resource_type == Resource.TOPIC
    ]


def _resource(context: Context, answers: Answers, request: Any, resource: Any) -> Any:
    settings: Iterable[Setting] = ()
    outcome = DONE
    try:
        settings = list(_settings(context, resource))
    except (ClusterError, Refused) as error:
        outcome = Outcome.of(error)
    wanted = set(resource.configuration_keys or ())
    return answers(
        "DescribeConfigsResult",
        error_code=outcome.code,
        error_message=outcome.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _setting(answers, request, setting)
            for setting in settings
            if not wanted or setting.name in wanted
        ),
    )


def _setting(answers: Answers, request: Any, setting: Setting) -> Any:
    return answers(
        "DescribeConfigsResourceResult",
        name=setting.name,
        value=setting.value,
        read_only=setting.source == _STATIC,
        config_source=setting.source,
        is_sensitive=False,
        synonyms=tuple(
            answers("DescribeConfigsSynonym", name=name, value=value, source=source)
            for name, value, source in (setting.synonyms if request.include_synonyms else ())
        ),
        config_type=TYPES[setting.type],
        documentation=setting.doc if getattr(request, "include_documentation", False) else None,
    )


# --- Which settings a resource has ----------------------------------------------------------------


def _settings(context: Context, resource: Any) -> Iterator[Setting]:
    name = resource.resource_name
    match resource.resource_type:
        case Resource.TOPIC:
            return _of_topic(context, name)
        case Resource.BROKER if not name:
            return _of_cluster(context)
        case Resource.BROKER:
            check_this_node(context, name)
            return _of_node(context)
        case Resource.BROKER_LOGGER:
            check_this_node(context, name)
            return iter(())
        case Resource.CLIENT_METRICS | Resource.GROUP if name:
            return iter(())  # they have none of their own
    raise unknown_resource(resource)


def unknown_resource(resource: Any) -> Refused:
    return Refused(
        ErrorCode.invalid_request,
        f"a resource of type {resource.resource_type} with the name"
        f" {resource.resource_name[:80]!r} has no settings: ask for a topic (2) or a broker (4)",
    )


def check_this_node(context: Context, name: str) -> None:
    """Raise unless a resource that only this node can speak for is this node."""
    if name != str(context.node.id):
        raise Refused(
            ErrorCode.invalid_request,
            f"this is node {context.node.id} and not {name[:80]!r}: send the request to that node",
        )


def _of_topic(context: Context, name: str) -> Iterator[Setting]:
    check_topic_name(name)
    state = context.node.state
    topic = state.topic(name)
    return map(_from_option, describe_topic(topic.config, state.config))


def _of_cluster(context: Context) -> Iterator[Setting]:
    """Return what was set for all nodes; what was not is a matter of each node."""
    for described in describe_cluster(context.node.state.config):
        if described.source is Source.CLUSTER:
            yield _from_option(replace(described, synonyms=described.synonyms[:1]))


def _of_node(context: Context) -> Iterator[Setting]:
    yield from _given_at_start(context)
    yield from map(_from_option, describe_cluster(context.node.state.config))


def _from_option(described: Described) -> Setting:
    return Setting(
        described.name,
        described.value,
        SOURCES[described.source],
        described.option.type,
        described.option.doc,
        tuple(
            (synonym.name, synonym.value, SOURCES[synonym.source]) for synonym in described.synonyms
        ),
    )


def _given_at_start(context: Context) -> Iterator[Setting]:
    """Return what the node's file says, under the names that Kafka gives it."""
    config = context.node.config
    for name, value, type, doc in (
        (
            "advertised.listeners",
            f"PLAINTEXT://{context.advertised}",
            OptionType.STRING,
            "Where clients reach this node.",
        ),
        ("broker.id", str(context.node.id), OptionType.INT, "The id of this node."),
        ("broker.rack", config.rack, OptionType.STRING, "The rack that this node stands in."),
        ("log.dirs", str(config.data), OptionType.STRING, "Where this node keeps its data."),
        ("node.id", str(context.node.id), OptionType.INT, "The id of this node."),
    ):
        yield Setting(name, value, _STATIC, type, doc, ((name, value, _STATIC),))
