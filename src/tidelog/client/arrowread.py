"""Reads ranges of partitions as Arrow record batches, for plain code such as a Spark task.

    reader = ArrowReader(blocking, {TopicPartition("orders", 0): (100, 5000)})
    for chunk in reader:
        chunk.records        # offset, timestamp, key, value, headers: as many as were asked for

Theory of operation. A `Fetcher` on the client's thread brings whole batches and follows the
leaders. Their bytes are gathered until they hold `rows` records or `max_bytes` bytes and are then
decoded in one pass, so that no Python object is made for a record and a batch of Arrow is large
enough to be worth its overhead. A range ends where the next record would lie past it, whether or
not there are records at its last offsets: compaction and transactions leave gaps.

Records that were there when the range was planned and are not there any more are data loss: removed
by retention, or cut off by an unclean election. The caller chooses what that means: `DataLost`, or
a range that begins later and ends sooner.

Memory: what a `Fetcher` holds (two answers), and one chunk as bytes and as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from kio.schema.errors import ErrorCode

from tidelog.client.blocking import Blocking
from tidelog.client.errors import ClientError, Refused, TimedOut
from tidelog.client.fetcher import MAX_PARTITION_BYTES, MAX_WAIT, Fetched, Fetcher
from tidelog.client.model import TopicPartition
from tidelog.client.offsets import bounds
from tidelog.records import Batch, TimestampType
from tidelog.records.arrow import COLUMNS, to_arrow

# Fewer rows a batch cost Spark more than they save; more change nothing.
ROWS: Final = 32_768
# Bytes of records, as they travelled, that make a chunk however few they are.
CHUNK_BYTES: Final = 16 * 1024 * 1024
# Seconds without any record before a reader gives up.
POLL_SECONDS: Final = 120.0

Range = tuple[int, int]  # the first offset, and the one after the last


class DataLost(ClientError):
    """Records that were to be read are gone."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition, in order."""

    partition: TopicPartition
    records: pa.RecordBatch
    stamped: bool  # whether their times are those of the broker; the same for all of them


class ArrowReader:
    """Reads ranges of offsets to their ends; iterate once."""

    def __init__(
        self,
        blocking: Blocking,
        ranges: Mapping[TopicPartition, Range],
        *,
        columns: Sequence[str] = COLUMNS,
        rows: int = ROWS,
        chunk_bytes: int = CHUNK_BYTES,
        committed: bool = False,
        fail_on_loss: bool = True,
        poll_seconds: float = POLL_SECONDS,
        max_partition_bytes: int = MAX_PARTITION_BYTES,
        max_wait: float = MAX_WAIT,
    ) -> None:
        self._blocking = blocking
        self._ranges = {p: each for p, each in ranges.items() if each[0] < each[1]}
        # Offsets are needed to cut the ends of a range; they cost 8 bytes a row.
        self._columns = tuple(columns)
        self._decoded = tuple(dict.fromkeys(["offset", *columns]))
        self._rows = rows
        self._chunk_bytes = chunk_bytes
        self._committed = committed
        self._fail_on_loss = fail_on_loss
        self._poll_seconds = poll_seconds
        self._max_partition_bytes = max_partition_bytes
        self._max_wait = max_wait
        self.losses: list[str] = []  # what was lost and passed over, as sentences

    def __iter__(self) -> Iterator[Chunk]:
        waiting = {partition: _Gathered(*each) for partition, each in self._ranges.items()}
        self._blocking.run(self._learn())
        fetcher: Fetcher | None = None
        try:
            while waiting:
                if fetcher is None:
                    fetcher = self._fetch(waiting)
                try:
                    part = self._next(fetcher)
                except Refused as error:
                    if error.code is not ErrorCode.offset_out_of_range:
                        raise
                    self._close(fetcher)
                    fetcher = None
                    for partition, left in waiting.items():
                        yield from self._decode(partition, left)
                    self._move(waiting)
                    continue
                gathered = waiting.get(part.partition)
                if gathered is None:
                    continue
                if part.position < gathered.position:
                    self._lost(
                        f"Partition {part.partition} was cut back to offset {part.position} after "
                        f"records up to {gathered.position - 1} were read."
                    )
                done = gathered.add(part)
                if done:
                    del waiting[part.partition]
                if done or gathered.is_full(self._rows, self._chunk_bytes):
                    yield from self._decode(part.partition, gathered)
        finally:
            if fetcher is not None:
                self._close(fetcher)

    async def _learn(self) -> None:
        """Look at topics again that had fewer partitions when this client last looked."""
        cluster = self._blocking.cluster
        for topic in {partition.topic for partition in self._ranges}:
            info = await cluster.topic(topic)
            known = {each.index for each in info.partitions}
            if any(p.topic == topic and p.index not in known for p in self._ranges):
                await cluster.topic(topic, fresh=True)

    def _fetch(self, waiting: Mapping[TopicPartition, _Gathered]) -> Fetcher:
        # A request past the end would wait there for records, and hold up the next reader.
        return Fetcher(
            self._blocking.cluster,
            {partition: each.position for partition, each in waiting.items()},
            ends={partition: each.end for partition, each in waiting.items()},
            committed=self._committed,
            max_partition_bytes=self._max_partition_bytes,
            max_wait=self._max_wait,
        )

    def _next(self, fetcher: Fetcher) -> Fetched:
        part = self._blocking.run(fetcher.next(self._poll_seconds))
        if part is None:
            where = ", ".join(f"{p} at {offset}" for p, offset in fetcher.positions.items())
            raise TimedOut(
                f"No records came within {self._poll_seconds:g} s ({where}). If the cluster is "
                "slow, raise `kafkaConsumer.pollTimeoutMs`."
            )
        return part

    def _close(self, fetcher: Fetcher) -> None:
        if not self._blocking.closed:
            self._blocking.run(fetcher.close())

    def _move(self, waiting: dict[TopicPartition, _Gathered]) -> None:
        """Fit what is left of the ranges to what the partitions still have."""
        found = self._blocking.run(bounds(self._blocking.cluster, waiting))
        for partition, (first, end) in found.items():
            gathered = waiting[partition]
            wanted = (gathered.position, gathered.end)
            gathered.position = gathered.taken = max(gathered.position, first)
            gathered.end = min(gathered.end, end)
            if (gathered.position, gathered.end) != wanted:
                self._lost(
                    f"Partition {partition} holds offsets {first} to {end - 1}, and {wanted[0]} to "
                    f"{wanted[1] - 1} were to be read."
                )
            if gathered.position >= gathered.end:
                del waiting[partition]

    def _lost(self, what: str) -> None:
        if self._fail_on_loss:
            raise DataLost(
                f"{what} Records are lost: they were removed before they were read. To go on with "
                "what is there, set `failOnDataLoss` to false."
            )
        self.losses.append(what)

    def _decode(self, partition: TopicPartition, gathered: _Gathered) -> Iterator[Chunk]:
        for stamped, batches in gathered.take():
            records = to_arrow(batches, columns=self._decoded)
            offsets = records.column("offset").to_numpy()
            low, high = np.searchsorted(offsets, [gathered.taken, gathered.end])
            if low or high < len(offsets):
                records = records.slice(int(low), int(high - low))
            if records.num_rows:
                gathered.taken = int(offsets[high - 1]) + 1
                if self._decoded != self._columns:
                    records = _pick(records, self._columns)
                yield Chunk(partition, records, stamped)


def _pick(records: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    if columns:
        return records.select(list(columns))
    rows = pa.Array.from_buffers(pa.struct([]), records.num_rows, [None])
    return pa.RecordBatch.from_struct_array(rows)


class _Gathered:
    """Batches of one partition that wait to be decoded."""

    def __init__(self, position: int, end: int) -> None:
        self.position = position  # the next offset to be fetched
        self.taken = position  # the next offset to be handed out
        self.end = end
        self._batches: list[Batch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, part: Fetched) -> bool:
        """Take what came; tell whether the range has come to its end."""
        for batch in part.batches:
            if batch.base_offset < self.end and batch.last_offset >= self.taken:
                self._batches.append(batch)
                self._rows += batch.count
                self._bytes += batch.size
        self.position = max(self.position, part.next)
        return self.position >= self.end

    def is_full(self, rows: int, size: int) -> bool:
        return self._rows >= rows or self._bytes >= size

    def take(self) -> Iterator[tuple[bool, Sequence[Batch]]]:
        """Hand out what was gathered, in runs with one kind of timestamps."""
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        start = 0
        for place in range(1, len(batches) + 1):
            if place == len(batches) or _stamped(batches[place]) != _stamped(batches[start]):
                yield _stamped(batches[start]), batches[start:place]
                start = place


def _stamped(batch: Batch) -> bool:
    return batch.timestamp_type is TimestampType.LOG_APPEND
