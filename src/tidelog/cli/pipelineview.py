"""How a run of a pipeline looks: live on a terminal, in lines elsewhere, and summed up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.pipelines.events import (
    Ended,
    Event,
    Filled,
    FlowState,
    Problem,
    Progress,
    Published,
    Stage,
)

if TYPE_CHECKING:
    from rich.console import Console

_REFRESH_PER_S: Final = 8
_DONE: Final = ("COMPLETED", "IDLE")
_BAD: Final = ("FAILED", "SKIPPED", "EXCLUDED")


@dataclass(slots=True)
class Flow:
    """What is known of one flow."""

    name: str
    state: str = "QUEUED"
    read: int = 0
    written: int | None = None
    batches: int = 0
    milliseconds: int = 0
    rows_per_second: float = 0.0  # of the last batch
    lag: int | None = None
    rules: dict[str, dict[str, int]] = field(default_factory=dict)
    is_batch: bool = False  # computed as a whole, as materialized views are

    def enter(self, state: str) -> None:
        """Take in a new state."""
        self.state = state
        self.is_batch |= state == "PLANNING"  # which streams never are

    def add(self, progress: Progress) -> None:
        """Take in a batch."""
        self.read += progress.rows
        self.batches += 1
        self.milliseconds += progress.milliseconds
        self.rows_per_second = progress.rows_per_second
        self.lag = progress.lag
        if progress.written is not None:
            self.written = (self.written or 0) + progress.written
        for view, figures in progress.rules.items():
            sums = self.rules.setdefault(view, {})
            for rule, rows in figures.items():
                sums[rule] = sums.get(rule, 0) + rows

    @property
    def rejected(self) -> int:
        """Rows that broke rules; one that broke two counts twice."""
        return sum(rows for figures in self.rules.values() for rows in figures.values())


class Report:
    """What became of a run."""

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.problems: list[str] = []
        self.published: list[tuple[str, str, int]] = []
        self.stage = ""
        self.ok = False
        self.interrupted = False

    def take(self, event: Event) -> None:
        """Take in an event."""
        match event:
            case Stage():
                self.stage = event.text
            case FlowState():
                self._flow(event.flow).enter(event.state)
            case Progress():
                self._flow(event.flow).add(event)
            case Filled():
                flow = self.flows.get(event.table)
                if flow is not None and flow.is_batch:
                    flow.written = event.rows
                elif flow is not None:
                    flow.written = (flow.written or 0) + event.added
            case Published():
                self.published = [each for each in self.published if each[0] != event.table]
                self.published.append((event.table, event.lake, event.rows))
            case Problem():
                self.problems.append(event.text)
            case Ended():
                self.ok = event.ok

    def rows(self) -> list[tuple[Any, ...]]:
        """Return a row for each flow: read, written, rejected, and how long it took."""
        return [
            (
                flow.name,
                flow.read if flow.batches else None,
                flow.written,
                flow.rejected if flow.rules else None,
                flow.batches or None,
                f"{flow.milliseconds / 1000:.1f}" if flow.batches else None,
                flow.lag,
            )
            for flow in self.flows.values()
        ]

    def broken(self) -> list[tuple[str, str, int]]:
        """Return how many rows broke which rule; a view that two flows read is counted once."""
        found: dict[tuple[str, str], int] = {}
        for flow in self.flows.values():
            for view, figures in flow.rules.items():
                for rule, rows in figures.items():
                    found[view, rule] = max(found.get((view, rule), 0), rows)
        return [(view, rule, rows) for (view, rule), rows in found.items() if rows]

    def document(self) -> Mapping[str, Any]:
        """Return the report for programs."""
        return {
            "ok": self.ok,
            "problems": self.problems,
            "flows": [
                {
                    "flow": flow.name,
                    "state": flow.state,
                    "read": flow.read,
                    "written": flow.written,
                    "rejected": flow.rejected,
                    "batches": flow.batches,
                    "milliseconds": flow.milliseconds,
                    "lag": flow.lag,
                }
                for flow in self.flows.values()
            ],
            "rules": [
                {"view": view, "rule": rule, "rejected": rows} for view, rule, rows in self.broken()
            ],
            "published": [
                {"table": table, "lake": lake, "rows": rows} for table, lake, rows in self.published
            ],
        }

    def _flow(self, name: str) -> Flow:
        return self.flows.setdefault(name, Flow(name))


def watch(events: Iterable[Event], *, quiet: bool, console: Console | None = None) -> Report:
    """Show events as they come, and return what they add up to; Ctrl-C ends it."""
    from rich.console import Console

    report = Report()
    try:
        _watch(events, report, console or Console(stderr=True, highlight=False), quiet=quiet)
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def _watch(events: Iterable[Event], report: Report, shown: Console, *, quiet: bool) -> None:
    if quiet:
        for event in events:
            report.take(event)
    elif shown.is_terminal:
        with _live(shown, report):
            for event in events:
                report.take(event)
    else:
        for event in events:
            report.take(event)
            line = _line(event)
            if line is not None:
                shown.print(line, soft_wrap=True)


@contextmanager
def _live(console: Console, report: Report) -> Iterator[None]:
    from rich.live import Live

    began = time.monotonic()
    with Live(
        get_renderable=lambda: _picture(report, time.monotonic() - began),
        console=console,
        refresh_per_second=_REFRESH_PER_S,
        transient=True,
    ):
        yield


def _picture(report: Report, seconds: float) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("FLOW", "STATE", "ROWS", "ROWS/S", "LAG", "LAST BATCH"):
        table.add_column(title, justify="left" if title in ("FLOW", "STATE") else "right")
    for flow in report.flows.values():
        style = "green" if flow.state in _DONE else "red" if flow.state in _BAD else ""
        last = flow.milliseconds // flow.batches if flow.batches else None
        table.add_row(
            flow.name,
            Text(flow.state.lower(), style),
            f"{flow.read:,}" if flow.batches else "-",
            f"{flow.rows_per_second:,.0f}" if flow.batches else "-",
            "-" if flow.lag is None else f"{flow.lag:,}",
            "-" if last is None else f"{last:,} ms",
        )
    head = Text(f"{report.stage} ({seconds:.0f} s)", "bold")
    return Group(head, table) if report.flows else head


def _line(event: Event) -> str | None:
    match event:
        case Stage():
            return f"{event.text} ..."
        case FlowState() if event.state in (*_DONE, *_BAD):
            return f"  {event.flow}: {event.state.lower()}"
        case Progress():
            return (
                f"  {event.flow}: batch {event.batch}, {event.rows:,} rows, "
                f"{event.rows_per_second:,.0f} rows/s, {event.milliseconds:,} ms, "
                f"lag {event.lag:,}"
            )
        case _:
            return None
