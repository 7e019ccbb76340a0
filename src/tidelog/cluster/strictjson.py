"""Dataclasses as JSON and back, from bytes nobody vouches for.

The type hints of a dataclass are its schema. Reading is strict: every field must be there, none may
be left over, and a value must have exactly its type, so that all replicas read the same thing from
the same bytes or nothing at all. Writing is canonical: equal values give equal bytes.

Known types: bool, int, str, None, UUID, enums, dataclasses, named tuples, `tuple[X, ...]`,
`Mapping[str, X]`, `X | None`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

MAX_NUMBER: Final = 2**63 - 1
MAX_TEXT: Final = 4096  # characters; the longest legitimate one is a list of a configuration

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_Writer = Callable[[Any], Any]
_Kind = Any  # a type as the hints of a dataclass spell it


class NotThis(ValueError):
    """These bytes do not hold what was expected; the message says what is wrong."""


class OtherFormat(NotThis):
    """These bytes say that they have another format; what else is in them cannot be known."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"it has format {found}, and this release reads format {known}")
        self.is_newer = found > known


def write(value: object) -> bytes:
    """Write a dataclass as canonical JSON."""
    return dump(to_plain(value))


def read(kind: type[T], data: bytes) -> T:
    """Read a dataclass that `write` wrote; raises `NotThis`."""
    return from_plain(kind, parse(data))


def read_format(kind: type[T], data: bytes, known: int) -> T:
    """Read a dataclass whose `format` tells how it is written; raises `NotThis`.

    For any other format than the known one that is `OtherFormat`, whatever else differs.
    """
    plain = parse(data)
    found = plain.get("format") if isinstance(plain, dict) else None
    if type(found) is int and found != known:
        raise OtherFormat(found, known)
    return from_plain(kind, plain)


def dump(plain: object) -> bytes:
    """Write what `to_plain` gave, or maps and lists of it, as canonical JSON."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def parse(data: bytes) -> object:
    """Parse JSON, whatever it holds; raises `NotThis`."""
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NotThis(f"it is not JSON: {error}") from error


def to_plain(value: object) -> object:
    """What `write` gives to JSON."""
    kind: _Kind = type(value)
    return _writer(kind)(value)


def from_plain(kind: type[T], plain: object) -> T:
    """Read a dataclass from what JSON gave; raises `NotThis`."""
    hint: _Kind = kind
    try:
        return cast(T, _reader(hint)(plain))
    except RecursionError as error:  # from printing what was found, nested as deep as JSON allows
        raise NotThis("it is nested too deep") from error


def _no_constant(name: str) -> object:
    raise NotThis(f"{name} is no number")


# --- Reading ------------------------------------------------------------------------------------


@cache
def _reader(kind: _Kind) -> _Reader:
    origin: _Kind = get_origin(kind)
    arguments = get_args(kind)
    if supertype := getattr(kind, "__supertype__", None):  # a NewType
        return _reader(supertype)
    if kind is str:
        return _read_text
    if kind is int:
        return _read_number
    if kind is bool or kind is type(None):
        return _read_exactly(kind)
    if kind is UUID:
        return _read_uuid
    if origin is UnionType:
        return _read_optional(arguments)
    if origin is tuple:
        return _read_sequence(arguments[0])
    if origin is Mapping:
        return _read_mapping(arguments[1])
    if issubclass(kind, Enum):
        return _read_enum(kind)
    if issubclass(kind, tuple):
        return _read_named_tuple(kind)
    if is_dataclass(kind):
        return _read_dataclass(kind)
    raise TypeError(f"{kind} cannot be read from JSON")


def _read_text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise NotThis(f"{_short(value)} is no text of at most {MAX_TEXT} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotThis(f"{ascii(value)[:40]} holds half a character") from error
    return value


def _read_number(value: Any) -> int:
    if type(value) is not int or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise NotThis(f"{_short(value)} is no whole number of 64 bits")
    return value


def _read_exactly(kind: type) -> _Reader:
    def reader(value: Any) -> Any:
        if type(value) is not kind:
            raise NotThis(f"{_short(value)} is no {kind.__name__}")
        return value

    return reader


def _read_uuid(value: Any) -> UUID:
    text = _read_text(value)
    try:
        uuid = UUID(text)
    except ValueError as error:
        raise NotThis(f"{_short(value)} is no UUID") from error
    if str(uuid) != text:
        raise NotThis(f"{_short(value)} is not how a UUID is written")
    return uuid


def _read_optional(choices: tuple[Any, ...]) -> _Reader:
    (kind,) = (choice for choice in choices if choice is not type(None))
    inner = _reader(kind)
    return lambda value: None if value is None else inner(value)


def _read_sequence(kind: Any) -> _Reader:
    inner = _reader(kind)

    def reader(value: Any) -> Any:
        if type(value) is not list:
            raise NotThis(f"{_short(value)} is no list")
        return tuple(map(inner, value))

    return reader


def _read_mapping(kind: Any) -> _Reader:
    inner = _reader(kind)

    def reader(value: Any) -> Any:
        if type(value) is not dict:
            raise NotThis(f"{_short(value)} is no map")
        return {_read_text(name): inner(value[name]) for name in sorted(value)}

    return reader


def _read_enum(kind: type[Enum]) -> _Reader:
    names = kind.__members__

    def reader(value: Any) -> Enum:
        text = _read_text(value)
        if text not in names:
            raise NotThis(f"{_short(value)} is none of {', '.join(names)}")
        return names[text]

    return reader


def _read_named_tuple(kind: Any) -> _Reader:
    readers = tuple(_reader(hint) for hint in get_type_hints(kind).values())

    def reader(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise NotThis(f"{_short(value)} is no list of {len(readers)}")
        return kind(*(inner(item) for inner, item in zip(readers, value, strict=True)))

    return reader


def _read_dataclass(kind: Any) -> _Reader:
    readers = {name: _reader(hint) for name, hint in _hints(kind).items()}

    def reader(value: Any) -> Any:
        if type(value) is not dict or value.keys() != readers.keys():
            raise NotThis(f"{_short(value)} has not exactly the fields {', '.join(readers)}")
        try:
            return kind(**{name: inner(value[name]) for name, inner in readers.items()})
        except NotThis as error:
            raise NotThis(f"in {kind.__name__}: {error}") from error

    return reader


# --- Writing ------------------------------------------------------------------------------------


@cache
def _writer(kind: _Kind) -> _Writer:
    if is_dataclass(kind):
        names = tuple(_hints(kind))
        return lambda value: {name: _plain(getattr(value, name)) for name in names}
    raise TypeError(f"{kind} is no dataclass")


def _plain(value: Any) -> Any:
    kind: _Kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if issubclass(kind, Enum):
        return value.name
    if issubclass(kind, tuple):
        return [_plain(item) for item in value]
    if issubclass(kind, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if kind is UUID:
        return str(value)
    return _writer(kind)(value)


_AS_IT_IS: Final = frozenset({str, int, bool, type(None)})


def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _short(value: object) -> str:
    text = ascii(value) if not isinstance(value, int) or abs(value) < 2**64 else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."
