"""Produce latency at a rate that both clusters hold: 2,000 records of 1 KiB a second, no linger.

What is measured is the time from `send` to the acknowledgement, as the client sees it. Its clock
counts whole milliseconds. The client is a new JVM each time, whose first second is slow: a run is
so long that this second is less than its last percent. In a quick one it is more than that.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench._clients import Load
from bench._clusters import Cluster
from bench._compare import MILLION, Row, Values, compare
from bench._machine import Meter
from bench._patterns import BULK, PARTITIONS
from bench.produce import CACHING, FLUSHING

NAME = "latency"
RATE = 2000
SIZE = 1024
SECONDS = 150
QUICK_SECONDS = 8
WARM_S = 8
NAMES = ("p50", "p95", "p99", "p99.9")


@dataclass(frozen=True)
class Latency:
    """Records at a fixed rate. A first run warms client and cluster for this pattern."""

    config: tuple[tuple[str, str], ...] = ()

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        seconds = QUICK_SECONDS if quick else SECONDS
        topic = cluster.create_topic(PARTITIONS, dict(self.config))
        settings = {**BULK, "linger.ms": "0", "enable.idempotence": "true"}
        try:
            warm = RATE * min(WARM_S, seconds // 4)
            load.produce(cluster.bootstrap, topic, warm, SIZE, settings, RATE)
            meter = Meter(cluster.pids)
            records = RATE * seconds
            done = load.produce(cluster.bootstrap, topic, records, SIZE, settings, RATE)
            cost = meter.read()
        finally:
            cluster.delete_topic(topic)
        return {
            **dict(zip(NAMES, done.quantiles_ms, strict=True)),
            "rate": done.rate,
            "cpu_us": MILLION * cost.cpu_s / records,
            "peak_mib": cost.peak_mib,
        }


def rows() -> Iterator[Row]:
    """Every percentile for three ways to be safe; the last rows tell whether the rate was held."""
    plain, cached, flushed = Latency(), Latency(CACHING), Latency(FLUSHING)
    for label, ours, theirs in (
        ("acks=all", plain, plain),
        ("acks=all, write.caching", cached, plain),
        ("acks=all, Kafka flush.messages=1", plain, flushed),
    ):
        for name in NAMES:
            yield Row(f"{label}, {name}", name, "ms", ours, theirs)
    yield Row("acks=all, rate", "rate", "msg/s", plain, plain)


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure on both sides."""
    yield from compare(list(rows()), quick=quick)
