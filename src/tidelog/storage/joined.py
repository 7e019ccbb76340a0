"""The hint of a merge: which file, once it reaches how far, makes others superfluous.

A merge (`merging.py`) renames one file over the first segment of a group, and removes the others
once that name is durable. A crash between the two leaves files that overlap. `log.joined` is on
disk before anything is renamed, and tells recovery how to read what it finds:

- The first file reaches the last offset of the group: the merge took place. The others in between
  are left over, and go.
- It does not: the merge never took place, and all files of the group are there.

Its own batches decide, not its stored index: indexes are renamed on their own and never synced, and
one of a merged file may fit a file of the same size that is not. Headers are enough, because either
file was synced before it got its name.

A hint that outlives its merge does no harm, so it may be removed late, or come back after a crash.
The next segment of a log begins after the last offset of the one before it. Whatever made a file
end earlier (a cut, which first removes left over files and is synced before a segment follows) or
begin anew, a file that reaches past the base of another one holds what the other holds, by a merge.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.records import NO_OFFSET, CorruptBatch, Offset, Term
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog
from tidelog.storage.sealed import load_sealed, save_sealed
from tidelog.storage.segment import Segment, check_place, scan

JOINED_NAME: Final = "log.joined"
_MAGIC: Final = b"TLJ1"
_JOINED: Final = struct.Struct(">qqq")


@dataclass(frozen=True, slots=True)
class Joined:
    """One merge that was about to take place."""

    base: Offset  # of the first segment, whose name the new file gets
    term: Term  # of all of them
    last: Offset  # last offset of the group


def save_joined(disk: Disk, directory: str, joined: Joined) -> None:
    """Replace the hint; durable when this returns."""
    payload = _JOINED.pack(joined.base, joined.term, joined.last)
    save_sealed(disk, f"{directory}/{JOINED_NAME}", _MAGIC, payload)


def load_joined(disk: Disk, directory: str) -> Joined | None:
    """Return the hint that was saved last, None if there is none."""
    path = f"{directory}/{JOINED_NAME}"
    payload = load_sealed(disk, path, _MAGIC)
    if payload is None:
        return None
    if len(payload) != _JOINED.size:
        raise DamagedLog(path, 0, NO_OFFSET, f"a hint of {len(payload)} bytes")
    base, term, last = _JOINED.unpack(payload)
    return Joined(Offset(base), Term(term), Offset(last))


def find_leftovers(disk: Disk, directory: str, segments: Sequence[Segment]) -> list[Segment]:
    """Return those of the segments found that a merge has made superfluous."""
    joined = load_joined(disk, directory)
    if joined is None:
        return []
    same = [segment for segment in segments if segment.term == joined.term]
    first = next((segment for segment in same if segment.base == joined.base), None)
    others = [segment for segment in same if joined.base < segment.base <= joined.last]
    if first is None or not others or _end_of(disk, first) < joined.last:
        return []
    return others


def _end_of(disk: Disk, segment: Segment) -> Offset:
    """Return the last offset that a file holds, by the headers of its batches."""
    end = Offset(segment.base - 1)
    with contextlib.closing(disk.open(segment.path)) as file, contextlib.suppress(CorruptBatch):
        for position, batch in scan(file, 0, file.size()):
            check_place(batch, position, segment, Offset(end + 1))
            end = batch.last_offset
    return end
