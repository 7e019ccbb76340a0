"""Opening a log: what to trust, what to read again, where to cut.

What a crash can leave behind, and why the result is always a log that existed:

1. Appends go to the end of the newest segment, and a new segment is named by the offset after the
   last one. If a crash takes the tail of a segment, or its name, the next name does not continue
   the chain: it and all that follow were never flushed (a flush syncs every file and the
   directory before it is credited), and are removed.
2. A suffix truncation first lowers the recovery point, then removes whole segments, syncs the
   directory, and only then cuts the last one. A cut file is synced before another segment is
   created after it. So a segment that continues the chain is never one that was truncated before.
3. A failed append is undone, and the undoing is synced, before anything else is written: the same
   offset and term never had two contents.
4. Prefix truncation records the new start first. Segments below it that are still there go.
5. Compaction replaces a file by one that was synced before; either is right.
6. A merge replaces the first file of a group by one that holds the whole group, and removes the
   others once that is durable. Its hint (`joined.py`) tells which files are left over.

Segments that end at or below the recovery point are trusted by their names, and the one it lies
in up to its position: nothing of them is read. A file that is missing or too short there is
damage, and is reported. Everything past the point is read with its checksums up to the first batch
that is not sound. If that is below the flush mark it is damage too; if not, it was never flushed as
far as anybody knows, and the log is cut there. Then it is synced, so that flushed = dirty is true
from the start. The
last segment and the directory are synced even if nothing was read: a killed process may have left
a cut or a removal that only the page cache knows.

If a sync failed before the log was opened (`MARKER` exists), what the page cache shows need not
be on the disk, and syncing again would not put it there: the tail is copied to new files instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.records import NO_OFFSET, Batch, CorruptBatch, Offset
from tidelog.storage.chain import Chain
from tidelog.storage.config import BATCH_COST, LogConfig
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import DamagedLog, StorageError, Unreadable
from tidelog.storage.handles import Handle
from tidelog.storage.index import SparseIndex
from tidelog.storage.joined import JOINED_NAME, find_leftovers
from tidelog.storage.sealed import STAGING
from tidelog.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SCAN_CHUNK,
    OpenSegment,
    Segment,
    check_place,
    load_index,
    parse_name,
    scan,
)
from tidelog.storage.state import EMPTY, STATE_NAME, WHOLE, RecoveryPoint, StateFile

# Exists while the page cache cannot be trusted.
MARKER: Final = "log.poisoned"
# What opening a file costs, in bytes of reading: the budget of recovery counts files by it.
FILE_COST: Final = 64 * 1024


@dataclass(slots=True)
class Recovered:
    """What was found."""

    chain: Chain
    dirty: Offset
    active: OpenSegment | None  # of the last segment, if the log may go on appending to it
    point: RecoveryPoint  # at `dirty`
    cost: int = 0  # bytes read, FILE_COST a file and BATCH_COST a batch


@dataclass(slots=True)
class _Tail:
    """One segment past the recovery point, as the scan found it."""

    segment: Segment
    file: File | None  # None while it is closed: only the newest one is held open
    size: int  # sound bytes
    torn: bool  # whether there are more
    index: SparseIndex | None  # None if the scan began in the middle, and none was stored
    scanned: int  # bytes past the recovery point
    batches: int = 0  # and sound batches in them

    def reopen(self, disk: Disk) -> File:
        """Return the file, open."""
        if self.file is None:
            self.file = disk.open(self.segment.path)
        return self.file

    def close(self) -> None:
        """Let go of the file; there may be more of these than a process may hold open."""
        if self.file is not None:
            self.file.close()
            self.file = None


@dataclass(slots=True)
class _Plan:
    """What to do to the disk, decided before anything is changed."""

    chain: Chain = field(default_factory=Chain)
    tails: list[_Tail] = field(default_factory=list)
    dropped: list[Segment] = field(default_factory=list)


def recover(disk: Disk, directory: str, config: LogConfig, state: StateFile) -> Recovered:
    """Bring the directory into a state that a running log could have, durably; and say which."""
    names = disk.list(directory)
    _remove_leftovers(disk, directory, names)
    segments = [Segment(directory, *key) for key in sorted(filter(None, map(parse_name, names)))]
    if not state.load():
        if segments:
            path = f"{directory}/{STATE_NAME}"
            raise DamagedLog(path, 0, segments[0].base, "the file is missing, the segments are not")
        state.begin(EMPTY)
    plan = _Plan()
    leftovers = find_leftovers(disk, directory, segments)
    if leftovers:
        gone = set(leftovers)
        plan.dropped += leftovers
        segments = [segment for segment in segments if segment not in gone]
        # A killed process may have left a rename that only the page cache knows.
        with _distrusting(disk, directory):
            disk.sync_directory(directory)
    try:
        _find(disk, config, state, segments, plan)
        _check_mark(state, plan)
        with _distrusting(disk, directory):
            _settle(disk, directory, plan, distrusted=MARKER in names)
    except BaseException:
        for tail in plan.tails:
            tail.close()
        raise
    if JOINED_NAME in names:
        with contextlib.suppress(OSError):  # it does no harm
            disk.remove(f"{directory}/{JOINED_NAME}")
    return _open_end(disk, state, plan)


def _remove_leftovers(disk: Disk, directory: str, names: list[str]) -> None:
    """Remove files that were being written, and indexes whose segment is gone."""
    logs = {name.removesuffix(LOG_SUFFIX) for name in names if parse_name(name)}
    for name in names:
        stem = name.removesuffix(STAGING)
        kin = stem.removesuffix(INDEX_SUFFIX).removesuffix(LOG_SUFFIX)
        ours = stem in (STATE_NAME, JOINED_NAME) or parse_name(kin + LOG_SUFFIX) is not None
        if ours and (name.endswith(STAGING) or (name.endswith(INDEX_SUFFIX) and kin not in logs)):
            disk.remove(f"{directory}/{name}")


def _find(
    disk: Disk, config: LogConfig, state: StateFile, segments: list[Segment], plan: _Plan
) -> None:
    """Follow the chain: trusted segments by name, then the tail by reading it."""
    start, point = state.state.start, state.state.point
    while len(segments) > 1 and segments[1].base <= start:
        plan.dropped.append(segments.pop(0))
    if point.offset < start:
        if segments and segments[0].base > start:  # what held `start` was lost, unflushed
            plan.dropped += segments
            return
    elif not segments or segments[0].base > start:
        raise _missing(state, segments, start)
    for number, segment in enumerate(segments):
        following = segments[number + 1] if number + 1 < len(segments) else None
        if following and following.base - 1 <= point.offset:
            segment.last = Offset(following.base - 1)
            before = plan.chain.last
            if segment.last < segment.base or (before and segment.term < before.term):
                raise _misfit(segment, before or following)
            plan.chain.add(segment)
            continue
        if not _find_tail(disk, config, state, segment, following, plan):
            plan.dropped += segments[number:]
            return
        if plan.tails and plan.tails[-1].torn:
            plan.dropped += segments[number + 1 :]
            return


def _find_tail(
    disk: Disk,
    config: LogConfig,
    state: StateFile,
    segment: Segment,
    following: Segment | None,
    plan: _Plan,
) -> bool:
    """Read one segment past the recovery point; False if it is not part of the log."""
    start, point = state.state.start, state.state.point
    before = plan.chain.last
    if before and (segment.base != before.last + 1 or segment.term < before.term):
        if segment.base <= point.offset:
            raise _misfit(segment, before)
        return False
    position = 0
    expected = segment.base
    if start <= point.offset and segment.base <= point.offset:
        if point.segment != segment.base:
            raise _missing(state, [segment], Offset(max(start, segment.base)))
        position, expected = point.position, Offset(point.offset + 1)
    file = disk.open(segment.path)
    try:
        index: SparseIndex | None = SparseIndex(config.index_interval)
        if position:
            index = load_index(disk, file, position, segment, Offset(expected - 1))
        ends = [state.marked] if following is None else [state.marked, Offset(following.base - 1)]
        tail = _scan_tail(file, position, expected, segment, index, ends)
    except BaseException:
        file.close()
        raise
    if segment.last < max(segment.base, start):
        file.close()
        return False
    if plan.tails:
        plan.tails[-1].close()
    plan.tails.append(tail)
    plan.chain.add(segment)
    return True


def _scan_tail(
    file: File,
    first: int,
    expected: Offset,
    segment: Segment,
    index: SparseIndex | None,
    ends: list[Offset],
) -> _Tail:
    """Read from the recovery point, where the index ends, to the first batch that is not sound.

    Base offsets have no checksum, and one that rotted upwards looks like a gap. But no batch
    reaches over one of `ends`: there a batch ended when the log was flushed, or another segment was
    begun, and nothing past the recovery point is compacted. And none that is whole stands after
    a batch that claims its offsets: no tear leaves that.
    """
    size = file.size()
    segment.last = Offset(expected - 1)
    if first == WHOLE:
        segment.size = size
        return _Tail(segment, file, size, torn=False, index=None, scanned=0)
    if size < first:
        reason = f"{first - size} bytes are missing at its end"
        raise DamagedLog(segment.path, size, expected, reason)
    end = first
    batches = 0
    try:
        for position, batch in scan(file, first, size):
            batch.check_crc(position)
            _check_offsets(batch, position, segment, expected, ends)
            check_place(batch, position, segment, expected)
            expected = Offset(batch.last_offset + 1)
            end = position + batch.size
            batches += 1
            if index is not None:
                index.note(batch, position)
                if position == 0:
                    segment.head = batch.type
    except Unreadable as error:
        raise DamagedLog(segment.path, error.position, expected, error.reason) from error
    except CorruptBatch:
        pass  # where it begins is `end`; what it is does not matter, as it was never flushed
    segment.last = Offset(expected - 1)
    segment.size = end
    return _Tail(segment, file, end, end < size, index, scanned=size - first, batches=batches)


def _check_offsets(
    batch: Batch, position: int, segment: Segment, expected: Offset, ends: list[Offset]
) -> None:
    """Raise `DamagedLog` if a whole batch stands behind its place, and `CorruptBatch` if it, or the
    gap before it, reaches over one of the ends."""
    if batch.base_offset < expected:
        reason = f"offset {batch.base_offset} came before"
        raise DamagedLog(segment.path, position, batch.base_offset, reason)
    for end in ends:
        if expected <= end < batch.last_offset:
            reason = f"it leads to offset {batch.last_offset}, and a batch ended at {end}"
            raise CorruptBatch(position, reason)


def _check_mark(state: StateFile, plan: _Plan) -> None:
    """Raise `DamagedLog` if the log would end below what is known to have been flushed."""
    start, marked = state.state.start, state.marked
    last = plan.chain.last
    end = Offset(start - 1) if last is None else last.last
    if start <= marked and end < marked:
        path, position = state.path, 0
        rest = [segment for segment in plan.dropped if segment.base > end]
        if plan.tails and plan.tails[-1].torn:
            path, position = plan.tails[-1].segment.path, plan.tails[-1].size
        elif rest:
            path = rest[0].path
        reason = f"the log ends there, and was flushed up to {marked}"
        raise DamagedLog(path, position, Offset(end + 1), reason)


def _settle(disk: Disk, directory: str, plan: _Plan, *, distrusted: bool) -> None:
    """Make the plan true on the disk, and durable."""
    marker = f"{directory}/{MARKER}"
    for segment in reversed(plan.dropped):
        remove_segment(disk, segment)
    for tail in plan.tails:
        if tail.torn and disk.exists(tail.segment.index_path):
            disk.remove(tail.segment.index_path)
    # Always, as a process that was killed may have left names that are not durable.
    disk.sync_directory(directory)
    for number, tail in enumerate(plan.tails):
        file = tail.reopen(disk)
        if distrusted:
            _copy(disk, tail, file)
        else:
            if tail.torn:
                file.truncate(tail.size)
            file.sync()
        if number + 1 < len(plan.tails):
            tail.close()
    if distrusted:
        disk.sync_directory(directory)
        disk.remove(marker)


def _copy(disk: Disk, tail: _Tail, file: File) -> None:
    """Write the sound part of a segment to a new file, which takes its name."""
    staging = tail.segment.path + STAGING
    copy = disk.open(staging, create=True)
    try:
        copy.truncate(0)
        for position in range(0, tail.size, SCAN_CHUNK):
            copy.append([file.read(position, min(SCAN_CHUNK, tail.size - position))])
        copy.sync()
        disk.rename(staging, tail.segment.path)
    except BaseException:
        copy.close()
        raise
    tail.close()
    tail.file = copy


def _open_end(disk: Disk, state: StateFile, plan: _Plan) -> Recovered:
    """Keep the last segment open, unless it is closed for good, and name the end of the log."""
    chain = plan.chain
    cost = sum(tail.scanned + FILE_COST + BATCH_COST * tail.batches for tail in plan.tails)
    last = chain.last
    if last is None:
        dirty = Offset(state.state.start - 1)
        return Recovered(chain, dirty, None, RecoveryPoint(dirty, NO_OFFSET, 0), cost)
    if not plan.tails:  # all that follows the recovery point was dropped; the next append rolls
        return Recovered(chain, last.last, None, RecoveryPoint(last.last, last.base, WHOLE), cost)
    tail = plan.tails[-1]
    if state.state.point == RecoveryPoint(last.last, last.base, WHOLE):
        tail.close()
        return Recovered(chain, last.last, None, state.state.point, cost)
    active = OpenSegment(Handle(tail.reopen(disk)), tail.index)
    return Recovered(chain, last.last, active, RecoveryPoint(last.last, last.base, last.size), cost)


def remove_segment(disk: Disk, segment: Segment) -> None:
    """Remove a segment and its index; a name that is not there is no error."""
    for path in (segment.index_path, segment.path):
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)


def leave_marker(disk: Disk, directory: str) -> None:
    """Remember that a sync failed, as well as a failing disk lets us. It need not be durable:
    a crash of the machine empties the page cache, and then there is nothing to distrust.
    """
    with contextlib.suppress(OSError):
        disk.open(f"{directory}/{MARKER}", create=True).close()


@contextlib.contextmanager
def _distrusting(disk: Disk, directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        leave_marker(disk, directory)
        raise StorageError(
            f"the log in {directory} could not be brought up: {error}. Mend the disk, then open "
            "it again.",
            error,
        ) from error


def _misfit(segment: Segment, other: Segment) -> DamagedLog:
    reason = f"it cannot stand beside {other.path}, which has another term or the same offset"
    return DamagedLog(segment.path, 0, segment.base, reason)


def _missing(state: StateFile, segments: list[Segment], offset: Offset) -> DamagedLog:
    found = segments[0].path if segments else "nothing"
    point = state.state.point
    reason = f"its segment is missing; {found} was found, flushed up to {point.offset}"
    return DamagedLog(state.path, 0, offset, reason)
