"""Readers of Kafka's messages, made from `kio`'s classes, for bytes that nobody vouches for.

`kio` has readers of its own, and they are fast. But they reserve room for as many elements as an
array says it has before they look at the first one, and a request of five bytes that promises
2^34 elements ends the process. The readers here believe no count and no length:

- an array may not promise more elements than the bytes that are left can hold;
- a request may not have more elements than `MAX_ELEMENTS` in all its arrays together, which bounds
  the time and the memory that one request can take;
- whatever does not fit is a `Malformed`, never another exception.

A reader is a function of a `Cursor`. `reader_of(message class)` builds it once from the fields.
"""

import dataclasses
import struct
import types
import typing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NoReturn
from uuid import UUID

# Kafka's bound for one array, and here for all arrays of a request together: a group of ten
# thousand members with a hundred partitions each.
MAX_ELEMENTS: Final = 1_000_000
# Kafka's bound for the tagged fields of one structure.
MAX_TAGS: Final = 10_000

_VARINT_BYTES: Final = 5
_NO_UUID: Final = bytes(16)


class Malformed(Exception):
    """Bytes that are no message of the kind and version that they claim to be."""


class Cursor:
    """A place in the bytes of one message."""

    __slots__ = ("budget", "data", "end", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        # Elements that the arrays of this message may still have.
        self.budget = MAX_ELEMENTS

    @property
    def elements(self) -> int:
        """How many elements were read so far."""
        return MAX_ELEMENTS - self.budget

    def take(self, count: int) -> bytes:
        start = self.position
        end = start + count
        if count < 0 or end > self.end:
            raise Malformed(f"{count} bytes promised at {start}, {self.end - start} left")
        self.position = end
        return self.data[start:end]

    def skip(self, count: int) -> None:
        if count < 0 or self.position + count > self.end:
            raise Malformed(f"{count} bytes promised at {self.position}")
        self.position += count

    def varint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        data, position, value = self.data, self.position, 0
        for index in range(_VARINT_BYTES):
            if position >= self.end:
                raise Malformed(f"a number at {self.position} has no end")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >= 1 << 32:
                    break
                self.position = position
                return value
        raise Malformed(f"a number at {self.position} is too long")


Reader = Callable[[Cursor], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How to read a value, and the fewest bytes that it can take."""

    read: Reader
    least: int


def decode(message_class: type, data: bytes, position: int = 0) -> Any:
    """Read one message of this class; raises `Malformed`. Bytes after it are ignored."""
    return reader_of(message_class)(Cursor(data, position))


def skip_tags(cursor: Cursor) -> None:
    """Pass over a list of tagged fields that nobody here knows."""
    for _ in range(_count_of_tags(cursor)):
        cursor.varint()
        cursor.skip(cursor.varint())


def _count_of_tags(cursor: Cursor) -> int:
    """Read how many tagged fields there are; they count as elements, so many structures may not
    have many each."""
    count = cursor.varint()
    if count > MAX_TAGS:
        raise Malformed(f"{count} tagged fields, more than {MAX_TAGS}")
    cursor.budget -= count
    if cursor.budget < 0:
        raise Malformed(f"more than {MAX_ELEMENTS} elements")
    return count


@cache
def reader_of(message_class: type) -> Reader:
    """Return the reader of messages (or nested structures) of this class."""
    return _entity(message_class).read


# --- Numbers and the like -------------------------------------------------------------------------


def _fixed(code: str) -> Shape:
    packed = struct.Struct(">" + code)
    unpack_from, size = packed.unpack_from, packed.size

    def read(cursor: Cursor) -> Any:
        position = cursor.position
        if position + size > cursor.end:
            raise Malformed(f"{size} bytes expected at {position}, {cursor.end - position} left")
        cursor.position = position + size
        return unpack_from(cursor.data, position)[0]

    return Shape(read, size)


def _converted(shape: Shape, convert: Callable[[Any], Any]) -> Shape:
    read = shape.read
    return Shape(lambda cursor: convert(read(cursor)), shape.least)


def _duration(milliseconds: int) -> timedelta:
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:  # "for ever", as clients write it: the largest number there is
        return timedelta.max if milliseconds > 0 else timedelta.min


def _time(milliseconds: int) -> datetime | None:
    if milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise Malformed(f"{milliseconds} is not a time") from None


def _uuid(cursor: Cursor) -> UUID | None:
    data = cursor.take(16)
    return None if data == _NO_UUID else UUID(bytes=data)


_FIXED: Final = {
    "bool": _fixed("?"),
    "int8": _fixed("b"),
    "int16": _fixed("h"),
    "int32": _fixed("i"),
    "int64": _fixed("q"),
    "uint8": _fixed("B"),
    "uint16": _fixed("H"),
    "uint32": _fixed("I"),
    "uint64": _fixed("Q"),
    "float64": _fixed("d"),
    "error_code": _fixed("h"),
    "timedelta_i32": _converted(_fixed("i"), _duration),
    "timedelta_i64": _converted(_fixed("q"), _duration),
    "datetime_i64": _converted(_fixed("q"), _time),
    "uuid": Shape(_uuid, 16),
}


# --- Lengths, strings, bytes ----------------------------------------------------------------------


def _compact_length(cursor: Cursor) -> int:
    return cursor.varint() - 1


_STRING_LENGTH: Final = _fixed("h")
_LONG_LENGTH: Final = _fixed("i")
_COMPACT_LENGTH: Final = Shape(_compact_length, 1)


def _null() -> NoReturn:
    raise Malformed("null where a value must be")


def _bytes(length: Shape, nullable: bool) -> Shape:
    read_length = length.read

    def read(cursor: Cursor) -> bytes | None:
        count = read_length(cursor)
        if count == -1:
            return None if nullable else _null()
        return cursor.take(count)

    return Shape(read, length.least)


def _text(length: Shape, nullable: bool) -> Shape:
    read_bytes = _bytes(length, nullable).read

    def read(cursor: Cursor) -> str | None:
        data = read_bytes(cursor)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            raise Malformed("a string that is not UTF-8") from None

    return Shape(read, length.least)


def _primitive(kafka_type: str, flexible: bool, nullable: bool) -> Shape:
    if kafka_type == "string":
        return _text(_COMPACT_LENGTH if flexible else _STRING_LENGTH, nullable)
    if kafka_type in {"bytes", "records"}:
        return _bytes(_COMPACT_LENGTH if flexible else _LONG_LENGTH, nullable)
    return _FIXED[kafka_type]


# --- Arrays and structures ------------------------------------------------------------------------


def _array(element: Shape, flexible: bool, nullable: bool) -> Shape:
    length = _COMPACT_LENGTH if flexible else _LONG_LENGTH
    read_length, read_element, least = length.read, element.read, max(1, element.least)

    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = read_length(cursor)
        if count == -1:
            return None if nullable else _null()
        if count < 0 or count * least > cursor.end - cursor.position:
            raise Malformed(f"{count} elements promised, {cursor.end - cursor.position} bytes left")
        cursor.budget -= count
        if cursor.budget < 0:
            raise Malformed(f"more than {MAX_ELEMENTS} elements")
        return tuple([read_element(cursor) for _ in range(count)])

    return Shape(read, length.least)


def _nullable_entity(shape: Shape) -> Shape:
    read_marker, read_entity = _FIXED["int8"].read, shape.read

    def read(cursor: Cursor) -> Any:
        return None if read_marker(cursor) < 0 else read_entity(cursor)

    return Shape(read, 1)


@cache
def _entity(message_class: type) -> Shape:
    flexible: bool = message_class.__flexible__  # type: ignore[attr-defined]
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    least = 1 if flexible else 0
    for field in dataclasses.fields(message_class):
        shape = _field(field, flexible)
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, shape.read))
            least += shape.least
        else:
            tagged[tag] = (field.name, shape.read)

    def read(cursor: Cursor) -> Any:
        values = {name: read_field(cursor) for name, read_field in plain}
        if flexible:
            _read_tags(cursor, tagged, values)
        return message_class(**values)

    return Shape(read, least)


def _read_tags(
    cursor: Cursor, known: dict[int, tuple[str, Reader]], values: dict[str, Any]
) -> None:
    for _ in range(_count_of_tags(cursor)):
        tag, size = cursor.varint(), cursor.varint()
        end = cursor.position + size
        if end > cursor.end:
            raise Malformed(f"tag {tag} promises {size} bytes")
        if tag not in known:
            cursor.position = end
            continue
        name, read_field = known[tag]
        values[name] = read_field(cursor)
        if cursor.position != end:
            raise Malformed(f"tag {tag} is not as long as it says")


def _field(field: "dataclasses.Field[Any]", flexible: bool) -> Shape:
    kind, nullable = _without_none(field.type)
    kafka_type = field.metadata.get("kafka_type")
    if typing.get_origin(kind) is tuple:
        inner, element_nullable = _without_none(typing.get_args(kind)[0])
        element = (
            _entity(inner)
            if kafka_type is None
            else _primitive(kafka_type, flexible, element_nullable)
        )
        return _array(element, flexible, nullable)
    if kafka_type is None:
        entity = _entity(kind)
        # A tagged structure is absent by its tag, so it needs no marker.
        return _nullable_entity(entity) if nullable and "tag" not in field.metadata else entity
    return _primitive(kafka_type, flexible, nullable)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if typing.get_origin(kind) in {types.UnionType, typing.Union}:
        inner = [part for part in typing.get_args(kind) if part is not types.NoneType]
        return inner[0], True
    return kind, False
