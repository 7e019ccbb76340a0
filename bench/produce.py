"""Produce: throughput and what it costs the nodes, beside a warm Kafka.

Tidelog acknowledges acks=all when a majority has the records on disk. Kafka acknowledges when all
in-sync replicas have them in memory: `write.caching` asks Tidelog for that (a majority, in memory),
`flush.messages=1` asks Kafka for a flush on each replica. Both are rows of their own.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench._clients import Load
from bench._clusters import Cluster
from bench._compare import MILLION, Row, Values, compare
from bench._machine import Meter
from bench._patterns import BULK, PARTITIONS, SINGLE

NAME = "produce"
RECORDS = {100: 2_000_000, 1024: 300_000}  # a pass: several seconds at the speed of either side
QUICK_RECORDS = {100: 500_000, 1024: 100_000}
SINGLE_RECORDS = 40_000
QUICK_SINGLE_RECORDS = 10_000
PASSES = 3
QUICK_PASSES = 1
CACHING = (("write.caching", "true"),)
FLUSHING = (("flush.messages", "1"),)


@dataclass(frozen=True)
class Produce:
    """Records as fast as they are taken; the median of several passes, on a topic of its own."""

    size: int
    partitions: int = PARTITIONS
    acks: str = "all"
    config: tuple[tuple[str, str], ...] = ()
    single: bool = False  # one record a batch

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        records = self._records(quick=quick)
        topic = cluster.create_topic(self.partitions, dict(self.config))
        try:
            passes = [
                self._pass(cluster, load, topic, records)
                for _ in range(QUICK_PASSES if quick else PASSES)
            ]
        finally:
            cluster.delete_topic(topic)
        return {name: statistics.median(each[name] for each in passes) for name in passes[0]}

    def _pass(self, cluster: Cluster, load: Load, topic: str, records: int) -> Values:
        meter = Meter(cluster.pids)
        done = load.produce(cluster.bootstrap, topic, records, self.size, self._settings())
        cost = meter.read()
        return {
            "rate": done.rate,
            "rate_k": done.rate / 1000,
            "mb": done.rate * self.size / MILLION,
            "cpu_us": MILLION * cost.cpu_s / records,
            "peak_mib": cost.peak_mib,
        }

    def _records(self, *, quick: bool) -> int:
        if self.single:
            return QUICK_SINGLE_RECORDS if quick else SINGLE_RECORDS
        return (QUICK_RECORDS if quick else RECORDS)[self.size]

    def _settings(self) -> Mapping[str, str]:
        batching = SINGLE if self.single else {}
        # The client's default: it numbers its batches wherever the acknowledgements allow it.
        idempotence = "true" if self.acks == "all" else "false"
        return {**BULK, "acks": self.acks, "enable.idempotence": idempotence, **batching}


def rows() -> Iterator[Row]:
    """All points, three nodes first."""
    for nodes in (3, 1):
        shape = "3 nodes" if nodes == 3 else "1 node"
        for partitions in (PARTITIONS, 1):
            for size, unit, value in ((100, "k msg/s", "rate_k"), (1024, "MB/s", "mb")):
                what = f"{shape}, {partitions:>2} p., {'100 B' if size == 100 else '1 KiB'}"
                plain = Produce(size, partitions)
                yield Row(f"{what}, acks=all", value, unit, plain, plain, nodes)
                cached = Produce(size, partitions, config=CACHING)
                yield Row(f"{what}, acks=all, write.caching", value, unit, cached, plain, nodes)
                if nodes == 3:
                    flushed = Produce(size, partitions, config=FLUSHING)
                    label = f"{what}, acks=all, Kafka flush.messages=1"
                    yield Row(label, value, unit, plain, flushed, nodes)
                for acks in ("1", "0"):
                    relaxed = Produce(size, partitions, acks)
                    yield Row(f"{what}, acks={acks}", value, unit, relaxed, relaxed, nodes)
            alone = Produce(1024, partitions, single=True)
            label = f"{shape}, {partitions:>2} p., 1 KiB, one record a batch"
            yield Row(label, "rate", "msg/s", alone, alone, nodes)
            cached = Produce(1024, partitions, config=CACHING, single=True)
            yield Row(f"{label}, write.caching", "rate", "msg/s", cached, alone, nodes)


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure every point on both sides."""
    yield from compare(list(rows()), quick=quick)
