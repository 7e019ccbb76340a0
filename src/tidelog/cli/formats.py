r"""How records look as text: `%k\t%v\n` for reading standard input and for writing standard output.

    %t topic    %p partition    %o offset     %d time in milliseconds since 1970
    %k key      %v value        %h headers, as name=value,name=value
    %% a percent sign           \n \t \0 \\ as everywhere

Reading takes %k, %v, %h and %p, and the text that ends a format ends a record. What is missing is
an empty string in the output; JSON tells it apart.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from tidelog.client import FetchedRecord

Headers = tuple[tuple[str, bytes | None], ...]

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_INPUT_VERBS: Final = "kvhp"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """What one record of the input says; None where the format has no place for it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


class Mismatch(Exception):
    """A piece of input is not what the format says."""


def parse_format(text: str, verbs: str) -> list[str]:
    """Split a format into verbs (`%k`) and literals; a wrong one is a wrong command line."""
    parts: list[str] = []
    literal = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            follows = next(characters, "")
            if follows not in _ESCAPES:
                raise typer.BadParameter(f"\\{follows} means nothing in a format.")
            literal += _ESCAPES[follows]
        elif character == "%":
            verb = next(characters, "")
            if verb == "%":
                literal += "%"
                continue
            if not verb or verb not in verbs:
                known = " ".join(f"%{each}" for each in verbs)
                raise typer.BadParameter(f"%{verb} means nothing in this format: use {known}.")
            parts += [literal, f"%{verb}"] if literal else [f"%{verb}"]
            literal = ""
        else:
            literal += character
    return [*parts, literal] if literal else parts


class InputFormat:
    """Reads records from a stream of bytes, as they come."""

    def __init__(self, text: str) -> None:
        parts = parse_format(text, _INPUT_VERBS)
        verbs = [part for part in parts if part.startswith("%")]
        if "%v" not in verbs and "%k" not in verbs:
            raise typer.BadParameter("A format to read by needs %v or %k.")
        if len(set(verbs)) != len(verbs):
            raise typer.BadParameter("A format to read by has each of its verbs once.")
        if parts[-1].startswith("%"):
            parts.append("\n")
        self.end = parts.pop().encode()
        self._text = text
        pattern = b""
        for place, part in enumerate(parts):
            if part.startswith("%"):
                greedy = b"" if place == len(parts) - 1 else b"?"
                pattern += b"(?P<" + part[1:].encode() + b">.*" + greedy + b")"
            else:
                pattern += re.escape(part.encode())
        self._pattern = re.compile(pattern, re.DOTALL)

    def read(self, piece: bytes) -> InputRecord:
        """Read one record, without what ends it; raises `Mismatch`."""
        match = self._pattern.fullmatch(piece)
        if match is None:
            shown = piece[:60].decode(errors="replace")
            raise Mismatch(f"{shown!r} does not look like {self._text!r}.")
        found = match.groupdict()
        partition = found.get("p")
        if partition is not None and not partition.isdigit():
            raise Mismatch(
                f"{partition[:60].decode(errors='replace')!r} is not a partition number."
            )
        return InputRecord(
            value=found.get("v"),
            key=found.get("k"),
            headers=parse_headers(found["h"].decode().split(",")) if found.get("h") else (),
            partition=None if partition is None else int(partition),
        )


def parse_headers(texts: list[str]) -> Headers:
    """Read `name=value` headers; raises `Mismatch`."""
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise Mismatch(f"{text!r} is not a header: write name=value.")
        headers.append((name, value.encode()))
    return tuple(headers)


_WRITERS: Final[Mapping[str, Callable[[FetchedRecord], bytes]]] = {
    "%t": lambda record: record.partition.topic.encode(),
    "%p": lambda record: b"%d" % record.partition.index,
    "%o": lambda record: b"%d" % record.offset,
    "%d": lambda record: b"%d" % record.timestamp,
    "%k": lambda record: record.key or b"",
    "%v": lambda record: record.value or b"",
    "%h": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
}


class OutputFormat:
    """Writes records as text."""

    def __init__(self, text: str) -> None:
        verbs = "".join(verb[1] for verb in _WRITERS)
        self._parts: list[bytes | Callable[[FetchedRecord], bytes]] = [
            _WRITERS.get(part, part.encode()) for part in parse_format(text, verbs)
        ]

    def write(self, record: FetchedRecord) -> bytes:
        """Return a record as the format has it."""
        return b"".join(part if isinstance(part, bytes) else part(record) for part in self._parts)


def as_document(record: FetchedRecord) -> dict[str, Any]:
    """Return a record for JSON; bytes that are no text come as {"base64": ...}."""
    return {
        "topic": record.partition.topic,
        "partition": record.partition.index,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [{"key": name, "value": _text(value)} for name, value in record.headers],
    }


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
