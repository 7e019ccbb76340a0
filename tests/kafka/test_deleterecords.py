"""DeleteRecords: where a partition begins, and who may say so."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import PATIENCE, Desk, PretendPartition, versions

from tidelog.cluster.partition import ProduceFailed
from tidelog.raft.events import Refusal

DELETE = 21
ALL = -1


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk of a node that leads partition 0 of a topic, with ten records."""
    desk = Desk(tmp_path)
    desk.create("tides", 2)
    desk.node.host(PretendPartition("tides", 0))
    return desk


def delete(
    desk: Desk,
    offset: int,
    topic: str = "tides",
    index: int = 0,
    *,
    version: int = 2,
    timeout: timedelta = PATIENCE,
) -> tuple[ErrorCode, int]:
    """Delete before an offset; return the code and where the partition begins."""
    part = {"partition_index": index, "offset": offset}
    answer = desk.ask(
        DELETE, version, topics=[{"name": topic, "partitions": [part]}], timeout=timeout
    )
    (told,) = answer.topics
    assert told.name == topic
    (result,) = told.partitions
    assert result.partition_index == index
    return result.error_code, result.low_watermark


def partition(desk: Desk) -> PretendPartition:
    """Return the partition that the node leads."""
    return desk.node.hosted["tides", 0]


@pytest.mark.parametrize("version", versions(DELETE))
def test_every_version_moves_the_beginning(desk: Desk, version: int) -> None:
    assert delete(desk, 4, version=version) == (ErrorCode.none, 4)
    assert partition(desk).log_start == 4


def test_minus_one_deletes_all_that_readers_may_see(desk: Desk) -> None:
    assert delete(desk, ALL) == (ErrorCode.none, 10)


def test_the_beginning_never_moves_back(desk: Desk) -> None:
    delete(desk, 7)
    assert delete(desk, 3) == (ErrorCode.none, 7)


@pytest.mark.parametrize("offset", [11, -2, 2**63 - 1, -(2**63)])
def test_offsets_that_readers_may_not_see_are_out_of_range(desk: Desk, offset: int) -> None:
    assert delete(desk, offset) == (ErrorCode.offset_out_of_range, -1)
    assert partition(desk).log_start == 0


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("never", 0, ErrorCode.unknown_topic_or_partition),
        ("tides", 2, ErrorCode.unknown_topic_or_partition),
        ("tides", 1, ErrorCode.not_leader_or_follower),
        ("__consumer_offsets", 0, ErrorCode.invalid_topic_exception),
    ],
)
def test_only_the_leader_deletes_and_nothing_internal(
    desk: Desk, topic: str, index: int, code: ErrorCode
) -> None:
    assert delete(desk, 1, topic, index) == (code, -1)


def test_a_follower_does_not_delete(desk: Desk) -> None:
    partition(desk).is_leader = False
    assert delete(desk, 1) == (ErrorCode.not_leader_or_follower, -1)


def test_nothing_is_deleted_from_a_topic_that_is_only_compacted(desk: Desk) -> None:
    desk.node.host(PretendPartition("tides", 0, cleanup_policy="compact"))
    assert delete(desk, 1) == (ErrorCode.policy_violation, -1)
    desk.node.host(PretendPartition("tides", 0, cleanup_policy="compact,delete"))
    assert delete(desk, 1) == (ErrorCode.none, 1)


@pytest.mark.parametrize(
    ("why", "code"),
    [
        (Refusal.NOT_LEADER, ErrorCode.not_leader_or_follower),
        (Refusal.TRUNCATED, ErrorCode.not_leader_or_follower),
        (Refusal.STORAGE, ErrorCode.kafka_storage_error),
        (Refusal.UNKNOWN, ErrorCode.request_timed_out),
    ],
)
def test_a_deletion_that_fails_says_why(desk: Desk, why: Refusal, code: ErrorCode) -> None:
    partition(desk).failure = ProduceFailed(why)
    assert delete(desk, 1) == (code, -1)


def test_a_deletion_without_a_majority_ends_with_the_request(desk: Desk) -> None:
    partition(desk).failure = False
    soon = timedelta(milliseconds=30)
    assert delete(desk, 1, timeout=soon) == (ErrorCode.request_timed_out, -1)


def test_each_partition_is_answered_on_its_own(desk: Desk) -> None:
    desk.node.host(PretendPartition("tides", 1))
    parts: list[Any] = [
        {"partition_index": 0, "offset": 2},
        {"partition_index": 1, "offset": 99},
    ]
    answer = desk.ask(DELETE, 2, topics=[{"name": "tides", "partitions": parts}], timeout=PATIENCE)
    (told,) = answer.topics
    assert [(each.error_code, each.low_watermark) for each in told.partitions] == [
        (ErrorCode.none, 2),
        (ErrorCode.offset_out_of_range, -1),
    ]
