"""A client that writes and reads the bytes of requests itself, over a socket that blocks."""

from __future__ import annotations

import socket
import struct
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from kio.index import load_response_schema
from kio.serial import entity_reader
from tests.kafka.desk import build

from tidelog.kafka import codec
from tidelog.records import Record, build_batch, parse_batches, read_records

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
OFFSET_FOR_LEADER_EPOCH = 23
TIMEOUT = 20.0
NOON = 1_700_000_000_000


class Closed(Exception):
    """The node closed this connection."""


def frame(
    api_key: int, version: int, body: bytes, correlation_id: int = 1, client: bytes = b"wire"
) -> bytes:
    """Return a whole request."""
    head = struct.pack(">hhih", api_key, version, correlation_id, len(client)) + client
    if codec.is_request_flexible(api_key, version):
        head += b"\x00"
    return struct.pack(">i", len(head) + len(body)) + head + body


class Wire:
    """One connection to one node."""

    def __init__(self, address: str, timeout: float = TIMEOUT) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise Closed(str(error)) from error

    def receive(self) -> bytes:
        """Return the next answer without its length; raises `Closed`."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed("by the node")
            data += part
        return bytes(data)

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send a request and return the answer as a client reads it."""
        self._sent += 1
        body = codec.encode(build(api_key, version, **fields))
        self.send(frame(api_key, version, body, self._sent))
        received = self.receive()
        assert struct.unpack_from(">i", received) == (self._sent,)
        start = 5 if codec.is_response_flexible(api_key, version) else 4
        answer, size = entity_reader(load_response_schema(api_key, version))(received[start:], 0)
        assert size == len(received) - start
        return answer

    # --- Requests about one partition -----------------------------------------------------------

    def metadata(self, *topics: str) -> Any:
        return self.ask(
            METADATA,
            12,
            topics=[{"topic_id": None, "name": name} for name in topics],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )

    def produce(self, topic: str, *values: bytes, acks: int = -1, index: int = 0) -> Any:
        """Write one batch; return what the answer says of the partition."""
        batch = build_batch(
            [Record(number, NOON + number, None, value) for number, value in enumerate(values)]
        )
        answer = self.ask(
            PRODUCE,
            9,
            transactional_id=None,
            acks=acks,
            timeout=timedelta(seconds=TIMEOUT / 2),
            topic_data=[
                {
                    "name": topic,
                    "partition_data": [{"index": index, "records": bytes(batch.data)}],
                }
            ],
        )
        return answer.responses[0].partition_responses[0]

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        epoch: int = -1,
        last_epoch: int = -1,
        index: int = 0,
        max_wait: timedelta = timedelta(0),
    ) -> Any:
        answer = self.ask(
            FETCH,
            12,
            replica_id=-1,
            max_wait=max_wait,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {
                            "partition": index,
                            "current_leader_epoch": epoch,
                            "fetch_offset": offset,
                            "last_fetched_epoch": last_epoch,
                            "log_start_offset": -1,
                            "partition_max_bytes": 1 << 20,
                        }
                    ],
                }
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
        return answer.responses[0].partitions[0]

    def list_offset(self, topic: str, timestamp: int, *, epoch: int = -1, index: int = 0) -> Any:
        answer = self.ask(
            LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": index,
                            "current_leader_epoch": epoch,
                            "timestamp": timestamp,
                        }
                    ],
                }
            ],
        )
        return answer.topics[0].partitions[0]

    def epoch_end(self, topic: str, asked: int, *, epoch: int = -1, index: int = 0) -> Any:
        """Ask where an epoch ended."""
        answer = self.ask(
            OFFSET_FOR_LEADER_EPOCH,
            4,
            replica_id=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {
                            "partition": index,
                            "current_leader_epoch": epoch,
                            "leader_epoch": asked,
                        }
                    ],
                }
            ],
        )
        return answer.topics[0].partitions[0]


def values_of(fetched: Any) -> list[tuple[int, bytes]]:
    """Return offsets and values of the records in an answer."""
    found = []
    for batch in parse_batches(fetched.records or b""):
        batch.check_crc()
        found += [
            (batch.base_offset + record.offset_delta, bytes(record.value or b""))
            for record in read_records(batch)
        ]
    return found
