"""Which partition a record goes to: the one its key says, the same as with Kafka's own clients.

A key's partition is the 32-bit murmur2 hash of its bytes, made positive, modulo the count of
partitions. Records of other clients with the same key land in the same place.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key in a topic of `count` partitions."""
    return (murmur2(key) & _POSITIVE) % count


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash with the seed that Kafka's clients use."""
    size = len(data)
    value = _SEED ^ size
    whole = size & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little") * _FACTOR & _MASK
        part = (part ^ part >> 24) * _FACTOR & _MASK
        value = value * _FACTOR & _MASK ^ part
    if size > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = value * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return value ^ value >> 15
