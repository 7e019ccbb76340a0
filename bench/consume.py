"""Catching up: consumers that read a topic of 12 partitions from its start.

Each consumer is a process and a group of its own and reads everything, so three of them move three
times the bytes. The time it takes to join the group is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench._clients import Load
from bench._clusters import Cluster
from bench._compare import MILLION, Row, Values, compare
from bench._machine import Meter
from bench._patterns import BULK, PARTITIONS

NAME = "consume"
RECORDS = {100: 5_000_000, 1024: 1024 * 1024}
QUICK_RECORDS = {100: 1_000_000, 1024: 150_000}


@dataclass(frozen=True)
class Consume:
    """Fill a topic, read it once to warm up, then measure one consumer and three at once."""

    size: int

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        records = (QUICK_RECORDS if quick else RECORDS)[self.size]
        topic = cluster.create_topic(PARTITIONS, {})
        values: dict[str, float] = {}
        try:
            load.produce(cluster.bootstrap, topic, records, self.size, BULK)
            load.consume(cluster.bootstrap, topic, records, 1)
            for consumers in (1, 3):
                meter = Meter(cluster.pids)
                values[f"mib_{consumers}"] = load.consume(
                    cluster.bootstrap, topic, records, consumers
                )
                cost = meter.read()
                values[f"cpu_us_{consumers}"] = MILLION * cost.cpu_s / records / consumers
                values[f"peak_mib_{consumers}"] = cost.peak_mib
        finally:
            cluster.delete_topic(topic)
        return values


def rows() -> Iterator[Row]:
    for size, what in ((1024, "1 KiB"), (100, "100 B")):
        probe = Consume(size)
        for consumers in (1, 3):
            label = f"{what}, {'one consumer' if consumers == 1 else 'three consumers'}"
            yield Row(label, f"mib_{consumers}", "MiB/s", probe, probe, suffix=f"_{consumers}")


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure on both sides."""
    yield from compare(list(rows()), quick=quick)
