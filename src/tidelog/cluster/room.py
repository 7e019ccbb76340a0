"""How much room a node's disk has left, and what the node may still do with it.

Two thresholds, so that a disk never fills up with what clients write:

    ROOMY   the node does everything
    LOW     it gives leadership to nodes with room, and where it leads it refuses clients' writes;
            it goes on following, so no partition loses a copy
    FULL    it refuses clients' writes that leaders send it, too, and falls behind

What the cluster itself writes (group 0, where a log begins, who replicates it, positions of
consumers) is taken as long as there is a byte: without that, nobody could delete a topic.

Other programs do not know of thresholds. So while the disk fills up the node holds a *reserve*, a
file of its own (`reserve.py`), and lets go of it when the disk is all but full: what the cluster
writes goes there. The room that the thresholds speak of counts the reserve as used, held or not, so
taking it and letting go of it changes no level.

A level that was entered is left once there is a quarter more room than its threshold, because each
change moves leaders.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MIB: Final = 1 << 20
# Clients' writes stop here. A node writes some 100 MB/s, its disk is looked at every tenth of a
# second while it fills up, nodes tell each other within a second, and leaders may have 16 MiB under
# way to a follower: so some 130 MiB come after a disk has become LOW, and it need not become FULL
# for that. Small disks give an eighth.
LOW_BYTES: Final = 256 * MIB
LOW_SHARE: Final = 8
# Followers stop here, and the reserve is as large. What the cluster writes to get room back: a new
# leader's first batch (a segment and a state file, 8 KiB), a log's new start and its snapshot
# (20 KiB), a command (under 1 KiB). So 64 MiB are enough to elect leaders for, and delete records
# of, two thousand partitions, and what is deleted makes room for the rest. Small disks give 1/32.
FULL_BYTES: Final = 64 * MIB
FULL_SHARE: Final = 32
# The reserve is taken while less than twice the room of LOW is left, and not held beyond four times
# that. It is let go of when a quarter of the room of FULL is left.
TAKE_BELOW: Final = 2
DROP_ABOVE: Final = 4
LET_GO: Final = 4
# A file system without inodes takes no new segment, however many bytes are free.
MIN_INODES: Final = 64


class Level(IntEnum):
    """Nodes tell each other by these names."""

    ROOMY = 0
    LOW = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """What a file system says of itself."""

    free: int  # bytes
    total: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "Sample":
        """Ask the file system; this may block."""
        found = os.statvfs(path)
        has_inodes = not found.f_files or found.f_favail >= MIN_INODES
        free = found.f_bavail * found.f_frsize if has_inodes else 0
        return cls(free, found.f_blocks * found.f_frsize)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """In bytes of room."""

    low: int
    full: int

    @classmethod
    def of(cls, total: int, low: int | None = None, full: int | None = None) -> "Thresholds":
        """Return what was configured, or what suits a disk of that size."""
        return cls(
            min(LOW_BYTES, total // LOW_SHARE) if low is None else low,
            min(FULL_BYTES, total // FULL_SHARE) if full is None else full,
        )

    @property
    def reserve(self) -> int:
        return self.full


class Room:
    """The room of one node, from one sample to the next; no clock, no files."""

    def __init__(self, low: int | None = None, full: int | None = None) -> None:
        """Use these thresholds, or those that suit the disk."""
        self._low = low
        self._full = full
        self.thresholds = Thresholds(0, 0)
        self.level = Level.ROOMY
        self.room = 0  # bytes that are free beside the reserve

    @property
    def is_filling(self) -> bool:
        """Whether it would be well to look more often."""
        return self.room < DROP_ABOVE * self.thresholds.low

    def look(self, sample: Sample, held: int) -> int:
        """Take a sample in, and that the reserve held so many bytes; return how many it should."""
        limits = self.thresholds = Thresholds.of(sample.total, self._low, self._full)
        self.room = max(0, sample.free + held - limits.reserve)
        self.level = self._next_level()
        if self.room < limits.full // LET_GO:
            return 0
        if held:
            return limits.reserve if self.room < DROP_ABOVE * limits.low else 0
        # It is not taken again before the disk has left FULL: what was freed is needed first.
        wanted = self.level is not Level.FULL and self.room < TAKE_BELOW * limits.low
        return limits.reserve if wanted else 0

    def _next_level(self) -> Level:
        limits = self.thresholds
        if self.room < self._mark(limits.full, Level.FULL):
            return Level.FULL
        if self.room < self._mark(limits.low, Level.LOW):
            return Level.LOW
        return Level.ROOMY

    def _mark(self, threshold: int, level: Level) -> int:
        """Return the room below which a level is entered, or not left."""
        return threshold + threshold // 4 if self.level >= level else threshold
