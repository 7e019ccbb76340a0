"""How far streams are behind: offsets that are in the topics and have not been read yet.

Spark's progress tells where a batch ended and where the topics ended when it was planned, but does
not subtract. `lag_of` does, for a progress that you have; `LagListener` does it for all queries of
a session and keeps the last figures:

    listener = LagListener()
    spark.streams.addListener(listener)
    listener.lags                # {"orders-to-lake": Lag(...)}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidelog.client import TopicPartition
from tidelog.spark.ranges import from_json


@dataclass(frozen=True, slots=True)
class Lag:
    """Offsets between what a batch read and what there was."""

    batch: int
    by_partition: Mapping[TopicPartition, int]

    @property
    def total(self) -> int:
        """All partitions together."""
        return sum(self.by_partition.values())

    @property
    def largest(self) -> int:
        """The partition that is furthest behind."""
        return max(self.by_partition.values(), default=0)


def lag_of(progress: Any) -> Lag:
    """Return the lag that a progress tells: one of `recentProgress`, or of a listener's event."""
    found = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    behind: dict[TopicPartition, int] = {}
    for source in found.get("sources", ()):
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for partition, offset in latest.items():
            read = end.get(partition, 0)
            behind[partition] = behind.get(partition, 0) + max(0, offset - read)
    return Lag(int(found["batchId"]), behind)


def _offsets(value: Any) -> dict[TopicPartition, int]:
    """Read offsets of a progress, which are JSON or a text that holds it; {} if not ours."""
    try:
        return from_json(json.loads(value) if isinstance(value, str) else value or {})
    except (AttributeError, TypeError, ValueError):
        return {}


class LagListener(StreamingQueryListener):
    """Keeps the last lag of every query that runs, by its name or, without one, its id."""

    def __init__(self) -> None:
        self.lags: dict[str, Lag] = {}
        self._names: dict[str, str] = {}  # query id to what it is called here

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        self._names[str(progress.id)] = name
        self.lags[name] = lag_of(progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.lags.pop(self._names.pop(str(event.id), ""), None)
