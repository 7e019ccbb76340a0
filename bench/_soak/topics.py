"""The topics of a soak run, and sets of numbers that take a bit a number.

The records of a topic are numbered, by the one producer that writes to it: the number is the
beginning of the value, and decides partition and key. What was acknowledged, what was refused and
what somebody has read are sets of numbers. An hour writes some millions, so a set is a bitmap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

PARTITIONS = 3
KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Shape:
    """One topic."""

    name: str
    rate: int  # records a second
    size: int  # bytes of a value
    config: Mapping[str, str] = field(default_factory=dict)
    compression: str = "none"
    keys: int = 0  # so many keys are written again and again; a multiple of `PARTITIONS`
    is_whole: bool = True  # neither retention nor compaction takes anything away


SHAPES = (
    Shape("plain", 300, 200),
    Shape("cached", 300, 200, {"write.caching": "true"}, "lz4"),
    Shape("zipped", 200, 500, compression="zstd"),
    Shape(
        "retained",
        400,
        1000,
        {"retention.bytes": str(12 * MIB), "segment.bytes": str(2 * MIB)},
        is_whole=False,
    ),
    Shape(
        "compacted",
        200,
        300,
        {"cleanup.policy": "compact", "segment.bytes": str(256 * KIB)},
        keys=600,
        is_whole=False,
    ),
)


def value_of(number: int, size: int) -> bytes:
    """A value that begins with its number and is neither random nor all the same."""
    head = b"%d:" % number
    line = b"%d " % (number * 2654435761 % 2**32)
    return head + (line * (1 + size // len(line)))[: size - len(head)]


def number_of(value: bytes) -> int:
    return int(value[: value.index(b":")])


class Numbers:
    """A set of numbers from 0 on. One thread adds to it."""

    def __init__(self) -> None:
        self._bits = bytearray(KIB)
        self.count = 0

    def add(self, number: int) -> bool:
        """Say whether it is new."""
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._bits):
            self._bits += bytes(max(len(self._bits), place + 1 - len(self._bits)))
        if self._bits[place] & bit:
            return False
        self._bits[place] |= bit
        self.count += 1
        return True

    def __contains__(self, number: int) -> bool:
        place = number >> 3
        return place < len(self._bits) and bool(self._bits[place] & (1 << (number & 7)))

    def array(self, size: int) -> npt.NDArray[np.bool_]:
        """Whether each number below `size` is in it."""
        bits = np.frombuffer(bytes(self._bits), np.uint8)
        return np.unpackbits(bits, count=size, bitorder="little").astype(bool)
