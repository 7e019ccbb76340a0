"""Records as the rows of a read: Arrow batches with exactly the columns that Spark was promised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.client.arrowread import Chunk
from tidelog.spark import decoding
from tidelog.spark.decoding import Decoded
from tidelog.spark.options import Format, Formats, Mode
from tidelog.spark.schema import CORRUPT, Layout


class MalformedValue(ValueError):
    """A value did not decode, and the mode is FAILFAST."""


class Rows:
    """Turns chunks of records into batches of rows. Kept small: it travels to every task."""

    def __init__(self, layout: Layout, formats: Formats) -> None:
        self._layout = layout
        self._formats = formats
        self._schema = arrow_schema(layout.schema)
        self._fields = pa.schema([self._schema.field(name) for name in layout.fields.names])
        if formats.value is Format.JSON:
            decoding.check_json(self._fields)
        if formats.key is Format.JSON:
            keys = [each for each, kind in layout.meta.items() if kind == "key"]
            decoding.check_json(pa.schema([self._schema.field(name) for name in keys]))

    def of(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk."""
        rows = chunk.records.num_rows
        columns: dict[str, pa.Array] = {}
        for name, source in self._layout.meta.items():
            columns[name] = self._meta(name, source, chunk, rows)
        keep = None
        decoded = self._decode(chunk)
        if decoded is not None:
            columns.update(zip(self._fields_names(), decoded.columns, strict=True))
            if self._layout.corrupt:
                columns[CORRUPT] = self._corrupt(chunk, decoded)
            if decoded.any_bad:
                keep = self._judge(chunk, decoded)
        batch = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._schema.names], schema=self._schema
        )
        if keep is not None:
            batch = batch.filter(keep)
        if batch.num_rows:
            yield batch

    def _fields_names(self) -> Sequence[str]:
        if self._formats.value is Format.STRING:
            return [name for name, source in self._layout.meta.items() if source == "value"]
        names: Sequence[str] = self._fields.names
        return names

    def _decode(self, chunk: Chunk) -> Decoded | None:
        """Decode the values, if there is anything to decode them for."""
        formats = self._formats
        if formats.value is Format.BINARY or "value" not in chunk.records.schema.names:
            return None
        values = chunk.records.column("value")
        if formats.value is Format.STRING:
            return decoding.decode_strings(values)
        if formats.value is Format.JSON:
            return decoding.decode_json(values, self._fields)
        return decoding.decode_avro(
            values, self._fields, formats.value_schema or "", framed=formats.framed
        )

    def _judge(self, chunk: Chunk, decoded: Decoded) -> pa.BooleanArray | None:
        """Say which rows to keep; raises `MalformedValue`."""
        if self._formats.mode is Mode.DROP:
            return pc.invert(decoded.bad)
        if self._formats.mode is Mode.FAIL:
            place = decoded.bad.index(True).as_py()
            offset = chunk.records.column("offset")[place].as_py()
            raise MalformedValue(
                f"The value at offset {offset} of partition {chunk.partition} is no "
                f"{self._formats.value.value} that fits the schema. To go on, set `mode` to "
                "PERMISSIVE (null columns, and the value in column `_corrupt`) or DROPMALFORMED."
            )
        return None

    def _corrupt(self, chunk: Chunk, decoded: Decoded) -> pa.Array:
        kind = self._schema.field(CORRUPT).type
        values = chunk.records.column("value")
        raw = pc.if_else(decoded.bad, values, pa.scalar(None, values.type))
        if not pa.types.is_string(kind):
            return raw
        texts = [
            None if value is None else value.decode(errors="replace") for value in raw.to_pylist()
        ]
        return pa.array(texts, pa.string())

    def _meta(self, name: str, source: str, chunk: Chunk, rows: int) -> pa.Array:
        kind = self._schema.field(name).type
        match source:
            case "topic":
                return pa.repeat(pa.scalar(chunk.partition.topic, kind), rows)
            case "partition":
                return pa.repeat(pa.scalar(chunk.partition.index, kind), rows)
            case "timestampType":
                return pa.repeat(pa.scalar(int(chunk.stamped), kind), rows)
            case "key":
                return self._key(chunk.records.column("key"), kind)
            case "headers":
                return _headers(chunk.records.column("headers").cast(kind))
            case "value" if self._formats.value is Format.STRING:
                return pa.nulls(0)  # replaced by what is decoded
        column = chunk.records.column(source)
        return column if column.type.equals(kind) else column.cast(kind)

    def _key(self, keys: pa.Array, kind: pa.DataType) -> pa.Array:
        """Decode keys; those that do not decode are null."""
        formats = self._formats
        if formats.key is Format.BINARY:
            return keys
        if formats.key is Format.STRING:
            return decoding.decode_strings(keys).columns[0]
        if formats.key is Format.AVRO:
            return decoding.decode_key_avro(
                keys, kind, formats.key_schema or "", framed=formats.framed
            )
        fields = pa.schema(list(kind))
        decoded = decoding.decode_json(keys, fields)
        missing = pc.or_(keys.is_null(), decoded.bad)
        return pa.StructArray.from_arrays(decoded.columns, fields=list(kind), mask=missing)


def _headers(headers: pa.ListArray) -> pa.ListArray:
    """Return headers as Spark's own source has them: null where a record has none."""
    none = pc.equal(pc.list_value_length(headers), 0)
    return pc.if_else(none, pa.scalar(None, headers.type), headers)


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema that Spark expects of a source: times are UTC."""
    make: Callable[..., Any] = to_arrow_schema
    return make(schema, timezone="UTC")
