"""Whether a message costs the same however much is there: a longer log, more partitions.

The log of one topic of 12 partitions grows to 10 GiB, and at some sizes a pass of 1 KiB records is
measured. Then topics of 1 to 1,000 partitions get the same pass each. All have three replicas. The
curve that matters is the processor time a message; throughput depends on the neighbours too. The
data is deleted at the end.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench._clients import Load, default_load
from bench._clusters import REPLICAS, Tidelog
from bench._compare import MILLION
from bench._machine import BenchFailed, Meter, busy, tell
from bench._patterns import BULK, PARTITIONS
from bench._warming import warm_up

NAME = "growth"
GIB = 1 << 30
SIZE = 1024
LOG_GIB = (1.0, 2.0, 5.0, 10.0)
QUICK_LOG_GIB = (0.25, 0.5, 1.0)
WIDTHS = (1, 10, 100, 1000)
QUICK_WIDTHS = (1, 10, 100)
RECORDS = 150_000  # of a pass that is measured
QUICK_RECORDS = 50_000
SPARE_BYTES = 10 * GIB  # that must be left for the neighbours
FLAT = 1.25  # as far as the last point may be above the first and the curve still be flat
BAR = 40


@dataclass(frozen=True, slots=True)
class Point:
    at: float
    rate: float  # messages a second
    cpu_us: float
    peak_mib: float


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure both curves on a cluster of their own."""
    sizes = QUICK_LOG_GIB if quick else LOG_GIB
    _check_space(int(sizes[-1] * GIB))
    load = default_load()
    note = busy()
    cluster = Tidelog()
    records = QUICK_RECORDS if quick else RECORDS
    try:
        cluster.start(REPLICAS)
        warm_up(cluster, load)
        longer = list(_longer(cluster, load, sizes, records))
        wider = [
            _wider(cluster, load, width, records) for width in (QUICK_WIDTHS if quick else WIDTHS)
        ]
    finally:
        cluster.stop()
    yield f"client: {load.name}; 1 KiB, acks=all, three replicas"
    if note:
        yield f"{note}: smoke, not figures"
    yield from _curve("GiB of log", longer)
    yield from _curve("partitions", wider)


def _check_space(amount: int) -> None:
    """Raise `BenchFailed` unless the disk has room for this and for the neighbours."""
    needed = REPLICAS * amount + SPARE_BYTES
    free = shutil.disk_usage(Path(tempfile.gettempdir())).free
    if free < needed:
        raise BenchFailed(
            f"this would fill the disk: it needs {needed / GIB:.0f} GiB below"
            f" {tempfile.gettempdir()} and {free / GIB:.0f} are free; use --quick, or set TMPDIR"
        )


def _longer(
    cluster: Tidelog, load: Load, sizes: tuple[float, ...], records: int
) -> Iterator[Point]:
    topic = cluster.create_topic(PARTITIONS, {})
    written = 0
    try:
        for size in sizes:
            filling = int(size * GIB / SIZE) - written - records
            if filling > 0:
                load.produce(cluster.bootstrap, topic, filling, SIZE, BULK)
                written += filling
            yield _measure(cluster, load, topic, size, records)
            written += records
    finally:
        cluster.delete_topic(topic)


def _wider(cluster: Tidelog, load: Load, width: int, records: int) -> Point:
    topic = cluster.create_topic(width, {})
    try:
        # The first pass meets what only a new topic has: files to make, clients to tell.
        load.produce(cluster.bootstrap, topic, records // 3, SIZE, BULK)
        return _measure(cluster, load, topic, width, records)
    finally:
        cluster.delete_topic(topic)


def _measure(cluster: Tidelog, load: Load, topic: str, at: float, records: int) -> Point:
    meter = Meter(cluster.pids)
    done = load.produce(cluster.bootstrap, topic, records, SIZE, BULK)
    cost = meter.read()
    point = Point(at, done.rate, MILLION * cost.cpu_s / records, cost.peak_mib)
    tell(f"{topic} at {at:g}: {point.rate:,.0f} msg/s, {point.cpu_us:.1f} us a message")
    return point


def _curve(what: str, points: list[Point]) -> Iterator[str]:
    highest = max(point.cpu_us for point in points)
    yield f"{what:>12} {'msg/s':>9} {'CPU us/msg':>11} {'peak MiB':>9}"
    for point in points:
        bar = "#" * max(1, round(BAR * point.cpu_us / highest))
        yield (
            f"{point.at:>12g} {point.rate:>9,.0f} {point.cpu_us:>11.1f} {point.peak_mib:>9.0f}"
            f"  {bar}"
        )
    ratio = points[-1].cpu_us / points[0].cpu_us
    shape = "flat" if ratio <= FLAT else "NOT flat"
    yield f"{'':>12} last / first: {ratio:.2f} ({shape}: at most {FLAT})"
