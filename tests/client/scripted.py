"""A broker that says what a test tells it to say, over a real socket.

    broker = ScriptedBroker()
    broker.on(Api.FETCH, lambda request, make: make("FetchResponse", ...))

A handler gets the request as an object and a maker of answers in its version. It returns the
answer, or None for "close the connection". What was asked is kept in `asked`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Self
from uuid import UUID

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tidelog.client.messages import Api

TOPIC_ID = UUID(int=7)
NONE = timedelta(0)

Make = Callable[..., Any]
Handler = Callable[[Any, Make], Any]


@cache
def maker(api: int, version: int) -> Make:
    module = load_payload_module(api, version, EntityType.response)

    def make(kind: str, /, **values: object) -> Any:
        made = getattr(module, kind)
        known = {field.name for field in dataclasses.fields(made)}
        return made(**{name: value for name, value in values.items() if name in known})

    return make


class ScriptedBroker:
    """One node of a cluster of one, which leads every partition, unless a test says otherwise."""

    def __init__(self, versions: Mapping[int, tuple[int, int]] | None = None) -> None:
        self.versions = dict(versions or DEFAULT_VERSIONS)
        self.asked: list[tuple[int, int, Any]] = []  # API, version, request
        self.port = 0
        self.partitions = 1
        self.epoch = 1
        self.leader = 1
        self.connections = 0
        self._handlers: dict[int, Handler] = {
            Api.API_VERSIONS: self._api_versions,
            Api.METADATA: self.metadata,
        }
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on(self, api: Api, handler: Handler) -> None:
        self._handlers[api] = handler

    def requests(self, api: Api) -> list[Any]:
        return [request for key, _, request in self.asked if key == api]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                answer = await self._answer(await reader.readexactly(size))
                if answer is None:
                    break
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, frame: bytes) -> bytes | None:
        api, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        low, high = self.versions.get(api, (0, -1))
        if api == Api.API_VERSIONS and not low <= version <= high:
            body = maker(api, 0)(
                "ApiVersionsResponse", error_code=ErrorCode.unsupported_version, api_keys=()
            )
            return struct.pack(">i", correlation_id) + write(body)
        handler = self._handlers.get(api)
        if handler is None or not low <= version <= high:
            return None
        schema = load_request_schema(api, version)
        position = 10 + length + bool(schema.__header_schema__.__flexible__)
        request = entity_reader(schema)(frame, position)[0]
        self.asked.append((api, version, request))
        answer = handler(request, maker(api, version))
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is None:
            return None
        flexible = load_response_schema(api, version).__header_schema__.__flexible__
        return struct.pack(">i", correlation_id) + b"\0" * bool(flexible) + write(answer)

    def _api_versions(self, request: Any, make: Make) -> Any:
        return make(
            "ApiVersionsResponse",
            error_code=ErrorCode.none,
            throttle_time=NONE,
            api_keys=tuple(
                make("ApiVersion", api_key=api, min_version=low, max_version=high)
                for api, (low, high) in self.versions.items()
            ),
        )

    def metadata(self, request: Any, make: Make) -> Any:
        names = ["orders"] if request.topics is None else [each.name for each in request.topics]
        return make(
            "MetadataResponse",
            throttle_time=NONE,
            brokers=(
                make(
                    "MetadataResponseBroker",
                    node_id=1,
                    host="127.0.0.1",
                    port=self.port,
                    rack=None,
                ),
            ),
            cluster_id="scripted",
            controller_id=1,
            error_code=ErrorCode.none,
            topics=tuple(self._topic(name, make) for name in names),
        )

    def _topic(self, name: str, make: Make) -> Any:
        known = name == "orders"
        return make(
            "MetadataResponseTopic",
            error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
            name=name,
            topic_id=TOPIC_ID if known else None,
            is_internal=False,
            partitions=tuple(
                make(
                    "MetadataResponsePartition",
                    error_code=ErrorCode.none,
                    partition_index=index,
                    leader_id=self.leader,
                    leader_epoch=self.epoch,
                    replica_nodes=(1,),
                    isr_nodes=(1,),
                    offline_replicas=(),
                )
                for index in range(self.partitions if known else 0)
            ),
        )


DEFAULT_VERSIONS: dict[int, tuple[int, int]] = {
    Api.PRODUCE: (3, 11),
    Api.FETCH: (4, 13),
    Api.LIST_OFFSETS: (1, 7),
    Api.METADATA: (0, 12),
    Api.FIND_COORDINATOR: (0, 4),
    Api.OFFSET_COMMIT: (2, 9),
    Api.OFFSET_FETCH: (1, 9),
    Api.API_VERSIONS: (0, 3),
    Api.CREATE_TOPICS: (2, 7),
    Api.INIT_PRODUCER_ID: (0, 4),
}


def write(message: Any) -> bytes:
    buffer = io.BytesIO()
    message_class: Any = type(message)
    entity_writer(message_class)(buffer, message)
    return buffer.getvalue()


def produced(
    make: Make, request: Any, error: ErrorCode = ErrorCode.none, base_offset: int = 0
) -> Any:
    """Answer a produce request for one partition."""
    topic = request.topic_data[0]
    return make(
        "ProduceResponse",
        responses=(
            make(
                "TopicProduceResponse",
                name=getattr(topic, "name", None),
                topic_id=getattr(topic, "topic_id", None),
                partition_responses=(
                    make(
                        "PartitionProduceResponse",
                        index=topic.partition_data[0].index,
                        error_code=error,
                        base_offset=base_offset,
                        log_append_time=None,
                        log_start_offset=0,
                        record_errors=(),
                        error_message=None,
                    ),
                ),
            ),
        ),
        throttle_time=NONE,
    )


def producer_id(request: Any, make: Make) -> Any:
    return make(
        "InitProducerIdResponse",
        throttle_time=NONE,
        error_code=ErrorCode.none,
        producer_id=9,
        producer_epoch=0,
    )


def fetched(
    make: Make,
    request: Any,
    records: bytes = b"",
    error: ErrorCode = ErrorCode.none,
    high_watermark: int = 100,
    **extra: object,
) -> Any:
    """Answer a fetch request for one partition."""
    topic = request.topics[0]
    return make(
        "FetchResponse",
        throttle_time=NONE,
        error_code=ErrorCode.none,
        session_id=0,
        responses=(
            make(
                "FetchableTopicResponse",
                topic=getattr(topic, "topic", None),
                topic_id=getattr(topic, "topic_id", None),
                partitions=(
                    make(
                        "PartitionData",
                        partition_index=topic.partitions[0].partition,
                        error_code=error,
                        high_watermark=high_watermark,
                        last_stable_offset=high_watermark,
                        log_start_offset=0,
                        aborted_transactions=extra.pop("aborted", ()),
                        preferred_read_replica=-1,
                        records=records,
                        **extra,
                    ),
                ),
            ),
        ),
    )
