"""Soak: mixed load for an hour with a fault every minute; at the end nothing is lost, nothing grew.

Three node processes. Idempotent producers at acks=all on five topics: plain, with `write.caching`,
compressed, with a retention that deletes segments, and compacted with keys that are written again.
A group of each protocol reads and commits. `_soak/faults.py` says what happens to the nodes,
`_soak/watch.py` what is sampled and when it counts as grown, `_soak/check.py` what must be there.

Samples, curves, faults, verdicts and the nodes' own logs are kept in a directory; the data is not,
unless something was lost.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import KafkaException

from bench._clusters import Tidelog
from bench._machine import BenchFailed, resident_mib, tell
from bench._soak import check, curves
from bench._soak.faults import Fault, Faults
from bench._soak.load import Group, Writer
from bench._soak.topics import PARTITIONS, SHAPES
from bench._soak.watch import WINDOWS, Verdict, Watch, bad, verdicts
from tidelog.server.names import LOG_FILE
from tidelog.server.nodes import ClusterFailed

NAME = "soak"
ON_REQUEST = True  # it takes an hour
ARGUMENTS = {
    "minutes": (float, 60.0, "soak: how long"),
    "directory": (Path, None, "soak: where to keep samples, curves and logs (default: a new one)"),
}
NODES = 3
PROBE_TOPIC = "probe"
FAULT_S = 60.0
QUICK_MINUTES = 3.0
# The cache is full before the first window ends, so that its filling is not taken for a leak.
SETTINGS = f"cache_bytes = {16 << 20}\n"
# What a node never has to say, whatever happens to it.
COMPLAINTS = re.compile(
    r"^Traceback|\bERROR\b|\bCRITICAL\b|Task was destroyed|never awaited", re.MULTILINE
)


class Soak:
    """One run."""

    def __init__(self, minutes: float, directory: Path) -> None:
        self.seconds = 60 * minutes
        self.directory = directory
        self.cluster = Tidelog(directory / "nodes", SETTINGS)
        self.happened: list[Fault] = []
        self.judged: list[Verdict] = []

    def run(self) -> Iterator[str]:
        """Yield what is to be told, the verdicts last."""
        try:
            self.cluster.start(NODES)
            yield from self._measure()
        finally:
            self.cluster.stop()
        self.judged += self._log_verdicts()
        yield from map(str, self.judged)

    def _measure(self) -> Iterator[str]:
        for shape in SHAPES:
            self.cluster.create_named(shape.name, PARTITIONS, shape.config)
        self.cluster.create_named(PROBE_TOPIC, 1, {})
        bootstrap = self.cluster.bootstrap
        writers = {shape.name: Writer(bootstrap, shape) for shape in SHAPES}
        groups = [
            Group(bootstrap, "classic", ["plain", "cached", "retained"]),
            Group(bootstrap, "consumer", ["plain", "zipped", "compacted"]),
        ]
        members = [member for group in groups for member in group.members]
        for worker in (*writers.values(), *members):
            worker.start()
        watch = Watch(
            self.cluster,
            PROBE_TOPIC,
            self.directory / "samples.csv",
            lambda: (
                sum(each.acknowledged.count for each in writers.values()),
                sum(each.failed.count for each in writers.values()),
            ),
        )
        faults = Faults(self.cluster, [*writers, PROBE_TOPIC], [each.name for each in groups])
        try:
            self._hurt(faults, watch)
            took = watch.elapsed
        finally:
            watch.close()
            for writer in writers.values():
                writer.stop()
        for writer in writers.values():
            writer.join()
        check.wait_seen(groups, writers)
        for member in members:
            member.stop()
        for member in members:
            member.join()
        workers = (*writers.values(), *members)
        self.judged += [bad(each.failure) for each in workers if each.failure]
        self.judged += self._checked(writers, groups, took)
        self.judged += verdicts(watch.samples, faults.witness, took)
        yield from self._draw(watch, took)
        for worker in workers:
            for text, count in worker.complaints.most_common(3):
                yield f"{worker.name} was told {count} times: {text}"

    def _hurt(self, faults: Faults, watch: Watch) -> None:
        """Do what is due until the time is over."""
        every = min(FAULT_S, self.seconds / 6)
        due = every / 4
        since = time.monotonic() - watch.elapsed
        # The last fault is a quiet one away from the end, so that the end is like the beginning.
        while due < self.seconds - every / 4:
            time.sleep(max(0.0, due - watch.elapsed))
            try:
                fault = faults.next(since)
                self.happened.append(fault)
                said = f"{fault.what}, node {fault.node or 'by node'}: {fault.healed_s:.1f} s"
            except (BenchFailed, ClusterFailed, KafkaException) as error:
                self.judged.append(bad(f"after a fault at {due:.0f} s: {error}"))
                said = str(error)
            own = resident_mib(["self"])
            tell(f"{watch.elapsed / 60:5.1f} min: {said} (this program: {own:.0f} MiB)")
            due = max(due + every, watch.elapsed)
        time.sleep(max(0.0, self.seconds - watch.elapsed))

    def _checked(
        self, writers: dict[str, Writer], groups: list[Group], took: float
    ) -> Iterator[Verdict]:
        for writer in writers.values():
            yield from check.topic_verdicts(check.read_back(self.cluster, writer), took)
        for group in groups:
            yield from check.group_verdicts(self.cluster, group, writers)
        for writer in writers.values():
            if writer.shape.keys:
                yield from check.file_verdicts(self.cluster, writer.shape.name)

    def _draw(self, watch: Watch, took: float) -> Iterator[str]:
        shown = curves.panels(watch.samples, range(1, NODES + 1))
        drawn = curves.svg(shown, self.happened, took)
        (self.directory / "curves.svg").write_text(drawn)
        (self.directory / "faults.txt").write_text(
            "".join(
                f"{each.at:8.1f} s  {each.what}, node {each.node or 'by node'},"
                f" healed after {each.healed_s:.1f} s\n"
                for each in self.happened
            )
        )
        yield (
            f"{took / 60:.1f} minutes, {len(self.happened)} faults; compared are windows of"
            f" {took / WINDOWS:.0f} s; kept in {self.directory}"
        )
        for panel in shown:
            for name, line in panel.lines:
                yield f"{panel.title.split(',')[0]:30} {name:10} {curves.blocks(line)}"

    def _log_verdicts(self) -> Iterator[Verdict]:
        """Look at what the nodes had to say, and keep it."""
        for node in self.cluster.local.nodes:
            said = (node.directory / LOG_FILE).read_text(errors="replace")
            (self.directory / f"node-{node.id}.log").write_text(said)
            found = COMPLAINTS.search(said)
            what = "" if found is None else f": {said[found.start() :][:500]}"
            yield Verdict(found is None, f"log of node {node.id}{what or ': no complaints'}")


def run(
    *, quick: bool = False, minutes: float = 60.0, directory: Path | None = None
) -> Iterator[str]:
    """Run, and raise `BenchFailed` if something was lost or grew."""
    minutes = min(minutes, QUICK_MINUTES) if quick else minutes
    kept = directory or Path(tempfile.mkdtemp(prefix="tidelog-soak-"))
    kept.mkdir(parents=True, exist_ok=True)
    soak = Soak(minutes, kept)
    lines = []
    for line in soak.run():
        lines.append(line)
        yield line
    (kept / "verdict.txt").write_text("\n".join(lines) + "\n")
    trouble = [each for each in soak.judged if not each.ok]
    if trouble:
        raise BenchFailed(
            f"{len(trouble)} of the above are NOT as they should be; data and logs are in {kept}"
        )
    shutil.rmtree(kept / "nodes")
