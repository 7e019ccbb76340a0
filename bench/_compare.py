"""Measure the same things on both clusters, and print one table with the ratios.

A *probe* is one measurement, a *row* of a table says what probe to make on each side and which of
its values to show. Sides take turns: a cluster is stopped before the other is started, since they
share the cores, and is warmed first (`_warming.py`), because a comparison with a young JVM flatters
us. The table says how far the warming got, and marks what was measured on a Kafka that still got
faster.

Ratios are written so that more is better for Tidelog only where more is better: a throughput ratio
of 1.25 means a quarter faster, a processor ratio of 0.5 means half the cost.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import KafkaException

from bench._clients import Load, default_load
from bench._clusters import Cluster, Kafka, Tidelog, peer_script
from bench._machine import BenchFailed, busy, tell
from bench._warming import Warmth, warm_up
from tidelog.server.nodes import ClusterFailed

MILLION = 1_000_000
ALONE_VARIABLE = "TIDELOG_BENCH_ALONE"  # set: Kafka is not measured, its clients are used
NOT_STEADY = "Kafka was not yet steady"
NO_COSTS = " (told in another row)"  # a suffix that nothing has

# One measurement that cannot be made does not cost the others.
FAILURES = (BenchFailed, ClusterFailed, KafkaException, OSError)

Values = Mapping[str, float]


class Probe(Protocol):
    """One measurement. Equal probes are made once."""

    def __hash__(self) -> int: ...

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        """Raises `BenchFailed`. What nodes spent goes by the names "cpu_us" and "peak_mib"."""


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    value: str  # the name of the value to show
    unit: str
    ours: Probe
    theirs: Probe | None  # None: Kafka has nothing like it
    nodes: int = 3
    digits: int = 0
    suffix: str = ""  # of the names of its costs, for a probe that measures several things


@dataclass(slots=True)
class Side:
    """What one cluster showed."""

    name: str
    warmth: dict[int, Warmth] = field(default_factory=dict)  # by the number of nodes
    found: dict[tuple[int, Probe], Values] = field(default_factory=dict)
    failed: dict[tuple[int, Probe], str] = field(default_factory=dict)

    def value(self, row: Row, probe: Probe | None, name: str) -> float | None:
        if probe is None:
            return None
        return self.found.get((row.nodes, probe), {}).get(name)

    def is_steady(self, nodes: int) -> bool:
        """Whether it was as fast as it gets; what needs no warming is."""
        return nodes not in self.warmth or self.warmth[nodes].is_steady


def compare(rows: Sequence[Row], *, quick: bool, warm: bool = True) -> Iterator[str]:
    """Measure all rows on both sides, then yield the table."""
    load = default_load()
    script = None if os.environ.get(ALONE_VARIABLE) else peer_script()
    note = busy()
    ours, theirs = Side("Tidelog"), Side("Kafka")
    for nodes in sorted({row.nodes for row in rows}, reverse=True):
        chosen = [row for row in rows if row.nodes == nodes]
        _measure(Tidelog(), ours, nodes, [row.ours for row in chosen], load, quick=quick, warm=warm)
        probes = [row.theirs for row in chosen if row.theirs is not None]
        if script is not None and probes:
            _measure(Kafka(script), theirs, nodes, probes, load, quick=quick, warm=warm)
    yield f"client: {load.name}" + ("" if script else "; not compared with Kafka")
    for warmth in theirs.warmth.values():
        yield from warmth.lines
    if note:
        yield f"{note}: smoke, not figures"
    yield from table(rows, ours, theirs)
    for side in (ours, theirs):
        for (nodes, _), why in side.failed.items():
            yield f"failed on {side.name}, {nodes} nodes: {why}"


def _measure(
    cluster: Cluster,
    side: Side,
    nodes: int,
    probes: Sequence[Probe],
    load: Load,
    *,
    quick: bool,
    warm: bool,
) -> None:
    unique = list(dict.fromkeys(probes))
    try:
        cluster.start(nodes)
        warmed = not warm
        for probe in unique:
            if not warmed and not getattr(probe, "cold", False):
                side.warmth[nodes] = warm_up(cluster, load)
                warmed = True
            began = time.monotonic()
            try:
                side.found[nodes, probe] = probe.measure(cluster, load, quick=quick)
                said = " ".join(
                    f"{name}={value:.4g}" for name, value in side.found[nodes, probe].items()
                )
            except FAILURES as error:
                side.failed[nodes, probe] = said = f"{probe}: {error}"
            tell(f"{side.name}: {probe}: {said} ({time.monotonic() - began:.1f} s)")
    except FAILURES as error:
        for probe in unique:
            side.failed.setdefault((nodes, probe), str(error))
        tell(f"{side.name}: {error}")
    finally:
        cluster.stop()


def table(rows: Sequence[Row], ours: Side, theirs: Side) -> Iterator[str]:
    width = max(len(row.label) for row in rows)
    with_costs = any("cpu_us" + row.suffix in _all_values(row, ours, theirs) for row in rows)
    head = f"{'':{width}} {'':>8} {'Tidelog':>9} {'Kafka':>9} {'ratio':>6}"
    if with_costs:
        head += f" | CPU us/msg: {'Tidelog':>7} {'Kafka':>7} {'ratio':>6}"
        head += f" | peak MiB a node: {'Tidelog':>7} {'Kafka':>6}"
    yield head
    for row in rows:
        cells = [side.value(row, probe, row.value) for side, probe in _sides(row, ours, theirs)]
        cpu, peak = (
            [side.value(row, probe, name + row.suffix) for side, probe in _sides(row, ours, theirs)]
            for name in ("cpu_us", "peak_mib")
        )
        line = (
            f"{row.label:{width}} {row.unit:>8} {_cell(cells[0], 9, row.digits)}"
            f" {_cell(cells[1], 9, row.digits)} {_ratio(*cells)}"
        )
        if with_costs:
            line += (
                f" | {'':11} {_cell(cpu[0], 7, 2)} {_cell(cpu[1], 7, 2)} {_ratio(*cpu)}"
                f" | {'':16} {_cell(peak[0], 7, 0)} {_cell(peak[1], 6, 0)}"
            )
        if cells[1] is not None and not theirs.is_steady(row.nodes):
            line += f" | {NOT_STEADY}"
        yield line


def _sides(row: Row, ours: Side, theirs: Side) -> tuple[tuple[Side, Probe | None], ...]:
    return (ours, row.ours), (theirs, row.theirs)


def _all_values(row: Row, ours: Side, theirs: Side) -> set[str]:
    """Names of everything that was measured for a row."""
    return {
        name
        for side, probe in _sides(row, ours, theirs)
        if probe is not None
        for name in side.found.get((row.nodes, probe), {})
    }


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width},.{digits}f}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    if ours is None or not theirs:
        return f"{'-':>6}"
    return f"{ours / theirs:>6.2f}"
