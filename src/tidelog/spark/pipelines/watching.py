"""Spark's progress as events: one for each batch of each flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidelog.spark.lag import lag_of
from tidelog.spark.pipelines.ends import WRITTEN
from tidelog.spark.pipelines.events import Event, Progress
from tidelog.spark.pipelines.rules import CHECKED, ROWS


class Watcher(StreamingQueryListener):
    """Hears of every batch."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Flows say themselves that they start."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._tell(progress_of(event.progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Flows say themselves that they end."""


def progress_of(progress: Any) -> Progress:
    """Return what is worth showing of a batch."""
    written: int | None = None
    rules: dict[str, dict[str, int]] = {}
    for name, row in (progress.observedMetrics or {}).items():
        kind, _, of = name.partition(":")
        figures = row.asDict()
        if kind == WRITTEN:
            written = int(figures["rows"])
        elif kind == CHECKED:
            figures.pop(ROWS, None)
            rules[of] = {rule: int(rows) for rule, rows in figures.items()}
    seconds = progress.batchDuration / 1000
    return Progress(
        flow=short_name(progress.name or str(progress.id)),
        batch=progress.batchId,
        rows=progress.numInputRows,
        rows_per_second=round(progress.numInputRows / seconds, 1) if seconds else 0.0,
        lag=lag_of(progress).total,
        milliseconds=progress.batchDuration,
        written=written,
        rules=rules,
    )


def short_name(name: str) -> str:
    """Return the name of a flow or table without catalog and database."""
    return name.rpartition(".")[2].strip("`")
