"""One connection to one node: frames out, frames in, answers matched by correlation id.

Rules:
- A node answers the requests of a connection in order, so a request that waits (a long poll) holds
  up those behind it. Whoever must not wait takes a connection of its own (`Cluster` has lanes).
- An answer is received into a buffer of exactly its size, which nobody else holds.
- When the connection ends, everybody who waits for an answer hears it as `Disconnected`. What
  happened to the request is then unknown.

Bounds: `MAX_FRAME` bytes an answer, `MAX_IN_FLIGHT` requests that wait for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import struct
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from kio.schema.errors import ErrorCode

import tidelog
from tidelog.client.errors import (
    BadAnswer,
    ClientError,
    Disconnected,
    Silent,
    Unreachable,
    Unsupported,
)
from tidelog.client.messages import (
    Api,
    Build,
    decode_answer,
    encode,
    has_flexible_answer,
    has_flexible_request,
    known_versions,
    maker,
)
from tidelog.client.retry import Deadline
from tidelog.records import Buffer

# A fetch asks for at most 64 MiB, and one batch more than that may come.
MAX_FRAME: Final = 256 * 1024 * 1024
MAX_IN_FLIGHT: Final = 64

_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")  # API, version, correlation id, length of the client id
_CORRELATION: Final = struct.Struct(">i")
_CORRELATION_LIMIT: Final = 2**31


class Connection(asyncio.BufferedProtocol):
    """A connection that knows which versions of which APIs the other side serves."""

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address  # "host:port", for messages
        self.versions: dict[int, tuple[int, int]] = {}
        self.closed = False
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._next_id = 0
        # By correlation id, in the order of sending; at most MAX_IN_FLIGHT.
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._writable = asyncio.Event()
        self._writable.set()
        # The frame that is being received: first its length, then its bytes.
        self._head = bytearray(_LENGTH.size)
        self._frame: bytearray | None = None
        self._filled = 0

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, deadline: Deadline) -> Connection:
        """Connect and agree on versions; raises `Unreachable` or `Disconnected`."""
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline.left):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id), host, port
                )
        except TimeoutError:
            raise Unreachable(f"{address} does not answer.") from None
        except OSError as error:
            raise Unreachable(f"{address} cannot be reached: {_reason(error)}.") from None
        try:
            await connection._agree(deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    async def call(self, api: Api, build: Build, deadline: Deadline) -> Any:
        """Send a request in the newest version that both sides know, and return the answer."""
        version = self.version_of(api)
        request = build(maker(api, version))
        data, position = await self.exchange(
            api,
            version,
            (encode(request),),
            deadline,
            flexible_request=has_flexible_request(api, version),
            flexible_answer=has_flexible_answer(api, version),
        )
        return decode_answer(api, version, data, position)

    def version_of(self, api: Api) -> int:
        """Return the newest version of an API that both sides know; raises `Unsupported`."""
        oldest, newest = known_versions(api)
        theirs = self.versions.get(api)
        if theirs is None or theirs[1] < oldest or newest < theirs[0]:
            name = api.name.replace("_", " ").lower()
            raise Unsupported(
                f"{self.address} has no way to {name} that this client knows."
                if theirs is None
                else f"{self.address} speaks versions {theirs[0]} to {theirs[1]} of {name}, "
                f"and this client speaks {oldest} to {newest}."
            )
        return min(newest, theirs[1])

    async def send_only(self, api: Api, build: Build, deadline: Deadline) -> None:
        """Send a request that is never answered: a produce request with acks=0."""
        version = self.version_of(api)
        body = encode(build(maker(api, version)))
        async with self._in_time(deadline):
            await self._send(api, version, (body,), has_flexible_request(api, version))

    async def exchange(
        self,
        api: int,
        version: int,
        body: tuple[Buffer, ...],
        deadline: Deadline,
        *,
        flexible_request: bool = False,
        flexible_answer: bool = False,
    ) -> tuple[memoryview, int]:
        """Send a body and return the frame of its answer, and where in it the body begins."""
        answer = asyncio.get_running_loop().create_future()
        # A caller that is cancelled leaves its place in the queue, so that its answer is recognised
        # when it comes, and dropped.
        async with self._in_time(deadline), self._slots:
            await self._send(api, version, body, flexible_request, answer)
            frame = await answer
        position = _CORRELATION.size
        if flexible_answer:
            position = _skip_tags(frame, position)
        return frame, position

    def close(self) -> None:
        """End the connection; whoever waits for an answer is told."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    @contextlib.asynccontextmanager
    async def _in_time(self, deadline: Deadline) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline.left):
                yield
        except TimeoutError:
            # Answers come in order, so all that are behind this one are late as well.
            self.close()
            raise Silent(f"{self.address} did not answer within {deadline.seconds:g} s.") from None

    async def _agree(self, deadline: Deadline) -> None:
        newest = known_versions(Api.API_VERSIONS)[1]
        for version in (newest, 0):
            request = maker(Api.API_VERSIONS, version)(
                "ApiVersionsRequest",
                client_software_name="tidelog",
                client_software_version=tidelog.__version__,
            )
            data, position = await self.exchange(
                Api.API_VERSIONS,
                version,
                (encode(request),),
                deadline,
                flexible_request=has_flexible_request(Api.API_VERSIONS, version),
            )
            # Whoever does not know the version answers in version 0, with this code first.
            code = int.from_bytes(data[position : position + 2], "big", signed=True)
            if code == ErrorCode.unsupported_version and version:
                continue
            answer = decode_answer(Api.API_VERSIONS, version, data, position)
            if answer.error_code is not ErrorCode.none:
                raise BadAnswer(f"{self.address} refuses to say which versions it speaks.")
            self.versions = {
                each.api_key: (each.min_version, each.max_version) for each in answer.api_keys
            }
            return

    async def _send(
        self,
        api: int,
        version: int,
        body: tuple[Buffer, ...],
        flexible: bool,
        answer: asyncio.Future[memoryview] | None = None,
    ) -> None:
        await self._writable.wait()
        if self.closed or self._transport is None:
            raise self._gone()
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) % _CORRELATION_LIMIT
        header = _HEADER.pack(api, version, correlation_id, len(self._client_id)) + self._client_id
        if flexible:
            header += b"\0"
        size = len(header) + sum(map(len, body))
        if answer is not None:
            self._waiting[correlation_id] = answer
        self._transport.writelines((_LENGTH.pack(size), header, *body))

    def _gone(self) -> Disconnected:
        return Disconnected(f"{self.address} closed the connection.")

    # --- What asyncio calls -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: the transports of uvloop are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._writable.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._gone())
        self._waiting.clear()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        target = self._head if self._frame is None else self._frame
        return memoryview(target)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            if self._filled == _LENGTH.size:
                self._begin_frame(_LENGTH.unpack(self._head)[0])
        elif self._filled == len(self._frame):
            frame = memoryview(self._frame).toreadonly()
            self._frame, self._filled = None, 0
            self._deliver(frame)

    def _begin_frame(self, size: int) -> None:
        self._filled = 0
        if not _CORRELATION.size <= size <= MAX_FRAME:
            self._fail(
                BadAnswer(f"{self.address} answers with {size} bytes. Is it a Kafka listener?")
            )
            return
        self._frame = bytearray(size)

    def _deliver(self, frame: memoryview) -> None:
        correlation_id = _CORRELATION.unpack_from(frame)[0]
        answer = self._waiting.pop(correlation_id, None)
        if answer is None:
            self._fail(BadAnswer(f"{self.address} answers a question that nobody asked."))
        elif not answer.done():
            answer.set_result(frame)

    def _fail(self, error: ClientError) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()
        self.close()


def _reason(error: OSError) -> str:
    # A name with several addresses gives an error without a number that lists what each one said.
    if error.errno == errno.ECONNREFUSED or "Connect call failed" in str(error):
        return "nobody listens there"
    return error.strerror or str(error)


def _skip_tags(frame: memoryview, position: int) -> int:
    """Return where the tagged fields of a header end. There are none that anybody knows."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    raise BadAnswer("An answer carries header fields that this client does not know.")
