"""Rows to Parquet files, inside a task.

A file of a partitioned table holds rows of one partition only, so rows are split by the value of
the partition, and each value has a writer. Row groups are gathered before they are written: small
ones make files that are slow to read.

Bounds: MAX_WRITERS files are open; the one that was used longest ago is closed for a new one. Each
gathers GROUP_BYTES. Files are cut when they are FILE_BYTES large.

A file has a name that nobody else chooses. Whatever an attempt wrote that failed is in no snapshot,
and `clean` removes it.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

MAX_WRITERS: Final = 16
GROUP_BYTES: Final = 16 * 1024 * 1024
FILE_BYTES: Final = 256 * 1024 * 1024
COMPRESSION: Final = "zstd"

# Units of time that rows are split by, and how Arrow writes the beginning of one.
_UNITS: Final = ("year", "month", "day", "hour")


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, and how they are laid out; can be sent to tasks."""

    location: str  # the address of the directory of the files
    schema: pa.Schema
    unit: str | None = None  # of time, that a file has only one of
    column: str | None = None  # whose time that is


@dataclass(frozen=True, slots=True)
class File:
    """A file that was written."""

    path: str
    rows: int
    size: int


def write_files(batches: Iterable[pa.RecordBatch], target: Target) -> list[File]:
    """Write rows, and return the files; nothing else knows of them."""
    writers = _Writers(target)
    try:
        for batch in batches:
            if batch.num_rows:
                for value, rows in _split(fit(batch, target.schema), target):
                    writers.add(value, rows)
        return writers.finish()
    except BaseException:
        writers.abandon()
        raise


def remove_files(paths: Iterable[str]) -> None:
    """Remove files that are in no snapshot."""
    for path in paths:
        system, inner = fs.FileSystem.from_uri(path)
        try:
            system.delete_file(inner)
        except FileNotFoundError:
            continue


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with exactly the columns of a schema, which they have under any type like it."""
    columns = [
        _cast(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type.equals(kind, check_metadata=True) else column.cast(kind)


def _split(batch: pa.RecordBatch, target: Target) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Return the rows by the partition they belong to, in their order."""
    if target.column is None:
        yield None, batch
        return
    times = batch.column(target.column)
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("us"))
    starts = pc.floor_temporal(times, unit=target.unit)
    values = pc.unique(starts)
    if len(values) == 1:
        yield values[0].as_py(), batch
        return
    for value in values:
        mask = pc.equal(starts, value) if value.is_valid else pc.is_null(starts)
        yield value.as_py(), batch.filter(mask)


class _Writer:
    """One file that grows."""

    def __init__(self, target: Target) -> None:
        self.path = f"{target.location}/{uuid.uuid4().hex}.parquet"
        system, inner = fs.FileSystem.from_uri(self.path)
        if isinstance(system, fs.LocalFileSystem):
            system.create_dir(inner.rpartition("/")[0], recursive=True)
        self._stream = system.open_output_stream(inner)
        self._parquet = pq.ParquetWriter(self._stream, target.schema, compression=COMPRESSION)
        self._gathered: list[pa.RecordBatch] = []
        self._bytes = 0
        self.rows = 0

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._bytes >= GROUP_BYTES:
            self._write()

    def close(self) -> File:
        self._write()
        self._parquet.close()
        size = self.size
        self._stream.close()
        return File(self.path, self.rows, size)

    def abandon(self) -> None:
        self._stream.close()
        remove_files([self.path])

    def _write(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered)
            self._parquet.write_table(table, row_group_size=table.num_rows)
            self._gathered, self._bytes = [], 0


class _Writers:
    """The files of a task."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open: OrderedDict[Any, _Writer] = OrderedDict()  # the last used is last
        self._done: list[File] = []

    def add(self, value: Any, batch: pa.RecordBatch) -> None:
        writer = self._open.pop(value, None)
        if writer is None:
            if len(self._open) >= MAX_WRITERS:
                self._done.append(self._open.popitem(last=False)[1].close())
            writer = _Writer(self._target)
        writer.add(batch)
        if writer.size >= FILE_BYTES:
            self._done.append(writer.close())
        else:
            self._open[value] = writer

    def finish(self) -> list[File]:
        while self._open:
            self._done.append(self._open.popitem(last=False)[1].close())
        return self._done

    def abandon(self) -> None:
        for writer in self._open.values():
            writer.abandon()
        remove_files(file.path for file in self._done)
