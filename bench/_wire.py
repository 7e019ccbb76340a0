"""Single requests by hand, for measurements in which a client's own patience would be most of it.

Clients wait before they try again, ask for metadata once a second, keep a connection they should
give up. Here every node that is left is asked in turn, a few milliseconds apart, until one says
yes. Of each request the newest version is used whose form has no variable-length integers.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Sequence

from bench._machine import BenchFailed
from tidelog.records import Record, build_batch
from tidelog.storage import wall_ms

PRODUCE, PRODUCE_VERSION = 0, 7
OFFSET_COMMIT, OFFSET_COMMIT_VERSION = 8, 7
CREATE_TOPICS, CREATE_TOPICS_VERSION = 19, 4
REQUEST_S = 1.0
PAUSE_S = 0.005
PATIENCE_S = 60.0
# Not an error: an attempt that nobody answered may have worked.
EXISTS_ALREADY = 36


def encode_text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Request:
    """Bytes to send, and where the answer keeps its error code."""

    def __init__(self, api: int, version: int, body: bytes, error_at: int) -> None:
        head = struct.pack(">hhi", api, version, 0) + encode_text("bench")
        self.frame = struct.pack(">i", len(head) + len(body)) + head + body
        self._error_at = error_at

    def error(self, answer: bytes) -> int:
        return int(struct.unpack_from(">h", answer, self._error_at)[0])


def produce(topic: str) -> Request:
    """Write one record to the first partition, at acks=all."""
    records = bytes(build_batch([Record(0, wall_ms(), None, b"x" * 100, ())]).data)
    body = (
        struct.pack(">hhii", -1, -1, int(1000 * REQUEST_S), 1)
        + encode_text(topic)
        + struct.pack(">iii", 1, 0, len(records))
        + records
    )
    # correlation, topics, name, partitions, index
    return Request(PRODUCE, PRODUCE_VERSION, body, 4 + 4 + len(encode_text(topic)) + 4 + 4)


def commit_offset(group: str, topic: str) -> Request:
    """Commit an offset of the first partition, for a group without members."""
    body = (
        encode_text(group)
        + struct.pack(">i", -1)
        + encode_text("")
        + struct.pack(">hi", -1, 1)
        + encode_text(topic)
        + struct.pack(">iiqih", 1, 0, 0, -1, -1)
    )
    # correlation, throttle time, topics, name, partitions, index
    at = 4 + 4 + 4 + len(encode_text(topic)) + 4 + 4
    return Request(OFFSET_COMMIT, OFFSET_COMMIT_VERSION, body, at)


def create_topic(name: str) -> Request:
    """Create a topic of one partition on two nodes."""
    body = (
        struct.pack(">i", 1)
        + encode_text(name)
        + struct.pack(">ihii", 1, 2, 0, 0)
        + struct.pack(">ib", int(1000 * REQUEST_S), 0)
    )
    # correlation, throttle time, topics, name
    return Request(CREATE_TOPICS, CREATE_TOPICS_VERSION, body, 4 + 4 + 4 + len(encode_text(name)))


class Nodes:
    """Connections to the nodes that are left."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._sockets: dict[str, socket.socket | None] = dict.fromkeys(addresses)

    def __enter__(self) -> "Nodes":
        for address in self._sockets:
            self._connect(address)
        return self

    def __exit__(self, *_: object) -> None:
        for address in self._sockets:
            self._drop(address)

    def first_success(self, request: Request) -> float:
        """Ask all in turn until one says yes, and return when that was; raises `BenchFailed`.

        Who said yes is the first to be asked the next time.
        """
        deadline = time.monotonic() + PATIENCE_S
        last = "no answer"
        while time.monotonic() < deadline:
            for address in tuple(self._sockets):
                try:
                    error = request.error(self._ask(address, request.frame))
                except (OSError, struct.error) as failure:
                    self._drop(address)
                    last = f"{address}: {failure}"
                    continue
                if error in {0, EXISTS_ALREADY}:
                    at = time.monotonic()
                    self._sockets = {address: self._sockets[address], **self._sockets}
                    return at
                last = f"{address}: error code {error}"
            time.sleep(PAUSE_S)
        raise BenchFailed(f"nobody was served for {PATIENCE_S:g} s: {last}")

    def _ask(self, address: str, frame: bytes) -> bytes:
        found = self._sockets[address] or self._connect(address)
        found.sendall(frame)
        (length,) = struct.unpack(">i", receive(found, 4))
        return receive(found, length)

    def _connect(self, address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        made = socket.create_connection((host, int(port)), REQUEST_S)
        made.settimeout(2 * REQUEST_S)
        self._sockets[address] = made
        return made

    def _drop(self, address: str) -> None:
        found = self._sockets[address]
        self._sockets[address] = None
        if found is not None:
            with contextlib.suppress(OSError):
                found.close()


def receive(found: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = found.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data
