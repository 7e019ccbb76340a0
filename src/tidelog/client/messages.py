"""Requests and answers of Kafka's protocol, over `kio`'s message classes, one class a version.

A call is written once for all versions: its `Build` function gets the `Maker` of the version that
both sides know and names every field that any version has; the maker leaves out what this version
lacks. Answers are read the same way, with a default where a field came later (`getattr`).
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, Final

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tidelog.client.errors import BadAnswer
from tidelog.records import Buffer


class Api(IntEnum):
    """The APIs this client calls, by the key they have on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_PRODUCERS = 61
    CONSUMER_GROUP_DESCRIBE = 69


# From version 10 on, offsets of groups name topics by id. Ids protect a group from a topic that was
# deleted and created anew; commands that show and set offsets by hand want names.
NEWEST: Final = {Api.OFFSET_COMMIT: 9, Api.OFFSET_FETCH: 9}


class Maker:
    """Builds the structures of one API's request in one version, by name."""

    __slots__ = ("_classes", "version")

    def __init__(self, api: Api, version: int) -> None:
        self.version = version
        module = load_payload_module(api, version, EntityType.request)
        self._classes: dict[str, tuple[type, frozenset[str]]] = {
            name: (kind, frozenset(field.name for field in dataclasses.fields(kind)))
            for name, kind in vars(module).items()
            if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        }

    def __call__(self, kind: str, /, **values: object) -> Any:
        """Build one structure; values that this version has no field for are left out."""
        made, known = self._classes[kind]
        return made(**{field: value for field, value in values.items() if field in known})


Build = Callable[[Maker], Any]


@cache
def maker(api: Api, version: int) -> Maker:
    """Return the maker of requests of this version."""
    return Maker(api, version)


def known_versions(api: Api) -> tuple[int, int]:
    """Return the oldest and the newest version of an API that this client speaks."""
    versions = schema_name_map[api_key_map[api]].keys()
    return min(versions), NEWEST.get(api, max(versions))


@cache
def has_flexible_request(api: Api, version: int) -> bool:
    """Tell whether the header of this request ends in tagged fields."""
    return bool(load_request_schema(api, version).__header_schema__.__flexible__)


@cache
def has_flexible_answer(api: Api, version: int) -> bool:
    """Tell whether the header of the answer ends in tagged fields."""
    return bool(load_response_schema(api, version).__header_schema__.__flexible__)


def encode(message: Any) -> bytes:
    """Write a message, or a structure that travels inside of one."""
    buffer = io.BytesIO()
    message_class: Any = type(message)
    _writer(message_class)(buffer, message)
    return buffer.getvalue()


def decode_answer(api: Api, version: int, data: Buffer, position: int) -> Any:
    """Read the body of an answer; raises `BadAnswer`."""
    return decode(_answer_class(api, version), data, position)


def decode(message_class: Any, data: Buffer, position: int = 0) -> Any:
    """Read a message of this class at a position; raises `BadAnswer`."""
    try:
        return _reader(message_class)(data, position)[0]
    except Exception as error:
        raise BadAnswer(
            f"What came back is no {message_class.__name__} ({error}). Is this a Kafka listener?"
        ) from error


@cache
def _answer_class(api: Api, version: int) -> Any:
    return load_response_schema(api, version)


@cache
def _writer(message_class: Any) -> Callable[[io.BytesIO, Any], None]:
    writer: Callable[[io.BytesIO, Any], None] = entity_writer(message_class)
    return writer


@cache
def _reader(message_class: Any) -> Callable[[Buffer, int], tuple[Any, int]]:
    reader: Callable[[Buffer, int], tuple[Any, int]] = entity_reader(message_class)
    return reader
