"""AlterConfigs and IncrementalAlterConfigs: change settings of topics and of the cluster, live.

AlterConfigs says all that shall be set from now on, and takes back what it does not mention;
IncrementalAlterConfigs says what shall change.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.configs import Described, describe_cluster, describe_topic
from tidelog.cluster.options import OptionType
from tidelog.cluster.topicoptions import CLUSTER_OPTIONS, TOPIC_DEFAULTS, TOPIC_OPTIONS
from tidelog.kafka.admin import (
    DEFAULT_TIMEOUT,
    Deadline,
    Outcome,
    bounded,
    catch_up,
    for_each,
    once,
    tried,
)
from tidelog.kafka.codec import Answers
from tidelog.kafka.describeconfigs import RESOURCE_COST, Resource, topics_of, unknown_resource
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused
from tidelog.kafka.versions import NO_THROTTLE

Changes = dict[str, str | None]

# Of one resource: several times as many as there are.
MAX_SETTINGS: Final = 200

_TWICE: Final = Outcome(
    ErrorCode.invalid_request, "the request names this resource twice: name it once"
)


class Operation(IntEnum):
    """What shall be done to a setting, in Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle_alter_configs(context: Context, request: Any) -> Any:
    return await _alter(context, request, "AlterConfigsResponse", _replacing)


async def handle_incremental_alter_configs(context: Context, request: Any) -> Any:
    return await _alter(context, request, "IncrementalAlterConfigsResponse", _changing)


async def _alter(
    context: Context, request: Any, name: str, plan: Callable[[Context, Any], Changes]
) -> Any:
    answers = Answers.to(request)
    deadline = Deadline(DEFAULT_TIMEOUT)
    resources, twice = await once(bounded(request.resources), _key)
    await catch_up(context, topics_of(request))

    async def work(resource: Any) -> Any:
        outcome = _TWICE
        if _key(resource) not in twice:
            _, outcome = await tried(
                _apply(context, resource, plan, request.validate_only, deadline)
            )
        return answers(
            "AlterConfigsResourceResponse",
            error_code=outcome.code,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return answers(
        name,
        throttle_time=NO_THROTTLE,
        responses=tuple(await for_each(resources, work, cost=RESOURCE_COST)),
    )


def _key(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


async def _apply(
    context: Context,
    resource: Any,
    plan: Callable[[Context, Any], Changes],
    validate_only: bool,
    deadline: Deadline,
) -> None:
    if len(resource.configs) > MAX_SETTINGS:
        raise Refused(
            ErrorCode.invalid_request,
            f"{len(resource.configs)} settings for one resource: at most {MAX_SETTINGS} at a time",
        )
    if _takes_back_nothing(resource):
        return
    _check(resource)
    changes = plan(context, resource)
    controller = context.node.controller
    if resource.resource_type == Resource.TOPIC:
        await controller.set_topic_config(
            resource.resource_name, changes, validate_only=validate_only, timeout=deadline.left()
        )
    else:
        await controller.set_cluster_config(
            changes, validate_only=validate_only, timeout=deadline.left()
        )


def _takes_back_nothing(resource: Any) -> bool:
    """Whether this takes back settings of one node, which has none that could be taken back.

    Kafka's tool for reassignments does so when it is done, and must not fail for it.
    """
    return (
        resource.resource_type == Resource.BROKER
        and resource.resource_name != ""
        and all(
            getattr(each, "config_operation", Operation.SET) == Operation.DELETE
            for each in resource.configs
        )
    )


def _check(resource: Any) -> None:
    """Raise unless this is a resource whose settings can be changed, each named once."""
    name = resource.resource_name
    match resource.resource_type:
        case Resource.BROKER if name:
            raise Refused(
                ErrorCode.invalid_request,
                f"node {name[:80]} has no settings of its own that can change while it runs: change"
                " those of all nodes (a broker without a name), or its file",
            )
        case Resource.BROKER_LOGGER | Resource.CLIENT_METRICS | Resource.GROUP:
            kind = Resource(resource.resource_type).name.lower().replace("_", " ")
            raise Refused(
                ErrorCode.invalid_request, f"a {kind} has no settings here that can be changed"
            )
        case Resource.TOPIC if name:
            pass
        case Resource.BROKER:
            pass
        case _:
            raise unknown_resource(resource)
    names = Counter(each.name for each in resource.configs)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise Refused(
            ErrorCode.invalid_request, f"{', '.join(sorted(twice))}: name each setting once"
        )


def _refuse_null(names: Iterable[str]) -> None:
    missing = sorted(names)
    if missing:
        raise Refused(
            ErrorCode.invalid_request, f"{', '.join(missing)}: a setting cannot be set to nothing"
        )


def _replacing(context: Context, resource: Any) -> Changes:
    """Return the changes after which exactly this is set."""
    _refuse_null(each.name for each in resource.configs if each.value is None)
    # All that could be set is taken back, and not only what this node knows to be: another node may
    # have set more a moment ago.
    state = context.node.state
    if resource.resource_type == Resource.TOPIC:
        changes: Changes = dict.fromkeys(
            (*TOPIC_OPTIONS, *state.topic(resource.resource_name).config)
        )
    else:
        changes = dict.fromkeys((*CLUSTER_OPTIONS, *TOPIC_DEFAULTS, *state.config))
    return {**changes, **{each.name: each.value for each in resource.configs}}


def _changing(context: Context, resource: Any) -> Changes:
    """Return the changes that single operations come to."""
    _refuse_null(
        each.name
        for each in resource.configs
        if each.value is None and each.config_operation != Operation.DELETE
    )
    state = context.node.state
    if resource.resource_type == Resource.TOPIC:
        topic = state.topic(resource.resource_name)
        described = describe_topic(topic.config, state.config)
    else:
        described = describe_cluster(state.config)
    known = {each.name: each for each in described}
    return {each.name: _changed(each, known) for each in resource.configs}


def _changed(change: Any, known: Mapping[str, Described]) -> str | None:
    name: str = change.name
    value: str = change.value
    match change.config_operation:
        case Operation.SET:
            return value
        case Operation.DELETE:
            return None
        case Operation.APPEND:
            items = _items(name, known)
            return ",".join((*items, *(item for item in _split(value) if item not in items)))
        case Operation.SUBTRACT:
            unwanted = _split(value)
            return ",".join(item for item in _items(name, known) if item not in unwanted)
    raise Refused(
        ErrorCode.invalid_request,
        f"{name[:80]}: operation {change.config_operation} is not known: 0 sets, 1 takes back, 2"
        " appends to a list, 3 removes from it",
    )


def _items(name: str, known: Mapping[str, Described]) -> list[str]:
    """Return what is in a list now."""
    setting = known.get(name)
    if setting is None or setting.option.type is not OptionType.LIST:
        lists = sorted(each.name for each in known.values() if each.option.type is OptionType.LIST)
        raise Refused(
            ErrorCode.invalid_config,
            f"{name[:80]!r} is no list, so nothing can be added to it or taken from it; lists are"
            f" {', '.join(lists)}",
        )
    return _split(setting.value)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
