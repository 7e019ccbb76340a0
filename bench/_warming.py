"""Bring a cluster to the speed that it keeps before anything is measured.

A JVM goes on compiling what it runs for tens of millions of records: on two cores Kafka's rate rose
for 14 to 23 million of them, with passes in between that brought nothing. So the patterns that
throughput is measured with take turns until each has had its least number of records and each has
had `STEADY_PASSES` passes in a row that brought nothing: none of them faster by more than noise
than the best before, nor a new second best. Where that takes longer than `MAX_WARM_S`, the table
says next to each figure that the cluster was not steady yet.

What was written is read again now and then, without judging how fast. Other patterns (a fixed rate,
many consumers, many connections) have the first seconds of their own measurements and no more.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench._clients import Load
from bench._clusters import Cluster, Tidelog
from bench._machine import tell
from bench._patterns import BULK, PARTITIONS, SINGLE

MILLION = 1_000_000
STEADY_PASSES = 10
GAIN = 1.02  # less than that is noise
# About forty rounds, or 60 million records of 100 B; they take 10 to 20 s each.
MAX_WARM_S = 900.0
PASSES_A_TOPIC = 5  # then it is read and deleted, so that warming does not fill the disk


@dataclass(frozen=True, slots=True)
class Pattern:
    """Records that are sent in one way."""

    name: str
    size: int
    records: int  # of a pass
    least: int = 0  # records before it may count as steady
    settings: Mapping[str, str] = field(default_factory=dict)


PATTERNS = (
    Pattern("100 B", 100, 1_500_000, 15 * MILLION),
    Pattern("1 KiB", 1024, 100_000),
    Pattern("one record a batch", 1024, 4_000, settings=SINGLE),
)


@dataclass(slots=True)
class Progress:
    """How far one pattern has got."""

    pattern: Pattern
    rates: list[float] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return len(self.rates) * self.pattern.records

    @property
    def is_warm(self) -> bool:
        return self.sent >= self.pattern.least and is_steady(self.rates)

    def __str__(self) -> str:
        quiet = passes_without_gain(self.rates)
        return (
            f"{self.pattern.name}: {_millions(self.sent)} records in {len(self.rates)} passes,"
            f" {_rate(self.rates[0])} in the first and {_rate(max(self.rates))} in the best,"
            f" the last {quiet} brought nothing"
        )


@dataclass(frozen=True, slots=True)
class Warmth:
    """How far the warming of a cluster got."""

    lines: tuple[str, ...]
    is_steady: bool


def warm_up(
    cluster: Cluster,
    load: Load,
    patterns: Sequence[Pattern] = PATTERNS,
    max_s: float = MAX_WARM_S,
    clock: Callable[[], float] = time.monotonic,
) -> Warmth:
    """Warm a cluster; Tidelog, which compiles nothing while it runs, gets one pass of each."""
    began = clock()
    warming = [Progress(pattern) for pattern in patterns]
    once = isinstance(cluster, Tidelog)
    read = 0

    def is_warm() -> bool:
        return once or all(each.is_warm for each in warming)

    def ended() -> bool:
        return is_warm() or clock() - began >= max_s

    while not read or not ended():
        topic = cluster.create_topic(PARTITIONS, {})
        written = 0
        for _ in range(PASSES_A_TOPIC):
            written += sum(_send(cluster, load, topic, each) for each in warming)
            rates = ", ".join(f"{each.pattern.name} {_rate(each.rates[-1])}" for each in warming)
            tell(f"{cluster.name}: warming, pass {len(warming[0].rates)}: {rates}")
            if ended():
                break
        load.consume(cluster.bootstrap, topic, written, 1)
        read += written
        cluster.delete_topic(topic)
    head = (
        f"{cluster.name}, nodes: {cluster.nodes}, was warmed for {clock() - began:.0f} s and is"
        f" {'steady' if is_warm() else 'NOT YET STEADY'}; {_millions(read)} records were read"
    )
    return Warmth((head, *map(str, warming)), is_warm())


def _send(cluster: Cluster, load: Load, topic: str, progress: Progress) -> int:
    """Send a pass of a pattern; return how many records that were."""
    pattern = progress.pattern
    settings = {**BULK, **pattern.settings}
    done = load.produce(cluster.bootstrap, topic, pattern.records, pattern.size, settings)
    progress.rates.append(done.rate)
    return pattern.records


def is_steady(rates: Sequence[float]) -> bool:
    """Whether the last passes brought nothing."""
    return passes_without_gain(rates) >= STEADY_PASSES


def passes_without_gain(rates: Sequence[float]) -> int:
    """Count the passes since the last that brought something: a new best, or a new second best.

    The second best is what one lucky pass does not hide. Many small gains are one: a pass is
    compared with what was reached when something was gained last.
    """
    best = second = 0.0
    reached = (0.0, 0.0)
    quiet = 0
    for rate in rates:
        best, second = max(best, rate), max(min(best, rate), second)
        if best > GAIN * reached[0] or second > GAIN * reached[1]:
            reached, quiet = (best, second), 0
        else:
            quiet += 1
    return quiet


def _millions(count: int) -> str:
    return f"{count / MILLION:.1f} M" if count >= MILLION else f"{count:,}"


def _rate(rate: float) -> str:
    return f"{rate / 1000:.0f} k msg/s" if rate >= 10_000 else f"{rate:,.0f} msg/s"
