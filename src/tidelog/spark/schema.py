"""The columns of a read: what they are called, what type they have, and where they come from.

Without a format, or with `string`, rows look as those of Spark's own Kafka source: key, value,
topic, partition, offset, timestamp, timestampType, and headers if asked for. With `json` or `avro`
values, the fields of the value are the columns; then what Kafka knows of a record has a name that
begins with an underscore (`_key`, `_topic`, `_offset`, ...), since fields are often called key or
timestamp. `_corrupt` is the value that did not decode. `.schema(...)` may leave out what is not
needed, and what is left out is not decoded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.spark.options import Format, OptionError, ReadOptions

CORRUPT: Final = "_corrupt"
HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
KAFKA: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
# Columns of a read that come from the records, by their name in `tidelog.records.arrow`.
_DECODED: Final = ("key", "value", "offset", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a read has, in order, and what has to be decoded for them."""

    schema: StructType
    meta: dict[str, str]  # column to what Kafka calls it
    fields: StructType  # columns that are fields of the value; empty unless it is JSON or Avro
    corrupt: bool  # whether `_corrupt` is among the columns

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that have to be decoded from the records."""
        names = set(self.meta.values()) | ({"value"} if self.fields or self.corrupt else set())
        return tuple(name for name in _DECODED if name in names)


def default_schema(options: ReadOptions) -> StructType:
    """Return the schema of a read without `.schema(...)`."""
    formats = options.formats
    if formats.value is Format.JSON:
        raise OptionError(
            '`valueFormat` is json: say which fields to read, with .schema("id long, name string").'
        )
    if formats.value is Format.AVRO:
        fields = list(_avro_fields(formats.value_schema or ""))
        fields += [StructField(f"_{name}", kind) for name, kind in _kafka(options).items()]
        fields.append(StructField(CORRUPT, BinaryType()))
    else:
        fields = [StructField(name, kind) for name, kind in _kafka(options).items()]
    if options.columns is None:
        return StructType(fields)
    by_name = {field.name: field for field in fields}
    missing = [name for name in options.columns if name not in by_name]
    if missing:
        raise OptionError(
            f"`columns` names {missing[0]!r}; there are {', '.join(by_name)}."
            + (" Set `includeHeaders` to true for headers." if "headers" in missing[0] else "")
        )
    return StructType([by_name[name] for name in options.columns])


def layout(schema: StructType, options: ReadOptions) -> Layout:
    """Say where the columns of a schema come from; raises `OptionError`."""
    nested = options.formats.value in (Format.JSON, Format.AVRO)
    known = _kafka(options, headers=True)
    if nested:
        known = {f"_{name}": kind for name, kind in known.items() if name != "value"}
    meta: dict[str, str] = {}
    fields: list[StructField] = []
    for field in schema.fields:
        if nested and field.name == CORRUPT:
            if not isinstance(field.dataType, StringType | BinaryType):
                raise OptionError(
                    f"Column `{CORRUPT}` is {_name(field)}: make it string or binary."
                )
        elif field.name in known:
            wanted = known[field.name]
            is_key = field.name.removeprefix("_") == "key" and options.formats.key is Format.JSON
            if not is_key and _name(wanted) != _name(field):
                raise OptionError(
                    f"Column `{field.name}` is {_name(field)} in .schema(...), and the records "
                    f"have {_name(wanted)}: change it, or cast it in the query."
                )
            meta[field.name] = field.name.removeprefix("_") if nested else field.name
        elif nested:
            fields.append(field)
        else:
            raise OptionError(
                f"Column `{field.name}` is not there: the records have {', '.join(known)}. For the "
                "fields of JSON values, set `valueFormat` to json."
            )
    if options.columns is not None and set(options.columns) != set(schema.names):
        raise OptionError("`columns` and .schema(...) name different columns: give one of them.")
    return Layout(schema, meta, StructType(fields), CORRUPT in schema.names and nested)


def _kafka(options: ReadOptions, *, headers: bool = False) -> dict[str, DataType]:
    """Return what is known of a record, with the types that the formats give."""
    found = dict(KAFKA)
    if not options.headers and not headers:
        del found["headers"]
    formats = options.formats
    if formats.key is Format.STRING:
        found["key"] = StringType()
    elif formats.key is Format.AVRO:
        found["key"] = _avro_type(json.loads(formats.key_schema or ""))
    if formats.value is Format.STRING:
        found["value"] = StringType()
    elif formats.value is not Format.BINARY:
        del found["value"]
    return found


def _name(kind: DataType | StructField) -> str:
    return (kind.dataType if isinstance(kind, StructField) else kind).simpleString()


# --- Avro -----------------------------------------------------------------------------------------

_AVRO: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_AVRO_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "uuid": StringType(),
}


def _avro_fields(text: str) -> list[StructField]:
    try:
        kind = _avro_type(json.loads(text))
    except ValueError as error:
        raise OptionError(f"`avroSchema` cannot be read: {error}.") from None
    if not isinstance(kind, StructType):
        raise OptionError("`avroSchema` is no record: values must be records to have columns.")
    return list(kind.fields)


def _avro_type(schema: Any) -> DataType:
    """Return the Spark type of an Avro schema; raises `OptionError`."""
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) == 1:
            return _avro_type(kinds[0])
    elif isinstance(schema, str):
        if schema in _AVRO:
            return _AVRO[schema]
    elif isinstance(schema, dict):
        logical = schema.get("logicalType")
        if logical == "decimal":
            return DecimalType(schema["precision"], schema.get("scale", 0))
        if logical in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[logical]
        match schema.get("type"):
            case "record":
                return StructType(
                    [
                        StructField(each["name"], _avro_type(each["type"]))
                        for each in schema["fields"]
                    ]
                )
            case "array":
                return ArrayType(_avro_type(schema["items"]))
            case "map":
                return MapType(StringType(), _avro_type(schema["values"]))
            case inner:
                return _avro_type(inner)
    raise OptionError(
        f"`avroSchema` has the type {json.dumps(schema)}, which is no column: unions may have null "
        "and one other type, and types must be written out where they are used."
    )
