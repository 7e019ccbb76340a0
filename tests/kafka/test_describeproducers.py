"""DescribeProducers: who writes to a partition with sequence numbers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import Desk, PretendPartition
from tests.machines.batches import data

from tidelog.kafka import describeproducers
from tidelog.machines import LogStart, Producers

DESCRIBE = 61
RECORD = (b"key", b"value")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk of a node with two partitions that three producers wrote to."""
    desk = Desk(tmp_path)
    desk.create("tides", 3)
    for index in range(2):
        producers = Producers()
        producers.apply(data(0, [RECORD] * 3, producer=7, epoch=2, sequence=0))
        producers.apply(data(3, [RECORD], producer=9, epoch=0, sequence=2**31 - 1))
        producers.apply(data(4, [RECORD] * 5, producer=8, epoch=1, sequence=10))
        partition = desk.node.host(PretendPartition("tides", index))
        partition.replica.machines = SimpleNamespace(machines=[LogStart(), producers])
    return desk


def describe(desk: Desk, topic: str, *indexes: int) -> list[Any]:
    """Return what is told of each partition."""
    asked = [{"name": topic, "partition_indexes": list(indexes)}]
    (told,) = desk.ask(DESCRIBE, 0, topics=asked).topics
    assert told.name == topic
    return list(told.partitions)


def test_producers_are_told_with_their_epochs_and_last_sequences(desk: Desk) -> None:
    (part,) = describe(desk, "tides", 0)
    assert (part.error_code, part.error_message) == (ErrorCode.none, None)
    assert [
        (each.producer_id, each.producer_epoch, each.last_sequence)
        for each in part.active_producers
    ] == [(7, 2, 2), (9, 0, 2**31 - 1), (8, 1, 14)]
    assert {each.last_timestamp for each in part.active_producers} == {-1}


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("tides", 2, ErrorCode.not_leader_or_follower),
        ("tides", 3, ErrorCode.unknown_topic_or_partition),
        ("never", 0, ErrorCode.unknown_topic_or_partition),
        ("no name", 0, ErrorCode.invalid_topic_exception),
    ],
)
def test_who_has_no_replica_tells_nothing(
    desk: Desk, topic: str, index: int, code: ErrorCode
) -> None:
    (part,) = describe(desk, topic, index)
    assert (part.error_code, part.active_producers) == (code, ())
    assert part.error_message


def test_an_answer_holds_only_so_many_producers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describeproducers, "MAX_DESCRIBED", 5)
    first, second = describe(desk, "tides", 0, 1, 0)
    assert (len(first.active_producers), len(second.active_producers)) == (3, 0)
    assert second.error_code is ErrorCode.invalid_request
