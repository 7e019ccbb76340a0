"""Memory, files, threads and latency of the nodes, every few seconds, and whether they grew.

A run of T minutes is judged by two windows of T/12 each (five minutes of an hour): the one after
the first T/12, though not before caches and allocators had three minutes to fill, and the last.
What counts is the median of a window. Latency is the cluster's; of the rest, the witness is judged
(`faults`), because it alone lives as long as the run, and the others by their largest, which says
whether a node that came back needs more than it did early on.

Open segments are counted apart from the other handles. A node keeps closed segments open that were
read last, in a pool whose bound is known: being within it is the claim, not being where one was.
"""

import contextlib
import csv
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench._clusters import Tidelog
from bench._machine import cpu_seconds, resident_mib
from tidelog.storage.handles import DEFAULT_POOL

SAMPLE_S = 5.0
WINDOWS = 12  # of a run; a window is an hour's five minutes
SETTLE_S = 180.0
REPLICAS_HELD = 64  # of a node: those of the load, of the groups, and of the cluster itself
SEGMENT = ".log"  # ends the name of a segment's file


@dataclass(frozen=True, slots=True)
class NodeSample:
    pid: int
    mib: float
    handles: int  # sockets, files, pipes; without the open segments
    segments: int  # that are open
    threads: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    at: float  # seconds after the start
    nodes: dict[int, NodeSample]  # those that ran
    p50_ms: float | None
    p99_ms: float | None
    worst_ms: float | None
    acknowledged: int
    refused: int
    load: float  # of the machine, neighbours included


@dataclass(frozen=True, slots=True)
class Limit:
    """Something grew if it is more than `share` times what it was, and more than `slack` above."""

    what: str
    unit: str
    share: float
    slack: float


MEMORY = Limit("memory", "MiB", 1.2, 16)
HANDLES = Limit("file handles", "", 1.1, 24)
THREADS = Limit("threads", "", 1.0, 2)
OF_NODES: tuple[tuple[Limit, Callable[[NodeSample], float]], ...] = (
    (MEMORY, lambda node: node.mib),
    (HANDLES, lambda node: node.handles),
    (THREADS, lambda node: node.threads),
)
P50 = Limit("latency of a write, p50", "ms", 1.5, 2)
P99 = Limit("latency of a write, p99", "ms", 2.0, 25)


@dataclass(frozen=True, slots=True)
class Verdict:
    ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok ' if self.ok else 'NOT'} {self.text}"


def bad(text: str) -> Verdict:
    return Verdict(ok=False, text=text)


class Watch:
    """Takes samples on a thread of its own until it is closed."""

    def __init__(
        self,
        cluster: Tidelog,
        probe_topic: str,
        file: Path,
        counts: Callable[[], tuple[int, int]],
    ) -> None:
        self.samples: list[Sample] = []
        self._cluster = cluster
        self._counts = counts
        self._file = file
        self._began = time.monotonic()
        self._latest: tuple[float, float, float] | None = None
        self._closing = threading.Event()
        self._probe = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench._soak.probe", probe_topic, str(SAMPLE_S)),
                *cluster.addresses(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._run, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def close(self) -> None:
        self._closing.set()
        assert self._probe.stdin is not None
        self._probe.stdin.close()
        self._probe.wait(60)
        for thread in self._threads:
            thread.join(60)

    def _listen(self) -> None:
        assert self._probe.stdout is not None
        for line in self._probe.stdout:
            middle, high, worst, _ = line.split()
            self._latest = float(middle), float(high), float(worst)

    def _run(self) -> None:
        with self._file.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(
                ("seconds", "node", "pid", "rss_mib", "handles", "segments", "threads", "cpu_s")
                + ("p50_ms", "p99_ms", "worst_ms", "acknowledged", "refused", "load")
            )
            while not self._closing.wait(SAMPLE_S):
                sample = self._take()
                self.samples.append(sample)
                for number, node in sample.nodes.items():
                    rows.writerow(
                        (f"{sample.at:.1f}", number, node.pid, f"{node.mib:.1f}", node.handles)
                        + (node.segments, node.threads, f"{node.cpu_s:.2f}", sample.p50_ms)
                        + (sample.p99_ms, sample.worst_ms, sample.acknowledged, sample.refused)
                        + (f"{sample.load:.1f}",)
                    )
                file.flush()

    def _take(self) -> Sample:
        nodes = {}
        for number in range(1, self._cluster.nodes + 1):
            found = _look_at(self._cluster.pid(number))
            if found is not None:
                nodes[number] = found
        latest, self._latest = self._latest, None
        p50, p99, worst = latest or (None, None, None)
        acknowledged, refused = self._counts()
        load = os.getloadavg()[0]
        return Sample(self.elapsed, nodes, p50, p99, worst, acknowledged, refused, load)


def _look_at(pid: int | None) -> NodeSample | None:
    if pid is None:
        return None
    try:
        opened = [_target(entry) for entry in os.scandir(f"/proc/{pid}/fd")]
        segments = sum(name.endswith(SEGMENT) for name in opened)
        return NodeSample(
            pid,
            resident_mib([pid]),
            len(opened) - segments,
            segments,
            len(os.listdir(f"/proc/{pid}/task")),
            cpu_seconds([pid]),
        )
    except OSError:
        return None  # it ended meanwhile


def _target(entry: os.DirEntry[str]) -> str:
    with contextlib.suppress(OSError):  # it was closed meanwhile
        return os.readlink(entry.path)
    return ""


# --- The verdict ------------------------------------------------------------------------------


def verdicts(samples: Sequence[Sample], witness: int, seconds: float) -> Iterator[Verdict]:
    """Compare the last window of a run of so many seconds with the one after the first."""
    window = seconds / WINDOWS
    start = max(window, min(SETTLE_S, seconds / 2))
    early = [each for each in samples if start <= each.at < start + window]
    late = [each for each in samples if each.at >= seconds - window]
    for limit, of in OF_NODES:
        yield judge(
            limit,
            f"node {witness}, which lived through it",
            *(
                [of(each.nodes[witness]) for each in chosen if witness in each.nodes]
                for chosen in (early, late)
            ),
        )
        yield judge(
            limit, "the others", *(_largest(chosen, of, witness) for chosen in (early, late))
        )
    yield _judge_segments(samples)
    loads = [statistics.median(each.load for each in part) for part in (early, late) if part]
    beside = "at a load of the machine of " + " and ".join(f"{load:.1f}" for load in loads)
    for limit, name in ((P50, "p50_ms"), (P99, "p99_ms")):
        yield judge(
            limit,
            f"the cluster, {beside}",
            *(
                [value for each in chosen if (value := getattr(each, name)) is not None]
                for chosen in (early, late)
            ),
        )


def _judge_segments(samples: Sequence[Sample]) -> Verdict:
    most = max((node.segments for each in samples for node in each.nodes.values()), default=0)
    bound = DEFAULT_POOL + REPLICAS_HELD
    return Verdict(
        most <= bound,
        f"open segments of a node: {most} at most (allowed: {DEFAULT_POOL} that are closed and"
        f" {REPLICAS_HELD} that are written)",
    )


def _largest(
    samples: Sequence[Sample], of: Callable[[NodeSample], float], witness: int
) -> list[float]:
    """The largest of the nodes that are not the witness, in each sample."""
    others = ([n for i, n in each.nodes.items() if i != witness] for each in samples)
    return [max(map(of, found)) for found in others if found]


def judge(limit: Limit, who: str, early: Sequence[float], late: Sequence[float]) -> Verdict:
    if not early or not late:
        return bad(f"{limit.what} of {who}: there are no samples to compare")
    before, after = statistics.median(early), statistics.median(late)
    grew = after > limit.share * before and after > before + limit.slack
    unit = f" {limit.unit}" if limit.unit else ""
    return Verdict(
        not grew,
        f"{limit.what} of {who}: {before:.1f}{unit} early, {after:.1f} at the end"
        f" (allowed: {limit.share:g} times it or {limit.slack:g}{unit} more)",
    )
