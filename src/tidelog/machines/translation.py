"""Log offsets and client offsets: the map between the two.

Internal batches (configurations, snapshots, changelog) take offsets of the log, and clients must
not see holes where they stand. A client offset therefore counts only the offsets of data:

    log       0    1    2    3    4    5    6    7        internal: 0, 3, 4
    data           a    b              c         d        (offset 6 was compacted away: a gap)
    client         0    1              2   (3)   4

Rules:
- Gaps, ghosts and placeholders stand for data. Compaction never removes an internal batch, so the
  headers of a compacted log give the same map as those of the full one, on every replica.
- The map follows the end of the log, not the commit: it grows with every append and shrinks with
  every truncation. It forgets what lies below the start of the log.
- In a snapshot it is one number, how many internal offsets there are up to the snapshot. That is
  the same number on every replica, wherever its log begins; the ranges above the start of the log
  come from the log's own headers. `restore` may come before or after these headers are appended.
- A checkpoint is for this replica alone and holds the ranges too, up to a committed offset: below
  that the log loses its beginning at most, so nobody has to read its headers again.
"""

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct, pack, unpack_from
from typing import Final

from tidelog.machines.encoding import MAX_OFFSET, CorruptSnapshot, Reader, Writer
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset

_VERSION: Final = 1
_CHECKPOINT: Final = Struct(">BqqqI")  # version, start, end, internal offsets before start, ranges
_FIRST: Final = Offset(0)
_DATA: Final = frozenset({BatchType.DATA, BatchType.PLACEHOLDER, BatchType.GHOST})


class UnknownOffset(LookupError):
    """An offset outside of what the log holds; the message says what it holds."""


class Translation:
    def __init__(self, start: Offset = _FIRST) -> None:
        """An empty map for an empty log that begins at `start`."""
        # The map covers the log offsets [start, end]; nothing yet while end == start - 1.
        self.start = start
        self.end = Offset(start - 1)
        # How often something else happened than an append: answers from before may not hold.
        self.changes = 0
        # Internal offsets below `start`; counts from 0, and not yet `_anchored`, until a snapshot
        # tells how many they are.
        self._before = 0
        self._anchored = start == _FIRST
        # A snapshot was restored that lies above `end`: (its offset, internal offsets up to it).
        # It is compared with the log, or anchors it, when the log gets there.
        self._ahead: tuple[Offset, int] | None = None
        # Range i of internal offsets begins at `_firsts[i]`; up to its end there are `_deltas[i]`
        # internal offsets, and the data that follows it begins at client offset `_clients[i]`.
        # Invariant: all three rise strictly with i; neighbouring ranges do not touch.
        self._firsts = array("q")
        self._deltas = array("q")
        self._clients = array("q")

    # --- Following the log ----------------------------------------------------------------------

    def append(self, batch: Batch) -> None:
        """The log now ends with this batch. Offsets that were left out are gaps."""
        base = batch.base_offset
        if base < self.start <= batch.last_offset and self.end < self.start:
            base = self.start  # the log begins inside this batch
        if base <= self.end:
            raise ValueError(f"{batch} is not beyond offset {self.end}, where the map ends")
        if self._ahead is not None and base > self._ahead[0]:
            if self.end < self.start:
                self.reset(Offset(self._ahead[0] + 1))  # the log begins after the snapshot
            else:
                self._settle()
        if batch.type not in _DATA:
            self._add(base, batch.last_offset)
        self.end = batch.last_offset
        if self._ahead is not None and self.end >= self._ahead[0]:
            self._settle()

    def truncate(self, first_removed: Offset) -> None:
        """The end of the log, from this offset on, is gone."""
        if first_removed > self.end:
            return
        self.changes += 1
        first_removed = max(first_removed, self.start)
        keep = bisect_left(self._firsts, first_removed)
        for column in (self._firsts, self._deltas, self._clients):
            del column[keep:]
        if keep:
            longest = self._count_before(keep - 1) + first_removed - self._firsts[-1]
            self._deltas[-1] = min(self._deltas[-1], longest)
        self.end = Offset(first_removed - 1)

    def truncate_prefix(self, first_kept: Offset) -> None:
        """The log now begins here: what lies below becomes one number."""
        if first_kept <= self.start:
            return
        if first_kept > self.end + 1:
            raise ValueError(f"offset {first_kept} is beyond {self.end}, where the map ends")
        before = self._internal_below(first_kept)
        drop = bisect_left(self._firsts, first_kept)
        if drop and self._last(drop - 1) >= first_kept:
            drop -= 1
            self._firsts[drop] = first_kept
        for column in (self._firsts, self._deltas, self._clients):
            del column[:drop]
        self.start = first_kept
        self._before = before

    def reset(self, start: Offset) -> None:
        """The log was emptied and begins anew at `start`, after a snapshot at `start - 1`."""
        self.changes += 1
        self.start = start
        self.end = Offset(start - 1)
        self._before = 0
        self._anchored = start == _FIRST
        for column in (self._firsts, self._deltas, self._clients):
            del column[:]
        if self._ahead is not None and self._ahead[0] < self.end:
            self._ahead = None
        if self._ahead is not None and self._ahead[0] == self.end:
            self._settle()

    # --- Looking up -----------------------------------------------------------------------------

    def delta(self, log_offset: Offset) -> int:
        """How many offsets below this one are internal: log offset minus client offset."""
        if self._ahead is not None and log_offset == self._ahead[0] + 1:
            return self._ahead[1]
        if not self._covers(log_offset):
            raise UnknownOffset(
                f"log offset {log_offset} is not in the log: [{self.start}, {self.end + 1})"
            )
        return self._internal_below(log_offset)

    def to_client(self, log_offset: Offset) -> Offset:
        """The client offset of the data at this place, or of the next data for an internal offset.

        It is defined one past the end too, so that an exclusive bound (a high watermark) is
        translated by the same rule.
        """
        return Offset(log_offset - self.delta(log_offset))

    def to_log(self, client_offset: Offset) -> Offset:
        """The log offset of this data; one past the last data gives one past the log's end."""
        index = bisect_right(self._clients, client_offset) - 1
        log_offset = client_offset + (self._deltas[index] if index >= 0 else self._before)
        if not self._covers(log_offset):
            low, high = self.to_client(self.start), self.to_client(Offset(self.end + 1))
            raise UnknownOffset(f"client offset {client_offset} is not in the log: [{low}, {high})")
        return Offset(log_offset)

    # --- Snapshots ------------------------------------------------------------------------------

    def snapshot(self, upto: Offset) -> bytes:
        """The map up to an offset, as all replicas write it."""
        writer = Writer(_VERSION)
        writer.number(self.delta(Offset(upto + 1)))
        return writer.finish()

    def restore(self, state: bytes, offset: Offset) -> None:
        """Learn what a snapshot at `offset` knows; what the log already told stays.

        Raises `CorruptSnapshot`, and is unchanged, if the two contradict each other.
        """
        self.changes += 1
        reader = Reader(state, "translation", _VERSION)
        count = reader.number(offset + 1)
        reader.finish()
        if offset > self.end:
            self._ahead = (offset, count)
        elif offset >= self.start - 1:
            self._agree(offset, count)
        elif not self._anchored:
            raise CorruptSnapshot(
                f"the snapshot ends at offset {offset} and the log begins at {self.start}:"
                f" use one that reaches {self.start - 1}"
            )

    # --- Checkpoints ----------------------------------------------------------------------------

    def save(self, upto: Offset) -> bytes:
        """The whole map up to an offset of the log, for `load`."""
        if not self._covers(upto + 1):  # a snapshot may know of an offset that the map does not
            raise UnknownOffset(f"the map covers [{self.start}, {self.end}], not {upto}")
        count = bisect_right(self._firsts, upto)
        firsts, deltas = self._firsts[:count], self._deltas[:count]
        if count:
            deltas[-1] = self._internal_below(upto + 1)
        head = _CHECKPOINT.pack(_VERSION, self.start, upto, self._before, count)
        return head + pack(f">{2 * count}q", *firsts, *deltas)

    @classmethod
    def load(cls, state: bytes) -> "Translation":
        """The map that `save` wrote; raises `CorruptSnapshot` for bytes that are none."""
        if len(state) < _CHECKPOINT.size:
            raise _damaged(f"it has {len(state)} bytes")
        version, start, end, before, count = _CHECKPOINT.unpack_from(state)
        if version != _VERSION:
            raise _damaged(f"it has version {version} and this node reads version {_VERSION}")
        if len(state) != _CHECKPOINT.size + 16 * count or not 0 <= before <= start <= end + 1:
            raise _damaged(f"{count} ranges do not fit in it")
        columns = unpack_from(f">{2 * count}q", state, _CHECKPOINT.size)
        loaded = cls(Offset(start))
        loaded._anchored = True
        loaded._before = internal = before
        next_first = start  # the lowest place where the next range may begin
        for first, delta in zip(columns[:count], columns[count:], strict=True):
            last = first + delta - internal - 1
            if not next_first <= first <= last <= end:
                raise _damaged(f"the range that begins at {first} is out of place")
            loaded._firsts.append(first)
            loaded._deltas.append(delta)
            loaded._clients.append(first - internal)
            internal, next_first = delta, last + 2
        loaded.end = Offset(end)
        return loaded

    # --- Inside ---------------------------------------------------------------------------------

    def _add(self, base: Offset, last: Offset) -> None:
        count = self._deltas[-1] if self._deltas else self._before
        if self._firsts and self._last(len(self._firsts) - 1) == base - 1:
            self._deltas[-1] += last - base + 1
            return
        self._firsts.append(base)
        self._deltas.append(count + last - base + 1)
        self._clients.append(base - count)

    def _count_before(self, index: int) -> int:
        return self._deltas[index - 1] if index else self._before

    def _last(self, index: int) -> int:
        """Last offset of a range of internal offsets."""
        return self._firsts[index] + self._deltas[index] - self._count_before(index) - 1

    def _internal_below(self, log_offset: int) -> int:
        index = bisect_left(self._firsts, log_offset) - 1
        if index < 0:
            return self._before
        inside = log_offset - self._firsts[index]
        return min(self._deltas[index], self._count_before(index) + inside)

    def _settle(self) -> None:
        assert self._ahead is not None
        offset, count = self._ahead
        self._ahead = None
        self._agree(offset, count)

    def _agree(self, offset: Offset, count: int) -> None:
        """Compare with a snapshot at an offset that the map covers, or learn from it."""
        here = self._internal_below(offset + 1)
        shift = count - here
        if (self._anchored and shift) or not 0 <= self._before + shift <= self.start:
            raise CorruptSnapshot(
                f"the snapshot counts {count} internal offsets up to {offset}"
                f" and the log here {here}: they are not of the same history"
            )
        self._anchored = True
        self._before += shift
        if shift:
            for index in range(len(self._firsts)):
                self._deltas[index] += shift
                self._clients[index] -= shift

    def _covers(self, log_offset: int) -> bool:
        if not self._anchored:
            raise UnknownOffset(
                f"no offset can be translated before a snapshot that reaches {self.start - 1}"
                " is restored: the log begins there"
            )
        return self.start <= log_offset <= self.end + 1

    def check_invariants(self) -> None:
        assert self.end >= self.start - 1 >= NO_OFFSET, self
        assert 0 <= self._before <= self.start <= MAX_OFFSET, self
        assert self._anchored or self.start > _FIRST, self
        assert self._ahead is None or self._ahead[0] > self.end, self
        assert len(self._firsts) == len(self._deltas) == len(self._clients), self
        previous = self.start - 2
        for index, first in enumerate(self._firsts):
            assert first > previous + 1, (self, index)
            assert self._last(index) >= first, (self, index)
            assert self._clients[index] == first - self._count_before(index), (self, index)
            previous = self._last(index)
        assert previous <= self.end, self

    def __str__(self) -> str:
        text = f"[{self.start}, {self.end}] before={self._before if self._anchored else '?'}"
        spans = (f"{first}-{self._last(index)}" for index, first in enumerate(self._firsts))
        return f"{text} internal=({' '.join(spans)})"


def _damaged(reason: str) -> CorruptSnapshot:
    return CorruptSnapshot(f"the map of offsets in the checkpoint is damaged: {reason}")
