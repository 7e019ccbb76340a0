"""Write TOML: as much of it as a node's file needs. The standard library only reads it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_BARE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class NotToml(ValueError):
    """A value that this module does not write; the message says which."""


def dump(document: Mapping[str, Any]) -> str:
    """Return a document that `tomllib` reads back as the same values; raises `NotToml`."""
    return "\n".join(_table(document, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    # Plain values first: after a header every line belongs to the table of that header.
    for key, value in table.items():
        if not isinstance(value, Mapping) and not _is_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        below = (*path, key)
        name = ".".join(map(_key, below))
        if isinstance(value, Mapping):
            yield f"\n[{name}]"
            yield from _table(value, below)
        elif _is_tables(value):
            for each in value:
                yield f"\n[[{name}]]"
                yield from _table(each, below)


def _is_tables(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(each, Mapping) for each in value)
    )


def _key(key: str) -> str:
    return key if key and set(key) <= _BARE else string(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)  # nan and inf are spelled alike in both
        case str():
            return string(value)
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
    raise NotToml(f"{value!r} cannot be written into a node's file")


def string(text: str) -> str:
    """Return a basic string; raises `NotToml` for text that has no place in a UTF-8 file."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotToml(f"{text!r} is not valid Unicode: use another name") from error
    return '"' + "".join(map(_character, text)) + '"'


def _character(one: str) -> str:
    if one in _ESCAPES:
        return _ESCAPES[one]
    return f"\\u{ord(one):04x}" if ord(one) < 0x20 or ord(one) == 0x7F else one
