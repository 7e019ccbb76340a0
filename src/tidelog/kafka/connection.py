"""One client's connection: frames in, answers out, in order.

A connection that is idle is this object and its transport; it has no task, no timer and no buffer.

Reading. What arrives while no request is half read goes into a buffer that all connections of the
listener share, since it is emptied before the loop turns to the next connection. A request that
does not fit gets memory of exactly its size, and the rest of it is received there, so the bytes of
a large Produce request are not copied. That memory is not touched before bytes arrive, so a length
that lies costs addresses, not memory.

Working. `_backlog` holds requests that have not been started, `_inflight` those that were, in the
order of their arrival. `_pump` starts what may start (see `tidelog.kafka.dispatch` for the order),
sends the answers that are done, and is called whenever one of the two may have become possible.

Not reading is the only way to slow a client down: while there is a backlog, while the client
does not take its answers, and while the listener holds too many bytes, reading is paused.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from tidelog.kafka import codec
from tidelog.kafka.codec import API_VERSIONS, Buffer, Malformed
from tidelog.kafka.dispatch import Api, Context, Deferred, Disconnect
from tidelog.kafka.large import LIGHT_BYTES
from tidelog.kafka.versions import unsupported_version

if TYPE_CHECKING:
    from tidelog.kafka.server import KafkaServer

PRODUCE: Final = 0
# Length of a frame and the API that it is for: enough to decide whether to go on reading.
_PREFIX: Final = struct.Struct(">ih")
_API_AND_VERSION: Final = struct.Struct(">hh")
# Room before the shared buffer's content, for the beginning of a frame of the last read.
SCRATCH_HEAD: Final = 8
SCRATCH_BYTES: Final = 128 * 1024


class Slot:
    """The place of one request in the order of answers."""

    __slots__ = ("answer", "api", "correlation_id", "done", "flexible", "size", "work")

    def __init__(self, api: Api, correlation_id: int, *, flexible: bool, size: int) -> None:
        self.api = api
        self.correlation_id = correlation_id
        # Whether the answer's header is followed by tagged fields.
        self.flexible = flexible
        # Bytes of the request, which count as in flight until it is answered.
        self.size = size
        self.answer: list[Buffer] | None = None
        self.done = False
        self.work: asyncio.Future[Any] | None = None


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_barrier",
        "_body",
        "_closing",
        "_deferred",
        "_filled",
        "_head",
        "_host",
        "_inflight",
        "_length",
        "_pumping",
        "_read_paused",
        "_server",
        "_transport",
        "_write_paused",
        "active",
        "id",
    )

    def __init__(self, server: "KafkaServer", connection_id: int) -> None:
        self.id = connection_id
        self.active = server.loop.time()  # when the client last sent or took something
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._host = "?"
        self._head = b""  # the beginning of a frame, shorter than its prefix
        self._body: memoryview | None = None  # of a request that is arriving
        self._filled = 0
        self._length = 0
        self._backlog: deque[memoryview] = deque()
        self._inflight: deque[Slot] = deque()
        self._barrier = False  # the request in flight is not pipelined
        self._deferred = False  # the last request in flight waits, and others may not overtake it
        self._pumping = False
        self._read_paused = False
        self._write_paused = False
        self._closing = False

    def __str__(self) -> str:
        return f"client {self._host} (connection {self.id})"

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if peer:
            self._host = str(peer[0])
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.set_write_buffer_limits(high=self._server.limits.response_high_water)
        self._server.connected(self)

    def get_buffer(self, _: int) -> memoryview:
        if self._body is not None:
            return self._body[self._filled :]
        return self._server.scratch[SCRATCH_HEAD:]

    def buffer_updated(self, nbytes: int) -> None:
        server = self._server
        self.active = server.loop.time()
        server.stats.bytes_in += nbytes
        if self._closing:
            return
        if self._body is not None:
            self._filled += nbytes
            server.take(nbytes)
            if self._filled == self._length:
                body, self._body = self._body, None
                self._length = self._filled = 0
                server.arrived(self)
                self._backlog.append(body)
        else:
            self._split(nbytes)
        self._pump()

    def eof_received(self) -> bool:
        return False  # close: clients of Kafka do not listen any more after that

    def connection_lost(self, _: Exception | None) -> None:
        self._closing = True
        self._transport = None
        server = self._server
        if self._body is not None:
            server.give(self._filled)
            self._body = None
            self._length = self._filled = 0
        # A producer with acks=0 may send and leave; its requests have arrived all the same.
        self._drop_backlog(keep_pipelined=True)
        for slot in self._inflight:
            if slot.work is not None and not slot.api.pipelined:
                slot.work.cancel()
        self._write_paused = False  # nobody is there to wait for
        server.disconnected(self)
        self._pump()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._server.unread(self)
        self._regulate()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.active = self._server.loop.time()
        self._server.read_again(self)
        self._pump()

    # --- Frames ---------------------------------------------------------------------------------

    def _split(self, nbytes: int) -> None:
        """Cut what arrived in the shared buffer into requests."""
        scratch = self._server.scratch
        start = SCRATCH_HEAD - len(self._head)
        end = SCRATCH_HEAD + nbytes
        scratch[start:SCRATCH_HEAD] = self._head
        self._head = b""
        while end - start >= _PREFIX.size:
            length, api_key = _PREFIX.unpack_from(scratch, start)
            if not self._admit(length, api_key):
                return
            start += 4
            if end - start < length:
                self._begin(length, scratch[start:end])
                return
            self._server.take(length)
            self._backlog.append(memoryview(bytearray(scratch[start : start + length])))
            start += length
        self._head = bytes(scratch[start:end])

    def _admit(self, length: int, api_key: int) -> bool:
        limits = self._server.limits
        most = limits.max_produce_bytes if api_key == PRODUCE else limits.max_request_bytes
        if not codec.SHORTEST_REQUEST <= length <= most:
            self._refuse(f"a request of {length} bytes (API {api_key})")
        elif self._server.table.get(api_key) is None:
            self._refuse(f"a request for API {api_key}, which is not served")
        else:
            return True
        return False

    def _begin(self, length: int, beginning: memoryview) -> None:
        # Memory of numpy's `empty` is not written before bytes arrive, unlike a bytearray's.
        self._body = memoryview(cast(Any, np.empty(length, np.uint8)))
        self._length = length
        self._filled = len(beginning)
        self._body[: self._filled] = beginning
        self._server.take(self._filled)
        self._server.arriving(self)

    # --- Work -----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start and answer all that can be, then decide whether to go on reading."""
        if self._pumping:
            return
        self._pumping = True
        try:
            self._send()
            while self._backlog and self._may_start():
                while self._backlog and self._may_start():
                    self._start(self._backlog.popleft())
                self._send()
        finally:
            self._pumping = False
        self._regulate()
        if self._server.stopping and not self._inflight:
            self.close()

    def _may_start(self) -> bool:
        if self._write_paused or self._deferred:
            return False
        if not self._inflight:
            return True
        if self._barrier or len(self._inflight) >= self._server.limits.max_inflight_requests:
            return False
        return self._api_of(self._backlog[0]).pipelined

    def _api_of(self, body: memoryview) -> Api:
        api = self._server.table.get(_API_AND_VERSION.unpack_from(body)[0])
        assert api is not None  # `_admit` saw to that
        return api

    def _start(self, body: memoryview) -> None:
        api = self._api_of(body)
        _, version = _API_AND_VERSION.unpack_from(body)
        self._server.count_request(api)
        try:
            if not api.serves(version):
                self._start_unsupported(api, version, body)
                return
            header = codec.parse_header(body, flexible=codec.is_request_flexible(api.key, version))
            flexible = codec.is_response_flexible(api.key, version)
            slot = Slot(api, header.correlation_id, flexible=flexible, size=len(body))
            context = self._server.context(self.id, self._host, header.client_id)
            if api.raw is not None:
                work: Any = api.raw(context, version, body[header.size :])
            elif len(body) <= LIGHT_BYTES:
                request = codec.decode_request(api.key, version, body, header.size)
                work = self._answer(api, context, request)
            else:
                work = self._server.large.answer(api, version, body, header.size, context)
        except Malformed as error:
            self._server.give(len(body))
            self._refuse(f"a malformed {api.name} request (version {version}): {error}")
            return
        except Disconnect as reason:
            self._server.give(len(body))
            self._disconnect(reason)
            return
        except Exception as error:  # noqa: BLE001  # a raw handler that fails fails one client
            self._server.give(len(body))
            self._fail(api, error)
            return
        self._barrier = not api.pipelined
        self._inflight.append(slot)
        if isinstance(work, Deferred):
            self._deferred = True
            resume = work.resume
            slot.work = asyncio.ensure_future(work.ready)
            slot.work.add_done_callback(lambda future: self._resume(slot, future, resume))
        else:
            self._work(slot, work)

    def _work(self, slot: Slot, work: Any) -> None:
        if work is None or isinstance(work, list):
            slot.answer = work
            slot.done = True
        else:
            slot.work = asyncio.ensure_future(work)
            slot.work.add_done_callback(lambda future: self._finished(slot, future))

    def _resume(self, slot: Slot, ready: "asyncio.Future[None]", resume: Callable[[], Any]) -> None:
        """A handler that had to wait goes on, and others may start after it."""
        self._deferred = False
        if ready.cancelled() or ready.exception() is not None:
            self._finished(slot, ready)
            return
        slot.work = None
        try:
            self._work(slot, resume())
        except Disconnect as reason:
            slot.done = True
            self._disconnect(reason)
        except Exception as error:  # noqa: BLE001  # a raw handler that fails fails one client
            slot.done = True
            self._fail(slot.api, error)
        self._pump()

    def _start_unsupported(self, api: Api, version: int, body: memoryview) -> None:
        self._server.stats.unsupported += 1
        if api.key != API_VERSIONS:
            self._server.give(len(body))
            self._refuse(f"{api.name} version {version}, which is not served")
            return
        # The version of the header is as unknown as the body's, but its first fields never change.
        header = codec.parse_header(body, flexible=False)
        slot = Slot(api, header.correlation_id, flexible=False, size=len(body))
        slot.answer = [codec.encode(unsupported_version(api))]
        slot.done = True
        self._barrier = True
        self._inflight.append(slot)

    async def _answer(self, api: Api, context: Context, request: Any) -> list[Buffer]:
        assert api.handler is not None
        return await self._server.large.encoded(await api.handler(context, request))

    def _finished(self, slot: Slot, future: "asyncio.Future[Any]") -> None:
        slot.work = None
        slot.done = True
        if future.cancelled():
            self.close()
        elif (error := future.exception()) is not None:
            if isinstance(error, Malformed):
                self._refuse(f"a malformed {slot.api.name} request: {error}")
            elif isinstance(error, Disconnect):
                self._disconnect(error)
            else:
                self._fail(slot.api, error)
        elif self._transport is not None:
            slot.answer = future.result()
        self._pump()

    def _send(self) -> None:
        """Send the answers that are done, up to the first that is not."""
        parts: list[Buffer] = []
        inflight, server = self._inflight, self._server
        while inflight and inflight[0].done:
            slot = inflight.popleft()
            self._barrier = False
            server.give(slot.size)
            if slot.answer is not None:
                size = sum(map(len, slot.answer))
                head = codec.frame(slot.correlation_id, size, flexible=slot.flexible)
                parts.append(head)
                parts += slot.answer
                server.stats.responses += 1
                server.stats.bytes_out += len(head) + size
        if parts and self._transport is not None and not self._closing:
            self._transport.writelines(parts)

    # --- Slowing down and closing -----------------------------------------------------------------

    def regulate(self) -> None:
        """The listener's own state has changed: read on, or stop reading."""
        self._regulate()

    def _regulate(self) -> None:
        if self._transport is None or self._closing:
            return
        pause = (
            bool(self._backlog)
            or self._write_paused
            or self._server.stopping
            or self._server.must_wait(self)
        )
        if pause != self._read_paused:
            self._read_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def unread_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def arriving_length(self) -> int:
        """Size of the request of which a part is here; 0 if there is none."""
        return self._length

    @property
    def arrived_bytes(self) -> int:
        """How much of that request is here."""
        return self._filled

    @property
    def is_held_back(self) -> bool:
        """Nothing is read from this connection at the moment."""
        return self._read_paused

    @property
    def ignores_answers(self) -> bool:
        """The client does not take the answers that are ready for it."""
        return self._write_paused

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_idle(self) -> bool:
        """Nothing of this client is being worked on."""
        return not self._inflight and not self._backlog

    @property
    def may_be_dropped(self) -> bool:
        """Nothing is due to this client, or it does not take what it gets."""
        return self.is_idle or self._write_paused

    def close(self) -> None:
        """Close once the answers that were sent have left."""
        self._stop_reading()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._stop_reading()
        if self._transport is not None:
            self._transport.abort()

    def _stop_reading(self) -> None:
        if not self._closing:
            self._closing = True
            self._drop_backlog(keep_pipelined=False)

    def _drop_backlog(self, *, keep_pipelined: bool) -> None:
        """Forget requests that were not started."""
        kept = deque(
            body for body in self._backlog if keep_pipelined and self._api_of(body).pipelined
        )
        self._server.give(sum(map(len, self._backlog)) - sum(map(len, kept)))
        self._backlog = kept

    def _refuse(self, what: str) -> None:
        self._server.stats.malformed += 1
        self._server.complaints.warning("%s sent %s: closed", self, what)
        self.close()

    def _disconnect(self, reason: Disconnect) -> None:
        self._server.complaints.warning("%s is closed: %s", self, reason)
        self.close()

    def _fail(self, api: Api, error: BaseException) -> None:
        self._server.failed(self, api, error)
        self.close()
