"""One TCP connection between two nodes: frames in, frames out, and whether anybody is there.

Who opened it and what its frames mean is the business of its owner (`outgoing.py`, `incoming.py`).

Rules:
- `send` only queues. One callback an iteration of the loop hands everything that was queued to the
  transport, so that many small frames cost one system call. While the transport has enough, frames
  wait here.
- What waits, here and in the transport together, is bounded; a frame beyond the bound is refused.
- Frames may be queued before the connection is open; they leave once the handshake is over.
- Something that was sent wants a sign of life. If none comes, a PING asks for one; if that does not
  help, the connection is given up. On a link that is merely slow, bytes that leave are such a sign.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, cast

from tidelog.records import Buffer
from tidelog.rpc.errors import CorruptFrame
from tidelog.rpc.frames import HEADER_SIZE, Assembler, Frame, Hello, Kind, frame
from tidelog.rpc.limits import Limits, Stats

log = logging.getLogger(__name__)

# Enough to keep a fast link busy for an iteration; more would only lie in the transport.
TRANSPORT_BYTES: Final = 1 << 20

# A PING is sent after this part of the silence that is allowed.
PING_AFTER: Final = 0.25


class Owner(Protocol):
    """Whoever opened or accepted a connection."""

    def opened(self, connection: "Connection") -> None:
        """The transport is there. Nothing was sent or received."""

    def greeted(self, connection: "Connection", hello: Hello) -> bool:
        """The other end said HELLO; return whether it has to prove the secret now.

        Raises `CorruptFrame` if it is not who it should be.
        """

    def proven(self, connection: "Connection", proof: bytes) -> None:
        """The other end sent a proof; raises `WrongSecret` if that is not one."""

    def on_frame(self, connection: "Connection", frame: Frame) -> None:
        """A frame came, after the handshake; raises `CorruptFrame`."""

    def lost(self, connection: "Connection", reason: str) -> None:
        """The connection is gone. Called once, even if it was never open."""


class Connection(asyncio.BufferedProtocol):
    def __init__(self, owner: Owner, limits: Limits, stats: Stats, queue_bytes: int) -> None:
        self.peer = "?"  # for log lines: the address, or who it turned out to be
        self.ready = False  # the handshake is over
        self.closed = False  # nothing is sent or taken any more; `lost` follows or has been
        self.corrupt = False  # closed for what came over it
        self._owner = owner
        self._limits = limits
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._assembler = Assembler()
        self._assembler.one_at_a_time = True  # during the handshake
        self._deadline: asyncio.TimerHandle | None = None  # of the handshake
        self._reason = ""  # why this end closed
        self._over = False  # `lost` was reported

        self.queue_bytes = queue_bytes
        self.frame_bytes = limits.frame_bytes  # the largest body that is taken once it is ready
        self.said = b""  # our HELLO
        self.heard = b""  # the other end's HELLO
        # Frames that the transport has not seen: size and parts.
        self._queue: deque[tuple[int, list[Buffer]]] = deque()
        self._queued = 0  # their bytes
        self._written = 0  # bytes that the transport was given
        self._paused = False
        self._scheduled = False

        # Since when a sign of life is due; None if nothing was sent after the last one.
        self._waiting_since: float | None = None
        self._pinged = False  # in this wait
        self._left = 0  # bytes that had left this machine's memory when `check` last looked

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were sent and that the kernel has not taken."""
        held = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._queued + held

    # --- Sending --------------------------------------------------------------------------------

    def send(self, kind: Kind, parts: Sequence[Buffer], call_id: int = 0) -> bool:
        """Queue a frame; False if it was dropped, which is counted."""
        if self.closed:
            self._stats.dropped_unreachable += 1
            return False
        size = sum(map(len, parts))
        if size > self._limits.frame_bytes:
            self._stats.dropped_unsendable += 1
            log.warning("a %s of %d bytes for %s is too large to send", kind.name, size, self.peer)
            return False
        waiting = self.waiting_bytes
        if waiting and waiting + size > self.queue_bytes:
            self._stats.dropped_full += 1
            return False
        self._push(size + HEADER_SIZE, frame(kind, call_id, parts))
        return True

    def _push(self, size: int, parts: list[Buffer]) -> None:
        self._queue.append((size, parts))
        self._queued += size
        self._stats.bytes_queued += size
        if self._waiting_since is None:
            self._waiting_since = self._loop.time()
        if self.ready:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        if self._transport is None or self.closed:
            return
        while self._queue and not self._paused:
            self._transport.writelines(self._take())

    def _take(self) -> list[Buffer]:
        """Take frames off the queue until the transport has enough for now."""
        parts: list[Buffer] = []
        taken = 0
        while self._queue and taken < TRANSPORT_BYTES:
            size, following = self._queue.popleft()
            parts += following
            taken += size
        self._queued -= taken
        self._written += taken
        return parts

    def say_hello(self, hello: Hello) -> None:
        """Send the first frame."""
        self.said = hello.encode()
        self._say(Kind.HELLO, self.said)

    def say_proof(self, proof: bytes) -> None:
        """Send the frame that shows that this end knows the secret."""
        self._say(Kind.PROOF, proof)

    def _say(self, kind: Kind, body: bytes) -> None:
        """Send a frame of the handshake, which waits for nothing."""
        if self._transport is not None and not self.closed:
            self._transport.writelines(frame(kind, 0, [body]))

    # --- Closing --------------------------------------------------------------------------------

    def close(self, reason: str, *, politely: bool = False) -> None:
        """Give the connection up; `politely`: after what the transport holds was sent."""
        if self.closed:
            return
        self.closed = True
        self._reason = reason
        self._forget()
        if self._transport is None:
            self._loop.call_soon(self._report, reason)
        elif politely:
            self._transport.close()
            # Whoever does not read what we have to say does not keep us either.
            self._deadline = self._loop.call_later(self._limits.handshake, self._transport.abort)
        else:
            self._transport.abort()

    def abandon(self, reason: str) -> None:
        """Give up a connection whose opening failed: not every loop tells us the end of those."""
        self.close(reason)
        self._loop.call_soon(self._report, self._reason)

    def _forget(self) -> None:
        self._stats.dropped_unreachable += len(self._queue)
        self._queue.clear()
        self._queued = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _report(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self._owner.lost(self, reason)

    def _handshake_is_late(self) -> None:
        missing = "PROOF" if self.heard else "HELLO"
        self.close(f"no {missing} came within {self._limits.handshake} s")

    # --- Signs of life --------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Ask for a sign of life if one is due, and give up if none came; called now and then."""
        if not self.ready or self.closed:
            return
        if self._waiting_since is None:
            self._check_frame(now)
            return
        waiting = self.waiting_bytes
        left = self._written + self._queued - waiting
        if waiting and left > self._left:
            self._waiting_since = now
            self._pinged = False
        self._left = left
        silent = now - self._waiting_since
        if silent > self._limits.silence:
            self._stats.silent_connections += 1
            self.close(f"nothing came for {silent:.0f} s, though an answer was due")
        elif silent > self._limits.silence * PING_AFTER and not self._pinged and not waiting:
            self._pinged = True
            self._push(HEADER_SIZE, frame(Kind.PING, 0, ()))

    def _check_frame(self, now: float) -> None:
        """Expect the rest of a frame as one expects an answer."""
        if self._assembler.within_frame:
            self._waiting_since = now

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every transport is an `asyncio.Transport` by class: uvloop's has only the methods.
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:  # given up while it was being opened
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=TRANSPORT_BYTES)
        self.peer = _address(self._transport)
        opened = self._transport.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._deadline = self._loop.call_later(self._limits.handshake, self._handshake_is_late)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or (str(exc) if exc else "the other end closed it")
        self.closed = True
        self._forget()
        self._report(reason)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._queue and self.ready:
            self._schedule()

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._assembler.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._stats.bytes_received += nbytes
        self._waiting_since = None
        self._pinged = False
        try:
            while not self.ready and not self.closed:
                frames = self._assembler.received(nbytes)
                if not frames:
                    return
                self._greet(frames[0])
                nbytes = 0
            for each in self._assembler.received(nbytes):
                if self.closed:
                    return
                self._take_frame(each)
        except CorruptFrame as error:
            self._stats.corrupt_connections += 1
            self.corrupt = True
            # Before the handshake is over, our HELLO or PROOF may be on its way: it shows what is
            # wrong.
            self.close(str(error), politely=not self.ready)

    def _take_frame(self, each: Frame) -> None:
        if each.kind is Kind.PING:
            self.send(Kind.PONG, ())
        elif each.kind is not Kind.PONG:
            self._owner.on_frame(self, each)

    def _greet(self, each: Frame) -> None:
        if not self.heard:
            if each.kind is not Kind.HELLO:
                raise CorruptFrame(f"a {each.kind.name} frame came before the HELLO")
            hello = Hello.decode(each.body)
            self.heard = bytes(each.body)
            if self._owner.greeted(self, hello):
                return
        elif each.kind is not Kind.PROOF:
            raise CorruptFrame(f"a {each.kind.name} frame came before the PROOF")
        else:
            self._owner.proven(self, bytes(each.body))
        if not self.closed:
            self._open()

    def _open(self) -> None:
        self.ready = True
        self._assembler.one_at_a_time = False
        self._assembler.limit = self.frame_bytes
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._queue:
            self._waiting_since = self._loop.time()
            self._schedule()


def _address(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if name else "?"
