"""Reads topics into Spark, as a batch and as a stream.

The driver plans: which offsets, cut into slices. A task reads one slice, from records to Arrow, and
hands over batches of some ten thousand rows. Nothing is shared between tasks but the client that a
worker process keeps open.

A stream keeps its place in the query's checkpoint. How much a batch takes is decided here: all
there is, or `maxOffsetsPerTrigger`, shared by backlog; `minOffsetsPerTrigger` holds a batch back
until there is enough or `maxTriggerDelay` has passed. With `availableNow` the ends of the
partitions are looked up once, and reading stops there.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.client.arrowread import ArrowReader
from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import Planner, connect
from tidelog.spark.ranges import Positions, Slice, from_json, pack, share, slices, to_json
from tidelog.spark.rows import Rows
from tidelog.spark.schema import layout
from tidelog.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


# Offsets that a task of a stream takes from several partitions. A task costs tens of milliseconds
# whatever it does; as many records are decoded in a few.
SMALL_TASK: Final = 5000


class SliceOfWork(InputPartition):
    """What one task reads, of one or more partitions; perhaps nothing: Spark wants a task."""

    def __init__(self, *slices: Slice) -> None:
        super().__init__(slices)


class _Reading:
    """What batch and stream have in common: a task turns its slice into Arrow batches."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._layout = layout(schema, options)
        self._rows = Rows(self._layout, options.formats)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        options = self._options
        reader = ArrowReader(
            connect(options.client),
            {each.partition: (each.start, each.end) for each in partition.value},
            columns=tuple(dict.fromkeys(["offset", *self._layout.needed])),
            committed=options.committed,
            fail_on_loss=options.fail_on_loss,
            poll_seconds=options.poll_seconds,
            max_partition_bytes=options.max_partition_bytes,
            max_wait=options.max_wait,
        )
        for chunk in reader:
            yield from self._rows.of(chunk)
        for loss in reader.losses:
            log.warning(loss)


class TopicReader(_Reading, DataSourceReader):
    """A batch read."""

    def partitions(self) -> list[InputPartition]:
        found: list[InputPartition] = [SliceOfWork(each) for each in Planner(self._options).batch()]
        return found or [SliceOfWork()]


class TopicStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. It lives in one process of the driver for as long as the query runs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planner = Planner(options)
        self._target: Positions | None = None  # where `availableNow` stops
        self._last_batch = -math.inf  # when a batch was last planned; the first never waits
        self._latest: Positions = {}  # the ends, when they were last looked at

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._planner.start(self._planner.partitions()))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.latest(self._planner.partitions())

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        latest = self._target
        if latest is None:
            latest = self._planner.latest(self._planner.partitions())
        self._latest = latest
        self._check_losses(begin, latest)
        # Never backwards, whatever was lost.
        end = {p: max(latest.get(p, 0), begin.get(p, 0)) for p in latest | begin}
        known = begin | self._first_of_new(begin, end)
        if self._target is None and self._is_too_little(known, end):
            return dict(start)
        if isinstance(limit, ReadMaxRows):
            end = share(known, end, limit.max_rows)
        if end != known:
            self._last_batch = time.monotonic()
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._latest) if self._latest else None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        new = self._first_of_new(begin, stop)
        for partition, first in new.items():
            if first:
                self._planner.lost(
                    f"Partition {partition} is new to this query and begins at offset {first}."
                )
        found = slices(begin | new, stop)
        if self._options.min_partitions is None and self._options.max_records is None:
            return [SliceOfWork(*each) for each in pack(found, SMALL_TASK)] or [SliceOfWork()]
        return [SliceOfWork(each) for each in self._planner.tasks(found)] or [SliceOfWork()]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Offsets are kept by Spark: there is nothing to do."""

    def stop(self) -> None:
        """End the process, and the client with it, if Spark has closed its side.

        That is how Spark ends a stream, and its own code would put two tracebacks on the terminal.
        """
        if type(sys.exc_info()[1]) is EOFError:
            os._exit(0)

    def _check_losses(self, begin: Positions, end: Positions) -> None:
        """Complain about partitions that are gone or went backwards."""
        for partition, offset in begin.items():
            if partition not in end:
                self._planner.lost(f"Partition {partition} is gone.")
            elif end[partition] < offset:
                self._planner.lost(
                    f"Partition {partition} ends at offset {end[partition]}, and was read up to "
                    f"{offset} before."
                )

    def _first_of_new(self, begin: Positions, end: Positions) -> Positions:
        """Return where partitions begin that the query has not seen before."""
        new = [partition for partition in end if partition not in begin]
        return self._planner.earliest(new) if new else {}

    def _is_too_little(self, begin: Positions, end: Positions) -> bool:
        least = self._options.min_offsets
        if least is None or time.monotonic() - self._last_batch >= self._options.max_delay:
            return False
        return sum(max(0, end[p] - begin.get(p, 0)) for p in end) < least
