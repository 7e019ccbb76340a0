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

from tidelog.records import codecs, framing, kernels, scanning
from tidelog.records.batch import HEADER_SIZE, Batch, parse_batches, seal
from tidelog.records.builder import attribute_bits, recompress, unpack
from tidelog.records.columns import BinaryColumn, Columns, ListColumn, Source, Spans, allocate
from tidelog.records.types import NO_PRODUCER, NO_TIMESTAMP, Buffer, Codec

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
    _check_names(columns)
    spans = Spans()
    for batch in batches:
        if batch.count and keep(batch):
            spans.add(batch, unpack(batch, limit))
    return _decoded(spans, columns)


def read_arrow(
    buffer: Buffer,
    *,
    columns: Sequence[str] = COLUMNS,
    limit: int = codecs.MAX_DECOMPRESSED,
) -> pa.RecordBatch:
    """Return the records of clients in the batches that fill `buffer`, every CRC checked.

    This is `parse_batches`, `Batch.check_crc` and `to_arrow` in one, without an object for a batch:
    several times faster if batches are small.
    """
    _check_names(columns)

    def special(batch: Batch, position: int) -> memoryview | None:
        batch.check_crc(position)
        return unpack(batch, limit) if batch.count and is_client_data(batch) else None

    spans = Spans(buffer)
    scanning.scan(spans, limit, special)
    return _decoded(spans, columns)


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
    """Return the rows as batches that a broker can append, in order: see `write_arrow`."""
    data = write_arrow(
        records,
        max_batch_bytes=max_batch_bytes,
        default_timestamp=default_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    batches = parse_batches(data)
    if codec is Codec.NONE:
        return list(batches)
    return [recompress(batch, codec, limit=batch.size) for batch in batches]


def write_arrow(
    records: pa.RecordBatch,
    *,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    default_timestamp: int | None = None,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER,
    base_sequence: int = NO_PRODUCER,
    transactional: bool = False,
) -> memoryview:
    """Return the rows as the bytes of batches that a broker can append, one after the other.

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
    limit = max(max_batch_bytes, HEADER_SIZE + 1)
    template = seal(
        bytearray(HEADER_SIZE),
        attributes=attribute_bits(Codec.NONE, transactional=transactional),
        last_offset_delta=0,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        count=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    data = allocate(_most_bytes(source, limit - HEADER_SIZE))
    return data[: framing.encode(source, limit, template.data, base_sequence, data)]


# --------------------------------------------------------------------------------- from batches


def _check_names(columns: Sequence[str]) -> None:
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ValueError(f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")


def _decoded(spans: Spans, columns: Sequence[str]) -> pa.RecordBatch:
    decoded = Columns(
        spans.rows,
        spans.size,
        keys="key" in columns,
        values="value" in columns,
        headers="headers" in columns,
    )
    kernels.decode(spans, decoded)
    if not columns:  # still so many rows: that is how records are counted
        rows = pa.Array.from_buffers(pa.struct([]), decoded.rows, [None])
        return pa.RecordBatch.from_struct_array(rows)
    schema = SCHEMA
    if tuple(columns) != COLUMNS:
        schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([_array(name, decoded) for name in columns], schema=schema)


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
