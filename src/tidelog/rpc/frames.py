"""Frames: how bytes between two nodes are cut into pieces and known to be whole.

    position  size  field
           0     4  magic         "TIDE"
           4     1  version       of this layout
           5     1  kind
           6     2  flags         none is defined; a set one means something we do not know
           8     4  body length
          12     8  call id       of a call and its answer; 0 otherwise
          20     4  CRC32C        of the 20 bytes before and the body
          24        body

The first frame each way is a HELLO, the second a PROOF (`secret.py`), except from a guest, who has
nothing to prove. This module moves no bytes: `Assembler` says where the next bytes go and returns
the frames they complete.

Rules:
- Nothing is believed before it is checked. The length is compared with the limit before memory is
  taken for it, and a frame is handed on only once its CRC is right.
- A body that does not fit beside others in the scratch buffer gets memory of exactly its size, and
  the rest of it is received straight into that. Batches then view it where it lies, and a batch
  that is kept keeps nothing but its own frame alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.raft.types import NodeId
from tidelog.records import Buffer
from tidelog.rpc.errors import CorruptFrame
from tidelog.rpc.secret import NONCE_SIZE, new_nonce

MAGIC: Final = 0x54494445
FRAME_VERSION: Final = 1
# What the frames after the handshake mean. A HELLO tells the range that its sender speaks, so that
# two releases with a version in common work together.
OLDEST_PROTOCOL: Final = 1
NEWEST_PROTOCOL: Final = 1

_PREFIX: Final = Struct(">IBBHIQ")
_CRC: Final = Struct(">I")
_HEADER: Final = Struct(">IBBHIQI")
HEADER_SIZE: Final = _HEADER.size
_PREFIX_SIZE: Final = _PREFIX.size

# A HELLO and nothing else may come first, so a stranger cannot make us take memory. Today's has at
# most 553 bytes; the rest is for fields that later releases add at its end.
HELLO_LIMIT: Final = 1024
MAX_NAME: Final = 255  # bytes of a cluster's name, and of its id

# Frames that fit in here together are received together and copied out, one copy each. A batch as
# clients make them by default fits: to copy it costs less than to be called twice more for it. Of
# a larger body at most this much is copied.
SCRATCH_SIZE: Final = 128 * 1024

# Letting go of the lock for a checksum of a few microseconds costs more than the checksum.
_KEEP_GIL: Final = 0


class Kind(IntEnum):
    HELLO = 1
    MESSAGE = 2  # between replicas of a group
    BEAT = 3  # a light heartbeat of many groups
    BEAT_REPLY = 4
    CALL = 5
    ANSWER = 6
    FAILURE = 7  # an answer too: why the call was refused
    PING = 8  # are you there? Asked when nothing else would be answered
    PONG = 9
    PROOF = 10  # that the sender knows the cluster's secret


_KINDS: Final = {int(kind): kind for kind in Kind}


class Lane(IntEnum):
    """What a connection is for; said by the end that opened it."""

    CONTROL = 0  # everything small: it never waits behind data
    DATA = 1  # batches and chunks of snapshots
    GUEST = 2  # calls of a program that proves nothing: it may ask whether a node is there
    NEWCOMER = 3  # calls to an address, of a node that proves the secret and may be no member yet


class Frame(NamedTuple):
    kind: Kind
    call_id: int
    body: memoryview  # memory of this frame alone


def frame(kind: Kind, call_id: int, parts: Sequence[Buffer]) -> list[Buffer]:
    """Put a header before the parts of a body."""
    length = sum(map(len, parts))
    prefix = _PREFIX.pack(MAGIC, FRAME_VERSION, kind, 0, length, call_id)
    crc = crc32c(prefix, 0, _KEEP_GIL)
    for part in parts:
        crc = crc32c(part, crc, _KEEP_GIL)
    return [prefix + _CRC.pack(crc), *parts]


class Assembler:
    """Turns the bytes of one connection into frames.

    `limit` is the largest body that is taken. The owner raises it after the handshake; until then
    `one_at_a_time` is set, so that it applies to no frame that follows the handshake in one read.
    """

    __slots__ = (
        "_body",
        "_crc",
        "_end",
        "_filled",
        "_head",
        "_scratch",
        "_view",
        "limit",
        "one_at_a_time",
    )

    def __init__(self, limit: int = HELLO_LIMIT) -> None:
        self.limit = limit
        self.one_at_a_time = False  # return one frame; `received(0)` returns the next
        self._scratch = memoryview(bytearray(SCRATCH_SIZE))
        self._end = 0  # 0 <= end <= SCRATCH_SIZE; what lies before it belongs to the next frames
        # A body that is received straight into place. While there is one, the scratch is empty.
        self._body: memoryview | None = None
        self._filled = 0  # 0 <= filled < len(body)
        self._head = (Kind.HELLO, 0, 0)  # kind, call id and CRC of that body's frame
        self._crc = 0  # of that frame's header

    @property
    def within_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._body is not None or self._end > 0

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._body is not None:
            return self._body[self._filled :]
        return self._scratch[self._end :]

    def received(self, count: int) -> list[Frame]:
        """Take note that `count` bytes came; return the frames that are whole now."""
        if self._body is not None:
            self._filled += count
            return self._finish_body(self._body)
        return self._cut(self._end + count)

    def _finish_body(self, body: memoryview) -> list[Frame]:
        if self._filled < len(body):
            return []
        self._body = None
        kind, call_id, crc = self._head
        if crc32c(body, self._crc, _KEEP_GIL) != crc:
            raise _wrong_crc(kind, len(body))
        return [Frame(kind, call_id, body)]

    def _cut(self, end: int) -> list[Frame]:
        scratch = self._scratch
        frames: list[Frame] = []
        start = 0
        while end - start >= HEADER_SIZE:
            magic, version, number, flags, length, call_id, crc = _HEADER.unpack_from(
                scratch, start
            )
            kind = _KINDS.get(number)
            if magic != MAGIC or version != FRAME_VERSION or kind is None or flags:
                raise CorruptFrame(_fault(magic, version, number, flags))
            if length > self.limit:
                raise CorruptFrame(f"a frame of {length} bytes is beyond {self.limit}")
            body_at = start + HEADER_SIZE
            stop = body_at + length
            header_crc = crc32c(scratch[start : start + _PREFIX_SIZE], 0, _KEEP_GIL)
            if stop <= end:
                body = memoryview(bytearray(scratch[body_at:stop]))
                if crc32c(body, header_crc, _KEEP_GIL) != crc:
                    raise _wrong_crc(kind, length)
                frames.append(Frame(kind, call_id, body))
                start = stop
                if self.one_at_a_time:
                    break
                continue
            if HEADER_SIZE + length <= SCRATCH_SIZE:
                break
            body = memoryview(bytearray(length))
            self._filled = end - body_at
            body[: self._filled] = scratch[body_at:end]
            self._body = body
            self._head = (kind, call_id, crc)
            self._crc = header_crc
            start = end
        self._end = end - start
        if start and self._end:
            scratch[: self._end] = bytes(scratch[start:end])
        return frames


def _wrong_crc(kind: Kind, length: int) -> CorruptFrame:
    return CorruptFrame(f"the CRC of a {kind.name} frame of {length} bytes is wrong")


def _fault(magic: int, version: int, kind: int, flags: int) -> str:
    if magic != MAGIC:
        return f"a frame begins with {magic:#010x}: this is no node of Tidelog"
    if version != FRAME_VERSION:
        return f"frame version {version} is not known here: upgrade the older node"
    if flags:
        return f"frame flags {flags:#06x} are not known here: upgrade this node"
    return f"frame kind {kind} does not exist"


@dataclass(frozen=True, slots=True)
class Hello:
    """What each end says of itself first. Decoding tolerates more fields at the end."""

    lane: Lane
    node_id: NodeId  # -1: not a node
    cluster: str  # the name in the configuration
    cluster_id: str = ""  # random, made at the founding; empty while this node does not know it
    nonce: bytes = field(default_factory=new_nonce)
    oldest: int = OLDEST_PROTOCOL
    newest: int = NEWEST_PROTOCOL

    _FIXED = Struct(f">HHBi{NONCE_SIZE}s")  # no annotation: a constant of the class, not a field

    def encode(self) -> bytes:
        fixed = self._FIXED.pack(self.oldest, self.newest, self.lane, self.node_id, self.nonce)
        names = (self.cluster.encode(), self.cluster_id.encode())
        return fixed + b"".join(bytes([len(name)]) + name for name in names)

    @classmethod
    def decode(cls, body: memoryview) -> "Hello":
        if len(body) < cls._FIXED.size:
            raise CorruptFrame(f"{len(body)} bytes are too few for a HELLO")
        oldest, newest, lane, node_id, nonce = cls._FIXED.unpack_from(body)
        if newest < OLDEST_PROTOCOL or oldest > NEWEST_PROTOCOL:
            older = "the other" if newest < OLDEST_PROTOCOL else "this"
            raise CorruptFrame(
                f"the other node speaks protocol versions {oldest} to {newest} and this one"
                f" {OLDEST_PROTOCOL} to {NEWEST_PROTOCOL}: upgrade {older} node"
            )
        if lane > max(Lane) or node_id < -1:
            raise CorruptFrame(f"a HELLO of node {node_id} for lane {lane}")
        cluster, at = _name(body, cls._FIXED.size)
        cluster_id, _ = _name(body, at)
        return cls(Lane(lane), NodeId(node_id), cluster, cluster_id, nonce, oldest, newest)


def _name(body: memoryview, at: int) -> tuple[str, int]:
    """Read a name that its length precedes; also return where it ends."""
    if at >= len(body) or len(body) - at - 1 < body[at]:
        raise CorruptFrame(f"a HELLO of {len(body)} bytes ends within a name")
    end = at + 1 + body[at]
    try:
        return bytes(body[at + 1 : end]).decode(), end
    except UnicodeDecodeError:
        raise CorruptFrame("the cluster of a HELLO is not text") from None


def check_name(name: str) -> None:
    """Raise `ValueError` for a cluster's name or id that does not fit in a HELLO."""
    if len(name.encode()) > MAX_NAME:
        raise ValueError(f"a cluster's name or id has at most {MAX_NAME} bytes: {name!r}")
