"""CreateTopics, DeleteTopics and CreatePartitions: what clients may ask, and what they are told."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import PATIENCE, Desk, versions

CREATE, DELETE, GROW = 19, 20, 37


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk in front of a cluster of three nodes."""
    return Desk(tmp_path)


def topic(name: str, partitions: int = -1, replicas: int = -1, **more: Any) -> dict[str, Any]:
    """Return a topic of a CreateTopics request."""
    plain = {"name": name, "num_partitions": partitions, "replication_factor": replicas}
    return {**plain, "assignments": [], "configs": [], **more}


def create(desk: Desk, *topics: dict[str, Any], version: int = 7, **more: Any) -> list[Any]:
    """Create topics and return their results."""
    fields = {"timeout": PATIENCE, "validate_only": False, **more}
    return list(desk.ask(CREATE, version, topics=list(topics), **fields).topics)


def delete(desk: Desk, *topics: dict[str, Any], version: int = 6) -> list[Any]:
    """Delete topics and return their results."""
    names = [each["name"] for each in topics]
    answer = desk.ask(DELETE, version, topics=list(topics), topic_names=names, timeout=PATIENCE)
    return list(answer.responses)


def grow(desk: Desk, *topics: dict[str, Any], version: int = 3, **more: Any) -> list[Any]:
    """Add partitions and return the results."""
    plain = [{"assignments": None, **each} for each in topics]
    fields = {"timeout": PATIENCE, "validate_only": False, **more}
    return list(desk.ask(GROW, version, topics=plain, **fields).results)


def places(desk: Desk, name: str) -> list[tuple[int, ...]]:
    """Return the nodes of each partition."""
    return [partition.nodes for partition in desk.node.state.topics[name].partitions]


# --- CreateTopics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(CREATE))
def test_every_version_creates_topics_with_their_settings(desk: Desk, version: int) -> None:
    settings = [{"name": "retention.ms", "value": "1000"}]
    (made,) = create(desk, topic("tides", 2, 3, configs=settings), version=version)
    assert (made.name, made.error_code, made.error_message) == ("tides", ErrorCode.none, None)
    state = desk.node.state.topics["tides"]
    assert state.config == {"retention.ms": "1000"}
    assert [len(nodes) for nodes in places(desk, "tides")] == [3, 3]
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (2, 3)
        told = {each.name: (each.value, each.config_source) for each in made.configs}
        assert told["retention.ms"] == ("1000", 1)
        assert told["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert made.topic_id == state.id


def test_minus_one_means_the_defaults_of_the_cluster(desk: Desk) -> None:
    (made,) = create(desk, topic("tides"))
    assert (made.num_partitions, made.replication_factor) == (1, 3)


def test_a_request_that_only_validates_creates_nothing(desk: Desk) -> None:
    good, bad = create(desk, topic("tides", 4, 2), topic("no/name", 1, 1), validate_only=True)
    assert good.error_code is ErrorCode.none
    assert (good.num_partitions, good.replication_factor) == (4, 2)
    assert bad.error_code is ErrorCode.invalid_topic_exception
    assert not desk.node.state.topics


def test_one_bad_topic_does_not_keep_the_others_from_being_created(desk: Desk) -> None:
    desk.create("old")
    asked = {
        "old": (topic("old", 1, 1), ErrorCode.topic_already_exists),
        "a b": (topic("a b", 1, 1), ErrorCode.invalid_topic_exception),
        "none": (topic("none", 0, 1), ErrorCode.invalid_partitions),
        "less": (topic("less", -2, 1), ErrorCode.invalid_partitions),
        "huge": (topic("huge", 2**31 - 1, 1), ErrorCode.invalid_partitions),
        "wide": (topic("wide", 1, 4), ErrorCode.invalid_replication_factor),
        "thin": (topic("thin", 1, 0), ErrorCode.invalid_replication_factor),
        "odd": (
            topic("odd", 1, 1, configs=[{"name": "colour", "value": "blue"}]),
            ErrorCode.invalid_config,
        ),
        "late": (
            topic("late", 1, 1, configs=[{"name": "retention.ms", "value": "soon"}]),
            ErrorCode.invalid_config,
        ),
        "unset": (
            topic("unset", 1, 1, configs=[{"name": "retention.ms", "value": None}]),
            ErrorCode.invalid_config,
        ),
        "__consumer_offsets": (
            topic("__consumer_offsets", 1, 1),
            ErrorCode.invalid_topic_exception,
        ),
        "good": (topic("good", 1, 1), ErrorCode.none),
    }
    results = create(desk, *(each for each, _ in asked.values()))
    assert {each.name: each.error_code for each in results} == {
        name: code for name, (_, code) in asked.items()
    }
    assert all(each.error_message for each in results if each.name != "good")
    assert set(desk.node.state.topics) == {"old", "good"}


def test_the_sentence_is_short_however_long_the_names_of_a_client_are(desk: Desk) -> None:
    long = [{"name": letter * 20_000, "value": None} for letter in "ab"]
    (refused,) = create(desk, topic("tides", 1, 1, configs=long), version=2)
    assert refused.error_code is ErrorCode.invalid_config
    assert len(refused.error_message) == 1000


def test_a_topic_that_is_named_twice_is_not_created_and_answered_once(desk: Desk) -> None:
    first, second = create(desk, topic("tides", 1, 1), topic("ebb", 1, 1), topic("tides", 2, 1))
    assert (first.name, first.error_code) == ("tides", ErrorCode.invalid_request)
    assert (second.name, second.error_code) == ("ebb", ErrorCode.none)
    assert set(desk.node.state.topics) == {"ebb"}


def test_replicas_go_where_the_request_says(desk: Desk) -> None:
    where = [
        {"partition_index": 1, "broker_ids": [3, 1]},
        {"partition_index": 0, "broker_ids": [2, 3]},
    ]
    (made,) = create(desk, topic("tides", assignments=where))
    assert made.error_code is ErrorCode.none
    assert places(desk, "tides") == [(2, 3), (3, 1)]


@pytest.mark.parametrize(
    ("places", "code"),
    [
        ([(0, [1]), (0, [2])], ErrorCode.invalid_replica_assignment),
        ([(0, [1]), (2, [2])], ErrorCode.invalid_replica_assignment),
        ([(1, [1])], ErrorCode.invalid_replica_assignment),
        ([(-1, [1])], ErrorCode.invalid_replica_assignment),
        ([(0, [])], ErrorCode.invalid_replica_assignment),
        ([(0, [1, 1])], ErrorCode.invalid_replica_assignment),
        ([(0, [9])], ErrorCode.invalid_replica_assignment),
        ([(0, [1]), (1, [1, 2])], ErrorCode.invalid_replica_assignment),
    ],
)
def test_places_that_make_no_sense_are_refused_even_if_only_validated(
    desk: Desk, places: list[tuple[int, list[int]]], code: ErrorCode
) -> None:
    where = [{"partition_index": index, "broker_ids": nodes} for index, nodes in places]
    for validate_only in (True, False):
        (made,) = create(desk, topic("tides", assignments=where), validate_only=validate_only)
        assert made.error_code is code
        assert made.error_message
    assert not desk.node.state.topics


def test_places_and_numbers_together_are_refused(desk: Desk) -> None:
    where = [{"partition_index": 0, "broker_ids": [1]}]
    (made,) = create(desk, topic("tides", 1, 1, assignments=where))
    assert made.error_code is ErrorCode.invalid_request


def test_the_time_of_a_request_is_shared_by_its_topics(desk: Desk) -> None:
    desk.node.controller.stuck = True
    soon = timedelta(milliseconds=50)
    results = create(desk, topic("ebb", 1, 1), topic("flood", 1, 1), timeout=soon)
    assert [each.error_code for each in results] == [ErrorCode.request_timed_out] * 2
    assert "before its turn" in results[1].error_message


@pytest.mark.parametrize("milliseconds", [0, -1])
def test_a_client_that_does_not_want_to_wait_gets_its_topic_all_the_same(
    desk: Desk, milliseconds: int
) -> None:
    (made,) = create(desk, topic("tides", 1, 1), timeout=timedelta(milliseconds=milliseconds))
    assert made.error_code is ErrorCode.none


def test_the_answer_waits_for_the_leaders_of_a_new_topic(desk: Desk) -> None:
    desk.node.controller.elects = False

    async def story() -> Any:
        asked = asyncio.create_task(
            desk.asking(
                CREATE, 7, topics=[topic("tides", 2, 1)], timeout=PATIENCE, validate_only=False
            )
        )
        for index in range(2):
            await asyncio.sleep(0.05)
            assert not asked.done()
            desk.node.lead("tides", index, 1)
        return await asked

    (made,) = asyncio.run(story()).topics
    assert made.error_code is ErrorCode.none


def test_a_topic_without_leaders_is_answered_before_the_client_gives_up(desk: Desk) -> None:
    desk.node.controller.elects = False
    (made,) = create(desk, topic("tides", 1, 1), timeout=timedelta(milliseconds=300))
    assert made.error_code is ErrorCode.none
    (grown,) = grow(desk, {"name": "tides", "count": 2}, timeout=timedelta(milliseconds=300))
    assert grown.error_code is ErrorCode.none


# --- DeleteTopics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(DELETE))
def test_every_version_deletes_by_name(desk: Desk, version: int) -> None:
    desk.create("tides")
    topic_id = desk.node.state.topics["tides"].id
    gone, missing = delete(
        desk,
        {"name": "tides", "topic_id": None},
        {"name": "never", "topic_id": None},
        version=version,
    )
    assert (gone.name, gone.error_code) == ("tides", ErrorCode.none)
    assert (missing.name, missing.error_code) == ("never", ErrorCode.unknown_topic_or_partition)
    assert not desk.node.state.topics
    if version >= 5:
        assert gone.error_message is None
        assert "never" in missing.error_message
    if version >= 6:
        assert gone.topic_id == topic_id


def test_topics_are_deleted_by_id(desk: Desk) -> None:
    desk.create("tides")
    topic_id, unknown = desk.node.state.topics["tides"].id, uuid4()
    gone, missing = delete(
        desk, {"name": None, "topic_id": topic_id}, {"name": None, "topic_id": unknown}
    )
    assert (gone.name, gone.topic_id, gone.error_code) == ("tides", topic_id, ErrorCode.none)
    assert (missing.name, missing.topic_id) == (None, unknown)
    assert missing.error_code is ErrorCode.unknown_topic_id
    assert not desk.node.state.topics


def test_what_is_named_twice_or_not_at_all_is_not_deleted(desk: Desk) -> None:
    desk.create("tides")
    desk.create("ebb")
    tides, ebb = (desk.node.state.topics[name].id for name in ("tides", "ebb"))
    results = delete(
        desk,
        {"name": "tides", "topic_id": None},
        {"name": None, "topic_id": tides},
        {"name": "ebb", "topic_id": ebb},
        {"name": None, "topic_id": None},
    )
    assert [each.error_code for each in results] == [ErrorCode.invalid_request] * 4
    assert set(desk.node.state.topics) == {"tides", "ebb"}


def test_the_internal_topic_is_neither_deleted_nor_enlarged(desk: Desk) -> None:
    desk.create("__consumer_offsets")
    (kept,) = delete(desk, {"name": "__consumer_offsets", "topic_id": None})
    assert kept.error_code is ErrorCode.invalid_topic_exception
    (same,) = grow(desk, {"name": "__consumer_offsets", "count": 4})
    assert same.error_code is ErrorCode.invalid_topic_exception
    assert len(places(desk, "__consumer_offsets")) == 1


# --- CreatePartitions -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(GROW))
def test_every_version_adds_partitions(desk: Desk, version: int) -> None:
    desk.create("tides", 1, 2)
    (done,) = grow(desk, {"name": "tides", "count": 3}, version=version)
    assert (done.name, done.error_code, done.error_message) == ("tides", ErrorCode.none, None)
    assert [len(nodes) for nodes in places(desk, "tides")] == [2, 2, 2]


def test_new_partitions_go_where_the_request_says(desk: Desk) -> None:
    desk.create("tides", 1, 2)
    where = [{"broker_ids": [3, 2]}, {"broker_ids": [2, 1]}]
    (done,) = grow(desk, {"name": "tides", "count": 3, "assignments": where})
    assert done.error_code is ErrorCode.none
    assert places(desk, "tides")[1:] == [(3, 2), (2, 1)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"count": 1}, ErrorCode.invalid_partitions),
        ({"count": 0}, ErrorCode.invalid_partitions),
        ({"count": -3}, ErrorCode.invalid_partitions),
        ({"count": 2**31 - 1}, ErrorCode.invalid_partitions),
        ({"count": 2, "assignments": []}, ErrorCode.invalid_replica_assignment),
        ({"count": 2, "assignments": [{"broker_ids": [1]}]}, ErrorCode.invalid_replica_assignment),
        (
            {"count": 2, "assignments": [{"broker_ids": [8, 9]}]},
            ErrorCode.invalid_replica_assignment,
        ),
        ({"count": 2, "name": "never"}, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_partitions_that_cannot_be_are_refused_with_a_sentence(
    desk: Desk, change: dict[str, Any], code: ErrorCode
) -> None:
    desk.create("tides", 1, 2)
    (refused,) = grow(desk, {"name": "tides", **change})
    assert refused.error_code is code
    assert refused.error_message
    assert len(places(desk, "tides")) == 1


def test_growth_that_is_only_validated_or_named_twice_does_not_happen(desk: Desk) -> None:
    desk.create("tides")
    (valid,) = grow(desk, {"name": "tides", "count": 2}, validate_only=True)
    assert valid.error_code is ErrorCode.none
    (twice,) = grow(desk, {"name": "tides", "count": 2}, {"name": "tides", "count": 3})
    assert twice.error_code is ErrorCode.invalid_request
    assert len(places(desk, "tides")) == 1
