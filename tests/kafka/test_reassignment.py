"""AlterPartitionReassignments and ListPartitionReassignments."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import PATIENCE, Desk, versions

from tidelog.cluster.model import PartitionState

ALTER, LIST = 45, 46


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk in front of a cluster with one topic: both partitions on nodes 1 and 2."""
    desk = Desk(tmp_path, nodes=4)
    where = [{"partition_index": index, "broker_ids": [1, 2]} for index in range(2)]
    topic = {"name": "tides", "num_partitions": -1, "replication_factor": -1}
    desk.ask(19, 7, topics=[{**topic, "assignments": where, "configs": []}])
    return desk


def alter(
    desk: Desk, index: int, replicas: list[int] | None, topic: str = "tides", **more: Any
) -> Any:
    """Move one partition and return what came of it."""
    fields = {"allow_replication_factor_change": True, "version": 1, **more}
    part = {"partition_index": index, "replicas": replicas}
    answer = desk.ask(
        ALTER,
        fields.pop("version"),
        topics=[{"name": topic, "partitions": [part]}],
        timeout=PATIENCE,
        **fields,
    )
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    (told,) = answer.responses
    assert told.name == topic
    (result,) = told.partitions
    assert result.partition_index == index
    return result


def moving(desk: Desk, topics: list[dict[str, Any]] | None = None) -> dict[str, list[Any]]:
    """Return all partitions that are told to be on the move."""
    answer = desk.ask(LIST, 0, topics=topics, timeout=PATIENCE)
    assert answer.error_code is ErrorCode.none
    return {
        topic.name: [
            (part.partition_index, part.replicas, part.adding_replicas, part.removing_replicas)
            for part in topic.partitions
        ]
        for topic in answer.topics
    }


def state(desk: Desk, index: int = 0) -> PartitionState:
    """Return what the cluster knows of a partition."""
    return desk.node.state.topics["tides"].partitions[index]


@pytest.mark.parametrize("version", versions(ALTER))
def test_every_version_begins_a_move_that_can_be_listed(desk: Desk, version: int) -> None:
    result = alter(desk, 0, [3, 2], version=version)
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    assert moving(desk) == {"tides": [(0, (3, 2, 1), (3,), (1,))]}


def test_moves_of_other_partitions_are_listed_only_if_asked_for(desk: Desk) -> None:
    alter(desk, 0, [3, 2])
    alter(desk, 1, [1, 4])
    asked = [
        {"name": "tides", "partition_indexes": [1, 1, 7, -1]},
        {"name": "never", "partition_indexes": [0]},
    ]
    assert moving(desk, asked) == {"tides": [(1, (1, 4, 2), (4,), (2,))]}
    assert moving(desk, []) == {}


def test_a_move_is_cancelled_by_naming_no_replicas(desk: Desk) -> None:
    alter(desk, 0, [3, 4])
    result = alter(desk, 0, None)
    assert result.error_code is ErrorCode.none
    target = state(desk).target
    assert target is not None
    assert [replica.id for replica in target] == [1, 2]


def test_where_nothing_moves_there_is_nothing_to_cancel(desk: Desk) -> None:
    result = alter(desk, 0, None)
    assert result.error_code is ErrorCode.no_reassignment_in_progress
    assert result.error_message


def test_a_second_move_waits_for_the_first(desk: Desk) -> None:
    alter(desk, 0, [3, 4])
    assert alter(desk, 0, [2, 4]).error_code is ErrorCode.reassignment_in_progress
    assert alter(desk, 0, [3, 4]).error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("topic", "index", "replicas", "code"),
    [
        ("never", 0, [1], ErrorCode.unknown_topic_or_partition),
        ("tides", 2, [1], ErrorCode.unknown_topic_or_partition),
        ("tides", -1, [1], ErrorCode.unknown_topic_or_partition),
        ("tides", 0, [], ErrorCode.invalid_replica_assignment),
        ("tides", 0, [1, 1], ErrorCode.invalid_replica_assignment),
        ("tides", 0, [1, 9], ErrorCode.invalid_replica_assignment),
        ("tides", 0, [-1], ErrorCode.invalid_replica_assignment),
    ],
)
def test_a_move_that_makes_no_sense_is_refused_with_a_sentence(
    desk: Desk, topic: str, index: int, replicas: list[int], code: ErrorCode
) -> None:
    result = alter(desk, index, replicas, topic)
    assert result.error_code is code
    assert result.error_message
    assert moving(desk) == {}


def test_the_number_of_replicas_changes_only_if_that_is_allowed(desk: Desk) -> None:
    refused = alter(desk, 0, [1, 2, 3], allow_replication_factor_change=False)
    assert refused.error_code is ErrorCode.invalid_replication_factor
    assert moving(desk) == {}
    assert alter(desk, 0, [1, 2, 3]).error_code is ErrorCode.none
    assert moving(desk) == {"tides": [(0, (1, 2, 3), (3,), ())]}


def test_another_order_of_the_same_replicas_is_no_move_and_holds_at_once(desk: Desk) -> None:
    assert state(desk).nodes == (1, 2)
    assert alter(desk, 0, [2, 1]).error_code is ErrorCode.none
    assert moving(desk) == {}
    assert state(desk).nodes == (2, 1)
    assert state(desk).target is None
