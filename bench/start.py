"""How long a node takes to serve again after kill -9, with little of a log and with much.

One node, one replica. From the start of its process to the first read of the newest record and to
the first write acknowledged at acks=all; an empty node shows how much of that is Python and the
joining of a cluster. The log is then killed and started at several sizes, the last time with an end
of batches of one small record, which cost most to read again.
"""

import contextlib
import statistics
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, Producer

from bench import _wire
from bench._clusters import Tidelog
from bench._machine import BenchFailed, busy

NAME = "start"
ON_REQUEST = True  # it writes 10 GiB
ARGUMENTS = {"gib": (float, 10.0, "start: how much log the node has in the end")}
QUICK_GIB = 1.0
LITTLE_MIB = 16
SMALL_MIB = 32  # of batches of one record of 1 KiB, as the end of the log
ROUNDS = 3
NODE = 1
GOAL_S = 3.0
MIB = 1024 * 1024
LARGE_RECORD = 60 * 1024  # one a batch
SMALL_RECORD = 1024
FLUSH_S = 600.0
FETCH, FETCH_VERSION = 1, 4


@dataclass(frozen=True, slots=True)
class Started:
    read_s: float  # until the newest record was read
    write_s: float  # until a write was acknowledged


class Writer:
    """Fills the first partition of a topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._failed: KafkaError | None = None
        self.written = 0  # bytes of values
        self.records = 0

    def write(self, size: int, record: int) -> None:
        """Write so many bytes, in batches of one record of this size."""
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "batch.num.messages": 1,
                "queue.buffering.max.messages": 10_000,
                "message.timeout.ms": int(1000 * FLUSH_S),
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        value = bytes(record)
        end = self.written + size
        while self.written < end:
            try:
                producer.produce(self._topic, value, partition=0, on_delivery=self._delivered)
            except BufferError:
                producer.poll(0.05)
                continue
            self.written += record
            self.records += 1
            producer.poll(0)
        if producer.flush(FLUSH_S) or self._failed is not None:
            raise BenchFailed(f"not everything was written: {self._failed or 'out of time'}")

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        self._failed = self._failed or error


def _fetch(topic: str, offset: int) -> _wire.Request:
    """Read one record of the first partition."""
    body = (
        struct.pack(">iiiib", -1, 0, 1, MIB, 0)
        + struct.pack(">i", 1)
        + _wire.encode_text(topic)
        + struct.pack(">iiqi", 1, 0, offset, MIB)
    )
    # correlation, throttle time, topics, name, partitions, index
    at = 4 + 4 + 4 + len(_wire.encode_text(topic)) + 4 + 4
    return _wire.Request(FETCH, FETCH_VERSION, body, at)


def _start_again(cluster: Tidelog, topic: str, newest: int) -> Started:
    """Kill the node, start it, and wait until it has done one of each."""
    cluster.kill(NODE)
    list(cluster.local.ended())  # it did, and was meant to
    with contextlib.ExitStack() as stack:
        nodes = _wire.Nodes(cluster.addresses())
        stack.push(nodes)  # nobody is there yet to connect to
        began = time.monotonic()
        cluster.local.start(NODE)
        read = nodes.first_success(_fetch(topic, newest))
        written = nodes.first_success(_wire.produce(topic))
    cluster.local.wait([NODE])
    return Started(read - began, written - began)


def run(*, quick: bool = False, gib: float = 10.0) -> Iterator[str]:
    """Measure a node whose log grows, and compare."""
    total = int(1024 * min(gib, QUICK_GIB if quick else gib))  # MiB
    if note := busy():
        yield note
    cluster = Tidelog()
    try:
        cluster.start(1)
        topic = cluster.create_topic(1, {})
        writer = Writer(cluster.bootstrap, topic)
        medians: list[Started] = []
        yield f"{'log':>10} {'written':>10}  {'reads after':>12} {'writes after':>12}"
        for upto, record, what in (
            (LITTLE_MIB, LARGE_RECORD, "60 KiB"),
            (total // 4, LARGE_RECORD, "60 KiB"),
            (total, LARGE_RECORD, "60 KiB"),
            (total + SMALL_MIB, SMALL_RECORD, "1 KiB"),
        ):
            began = time.monotonic()
            writer.write(max(0, upto * MIB - writer.written), record)
            took = time.monotonic() - began
            rounds = []
            for _ in range(ROUNDS):
                rounds.append(_start_again(cluster, topic, writer.records - 1))
                writer.records += 1  # the write of the round
            median = Started(
                statistics.median(each.read_s for each in rounds),
                statistics.median(each.write_s for each in rounds),
            )
            medians.append(median)
            yield (
                f"{upto:>6} MiB {took:>8.0f} s  {median.read_s:>10.2f} s {median.write_s:>10.2f} s"
                f"   the last of it in batches of {what}"
            )
        little, much, worst = medians[0], medians[2], medians[3]
        yield (
            f"{total} MiB beside {LITTLE_MIB} MiB: reads {much.read_s / little.read_s:.2f} times,"
            f" writes {much.write_s / little.write_s:.2f} times as late"
        )
        slowest = max(worst.write_s, much.write_s)
        verdict = "met" if slowest < GOAL_S else "MISSED"
        yield f"goal, under {GOAL_S:g} s: {verdict}, {slowest:.2f} s"
    finally:
        cluster.stop()
