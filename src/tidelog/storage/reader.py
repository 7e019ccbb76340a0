"""Reading a log: by offset, by time, with gaps filled, and from end to end.

Theory of operation:
- A read first asks the cache, which holds the newest batches as they were appended. What it does
  not hold is read from the segment: one `read` of the file per chunk, from the position that the
  sparse index or an earlier read names. The batches handed out are views of that one buffer.
- Whatever comes from a file is checked before it is handed out: its CRC, which costs 0.2 us and
  0.1 ms a MiB, and what the CRC does not cover (base offset, length, term) against the segment and
  the neighbours. What the cache holds was checked when it arrived, and is not checked again.
- What does not fit is a `DamagedLog`: it is never handed out.
- With `fill_gaps` the result is contiguous from exactly the offset asked for. A ghost stands for
  each gap (seed 2) and is made only when the batch that follows it is at hand: it takes that
  batch's term, which is exact because a gap never crosses a segment, and it can never be last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.records import Batch, BatchType, CorruptBatch, Offset, ghost, read_records
from tidelog.storage.cache import CachedRun
from tidelog.storage.chain import Chain
from tidelog.storage.errors import LocalError
from tidelog.storage.index import time_of
from tidelog.storage.segment import (
    OpenSegment,
    Segment,
    batch_size,
    blaming,
    check_end,
    check_place,
    check_room,
    next_base,
    parse_at,
    read_at,
    sound,
    whole,
)

# The least that is worth a system call.
_MIN_READ: Final = 4096


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a segment may be cut so that it ends before an offset."""

    position: int  # of the first batch that goes
    last: Offset  # of the last batch that stays; base of the segment - 1 if none does


class Reader:
    """Reads the segments of a chain. Holds no state of its own but what makes reading faster."""

    def __init__(
        self,
        chain: Chain,
        run: CachedRun | None,
        open_segment: Callable[[Segment], OpenSegment],
        head_of: Callable[[Segment], Batch],
        index_interval: int,
    ) -> None:
        self._chain = chain
        self._run = run
        self._open = open_segment
        self._head_of = head_of
        self._interval = index_interval

    # --- By offset -------------------------------------------------------------------------------

    def read(self, start: Offset, max_bytes: int, upto: Offset) -> list[Batch]:
        """Return stored batches from the one that holds or follows `start` up to `upto`."""
        if start > upto:
            return []
        if self._run is not None:
            cached = self._run.read(start, max_bytes, upto)
            if cached is not None:
                return cached
        batches: list[Batch] = []
        number = self._chain.locate(start)
        while start <= upto and (max_bytes > 0 or not batches):
            segment = self._chain[number]
            found = self._read_segment(segment, start, max_bytes, upto, need_one=not batches)
            batches += found
            if not found or found[-1].last_offset < segment.last:
                break
            max_bytes -= sum(batch.size for batch in found)
            start = Offset(segment.last + 1)
            number += 1
        return batches

    def _read_segment(
        self, segment: Segment, start: Offset, max_bytes: int, upto: Offset, *, need_one: bool
    ) -> list[Batch]:
        opened = self._open(segment)
        try:
            return self._read_chunks(opened, segment, start, max_bytes, upto, need_one)
        except CorruptBatch:
            # The index may be the one that is wrong. A new one either finds the way or the damage.
            opened.index = None
            opened.forget_hints()
            opened.need_index(segment, self._interval)
        with blaming(segment):
            return self._read_chunks(opened, segment, start, max_bytes, upto, need_one)

    def _read_chunks(
        self,
        opened: OpenSegment,
        segment: Segment,
        start: Offset,
        max_bytes: int,
        upto: Offset,
        need_one: bool,
    ) -> list[Batch]:
        """Read until a batch was found or a limit reached: mostly one chunk.

        The walk from an index entry to the batch asked for is shorter than the interval, so a chunk
        that is longer by that much holds all that `max_bytes` allows.
        """
        hinted = opened.hinted(start)
        if hinted is None:
            index = opened.need_index(segment, self._interval)
            expected, position = index.position_for(start)
            chunk = max_bytes + self._interval
        else:
            expected, position = None, hinted
            chunk = max(max_bytes, _MIN_READ)
        batches: list[Batch] = []
        least = segment.base if hinted is None else start
        while position < segment.size:
            wanted = min(chunk, segment.size - position)
            view = read_at(opened.file, position, wanted)
            at = 0
            while (size := batch_size(view, at)) <= len(view) - at:
                batch = parse_at(view, at, position)
                check_place(batch, position + at, segment, least)
                check_end(batch, position + at, segment)
                least = Offset(batch.last_offset + 1)
                if expected is not None and batch.base_offset != expected:
                    raise CorruptBatch(position, f"the index expects offset {expected} here")
                expected = None
                if batch.last_offset >= start:
                    max_bytes -= size
                    if batch.last_offset > upto or (max_bytes < 0 and (batches or not need_one)):
                        self._remember(opened, batches, position + at)
                        return batches
                    batch.check_crc(position + at)
                    batches.append(batch)
                at += size
            if batches:
                following = next_base(view, at)
                if following is not None and following < least:
                    raise CorruptBatch(position + at, f"offset {following} came before")
                self._remember(opened, batches, position + at)
                return batches
            if not at:
                check_room(len(view), wanted, position, size, segment.size)
            chunk = max(chunk, size)
            position += at
        return batches

    def _remember(self, opened: OpenSegment, batches: list[Batch], position: int) -> None:
        if batches:
            opened.hint(Offset(batches[-1].last_offset + 1), position)

    # --- By time ---------------------------------------------------------------------------------

    def at_time(self, timestamp: int, start: Offset) -> tuple[Offset, int] | None:
        """Return offset and time of the first record from `start` on that is late enough."""
        for segment in self._chain:
            if segment.max_time is not None and segment.max_time < timestamp:
                continue
            opened = self._open(segment)
            index = opened.need_index(segment, self._interval)
            if index.max_time < timestamp:
                continue
            first = index.position_for_time(timestamp)
            for _, batch in sound(opened.file, first, segment.size, segment):
                if time_of(batch) >= timestamp and batch.last_offset >= start:
                    found = _first_at_time(batch, timestamp, start)
                    if found is not None:
                        return found
        return None

    # --- Heads and ends --------------------------------------------------------------------------

    def last_configuration(self, upto: Offset, start: Offset) -> Batch | None:
        """Walk the heads of the segments back from `upto` to the newest configuration."""
        for number in range(self._chain.locate(upto), -1, -1):
            segment = self._chain[number]
            if segment.head is None or segment.head is BatchType.CONFIGURATION:
                batch = self._head_of(segment)
                segment.head = batch.type
                if batch.type is BatchType.CONFIGURATION and start <= batch.base_offset <= upto:
                    return batch
        return None

    def find_cut(self, segment: Segment, first_removed: Offset) -> Cut:
        """Find where the segment ends if it ends before `first_removed`."""
        opened = self._open(segment)
        index = opened.need_index(segment, self._interval)
        _, first = index.position_for(Offset(first_removed - 1))
        last = Offset(segment.base - 1)
        for position, batch in sound(opened.file, first, segment.size, segment):
            if batch.base_offset >= first_removed:
                return Cut(position, last)
            last = batch.last_offset
            if last >= first_removed:
                raise LocalError(f"a cut at offset {first_removed} would split {batch}")
        raise LocalError(f"offset {first_removed} is past the end of segment {segment}")

    # --- From end to end -------------------------------------------------------------------------

    def walk(self, segment: Segment) -> Iterator[Batch]:
        """Yield every batch of a segment."""
        opened = self._open(segment)
        for _, batch in sound(opened.file, 0, segment.size, segment):
            yield batch

    def verify(self) -> None:
        """Read everything and check every CRC; raise `DamagedLog` at the first that is wrong."""
        for segment in self._chain:
            for _ in whole(self._open(segment).file, segment.size, segment):
                pass


def fill_gaps(start: Offset, batches: list[Batch], max_bytes: int) -> list[Batch]:
    """Put a ghost before each batch that does not follow the one before it, within the bytes."""
    filled: list[Batch] = []
    expected = start
    for batch in batches:
        max_bytes -= batch.size
        if batch.base_offset > expected:
            gap = ghost(expected, Offset(batch.base_offset - 1), batch.term)
            max_bytes -= gap.size
            if max_bytes < 0 and filled:
                break
            filled.append(gap)
        elif max_bytes < 0 and filled:
            break
        filled.append(batch)
        expected = Offset(batch.last_offset + 1)
    return filled


def _first_at_time(batch: Batch, timestamp: int, start: Offset) -> tuple[Offset, int] | None:
    """Return the first record of a batch that is late enough; a table change counts as one.

    So does a batch whose records cannot be read: its checksum is right, so it was written so.
    """
    whole_batch = (Offset(max(batch.base_offset, start)), batch.max_timestamp)
    if batch.type is not BatchType.DATA:
        return whole_batch
    try:
        for record in read_records(batch):
            offset = Offset(batch.base_offset + record.offset_delta)
            if record.timestamp >= timestamp and offset >= start:
                return offset, record.timestamp
    except CorruptBatch:
        return whole_batch
    return None
