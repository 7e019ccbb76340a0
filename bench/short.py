"""The short form: the figures that matter most, on both clusters.

It takes under two minutes for Tidelog alone. Most of the rest is spent on warming Kafka: five to
ten minutes, and fifteen at most.

Each cluster is started once. Figures are rougher than those of the long benchmarks, which repeat
each point; the ratios come from one run all the same.
"""

from collections.abc import Iterator

from bench._compare import Row, compare
from bench.consume import Consume
from bench.failover import Failover
from bench.idle import Startup
from bench.latency import Latency
from bench.produce import CACHING, Produce

NAME = "short"
ON_REQUEST = True  # it repeats what the others measure


def rows() -> Iterator[Row]:
    start = Startup()
    yield Row("start of three nodes to the first topic", "start_s", "s", start, start, digits=1)
    yield Row("memory at rest, a node", "rest_mib", "MiB", start, start)
    for label, value, unit, ours, theirs in (
        ("12 partitions, 100 B, acks=all", "rate_k", "k msg/s", Produce(100), Produce(100)),
        (
            "12 partitions, 100 B, write.caching",
            "rate_k",
            "k msg/s",
            Produce(100, config=CACHING),
            Produce(100),
        ),
        ("12 partitions, 1 KiB, acks=all", "mb", "MB/s", Produce(1024), Produce(1024)),
        ("1 partition, 1 KiB, acks=all", "mb", "MB/s", Produce(1024, 1), Produce(1024, 1)),
        (
            "12 partitions, 1 KiB, one record a batch",
            "rate",
            "msg/s",
            Produce(1024, single=True),
            Produce(1024, single=True),
        ),
    ):
        yield Row(label, value, unit, ours, theirs)
    calm = Latency()
    for name in ("p50", "p99"):
        yield Row(f"2,000 msg/s of 1 KiB, linger 0, {name}", name, "ms", calm, calm)
    read = Consume(1024)
    yield Row("catch-up, 1 KiB, one consumer", "mib_1", "MiB/s", read, read, suffix="_1")
    killed = Failover("leader")
    yield Row("leader killed to next acknowledged write", "median_ms", "ms", killed, killed)


def run(*, quick: bool = True) -> Iterator[str]:
    """Measure on both sides; always the quick way."""
    del quick
    yield from compare(list(rows()), quick=True)
