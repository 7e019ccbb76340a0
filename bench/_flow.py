"""Many connections in one process: raw requests over asyncio that look at sizes and offsets alone.

An ordinary client would be busier than the nodes that it measures. These parse only what they need
to go on: a producer the error code, a reader the end of what it got. Both clusters are measured
with the same.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench._clusters import REQUEST_TIMEOUT_S, Cluster
from bench._machine import BenchFailed
from bench._wire import PRODUCE, PRODUCE_VERSION, encode_text
from tidelog.records import Record, build_batch
from tidelog.storage import wall_ms

FETCH, FETCH_VERSION = 1, 7
TIMEOUT_MS = 30_000
FIRST_BUFFER = 64 * 1024
MAX_WAIT_MS = 500
PARTITION_BYTES = 1 << 20
FETCH_BYTES = 4 << 20
CONNECT_AT_ONCE = 100
SETTLE_S = 30.0
STAMP = struct.Struct(">d")
_SIZE = struct.Struct(">i")
_FETCHED = struct.Struct(">ihqqqi")  # partition, error, two ends, start, aborted transactions
_BATCH = struct.Struct(">qi")  # base offset, size of what follows
_LAST_DELTA_AT = 23
_STAMP_FROM_END = STAMP.size + 1  # a record ends with the number of its headers, which is 0


def frame(api: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhi", api, version, 0) + encode_text("bench")
    return _SIZE.pack(len(head) + len(body)) + head + body


class Link(asyncio.BufferedProtocol):
    """A connection whose answers come in the order of its requests."""

    def __init__(self, answered: Callable[[memoryview], None]) -> None:
        self._answered = answered
        self._view = memoryview(bytearray(FIRST_BUFFER))
        self._end = 0  # what lies before it belongs to answers that are not whole
        self.transport: Any = None
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_lost = True

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        end, start = self._end + nbytes, 0
        view = self._view
        while end - start >= _SIZE.size:
            stop = start + _SIZE.size + _SIZE.unpack_from(view, start)[0]
            if stop > end:
                break
            self._answered(view[start + _SIZE.size : stop])
            start = stop
        self._end = end - start
        if self._end >= _SIZE.size and (
            needed := _SIZE.size + _SIZE.unpack_from(view, start)[0]
        ) > len(view):
            self._view = memoryview(bytearray(needed))
        if self._end and (start or self._view is not view):
            self._view[: self._end] = bytes(view[start:end])


async def connect(address: str, answered: Callable[[memoryview], None]) -> Link:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(lambda: Link(answered), host, int(port))
    return link


def leaders(cluster: Cluster, topic: str) -> dict[int, str]:
    """Where the leader of each partition serves clients."""
    found = cluster.admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
    addresses = cluster.addresses()
    return {index: addresses[each.leader - 1] for index, each in found.partitions.items()}


# --- Producing ----------------------------------------------------------------------------------


class Sender:
    """A connection that writes to one partition at acks=all."""

    def __init__(self, topic: str, partition: int, records: int, size: int) -> None:
        self._records, self._size = records, size
        body = struct.pack(">hhii", -1, -1, TIMEOUT_MS, 1) + encode_text(topic)
        self._head = body + struct.pack(">ii", 1, partition)
        self._error_at = 4 + 4 + len(encode_text(topic)) + 4 + 4
        self._sent: deque[float] = deque()  # when, of those without an answer
        self.link: Link | None = None
        self.done = 0  # records that were acknowledged
        self.took: list[float] = []  # seconds from each request to its answer
        self.failure = 0  # the last error code that was not 0
        self.more: Callable[[], None] = lambda: None  # called for each answer

    async def open(self, address: str) -> None:
        self.link = await connect(address, self._answered)

    def close(self) -> None:
        if self.link is not None:
            self.link.transport.close()

    @property
    def waiting(self) -> int:
        return len(self._sent)

    def forget(self) -> None:
        """Count from now on."""
        self.done = self.failure = 0
        self.took.clear()

    def send(self) -> None:
        """Write one batch; its last record ends with the time."""
        assert self.link is not None
        now = time.monotonic()
        value = bytes(self._size - STAMP.size) + STAMP.pack(now)
        stamp = wall_ms()  # an old one would be a reason to delete it
        batch = build_batch([Record(n, stamp, None, value, ()) for n in range(self._records)])
        data = bytes(batch.data)
        self._sent.append(now)
        body = self._head + _SIZE.pack(len(data)) + data
        self.link.transport.write(frame(PRODUCE, PRODUCE_VERSION, body))

    def _answered(self, answer: memoryview) -> None:
        self.took.append(time.monotonic() - self._sent.popleft())
        error = struct.unpack_from(">h", answer, self._error_at)[0]
        if error:
            self.failure = error
        else:
            self.done += self._records
        self.more()


async def settle(topic: str, where: Mapping[int, str]) -> None:
    """Return once every leader takes writes; raises `BenchFailed`.

    Kafka's nodes tell clients of a new leader some time before that one knows.
    """
    deadline = time.monotonic() + SETTLE_S
    for index, address in where.items():
        while True:
            sender = Sender(topic, index, 1, STAMP.size)
            await sender.open(address)
            sender.send()
            while sender.waiting and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            sender.close()
            if sender.done:
                break
            if time.monotonic() > deadline:
                raise BenchFailed(f"{topic}/{index} takes no writes after {SETTLE_S:g} s")


async def open_all(senders: Sequence[Sender], addresses: Sequence[str]) -> None:
    """Connect, some at a time: a listener has a short queue."""
    pairs = list(zip(senders, addresses, strict=True))
    for start in range(0, len(pairs), CONNECT_AT_ONCE):
        await asyncio.gather(
            *(sender.open(address) for sender, address in pairs[start : start + CONNECT_AT_ONCE])
        )


def check_senders(senders: Sequence[Sender]) -> None:
    """Raise `BenchFailed` if one was refused or lost its connection."""
    refused = {sender.failure for sender in senders if sender.failure}
    if refused:
        raise BenchFailed(f"writes were refused with error codes {sorted(refused)}")
    if any(sender.link is None or sender.link.is_lost for sender in senders):
        raise BenchFailed("a connection was closed")


# --- Reading ------------------------------------------------------------------------------------


class Tail:
    """A consumer's connection to one node: follows the ends of partitions, in a fetch session."""

    def __init__(self, topic: str, ends: Mapping[int, int]) -> None:
        self._name = encode_text(topic)
        self._offsets = dict(ends)
        self._changed = set(ends)
        self._session, self._epoch = 0, 0
        self._open = True
        self.link: Link | None = None
        self.records = 0
        self.delays: list[float] = []  # seconds from the write of a batch to its arrival
        self.failure = 0

    async def open(self, address: str) -> None:
        self.link = await connect(address, self._answered)
        self._ask()

    def close(self) -> None:
        self._open = False
        if self.link is not None:
            self.link.transport.close()

    def forget(self) -> None:
        """Count from now on."""
        self.records = self.failure = 0
        self.delays.clear()

    def _ask(self) -> None:
        """Ask for what comes next; only offsets that moved are told again."""
        assert self.link is not None
        limits = struct.pack(
            ">iiiibii", -1, MAX_WAIT_MS, 1, FETCH_BYTES, 0, self._session, self._epoch
        )
        partitions = b"".join(
            struct.pack(">iqqi", index, self._offsets[index], -1, PARTITION_BYTES)
            for index in sorted(self._changed)
        )
        count = len(self._changed)
        self._changed.clear()
        topics = (
            struct.pack(">i", 1) + self._name + struct.pack(">i", count) + partitions
            if count
            else struct.pack(">i", 0)
        )
        self.link.transport.write(frame(FETCH, FETCH_VERSION, limits + topics + _SIZE.pack(0)))

    def _answered(self, answer: memoryview) -> None:
        error, session, topics = struct.unpack_from(">hii", answer, 8)
        if error:
            self.failure = error
            return
        self._session, self._epoch = session, self._epoch + 1
        position = 18
        for _ in range(topics):
            position += len(self._name)
            (count,) = _SIZE.unpack_from(answer, position)
            position += _SIZE.size
            for _ in range(count):
                position = self._take(answer, position)
        if self._open:
            self._ask()

    def _take(self, answer: memoryview, position: int) -> int:
        index, error, _, _, _, aborted = _FETCHED.unpack_from(answer, position)
        size: int
        position += _FETCHED.size + 16 * max(0, aborted)
        (size,) = _SIZE.unpack_from(answer, position)
        position += _SIZE.size
        end = position + max(0, size)
        if error:
            self.failure = error
        now = time.monotonic()
        while end - position > _BATCH.size:
            base, length = _BATCH.unpack_from(answer, position)
            stop = position + _BATCH.size + length
            if stop > end:
                break  # the rest of a batch that was cut off
            after = base + _SIZE.unpack_from(answer, position + _LAST_DELTA_AT)[0] + 1
            self.records += after - self._offsets[index]
            self._offsets[index] = after
            self._changed.add(index)
            self.delays.append(now - STAMP.unpack_from(answer, stop - _STAMP_FROM_END)[0])
            position = stop
        return end


def quantile(values: Sequence[float], share: float) -> float:
    """Of values in rising order."""
    return values[int(share * (len(values) - 1))] if values else 0.0
