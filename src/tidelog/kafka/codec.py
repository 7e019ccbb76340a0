"""Messages of Kafka's protocol: what a request's header says, its body, and answers as bytes.

The messages themselves are `kio`'s classes, one a version. Requests are read by
`tidelog.kafka.reading`, which trusts nothing; answers are written by `kio`, since they are ours.

Fields come and go between versions. A handler is written once: it reads what a version may lack
with a default (`getattr`), and builds answers with `Answers`, which leaves out what a version
does not have.
"""

import dataclasses
import io
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from tidelog.kafka.reading import Cursor, Malformed, decode, reader_of, skip_tags

__all__ = [
    "API_VERSIONS",
    "OPERATIONS",
    "SHORTEST_REQUEST",
    "Answers",
    "Buffer",
    "Header",
    "Malformed",
    "api_name",
    "decode_request",
    "encode",
    "frame",
    "is_request_flexible",
    "is_response_flexible",
    "known_versions",
    "parse_header",
]

Buffer = bytes | bytearray | memoryview

# The API that is answered even in versions that nobody knows.
API_VERSIONS: Final = 18
# The one API that is ours (`operations.py`), far from Kafka's numbers; its header is the oldest.
OPERATIONS: Final = 16_000
# The fixed part of every request's header: API, version, correlation id, length of the client id.
_HEADER: Final = struct.Struct(">hhih")
SHORTEST_REQUEST: Final = _HEADER.size
_FRAME: Final = struct.Struct(">ii")
_FLEXIBLE_FRAME: Final = struct.Struct(">iiB")


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    correlation_id: int
    client_id: str | None
    # Where the body begins.
    size: int


def api_name(api_key: int) -> str:
    if api_key == OPERATIONS:
        return "operations"
    return api_key_map.get(api_key, f"API {api_key}")


def known_versions(api_key: int) -> tuple[int, int]:
    """Return the oldest and the newest version of this API whose messages are known."""
    if api_key == OPERATIONS:
        return 0, 0
    versions = schema_name_map[api_key_map[api_key]].keys()
    return min(versions), max(versions)


@cache
def is_request_flexible(api_key: int, version: int) -> bool:
    """Tell whether the header of this request ends in tagged fields."""
    if api_key == OPERATIONS:
        return False
    header = load_request_schema(api_key, version).__header_schema__
    return bool(header.__flexible__)


@cache
def is_response_flexible(api_key: int, version: int) -> bool:
    if api_key == OPERATIONS:
        return False
    header = load_response_schema(api_key, version).__header_schema__
    return bool(header.__flexible__)


def parse_header(body: Buffer, *, flexible: bool) -> Header:
    """Read the header of a request; raises `Malformed`."""
    if len(body) < _HEADER.size:
        raise Malformed(f"{len(body)} bytes are less than a header")
    _, _, correlation_id, length = _HEADER.unpack_from(body)
    end = _HEADER.size + max(0, length)
    if length < -1 or end > len(body):
        raise Malformed(f"a client id of {length} bytes")
    client_id: str | None = None
    if length >= 0:
        # The client id is only a label, so one that is not text is no reason to refuse a request.
        client_id = bytes(body[_HEADER.size : end]).decode(errors="replace")
    if flexible:
        end = _end_of_tags(body, end)
    return Header(correlation_id, client_id, end)


def _end_of_tags(body: Buffer, position: int) -> int:
    if position < len(body) and body[position] == 0:  # hardly anybody sends any
        return position + 1
    cursor = Cursor(bytes(body), position)
    skip_tags(cursor)
    return cursor.position


def decode_request(api_key: int, version: int, body: Buffer, position: int = 0) -> Any:
    """Read a request's body as an instance of `kio`'s class; raises `Malformed`."""
    return decode(_request_class(api_key, version), bytes(body[position:]))


def decode_counted(api_key: int, version: int, body: Buffer, position: int = 0) -> tuple[Any, int]:
    """Do the same, and tell how many elements its arrays have together."""
    cursor = Cursor(bytes(body[position:]))
    request = reader_of(_request_class(api_key, version))(cursor)
    return request, cursor.elements


@cache
def _request_class(api_key: int, version: int) -> type:
    return load_request_schema(api_key, version)


def encode(message: Any) -> bytes:
    """Write the body of a message of ours."""
    buffer = io.BytesIO()
    kind: type = type(message)
    _writer(kind)(buffer, message)
    return buffer.getvalue()


@cache
def _writer(message_class: type) -> Callable[[io.BytesIO, Any], None]:
    return entity_writer(message_class)


def frame(correlation_id: int, size: int, *, flexible: bool) -> bytes:
    """Return what goes before the body of an answer of this size: its length and its header."""
    if flexible:
        return _FLEXIBLE_FRAME.pack(size + 5, correlation_id, 0)
    return _FRAME.pack(size + 4, correlation_id)


class Answers:
    """Builds the structures of an API's answer in one version, by name."""

    __slots__ = ("_classes",)

    def __init__(self, api_key: int, version: int) -> None:
        module = load_payload_module(api_key, version, EntityType.response)
        self._classes: dict[str, tuple[type, frozenset[str]]] = {
            name: (kind, frozenset(field.name for field in dataclasses.fields(kind)))
            for name, kind in vars(module).items()
            if dataclasses.is_dataclass(kind) and isinstance(kind, type)
        }

    def __call__(self, name: str, /, **values: object) -> Any:
        """Build one structure; values that this version has no field for are left out."""
        kind, known = self._classes[name]
        return kind(**{field: value for field, value in values.items() if field in known})

    def has(self, name: str, field: str) -> bool:
        return name in self._classes and field in self._classes[name][1]

    @staticmethod
    def to(request: Any) -> "Answers":
        """Return the builder of answers to this request."""
        return Answers.of(request.__api_key__, request.__version__)

    @staticmethod
    def of(api_key: int, version: int) -> "Answers":
        return _answers(api_key, version)


@cache
def _answers(api_key: int, version: int) -> Answers:
    return Answers(api_key, version)
