"""The state file of a log: where it starts, and below which offset a restart reads nothing again.

Rules:
- The recovery point is true at every moment: all bytes below it are on the disk. It is raised after
  a sync and lowered, durably, before a suffix truncation takes away what it covers.
- Two threads write here: the loop (truncations) and the flush thread (a higher recovery point). One
  lock orders them, and a point that was fixed before a truncation is not saved after it.
- The flush mark (`flushmark.py`) is higher than the point and follows the same rules, but is lost
  more easily.
- A write that fails may still have happened. Until the next one succeeds, the point on the disk
  counts as unknown, and lowering always writes.
"""

import contextlib
import struct
import threading
from dataclasses import dataclass, replace
from typing import Final

from tidelog.records import NO_OFFSET, NO_TERM, Offset, Term
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog
from tidelog.storage.flushmark import FlushMark
from tidelog.storage.sealed import load_sealed, save_sealed

STATE_NAME: Final = "log.state"
_MAGIC: Final = b"TLS1"
_STATE: Final = struct.Struct(">qqqqqq")

# Position of a recovery point at the very end of a closed segment, whatever its size: compaction
# may replace the file by a shorter one.
WHOLE: Final = -1


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """A place in the log: everything at or below `offset` is on the disk."""

    offset: Offset
    segment: Offset  # base of the segment that holds `offset`; NO_OFFSET if none does
    position: int  # in that segment's file, just after the batch that ends at `offset`; or WHOLE


@dataclass(frozen=True, slots=True)
class LogState:
    """What a restart must know and the segments do not say."""

    start: Offset  # first offset of the log; segments below it are left over
    prefix_term: Term  # term of start - 1; NO_TERM if unknown
    point: RecoveryPoint
    cleaned: Offset  # compaction has seen every key up to here; may lag, which costs work only


EMPTY: Final = LogState(Offset(0), NO_TERM, RecoveryPoint(NO_OFFSET, NO_OFFSET, 0), NO_OFFSET)


class StateFile:
    """The state of one log in memory and on disk, safe to use from two threads."""

    path: str
    state: LogState  # what was saved last, or EMPTY
    truncations: int  # counts suffix truncations since the log was opened

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = f"{directory}/{STATE_NAME}"
        self._mark = FlushMark(disk, directory)
        self._lock = threading.Lock()
        self._certain = True  # whether the file is known to hold `state`
        self.state = EMPTY
        self.truncations = 0

    @property
    def marked(self) -> Offset:
        """An offset that was flushed, at or past the recovery point or NO_OFFSET."""
        return self._mark.offset

    @property
    def certain_point(self) -> RecoveryPoint | None:
        """The recovery point that a restart would find, or a lower one than that; None: not known.

        Asked on the loop, which is the only one that lowers it; so no lock, which a sync may hold.
        """
        point = self.state.point
        return point if self._certain else None

    def load(self) -> bool:
        """Read the file; False if there is none."""
        self._mark.load()
        payload = load_sealed(self._disk, self.path, _MAGIC)
        if payload is None:
            return False
        if len(payload) != _STATE.size:
            raise DamagedLog(self.path, 0, NO_OFFSET, f"a state of {len(payload)} bytes")
        start, term, offset, segment, position, cleaned = _STATE.unpack(payload)
        point = RecoveryPoint(Offset(offset), Offset(segment), position)
        self.state = LogState(Offset(start), Term(term), point, Offset(cleaned))
        return True

    def begin(self, state: LogState) -> None:
        """Save the state of a log that is empty; durable when this returns."""
        with self._lock:
            self._mark.create()
            self._mark.lower(Offset(state.start - 1))
            self._save(state)

    def move_start(self, start: Offset, prefix_term: Term) -> None:
        """Let the log begin later; durable when this returns."""
        with self._lock:
            self._save(replace(self.state, start=start, prefix_term=prefix_term))

    def mark_flushed(self, upto: Offset, truncations: int) -> None:
        """Note that everything up to an offset is on the disk, unless a truncation came between."""
        with self._lock, contextlib.suppress(OSError):  # a mark that stays behind is true as well
            if self.truncations == truncations:
                self._mark.put(upto)

    def raise_point(self, point: RecoveryPoint, truncations: int, cleaned: Offset) -> bool:
        """Save a higher recovery point, unless a truncation came between; return whether not."""
        with self._lock:
            if self.truncations != truncations:
                return False
            now = self.state.point
            # A position never replaces WHOLE: it was fixed before the segment was closed, and
            # compaction may have replaced the file since.
            closed = point.offset == now.offset and point.position == WHOLE
            if point.offset > now.offset or (closed and point != now):
                self._save(replace(self.state, point=point, cleaned=cleaned))
            return True

    def lower_point(self, point: RecoveryPoint) -> None:
        """Count a suffix truncation that keeps everything up to `point`, before it takes effect."""
        with self._lock:
            self.truncations += 1
            self._mark.lower(point.offset)
            if self._certain and self.state.point.offset <= point.offset:
                return
            cleaned = min(self.state.cleaned, point.offset)
            kept = min(self.state.point, point, key=lambda each: each.offset)
            self._save(replace(self.state, point=kept, cleaned=cleaned))

    def close(self) -> None:
        """Let go of the file of the flush mark."""
        with self._lock:
            self._mark.close()

    def _save(self, state: LogState) -> None:
        payload = _STATE.pack(
            state.start,
            state.prefix_term,
            state.point.offset,
            state.point.segment,
            state.point.position,
            state.cleaned,
        )
        self._certain = False
        save_sealed(self._disk, self.path, _MAGIC, payload)
        self._certain = True
        self.state = state
