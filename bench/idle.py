"""What a cluster costs that does nothing: start-up, memory at rest, and partitions nobody uses.

Idle cost is measured over some seconds without any client, on nodes that have had no load yet: what
a node keeps of the last load is its cache, not the price of a partition. Figures a 1,000 partitions
are what 3,000 of them, with three replicas each, add on one node. Then one topic is written as fast
as it goes, without the others and beside them.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench._clients import Load
from bench._clusters import Cluster
from bench._compare import Row, Values, compare
from bench._machine import cpu_seconds, resident_mib
from bench.produce import Produce

NAME = "idle"
SETTLE_S = 10.0
QUICK_SETTLE_S = 3.0
WATCH_S = 20.0
QUICK_WATCH_S = 5.0
PARTITIONS = 3000
QUICK_PARTITIONS = 600
TOPICS = 30  # as many topics share them
PERCENT = 100


@dataclass(frozen=True)
class Startup:
    """How long it took until the first topic, and what the nodes hold then."""

    cold = True

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        del load
        return {"start_s": cluster.started_s, **_rest(cluster, quick=quick)}


@dataclass(frozen=True)
class Crowd:
    """Many partitions nobody uses, on nodes that never had anything to do."""

    cold = True

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        del load
        before = _rest(cluster, quick=quick)
        partitions = QUICK_PARTITIONS if quick else PARTITIONS
        with _crowd(cluster, partitions) as created_s:
            after = _rest(cluster, quick=quick)
        thousands = partitions / 1000
        return {
            "create_ms": 1000 * created_s / partitions,
            "crowded_mib": after["rest_mib"],
            "crowded_percent": after["rest_percent"],
            "mib_1000": (after["rest_mib"] - before["rest_mib"]) / thousands,
            "percent_1000": (after["rest_percent"] - before["rest_percent"]) / thousands,
        }


@dataclass(frozen=True)
class Hot:
    """A topic that is busy, without the crowd and beside it."""

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        hot = Produce(100)
        alone = hot.measure(cluster, load, quick=quick)
        with _crowd(cluster, QUICK_PARTITIONS if quick else PARTITIONS):
            time.sleep(QUICK_SETTLE_S if quick else SETTLE_S)
            crowded = hot.measure(cluster, load, quick=quick)
        return {
            "hot_share": crowded["rate"] / alone["rate"],
            "hot_cpu": crowded["cpu_us"] / alone["cpu_us"],
            "hot_mib": crowded["peak_mib"],
        }


@contextlib.contextmanager
def _crowd(cluster: Cluster, partitions: int) -> Iterator[float]:
    """Topics that nobody uses, for a while; gives the seconds that it took to create them."""
    began = time.monotonic()
    topics: list[str] = []
    try:
        topics.extend(cluster.create_topic(partitions // TOPICS, {}) for _ in range(TOPICS))
        yield time.monotonic() - began
    finally:
        for topic in topics:
            cluster.delete_topic(topic)


def _rest(cluster: Cluster, *, quick: bool) -> Values:
    """Memory of the largest node, and the share of a core that a node uses, with no client."""
    time.sleep(QUICK_SETTLE_S if quick else SETTLE_S)
    watch = QUICK_WATCH_S if quick else WATCH_S
    began = cpu_seconds(cluster.pids)
    time.sleep(watch)
    used = (cpu_seconds(cluster.pids) - began) / cluster.nodes
    return {"rest_mib": resident_mib(cluster.pids), "rest_percent": PERCENT * used / watch}


def rows(*, quick: bool) -> Iterator[Row]:
    start, crowd, hot = Startup(), Crowd(), Hot()
    count = QUICK_PARTITIONS if quick else PARTITIONS
    for label, value, unit, probe, digits in (
        ("start of three nodes to the first topic", "start_s", "s", start, 2),
        ("memory at rest, a node", "rest_mib", "MiB", start, 0),
        ("processor at rest, a node", "rest_percent", "% core", start, 2),
        (f"memory with {count:,} partitions, a node", "crowded_mib", "MiB", crowd, 0),
        (f"processor with {count:,} partitions, a node", "crowded_percent", "% core", crowd, 2),
        ("memory a 1,000 partitions, a node", "mib_1000", "MiB", crowd, 1),
        ("processor a 1,000 partitions, a node", "percent_1000", "% core", crowd, 2),
        ("time to create a partition", "create_ms", "ms", crowd, 1),
        ("produce to a hot topic: speed with / without", "hot_share", "x", hot, 2),
        ("produce to a hot topic: CPU with / without", "hot_cpu", "x", hot, 2),
        (f"memory of a node beside it, {count:,} partitions, peak", "hot_mib", "MiB", hot, 0),
    ):
        yield Row(label, value, unit, probe, probe, digits=digits)


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure on both sides."""
    yield from compare(list(rows(quick=quick)), quick=quick)
