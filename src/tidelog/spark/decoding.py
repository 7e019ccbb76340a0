"""Bytes of keys and values to columns, a whole Arrow batch at a time.

JSON is read by Arrow's own parser: the values of a batch are joined to lines and parsed in
one go, straight into columns of the types that the schema says. When a value does not parse, the
parser says in which row; the rows before it are taken, that row is bad, and parsing goes on behind
it, so a bad value costs one more call and not a slow path for all. Where the parser does not say
which row (a number that does not fit its type), the rows are halved until it is found.

Avro is decoded value by value with fastavro: it makes Python objects, and is several times slower.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidelog.spark.options import OptionError

_ROW: Final = re.compile(r" in row (\d+)$")
_LINE_FEED: Final = ord("\n")
_BEFORE: Final = b'{"v":'
_AFTER: Final = b"}\n"
_FRAME_BYTES: Final = 5  # of Confluent's registry: a zero and the number of a schema


@dataclass(frozen=True, slots=True)
class Decoded:
    """Columns, and which rows did not decode: their columns are null."""

    columns: list[pa.Array]
    bad: pa.BooleanArray

    @property
    def any_bad(self) -> bool:
        return bool(self.bad.true_count)


def decode_strings(values: pa.Array) -> Decoded:
    """Take bytes as UTF-8."""
    try:
        return Decoded([values.cast(pa.string())], _all_good(len(values)))
    except pa.ArrowInvalid:
        bad = pa.array([not _is_text(value) for value in values.to_pylist()], pa.bool_())
        good = pc.if_else(bad, pa.scalar(None, values.type), values)
        return Decoded([good.cast(pa.string())], bad)


def check_json(schema: pa.Schema) -> None:
    """Refuse types that JSON cannot be read into; raises `OptionError`."""
    for field in schema:
        _check_json(field.name, field.type)


def decode_json(values: pa.Array, schema: pa.Schema) -> Decoded:
    """Read JSON objects into columns; fields that the schema does not name are passed over."""
    rows = len(values)
    strings = decode_strings(values)
    text = strings.columns[0]
    usable = pc.is_valid(text)
    whole = usable.true_count == rows
    present = text if whole else text.filter(usable)
    columns, bad_places = _JsonReader(present, schema).read()
    present_bad = _mask(bad_places, len(present))
    if whole:
        return Decoded(columns, present_bad)
    places = _positions(usable)
    bad = pc.or_(strings.bad, pc.fill_null(present_bad.take(places), False))
    return Decoded([column.take(places) for column in columns], bad)


class _JsonReader:
    """Parses values that may be bad; the result has a row for each, of nulls for the bad ones.

    Each value is parsed as {"v": value}, so that whatever it is, it makes a row of its own or an
    error: never two rows that a blank one makes up for.
    """

    def __init__(self, values: pa.StringArray, schema: pa.Schema) -> None:
        self._kind = pa.struct(list(schema))
        self._wire = pa.schema([("v", _wire(self._kind))])
        self._count = len(values)
        self._text, self._starts = _join(values)
        self._bad: list[int] = []
        self._parts: list[pa.StructArray] = []

    def read(self) -> tuple[list[pa.Array], list[int]]:
        low = 0
        while low < self._count:
            low = self._read_some(low, self._count)
        parts = self._parts
        whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [self._nothing(0)])
        return whole.flatten(), self._bad

    def _read_some(self, low: int, high: int) -> int:
        """Take rows from `low` on, at most to `high`; return how far that went."""
        try:
            self._parts.append(self._parse(low, high))
            return high
        except pa.ArrowInvalid as error:
            if high - low == 1:
                self._bad.append(low)
                self._parts.append(self._nothing(1))
                return high
            found = _ROW.search(str(error))
        if found:
            # The parser counts rows within what it was given. A value that was made to look like
            # several leads the count astray, so the row that is blamed is looked at on its own.
            place = low + int(found[1])
            if place < high and self._is_bad(place):
                if place == low:
                    return self._read_some(low, low + 1)
                return self._read_some(low, place)
        return self._read_some(low, (low + high) // 2)

    def _is_bad(self, place: int) -> bool:
        try:
            self._parse(place, place + 1)
        except pa.ArrowInvalid:
            return True
        return False

    def _nothing(self, rows: int) -> pa.StructArray:
        return pa.nulls(rows, self._kind)

    def _parse(self, low: int, high: int) -> pa.StructArray:
        start, end = self._starts[low], self._starts[high] - 1
        text = self._text.slice(start, end - start)
        table = pj.read_json(
            pa.BufferReader(text),
            pj.ReadOptions(use_threads=False, block_size=len(text)),
            pj.ParseOptions(explicit_schema=self._wire, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != high - low:
            raise pa.ArrowInvalid("a value holds more than one object")
        return _one(table.column("v")).cast(self._kind)


def decode_avro(
    values: pa.Array, schema: pa.Schema, writer_schema: str, *, framed: bool
) -> Decoded:
    """Read Avro records into columns."""
    decode = _avro_decoder(writer_schema)
    bad: list[bool] = []
    rows: list[dict[str, Any] | None] = []
    for value in values.to_pylist():
        row, is_bad = None, False
        if value is not None:
            try:
                row = decode(value[_FRAME_BYTES:] if framed else value)
            except Exception:  # noqa: BLE001  # whatever a decoder meets in bytes that are no Avro
                is_bad = True
        rows.append(row)
        bad.append(is_bad)
    columns = [
        pa.array([None if row is None else row.get(field.name) for row in rows], field.type)
        for field in schema
    ]
    return Decoded(columns, pa.array(bad, pa.bool_()))


def decode_key_avro(
    keys: pa.Array, kind: pa.DataType, writer_schema: str, *, framed: bool
) -> pa.Array:
    """Read Avro keys of any type; those that do not decode are null."""
    decode = _avro_decoder(writer_schema)
    found = []
    for key in keys.to_pylist():
        try:
            found.append(None if key is None else decode(key[_FRAME_BYTES:] if framed else key))
        except Exception:  # noqa: BLE001  # as above
            found.append(None)
    return pa.array(found, kind)


def _avro_decoder(writer_schema: str) -> Callable[[bytes], Any]:
    try:
        import fastavro
    except ImportError:
        raise OptionError(
            "Avro needs the package fastavro where tasks run: pip install fastavro."
        ) from None
    parsed = fastavro.parse_schema(json.loads(writer_schema))

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        found = fastavro.schemaless_reader(stream, parsed, None)
        if stream.read(1):
            raise ValueError("there are bytes behind the value")
        return found

    return decode


# --- Small pieces ---------------------------------------------------------------------------------


def _join(text: pa.StringArray) -> tuple[pa.Buffer, list[int]]:
    """Return the values as lines {"v": value}, and where each begins."""
    if _has_line_feeds(text):
        # Inside a JSON string a line feed is written as an escape, so this one is white space.
        text = pc.replace_substring(text, "\n", " ")
    lists = pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text)
    data = pc.binary_join(lists, (_AFTER + _BEFORE).decode()).buffers()[2] or b""
    sizes = pc.add(pc.binary_length(text), len(_AFTER + _BEFORE))
    ends = pc.cumulative_sum(sizes.cast(pa.int64())).to_pylist()
    return pa.py_buffer(b"".join((_BEFORE, data, _AFTER))), [0, *ends]


def _has_line_feeds(text: pa.StringArray) -> bool:
    data = text.buffers()[2]
    return data is not None and bool((np.frombuffer(data, np.uint8) == _LINE_FEED).any())


def _wire(kind: pa.DataType) -> pa.DataType:
    """Return the type in which the parser reads what ends up as `kind`."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _wire(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _wire(kind.value_type)))
    return kind


def _check_json(name: str, kind: pa.DataType) -> None:
    if pa.types.is_map(kind):
        raise OptionError(
            f"Column `{name}` is a map, which JSON values are not decoded to: make it a struct, or "
            "read the value as a string and use from_json in the query."
        )
    if pa.types.is_struct(kind):
        for each in kind:
            _check_json(f"{name}.{each.name}", each.type)
    elif pa.types.is_list(kind):
        _check_json(name, kind.value_type)


def _all_good(rows: int) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(False), rows)


def _mask(places: list[int], rows: int) -> pa.BooleanArray:
    found = [False] * rows
    for place in places:
        found[place] = True
    return pa.array(found, pa.bool_())


def _positions(usable: pa.BooleanArray) -> pa.Array:
    """Return for each row where it is among the usable ones; null if it is not one of them."""
    counted = pc.subtract(pc.cumulative_sum(usable.cast(pa.int64())), 1)
    return pc.if_else(usable, counted, None)


def _one(chunks: pa.ChunkedArray) -> pa.Array:
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    return chunks.combine_chunks()


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
