"""DescribeLogDirs: the disk of a node and what its replicas take of it."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import Desk, PretendPartition, versions

DESCRIBE = 35


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk of a node with three replicas."""
    desk = Desk(tmp_path)
    for topic, index, size in (("tides", 1, 300), ("ebb", 0, 50), ("tides", 0, 200)):
        desk.node.host(PretendPartition(topic, index)).bytes = size
    return desk


def describe(desk: Desk, topics: list[dict[str, Any]] | None, version: int = 5) -> Any:
    """Describe the one directory of the node."""
    answer = desk.ask(DESCRIBE, version, topics=topics)
    if version >= 3:
        assert answer.error_code is ErrorCode.none
    (result,) = answer.results
    return result


def sizes(result: Any) -> dict[str, list[tuple[int, int]]]:
    """Return the sizes of all partitions."""
    return {
        topic.name: [(each.partition_index, each.partition_size) for each in topic.partitions]
        for topic in result.topics
    }


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_every_version_tells_the_sizes_of_all_replicas(
    desk: Desk, tmp_path: Path, version: int
) -> None:
    result = describe(desk, None, version)
    assert (result.error_code, result.log_dir) == (ErrorCode.none, str(tmp_path))
    assert sizes(result) == {"ebb": [(0, 50)], "tides": [(0, 200), (1, 300)]}
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes


def test_replicas_are_chosen_by_name_and_those_elsewhere_are_left_out(desk: Desk) -> None:
    asked = [{"topic": "tides", "partitions": [1, 1, 9]}, {"topic": "never", "partitions": [0]}]
    assert sizes(describe(desk, asked)) == {"tides": [(1, 300)]}
    assert sizes(describe(desk, [])) == {}


def test_a_replica_that_misses_what_readers_may_see_lags(desk: Desk) -> None:
    desk.node.hosted["ebb", 0].end = 7
    asked = [{"topic": "ebb", "partitions": [0]}]
    (topic,) = describe(desk, asked).topics
    assert [(each.offset_lag, each.is_future_key) for each in topic.partitions] == [(3, False)]


def test_a_directory_that_is_gone_is_a_storage_error(desk: Desk, tmp_path: Path) -> None:
    desk.node.config.data = tmp_path / "gone"
    result = describe(desk, None)
    assert (result.error_code, result.total_bytes) == (ErrorCode.kafka_storage_error, -1)
