"""Rot on the disk of a running node, seen by a client with its defaults: never a wrong value."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from tests.system.disks import LOST, flip, replicas, segments
from tests.system.system import PATIENCE, System, system, until

from tidelog.records import parse_batches

# Little enough that a reader of old records goes to the disk.
SETTINGS = "cache_bytes = 1048576\n"
SEGMENT = 1 << 20
VALUES = [f"{number:08} ".encode() * 1000 for number in range(600)]  # 5.4 MB


@pytest.fixture
def rotting(tmp_path: Path) -> Iterator[System]:
    with system(tmp_path, settings=SETTINGS, expected=LOST) as running:
        yield running


def write(cluster: System, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE) == 0


def read(cluster: System, topic: str) -> list[bytes | None]:
    """Read a topic from its beginning as a client with default settings does."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"{topic}-readers",
            "auto.offset.reset": "earliest",
        }
    )
    values: list[bytes | None] = []

    def done() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value())
        return len(values) >= len(VALUES)

    with contextlib.closing(consumer):
        consumer.subscribe([topic])
        until(done, f"reading {topic}")
    return values


def is_rebuilt(cluster: System, node: int, topic: str, before: Path) -> bool:
    """Whether another replica took the place of this one, and every batch of it is sound."""
    found = replicas(cluster, node, topic)
    if len(found) != 1 or found == [before]:
        return False
    size = 0
    for segment in segments(found[0]):
        content = segment.read_bytes()
        for batch in parse_batches(content):
            batch.check_crc()
            size += batch.size
    return size >= sum(map(len, VALUES))


def harmed(cluster: System, topic: str) -> tuple[int, int, Path]:
    """Write a topic; return its leader, the epoch, and where the leader has it."""
    cluster.create(topic, segment_bytes=str(SEGMENT))
    write(cluster, topic)
    leader, epoch = cluster.leader(topic)
    [replica] = replicas(cluster, leader, topic)
    assert len(segments(replica)) > 3
    return leader, epoch, replica


def check_recovery(cluster: System, topic: str, leader: int, epoch: int, replica: Path) -> None:
    """No reader gets a wrong value, somebody else leads, and the replica is rebuilt."""
    assert read(cluster, topic) == VALUES
    next_leader, _ = cluster.leader(topic, after=epoch)
    assert next_leader != leader
    until(lambda: is_rebuilt(cluster, leader, topic, replica), "rebuilding")
    assert cluster.log_of(leader).count(LOST) == 1


def test_no_client_reads_a_flipped_bit(rotting: System) -> None:
    leader, epoch, replica = harmed(rotting, "rot")
    flip(segments(replica)[1], SEGMENT // 2)
    check_recovery(rotting, "rot", leader, epoch, replica)


@pytest.mark.slow
def test_no_client_reads_from_a_file_that_was_shortened(rotting: System) -> None:
    leader, epoch, replica = harmed(rotting, "short")
    os.truncate(segments(replica)[1], SEGMENT // 2)
    check_recovery(rotting, "short", leader, epoch, replica)
