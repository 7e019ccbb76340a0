"""One segment: a file of whole batches, all of one term, named by what it covers.

`<base>-<term>-v1.log`. The base is the first offset the segment covers, which is one more than the
last offset of the segment before it, always: if the first batches of a segment were compacted away,
or came as a ghost, the gap belongs to this segment and the name still says so. The term is the term
of every offset it covers, gaps included. So names alone answer which term an offset has, and a
missing segment shows as a hole between two names.

The last offset a segment covers is that of its last batch: compaction keeps it.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from typing import Final

from tidelog.records import HEADER_SIZE, NO_OFFSET, Batch, BatchType, CorruptBatch, Offset, Term
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import DamagedLog, Unreadable, is_unreadable
from tidelog.storage.handles import Handle, HandlePool
from tidelog.storage.index import SparseIndex, read_index

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
_NAME: Final = re.compile(r"(\d+)-(\d+)-v1\.log")

UNKNOWN: Final = -1  # size or time of a segment that was not looked into yet

# Bytes read at once when a segment is walked from end to end.
SCAN_CHUNK: Final = 1 << 20
# Bytes read at once to see the first batch of a segment: enough for a configuration.
_HEAD_CHUNK: Final = 4096
# Base offset and length: enough to know where the next batch begins.
_PREFIX: Final = struct.Struct(">qi")
_BASE: Final = struct.Struct(">q")
# Places remembered per open segment for readers that go on where they stopped.
MAX_HINTS: Final = 64


def parse_name(name: str) -> tuple[Offset, Term] | None:
    """Return (base, term) of a segment's name, None for any other name."""
    match = _NAME.fullmatch(name)
    return (Offset(int(match[1])), Term(int(match[2]))) if match else None


class Segment:
    """What is known of a segment without opening its file."""

    __slots__ = (
        "base",
        "created",
        "generation",
        "head",
        "index_path",
        "last",
        "max_time",
        "named",
        "path",
        "size",
        "term",
    )

    base: Offset  # first offset covered; the offset after the previous segment's last
    term: Term  # of every offset covered; >= the previous segment's
    last: Offset  # last offset covered; >= base, as there are no empty segments
    size: int  # bytes of the file, or UNKNOWN
    max_time: int | None  # highest timestamp, NO_TIMESTAMP if it has none; None: not known yet
    head: BatchType | None  # type of the first batch; None: not known yet
    created: int  # when the first batch was appended, or the log opened; rolls by age count from it
    named: bool  # whether the file's name is known to survive a crash
    generation: int  # raised when the file is cut or replaced: what was read before is not valid

    def __init__(self, directory: str, base: Offset, term: Term) -> None:
        self.base = base
        self.term = term
        self.last = Offset(base - 1)
        self.size = UNKNOWN
        self.max_time = None
        self.head = None
        self.created = 0
        self.named = True
        self.generation = 0
        stem = f"{directory}/{base}-{term}-v1"
        self.path = stem + LOG_SUFFIX
        self.index_path = stem + INDEX_SUFFIX

    def __str__(self) -> str:
        return f"[{self.base},{self.last}] term {self.term}"


class OpenSegment:
    """A segment with its file and index in memory."""

    __slots__ = ("_hints", "handle", "index")

    handle: Handle | None  # None while the file is closed for now (`handles.OpenEnds`)
    # None after a restart in the middle of the segment, until somebody needs it: appends do not.
    index: SparseIndex | None
    # Position by the offset a reader will ask for next; saves the walk from the index entry.
    _hints: dict[Offset, int]

    def __init__(self, handle: Handle | None, index: SparseIndex | None) -> None:
        self.handle = handle
        self.index = index
        self._hints = {}

    @property
    def file(self) -> File:
        """The file itself, which must be open."""
        assert self.handle is not None
        return self.handle.file

    def hint(self, offset: Offset, position: int) -> None:
        """Remember where the batch that follows a read begins."""
        if len(self._hints) >= MAX_HINTS:
            self._hints.clear()
        self._hints[offset] = position

    def hinted(self, offset: Offset) -> int | None:
        """Return the position remembered for an offset."""
        return self._hints.get(offset)

    def need_index(self, segment: Segment, interval: int) -> SparseIndex:
        """Return the index, built from the file if there is none yet."""
        if self.index is None:
            self.index = build_index(self.file, segment.size, segment, interval)
        return self.index

    def forget_hints(self) -> None:
        """Drop positions that may not be valid any more."""
        self._hints.clear()

    def close(self) -> None:
        """Let go of the file."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.release()


SegmentPool = HandlePool[OpenSegment]


def open_segment(disk: Disk, segment: Segment, interval: int) -> OpenSegment:
    """Open a closed segment, with its stored index or a new one; fill in what was unknown."""
    with blaming(segment):
        file = disk.open(segment.path)
    try:
        size = file.size()
        index = load_index(disk, file, size, segment, segment.last)
        if index is None:
            index = build_index(file, size, segment, interval)
    except BaseException:
        file.close()
        raise
    segment.size = size
    segment.max_time = index.max_time
    return OpenSegment(Handle(file), index)


def load_index(
    disk: Disk, file: File, size: int, segment: Segment, last: Offset
) -> SparseIndex | None:
    """Return the stored index of a segment that is, or was, so long; None if there is no such."""
    index = SparseIndex.decode(read_index(disk, segment.index_path), size, segment.base, last)
    return index if index is not None and _fits(index, file) else None


def _fits(index: SparseIndex, file: File) -> bool:
    """Whether the last entry leads to its batch: the index may be that of a file replaced since."""
    entry = index.last_entry()
    if entry is None:
        return False
    base, position = entry
    try:
        prefix = file.read(position, _PREFIX.size)
    except OSError:
        return False
    return len(prefix) == _PREFIX.size and _PREFIX.unpack(prefix)[0] == base


def build_index(file: File, size: int, segment: Segment, interval: int) -> SparseIndex:
    """Walk the whole segment; what does not fit the chain of segments is damage."""
    index = SparseIndex(interval)
    for position, batch in whole(file, size, segment):
        index.note(batch, position)
    return index


def read_head(disk: Disk, segment: Segment) -> Batch:
    """Return the first batch of a segment, without a look at its index or at what follows."""
    with blaming(segment):
        with contextlib.closing(disk.open(segment.path)) as file:
            view = memoryview(file.read(0, _HEAD_CHUNK))
            size = batch_size(view, 0)
            if size > len(view):
                view = memoryview(file.read(0, min(size, file.size())))
        head = parse_at(view, 0, 0)
        check_place(head, 0, segment, segment.base)
        head.check_crc(0)
    return head


@contextlib.contextmanager
def blaming(segment: Segment) -> Iterator[None]:
    """Name the segment that is missing, cannot be read, or does not hold what it should."""
    try:
        yield
    except CorruptBatch as error:
        raise DamagedLog(segment.path, error.position, segment.base, error.reason) from error
    except FileNotFoundError:
        raise DamagedLog(segment.path, 0, segment.base, "the file is missing") from None
    except OSError as error:
        if isinstance(error, DamagedLog) or not is_unreadable(error):
            raise
        raise DamagedLog(segment.path, 0, segment.base, f"it cannot be read: {error}") from error


def sound(file: File, first: int, end: int, segment: Segment) -> Iterator[tuple[int, Batch]]:
    """Walk the batches of a segment that was flushed; raise `DamagedLog` where it is not sound.

    Checksums are checked, as everything that reads from a disk does: what comes out of here may be
    written again, and must not get a new checksum over rotten bytes.
    """
    expected = NO_OFFSET
    try:
        for position, batch in scan(file, first, end):
            check_place(batch, position, segment, expected)
            check_end(batch, position, segment)
            batch.check_crc(position)
            expected = Offset(batch.last_offset + 1)
            yield position, batch
    except CorruptBatch as error:
        offset = max(expected, segment.base)
        raise DamagedLog(segment.path, error.position, Offset(offset), error.reason) from error


def whole(file: File, size: int, segment: Segment) -> Iterator[tuple[int, Batch]]:
    """Walk a closed segment; one that does not end where the chain says is damage."""
    expected = segment.base
    for position, batch in sound(file, 0, size, segment):
        yield position, batch
        expected = Offset(batch.last_offset + 1)
    if expected != segment.last + 1:
        reason = f"it ends at offset {expected - 1} instead of {segment.last}"
        raise DamagedLog(segment.path, size, expected, reason)


def check_place(batch: Batch, position: int, segment: Segment, expected: Offset) -> None:
    """Raise `CorruptBatch` unless a batch may stand at this place of this segment."""
    if batch.term != segment.term:
        raise CorruptBatch(position, f"a batch of term {batch.term} in a segment of {segment.term}")
    if batch.base_offset < max(expected, segment.base):
        raise CorruptBatch(position, f"offset {batch.base_offset} came before")
    if batch.type is BatchType.GHOST:
        raise CorruptBatch(position, "a ghost, which is never stored")


def check_end(batch: Batch, position: int, segment: Segment) -> None:
    """Raise `CorruptBatch` if a batch claims more than its segment, whose end is known, covers.

    Base offsets are not covered by the checksum: the places of the neighbours must tell.
    """
    if batch.last_offset > segment.last:
        reason = f"offset {batch.last_offset} in a segment that ends at {segment.last}"
        raise CorruptBatch(position, reason)


def read_at(file: File, position: int, size: int) -> memoryview:
    """Read a piece of a segment; what the disk has lost is damage at that position."""
    try:
        return memoryview(file.read(position, size))
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise Unreadable(position, f"the disk cannot read it: {error}") from error


def scan(file: File, position: int, end: int) -> Iterator[tuple[int, Batch]]:
    """Walk the batches in [position, end) of a file, with their positions.

    Raises `CorruptBatch`, with the position in the file, at the first place that holds no whole
    batch. Checks no CRC: whoever needs it calls `check_crc`.
    """
    chunk = SCAN_CHUNK
    while position < end:
        wanted = min(chunk, end - position)
        view = read_at(file, position, wanted)
        at = 0
        while (size := batch_size(view, at)) <= len(view) - at:
            yield position + at, parse_at(view, at, position)
            at += size
        if not at:
            check_room(len(view), wanted, position, size, end)
        chunk = SCAN_CHUNK if at else size
        position += at


def check_room(got: int, wanted: int, position: int, size: int, end: int) -> None:
    """Raise `CorruptBatch` if reading more cannot complete the batch that begins at `position`."""
    if got < wanted:
        raise CorruptBatch(position + got, f"the file ends {end - position - got} bytes early")
    if size > end - position:
        left = end - position
        raise CorruptBatch(position, f"a batch of {size} bytes where {left} are left")


def batch_size(view: memoryview, at: int) -> int:
    """Return the size that the batch at `at` claims; what its first bytes are needed to know it."""
    if len(view) - at < _PREFIX.size:
        return HEADER_SIZE
    return max(int(_PREFIX.unpack_from(view, at)[1]) + _PREFIX.size, HEADER_SIZE)


def next_base(view: memoryview, at: int) -> Offset | None:
    """Return the base offset of the batch at `at`; None if the view does not reach it."""
    return Offset(_BASE.unpack_from(view, at)[0]) if len(view) - at >= _BASE.size else None


def parse_at(view: memoryview, at: int, position: int) -> Batch:
    """Parse the batch at `at` of a view that was read at `position` of its file."""
    try:
        return Batch.parse(view, at)
    except CorruptBatch as error:
        raise CorruptBatch(position + error.position, error.reason) from None
