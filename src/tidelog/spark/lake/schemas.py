"""Spark's types, Iceberg's types, and what the values of a topic look like if they are JSON.

Iceberg has fewer types than Spark: bytes and shorts become ints. All columns may be null, since a
record may lack any field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.json as pj
from pyspark.sql import types as s

from tidelog.spark.options import OptionError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

# Records of a topic that are looked at to find out which fields their values have.
SAMPLE_ROWS: Final = 2_000
_RECORD_COLUMNS: Final = ("key", "partition", "offset", "timestamp")


def to_iceberg(schema: s.StructType) -> Schema:
    """Return a table's schema for rows of these columns; raises `OptionError`."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    ids = count(1)
    fields = [(next(ids), field) for field in schema.fields]
    return Schema(
        *(
            NestedField(number, field.name, _type(field.name, field.dataType, ids), required=False)
            for number, field in fields
        )
    )


def _type(name: str, kind: s.DataType, ids: Iterator[int]) -> IcebergType:
    from pyiceberg import types as i

    plain: dict[type[s.DataType], IcebergType] = {
        s.BooleanType: i.BooleanType(),
        s.ByteType: i.IntegerType(),
        s.ShortType: i.IntegerType(),
        s.IntegerType: i.IntegerType(),
        s.LongType: i.LongType(),
        s.FloatType: i.FloatType(),
        s.DoubleType: i.DoubleType(),
        s.StringType: i.StringType(),
        s.BinaryType: i.BinaryType(),
        s.DateType: i.DateType(),
        s.TimestampType: i.TimestamptzType(),
        s.TimestampNTZType: i.TimestampType(),
    }
    found = plain.get(type(kind))
    if found is not None:
        return found
    if isinstance(kind, s.DecimalType):
        return i.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, s.StructType):
        return i.StructType(
            *(
                i.NestedField(
                    next(ids),
                    each.name,
                    _type(f"{name}.{each.name}", each.dataType, ids),
                    required=False,
                )
                for each in kind.fields
            )
        )
    if isinstance(kind, s.ArrayType):
        return i.ListType(next(ids), _type(name, kind.elementType, ids), element_required=False)
    if isinstance(kind, s.MapType):
        key = next(ids)
        return i.MapType(
            key,
            _type(name, kind.keyType, ids),
            next(ids),
            _type(name, kind.valueType, ids),
            value_required=False,
        )
    raise OptionError(
        f"Column `{name}` is {kind.simpleString()}, which a lake table cannot hold: cast it first."
    )


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return how the files of a table look in Arrow."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    found = schema_to_pyarrow(schema)
    # Strings and bytes as Spark hands them over, with 32-bit offsets.
    return pa.schema([field.with_type(_small(field.type)) for field in found])


def _small(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_small(field.type)) for field in kind])
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        field = kind.value_field
        return pa.list_(field.with_type(_small(field.type)))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_small(key.type)), item.with_type(_small(item.type)))
    return kind


def spark_schema(schema: Schema) -> s.StructType:
    """Return the columns of a table as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(schema))


def record_columns(fields: s.StructType | None, *, headers: bool) -> s.StructType:
    """Return the columns of a topic's table: the fields of the values, and the record itself."""
    from tidelog.spark.schema import CORRUPT, KAFKA

    names = [*_RECORD_COLUMNS, *(["headers"] if headers else [])]
    if fields is None:
        return s.StructType([s.StructField(name, KAFKA[name]) for name in ["value", *names]])
    taken = [field for field in fields.fields if not field.name.startswith("_")]
    known = [s.StructField(f"_{name}", KAFKA[name]) for name in names]
    return s.StructType([*taken, *known, s.StructField(CORRUPT, s.BinaryType())])


def parse_columns(text: str) -> s.StructType:
    """Read columns as SQL writes them; needs a session; raises `OptionError`."""
    from pyspark.errors import ParseException

    try:
        found = s.StructType.fromDDL(text)
    except ParseException as error:
        reason = str(error).strip().splitlines()[0]
        raise OptionError(f"{text!r} are no columns ({reason}).") from None
    if not isinstance(found, s.StructType):
        raise OptionError(f'{text!r} are no columns: write "id long, name string".')
    return found


def infer(values: Iterable[bytes | None], topic: str) -> s.StructType:
    """Find out which fields JSON values have; raises `OptionError`.

    Whole numbers and fractions in one field make it a double; a field that is always null is taken
    for a string.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    lines = [line for value in values if value is not None and (line := _object(value)) is not None]
    if not lines:
        raise OptionError(
            f"Topic {topic} has no JSON objects to learn the fields from: write some, or give "
            '--schema "id long, name string".'
        )
    text = b"\n".join(lines)
    try:
        found = pj.read_json(pa.BufferReader(text), pj.ReadOptions(block_size=len(text) + 1)).schema
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"The values of {topic} do not have one type for each field ({error}): give --schema."
        ) from None
    return from_arrow_schema(pa.schema([each.with_type(_settled(each.type)) for each in found]))


def _object(value: bytes) -> bytes | None:
    try:
        found: Any = json.loads(value)
    except ValueError:
        return None
    return json.dumps(found).encode() if isinstance(found, dict) else None


def _settled(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_settled(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    return kind
