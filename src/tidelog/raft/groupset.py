"""What lightweight heartbeats are in bytes: many groups, about two bytes each.

    beat    version 1, sequence 8, count 4  |  group ids, ascending  |  a check byte for each group
    reply   version 1, sequence 8, count 4  |  positions in the beat that are refused, ascending

Ascending numbers travel as the distance to the one before, minus one, in varints: one byte where
groups are dense. Everything here works on whole arrays; there is no Python loop over groups.

The bytes of a beat come from another node. A count is believed only as far as the bytes go, and
whatever is wrong is one error, `CorruptBeat`.
"""

from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

_HEADER: Final = Struct("<BQI")
_BEAT: Final = 1
_REPLY: Final = 2
_MAX_VARINT_BYTES: Final = 9  # 63 bits: every number there is

_MASK: Final = 2**64 - 1
# Odd numbers without pattern, one for each input, and the finisher of splitmix64.
_GROUP: Final = np.uint64(0x9E3779B97F4A7C15)
_TERM: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_LEADER: Final = np.uint64(0x165667B19E3779F9)
_FOLLOWER: Final = np.uint64(0xD6E8FEB86659FD93)
_SEQUENCE: Final = 0xA0761D6478BD642F
_FINISH: Final = np.uint64(0xBF58476D1CE4E5B9)
_HALF: Final = np.uint64(32)
_TOP: Final = np.uint64(56)


class CorruptBeat(Exception):
    """Bytes that are no heartbeat or no reply to one; the message says why, in a sentence."""


class LightBeat(NamedTuple):
    sequence: int
    groups: Ints  # ascending
    checks: Bytes  # one for each group


class LightReply(NamedTuple):
    sequence: int  # of the beat that is answered
    refused: Ints  # positions in that beat, ascending


def check_bytes(
    sequence: int,
    groups: Ints,
    terms: Ints,
    leader_revisions: NDArray[np.int32],
    follower_revisions: NDArray[np.int32],
) -> Bytes:
    """A byte for each group that sender and receiver compute from what each of them knows.

    The sequence is mixed in, so that two states that happen to have the same byte in one beat have
    different ones in most of the next.
    """
    mixed = groups.astype(np.uint64) * _GROUP
    mixed ^= terms.astype(np.uint64) * _TERM
    mixed ^= leader_revisions.astype(np.uint64) * _LEADER
    mixed ^= follower_revisions.astype(np.uint64) * _FOLLOWER
    mixed += np.uint64(sequence * _SEQUENCE & _MASK)
    mixed ^= mixed >> _HALF
    mixed *= _FINISH
    return (mixed >> _TOP).astype(np.uint8)


def encode_beat(beat: LightBeat) -> bytes:
    header = _HEADER.pack(_BEAT, beat.sequence, len(beat.groups))
    return header + _encode_ascending(beat.groups) + beat.checks.tobytes()


def decode_beat(body: bytes) -> LightBeat:
    sequence, count, data = _open(body, _BEAT, "heartbeat")
    groups, used = _decode_ascending(data, count)
    checks = data[used:]
    if len(checks) != count:
        raise CorruptBeat(f"a heartbeat of {count} groups has {len(checks)} check bytes")
    return LightBeat(sequence, groups, checks)


def encode_reply(reply: LightReply) -> bytes:
    header = _HEADER.pack(_REPLY, reply.sequence, len(reply.refused))
    return header + _encode_ascending(reply.refused)


def decode_reply(body: bytes) -> LightReply:
    sequence, count, data = _open(body, _REPLY, "reply to a heartbeat")
    refused, used = _decode_ascending(data, count)
    if used != len(data):
        raise CorruptBeat(f"{len(data) - used} bytes are left over in a reply to a heartbeat")
    return LightReply(sequence, refused)


def _open(body: bytes, version: int, what: str) -> tuple[int, int, Bytes]:
    if len(body) < _HEADER.size:
        raise CorruptBeat(f"{len(body)} bytes are too few for a {what}")
    found, sequence, count = _HEADER.unpack_from(body)
    if found != version:
        raise CorruptBeat(f"a {what} begins with {found} and not with {version}")
    data = np.frombuffer(body, np.uint8, offset=_HEADER.size)
    if count > len(data):
        raise CorruptBeat(f"a {what} of {len(body)} bytes cannot hold {count} numbers")
    return sequence, count, data


def _encode_ascending(numbers: Ints) -> bytes:
    if not len(numbers):
        return b""
    distances = np.diff(numbers, prepend=-1) - 1
    largest = int(distances.max())
    if largest < 0x80:
        return distances.astype(np.uint8).tobytes()
    # One row a number, one column a byte of seven bits; then the used bytes, row by row.
    width = -(-largest.bit_length() // 7)
    shifts = np.arange(0, 7 * width, 7, dtype=np.int64)
    rows = distances[:, None] >> shifts
    used = rows > 0
    used[:, 0] = True
    septets = (rows & 0x7F).astype(np.uint8)
    septets[:, :-1] |= np.where(used[:, 1:], np.uint8(0x80), np.uint8(0))
    return septets[used].tobytes()


def _decode_ascending(data: Bytes, count: int) -> tuple[Ints, int]:
    """Read that many numbers; also return how many bytes they took."""
    if not count:
        return np.empty(0, np.int64), 0
    if (data[:count] < 0x80).all():
        used = count
        distances = data[:count].astype(np.int64)
    else:
        ends = np.flatnonzero(data < 0x80)[:count]
        if len(ends) < count:
            raise CorruptBeat(f"{count} numbers were announced and {len(ends)} are there")
        used = int(ends[-1]) + 1
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        lengths = ends - starts + 1
        longest = int(lengths.max())
        if longest > _MAX_VARINT_BYTES:
            raise CorruptBeat("a number is longer than 63 bits")
        if ((lengths > 1) & (data[ends] == 0)).any():
            raise CorruptBeat("a number is not in its shortest form")
        distances = np.zeros(count, np.int64)
        for column in range(longest):
            rows = np.flatnonzero(lengths > column)
            septets = data[starts[rows] + column].astype(np.int64) & 0x7F
            distances[rows] |= septets << (7 * column)
    # The first sum beyond 63 bits is negative, since no distance is longer than that.
    numbers = np.cumsum(distances + 1) - 1
    if (numbers < 0).any():
        raise CorruptBeat("a number is beyond the last there is")
    return numbers, used
