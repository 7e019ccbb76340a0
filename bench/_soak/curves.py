"""The curves of a soak run: one SVG file, and a line of blocks for a terminal."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench._soak.faults import Fault
from bench._soak.watch import NodeSample, Sample

WIDTH, HEIGHT = 900, 130  # of a panel
LEFT, TOP, GAP = 70, 30, 40
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # told apart by all eyes
GREY = "#999999"
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 60

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    lines: tuple[tuple[str, list[Point]], ...]
    logarithmic: bool = False


def panels(samples: Sequence[Sample], nodes: Sequence[int]) -> list[Panel]:
    def of_nodes(title: str, of: Callable[[NodeSample], float]) -> Panel:
        return Panel(
            title,
            tuple(
                (
                    f"node {node}",
                    [(s.at, of(s.nodes[node]) if node in s.nodes else None) for s in samples],
                )
                for node in nodes
            ),
        )

    return [
        of_nodes("memory, MiB", lambda node: node.mib),
        of_nodes("file handles, without open segments", lambda node: node.handles),
        of_nodes("open segments", lambda node: node.segments),
        of_nodes("threads", lambda node: node.threads),
        Panel(
            "latency of a write, ms (logarithmic)",
            (
                ("p50", [(s.at, s.p50_ms) for s in samples]),
                ("p99", [(s.at, s.p99_ms) for s in samples]),
            ),
            logarithmic=True,
        ),
        Panel("acknowledged records a second", (("all topics", _rates(samples)),)),
        Panel("load of the machine", (("", [(s.at, s.load) for s in samples]),)),
    ]


def _rates(samples: Sequence[Sample]) -> list[Point]:
    return [
        (later.at, (later.acknowledged - earlier.acknowledged) / (later.at - earlier.at))
        for earlier, later in itertools.pairwise(samples)
    ]


def svg(shown: Sequence[Panel], faults: Sequence[Fault], seconds: float) -> str:
    """All panels, one below the other; a grey line is a fault."""
    height = TOP + len(shown) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, panel in enumerate(shown):
        parts += _draw(panel, TOP + place * (HEIGHT + GAP), faults, seconds)
    return "\n".join([*parts, "</svg>", ""])


def _draw(panel: Panel, top: float, faults: Sequence[Fault], seconds: float) -> list[str]:
    values = [value for _, line in panel.lines for _, value in line if value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if panel.logarithmic:
        low, high = max(low, 0.01), max(high, 0.1)
    else:
        low = 0.0
    high = high if high > low else low + 1

    def x(at: float) -> float:
        return LEFT + WIDTH * at / seconds

    def y(value: float) -> float:
        if panel.logarithmic:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return top + HEIGHT * (1 - share)

    parts = [
        f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{panel.title}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none"'
        f' stroke="{GREY}"/>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{high:.4g}</text>',
        f'<text x="{LEFT - 6}" y="{top + HEIGHT}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 14}" text-anchor="end">'
        f"{seconds / 60:.3g} min</text>",
    ]
    parts += [
        f'<line x1="{x(fault.at):.1f}" x2="{x(fault.at):.1f}" y1="{top}" y2="{top + HEIGHT}"'
        f' stroke="#dddddd"><title>{fault.what}, node {fault.node}</title></line>'
        for fault in faults
    ]
    for place, (name, points) in enumerate(panel.lines):
        colour = COLOURS[place % len(COLOURS)]
        for run in _runs(points):
            drawn = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
            parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}"/>')
        parts.append(
            f'<text x="{LEFT + 300 + 90 * place}" y="{top - 8}" fill="{colour}">{name}</text>'
        )
    return parts


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """The points between two that are missing: a node that was down leaves a hole."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is not None:
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def blocks(line: Sequence[Point]) -> str:
    """A curve in one line of text, from zero to its highest."""
    values = [value for _, value in line if value is not None]
    if not values:
        return "-"
    high = max(values) or 1.0
    step = max(1, math.ceil(len(line) / COLUMNS))
    drawn = ""
    for start in range(0, len(line), step):
        part = [value for _, value in line[start : start + step] if value is not None]
        drawn += BLOCKS[int(7 * max(part) / high)] if part else " "
    return f"{drawn} {min(values):.4g} to {high:.4g}"
