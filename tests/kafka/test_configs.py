"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import Desk, versions

from tidelog.cluster.topicoptions import CLUSTER_OPTIONS, TOPIC_DEFAULTS, TOPIC_OPTIONS

DESCRIBE, ALTER, CHANGE = 32, 33, 44
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, TAKE_BACK, APPEND, SUBTRACT = range(4)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk in front of a cluster with one topic."""
    desk = Desk(tmp_path)
    desk.create("tides", retention_ms="1000")
    return desk


def describe(
    desk: Desk, kind: int, name: str, keys: list[str] | None = None, *, version: int = 4
) -> Any:
    """Describe one resource with all that can be told of it."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = desk.ask(
        DESCRIBE, version, resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def values(result: Any) -> dict[str, str | None]:
    """Return the settings of a result, by name."""
    return {each.name: each.value for each in result.configs}


def alter(
    desk: Desk, kind: int, name: str, settings: dict[str, str | None], version: int = 2
) -> Any:
    """Replace all settings of a resource."""
    configs = [{"name": key, "value": value} for key, value in settings.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = desk.ask(ALTER, version, resources=[resource], validate_only=False)
    (result,) = answer.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def change(
    desk: Desk,
    kind: int,
    name: str,
    *operations: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> Any:
    """Change some settings of a resource."""
    configs = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in operations
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = desk.ask(CHANGE, version, resources=[resource], validate_only=validate_only)
    (result,) = answer.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def config(desk: Desk) -> dict[str, str]:
    """Return what is set for the topic."""
    return dict(desk.node.state.topics["tides"].config)


# --- DescribeConfigs ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_every_version_describes_all_settings_of_a_topic(desk: Desk, version: int) -> None:
    result = describe(desk, TOPIC, "tides", version=version)
    assert result.error_code is ErrorCode.none
    assert values(result).keys() == TOPIC_OPTIONS.keys()
    assert not any(each.read_only or each.is_sensitive for each in result.configs)
    if version >= 3:
        types = {each.name: each.config_type for each in result.configs}
        assert types["write.caching"] == 1
        assert types["compression.type"] == 2
        assert types["segment.bytes"] == 3
        assert types["retention.ms"] == 5
        assert types["min.cleanable.dirty.ratio"] == 6
        assert types["cleanup.policy"] == 7
        assert all(each.documentation for each in result.configs)


def test_synonyms_tell_what_would_be_in_force_instead(desk: Desk) -> None:
    change(desk, BROKER, "", ("log.retention.ms", SET, "5000"))
    (setting,) = describe(desk, TOPIC, "tides", ["retention.ms"]).configs
    assert (setting.value, setting.config_source) == ("1000", 1)
    assert [(each.name, each.value, each.source) for each in setting.synonyms] == [
        ("retention.ms", "1000", 1),
        ("log.retention.ms", "5000", 3),
        ("log.retention.ms", "604800000", 5),
    ]


def test_synonyms_and_documentation_are_left_out_unless_asked_for(desk: Desk) -> None:
    resource = {"resource_type": TOPIC, "resource_name": "tides", "configuration_keys": None}
    (result,) = desk.ask(DESCRIBE, 4, resources=[resource]).results
    assert not any(each.synonyms or each.documentation for each in result.configs)


@pytest.mark.parametrize("keys", [None, []])
def test_naming_no_settings_means_all(desk: Desk, keys: list[str] | None) -> None:
    assert values(describe(desk, TOPIC, "tides", keys)).keys() == TOPIC_OPTIONS.keys()


def test_unknown_settings_are_not_in_the_answer(desk: Desk) -> None:
    result = describe(desk, TOPIC, "tides", ["flush.ms", "colour"])
    assert values(result) == {"flush.ms": "100"}


def test_a_node_tells_the_settings_of_the_cluster_and_those_it_was_started_with(
    desk: Desk, tmp_path: Path
) -> None:
    result = describe(desk, BROKER, "1")
    told = values(result)
    assert told.keys() > {*CLUSTER_OPTIONS, *TOPIC_DEFAULTS}
    assert (told["broker.id"], told["broker.rack"]) == ("1", "a")
    assert told["log.dirs"] == str(tmp_path)
    assert told["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9101"
    fixed = {each.name for each in result.configs if each.read_only}
    assert fixed == told.keys() - {*CLUSTER_OPTIONS, *TOPIC_DEFAULTS}
    assert {each.config_source for each in result.configs if each.read_only} == {4}


def test_a_broker_without_a_name_tells_what_was_set_for_all(desk: Desk) -> None:
    assert values(describe(desk, BROKER, "")) == {}
    change(desk, BROKER, "", ("num.partitions", SET, "7"))
    (setting,) = describe(desk, BROKER, "").configs
    assert (setting.name, setting.value, setting.config_source) == ("num.partitions", "7", 3)
    assert [each.source for each in setting.synonyms] == [3]


@pytest.mark.parametrize(
    ("kind", "name"), [(LOGGER, "1"), (METRICS, "subscription"), (GROUP, "readers")]
)
def test_what_has_no_settings_here_is_described_as_empty(desk: Desk, kind: int, name: str) -> None:
    result = describe(desk, kind, name)
    assert (result.error_code, result.configs) == (ErrorCode.none, ())


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "never", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", ErrorCode.invalid_topic_exception),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "one", ErrorCode.invalid_request),
        (LOGGER, "", ErrorCode.invalid_request),
        (METRICS, "", ErrorCode.invalid_request),
        (GROUP, "", ErrorCode.invalid_request),
        (0, "tides", ErrorCode.invalid_request),
        (77, "tides", ErrorCode.invalid_request),
    ],
)
def test_what_cannot_be_described_is_refused_with_a_sentence(
    desk: Desk, kind: int, name: str, code: ErrorCode
) -> None:
    result = describe(desk, kind, name)
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message


# --- AlterConfigs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ALTER))
def test_every_version_replaces_all_that_was_set(desk: Desk, version: int) -> None:
    result = alter(desk, TOPIC, "tides", {"flush.ms": "5", "segment.bytes": "4096"}, version)
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    assert config(desk) == {"flush.ms": "5", "segment.bytes": "4096"}


def test_the_settings_of_the_cluster_are_replaced_too(desk: Desk) -> None:
    alter(desk, BROKER, "", {"num.partitions": "3", "log.flush.interval.ms": "7"})
    alter(desk, BROKER, "", {"num.partitions": "4"})
    assert desk.node.state.config == {"num.partitions": "4"}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"flush.ms": None}, ErrorCode.invalid_request),
        ({"flush.ms": "soon"}, ErrorCode.invalid_config),
        ({"colour": "blue"}, ErrorCode.invalid_config),
    ],
)
def test_a_bad_replacement_leaves_everything_as_it_was(
    desk: Desk, settings: dict[str, str | None], code: ErrorCode
) -> None:
    result = alter(desk, TOPIC, "tides", settings)
    assert result.error_code is code
    assert result.error_message
    assert config(desk) == {"retention.ms": "1000"}


# --- IncrementalAlterConfigs ----------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(CHANGE))
def test_every_version_sets_and_takes_back(desk: Desk, version: int) -> None:
    result = change(
        desk,
        TOPIC,
        "tides",
        ("flush.ms", SET, "5"),
        ("retention.ms", TAKE_BACK, None),
        version=version,
    )
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    assert config(desk) == {"flush.ms": "5"}


def test_lists_are_appended_to_and_subtracted_from_as_they_are_in_force(desk: Desk) -> None:
    change(desk, TOPIC, "tides", ("cleanup.policy", APPEND, "compact,delete"))
    assert config(desk)["cleanup.policy"] == "delete,compact"
    change(desk, TOPIC, "tides", ("cleanup.policy", SUBTRACT, "delete"))
    assert config(desk)["cleanup.policy"] == "compact"
    change(desk, BROKER, "", ("log.cleanup.policy", APPEND, "compact"))
    assert desk.node.state.config == {"log.cleanup.policy": "delete,compact"}


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (("cleanup.policy", SUBTRACT, "delete"), ErrorCode.invalid_config),
        (("cleanup.policy", APPEND, "shred"), ErrorCode.invalid_config),
        (("flush.ms", APPEND, "5"), ErrorCode.invalid_config),
        (("flush.ms", SUBTRACT, "5"), ErrorCode.invalid_config),
        (("colour", APPEND, "blue"), ErrorCode.invalid_config),
        (("colour", SET, "blue"), ErrorCode.invalid_config),
        (("flush.ms", SET, None), ErrorCode.invalid_request),
        (("flush.ms", 9, "5"), ErrorCode.invalid_request),
    ],
)
def test_a_bad_change_changes_nothing(
    desk: Desk, operation: tuple[str, int, str | None], code: ErrorCode
) -> None:
    result = change(desk, TOPIC, "tides", ("segment.ms", SET, "5"), operation)
    assert result.error_code is code
    assert operation[0] in result.error_message
    assert config(desk) == {"retention.ms": "1000"}


def test_a_setting_or_a_resource_that_is_named_twice_is_not_changed(desk: Desk) -> None:
    result = change(desk, TOPIC, "tides", ("flush.ms", SET, "5"), ("flush.ms", SET, "6"))
    assert result.error_code is ErrorCode.invalid_request
    resource = {
        "resource_type": TOPIC,
        "resource_name": "tides",
        "configs": [{"name": "flush.ms", "config_operation": SET, "value": "5"}],
    }
    answer = desk.ask(CHANGE, 1, resources=[resource, resource], validate_only=False)
    assert [each.error_code for each in answer.responses] == [ErrorCode.invalid_request]
    assert config(desk) == {"retention.ms": "1000"}


def test_a_change_that_is_only_validated_does_not_happen(desk: Desk) -> None:
    good = change(desk, TOPIC, "tides", ("flush.ms", SET, "5"), validate_only=True)
    bad = change(desk, TOPIC, "tides", ("flush.ms", SET, "-5"), validate_only=True)
    assert (good.error_code, bad.error_code) == (ErrorCode.none, ErrorCode.invalid_config)
    assert config(desk) == {"retention.ms": "1000"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "never", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", ErrorCode.invalid_request),
        (BROKER, "1", ErrorCode.invalid_request),
        (LOGGER, "1", ErrorCode.invalid_request),
        (METRICS, "subscription", ErrorCode.invalid_request),
        (GROUP, "readers", ErrorCode.invalid_request),
        (77, "tides", ErrorCode.invalid_request),
    ],
)
def test_what_cannot_be_changed_is_refused_with_a_sentence(
    desk: Desk, kind: int, name: str, code: ErrorCode
) -> None:
    for result in (
        change(desk, kind, name, ("flush.ms", SET, "5")),
        alter(desk, kind, name, {"flush.ms": "5"}),
    ):
        assert result.error_code is code
        assert result.error_message
    assert not desk.node.state.config
