"""Batches to Arrow columns and back, in one pass each, for Spark, clients and tools.

    offset     int64
    timestamp  timestamp[ms, tz=UTC]   -1 ms for a record without a time, as Kafka has it
    key        binary                  null: no key
    value      binary                  null: a tombstone
    headers    list<struct<key: string, value: binary>>   empty, never null

The buffers that the kernels fill are the buffers that Arrow gets: nothing is copied twice, and with
compiled kernels no Python object is made for a record. This module is not imported by
`tidelog.records` itself, since a broker that only moves bytes has no use for Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.records import codecs, kernels
from tidelog.records.batch import CODEC_MASK, HEADER_SIZE, MAX_INT32, Batch, seal
from tidelog.records.builder import attribute_bits, unpack
from tidelog.records.columns import (
    MAX_COLUMN_BYTES,
    BinaryColumn,
    Columns,
    ListColumn,
    Source,
    allocate,
)
from tidelog.records.types import NO_PRODUCER, Codec

HEADER_TYPE: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]
)
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER_TYPE), nullable=False),
    ]
)
COLUMNS: Final = tuple(SCHEMA.names)
_TYPES: Final = {field.name: field.type for field in SCHEMA}
_NO_HEADERS: Final = pa.array([], HEADER_TYPE)

# What Kafka's brokers take by default is a little more than 1 MiB a batch.
MAX_BATCH_BYTES: Final = 1024 * 1024

# The most a record takes beside its key, value and headers: a length, a byte of attributes, a time
# of 10 bytes, and four more numbers of at most 5 bytes each. A header has two of those.
_MAX_RECORD_OVERHEAD: Final = 36
_MAX_HEADER_OVERHEAD: Final = 10


def is_client_data(batch: Batch) -> bool:
    """Tell whether a batch holds records of clients, and not a marker or a batch of ours."""
    return not batch.is_control


def to_arrow(
    batches: Iterable[Batch],
    *,
    columns: Sequence[str] = COLUMNS,
    keep: Callable[[Batch], bool] = is_client_data,
    limit: int = codecs.MAX_DECOMPRESSED,
) -> pa.RecordBatch:
    """Return the records of the batches that `keep` keeps, with the named columns in that order.

    All bytes are checked whatever the columns, but not the CRC: `Batch.check_crc` is a step of its
    own. No batch may unpack to more than `limit` bytes, nor all together to 2 GiB.
    """
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ValueError(f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    kept = [batch for batch in batches if batch.count and keep(batch)]
    sections = _unpack_all(kept, limit)
    decoded = Columns(
        sum([batch.count for batch in kept]),
        sum(map(len, sections)),
        keys="key" in columns,
        values="value" in columns,
        headers="headers" in columns,
    )
    kernels.decode(kept, sections, decoded)
    if not columns:  # still so many rows: that is how records are counted
        rows = pa.Array.from_buffers(pa.struct([]), decoded.rows, [None])
        return pa.RecordBatch.from_struct_array(rows)
    schema = SCHEMA
    if tuple(columns) != COLUMNS:
        schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([_array(name, decoded) for name in columns], schema=schema)


def from_arrow(
    records: pa.RecordBatch,
    *,
    codec: Codec = Codec.NONE,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    default_timestamp: int | None = None,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER,
    base_sequence: int = NO_PRODUCER,
    transactional: bool = False,
) -> list[Batch]:
    """Return the rows as batches that a broker can append, in order.

    `value` must be there; `key`, `timestamp` and `headers` need not. Strings are as good as binary,
    and a time may be of any unit or a number of milliseconds. Rows without a time get
    `default_timestamp`, which is now unless given. An `offset` column is ignored: the broker gives
    offsets. A batch takes at most `max_batch_bytes` before compression, unless a single record is
    larger. Sequences go on from batch to batch if `base_sequence` is given.
    """
    unknown = [name for name in records.schema.names if name not in COLUMNS]
    if unknown:
        raise ValueError(f"column {unknown[0]!r} has no place in a record; drop or rename it")
    if "value" not in records.schema.names:
        raise ValueError("there is no column 'value'; every record needs one, null for a tombstone")
    if default_timestamp is None:
        default_timestamp = time.time_ns() // 1_000_000
    source = _source(records, default_timestamp)
    limit = max(max_batch_bytes - HEADER_SIZE, 1)
    data = allocate(_most_bytes(source, limit))
    attributes = attribute_bits(codec, transactional=transactional)
    batches: list[Batch] = []
    row = 0
    for end, start, stop, first, largest in kernels.encode(source, limit, HEADER_SIZE, data):
        batches.append(
            seal(
                _compressed(codec, data[start - HEADER_SIZE : stop]),
                attributes=attributes,
                last_offset_delta=end - row - 1,
                base_timestamp=first,
                max_timestamp=largest,
                count=end - row,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
        )
        if base_sequence != NO_PRODUCER:
            base_sequence = (base_sequence + end - row) & MAX_INT32  # Kafka wraps to 0 too
        row = end
    return batches


# --------------------------------------------------------------------------------- from batches


def _unpack_all(batches: Sequence[Batch], limit: int) -> list[memoryview]:
    """Unpack every batch, and stop before all together are more than Arrow holds."""
    sections: list[memoryview] = []
    left = MAX_COLUMN_BYTES
    for batch in batches:
        if not batch.attributes & CODEC_MASK and batch.size <= limit:
            section = batch.records
        else:
            section = unpack(batch, limit)
        sections.append(section)
        left -= len(section)
        if left < 0:
            raise ValueError(
                f"these batches unpack to more than the {MAX_COLUMN_BYTES} bytes that an Arrow "
                "batch holds; convert fewer at a time"
            )
    return sections


def _array(name: str, decoded: Columns) -> pa.Array:
    kind = _TYPES[name]
    if name in {"offset", "timestamp"}:
        numbers = decoded.offsets if name == "offset" else decoded.timestamps
        return pa.Array.from_buffers(kind, decoded.rows, [None, pa.py_buffer(numbers)])
    if name in {"key", "value"}:
        column = decoded.keys if name == "key" else decoded.values
        assert column is not None
        return _binary_array(kind, decoded.rows, column)
    entries = _NO_HEADERS
    if decoded.headers:
        entries = pa.Array.from_buffers(
            HEADER_TYPE,
            decoded.headers,
            [None],
            children=[
                _binary_array(pa.string(), decoded.headers, decoded.header_keys),
                _binary_array(pa.binary(), decoded.headers, decoded.header_values),
            ],
        )
    offsets = pa.py_buffer(decoded.header_offsets)
    return pa.Array.from_buffers(kind, decoded.rows, [None, offsets], children=[entries])


def _binary_array(kind: pa.DataType, length: int, column: BinaryColumn) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, length, buffers, null_count=column.nulls)


# ----------------------------------------------------------------------------------- to batches


def _compressed(codec: Codec, data: memoryview) -> memoryview | bytearray:
    """Compress what follows the room for the header."""
    if codec is Codec.NONE:
        return data
    packed = bytearray(HEADER_SIZE)
    packed += codecs.compress(codec, data[HEADER_SIZE:])
    return packed


def _most_bytes(source: Source, limit: int) -> int:
    """Return how many bytes all rows can take, in batches of `limit` bytes."""
    rows = len(source.timestamps)
    total = rows * _MAX_RECORD_OVERHEAD
    for column in (source.keys, source.values):
        if column is not None:
            total += column.offsets[column.start + rows] - column.offsets[column.start]
    if source.headers is not None:
        total += source.headers.end * _MAX_HEADER_OVERHEAD
        for column in (source.header_keys, source.header_values):
            total += 0 if column is None else column.end
    # Two batches in a row are larger than the limit, or the second would be part of the first.
    return total + min(rows, 2 * total // limit + 1) * HEADER_SIZE


def _source(records: pa.RecordBatch, default_timestamp: int) -> Source:
    """View the columns of an Arrow batch, converting those of a type the kernel does not read."""
    names = records.schema.names
    headers = header_keys = header_values = None
    if "headers" in names:
        lists = _cast("headers", records.column("headers"), _TYPES["headers"])
        validity, offsets = lists.buffers()[:2]
        entries = lists.values
        if entries.null_count:
            raise ValueError("a header is null; a record without headers has an empty list")
        headers = ListColumn(_int32s(offsets), _bits(validity, lists), lists.offset, len(entries))
        header_keys = _binary("headers", entries.field("key"))
        header_values = _binary("headers", entries.field("value"))
    return Source(
        timestamps=_timestamps(records, default_timestamp),
        keys=_binary("key", records.column("key")) if "key" in names else None,
        values=_binary("value", records.column("value")),
        headers=headers,
        header_keys=header_keys,
        header_values=header_values,
    )


def _timestamps(records: pa.RecordBatch, default: int) -> memoryview:
    if "timestamp" not in records.schema.names:
        return np.full(records.num_rows, default, np.int64).data
    column = records.column("timestamp")
    if pa.types.is_timestamp(column.type):
        if column.type.unit != "ms":
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        column = column.view(pa.int64())
    column = _cast("timestamp", column, pa.int64())
    if column.null_count:
        column = column.fill_null(default)
    numbers: np.ndarray[Any, np.dtype[np.int64]] = column.to_numpy()
    return numbers.data


def _binary(name: str, column: pa.Array) -> BinaryColumn:
    if not pa.types.is_string(column.type):
        column = _cast(name, column, pa.binary())
    validity, offsets, data = column.buffers()
    return BinaryColumn(
        _int32s(offsets), _bits(validity, column), _bytes(data), column.offset, column.null_count
    )


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"column {name!r} is {column.type} and cannot be {kind}: {error}"
        ) from None


def _bits(validity: pa.Buffer | None, column: pa.Array) -> memoryview | None:
    return _bytes(validity) if validity is not None and column.null_count else None


def _bytes(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")


def _int32s(buffer: pa.Buffer | None) -> memoryview:
    """View Arrow's offsets, of which an empty array may have none."""
    view = _bytes(buffer) or memoryview(bytes(4))
    return view[: len(view) & ~3].cast("i")
