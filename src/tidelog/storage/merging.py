"""Merging: neighbouring closed segments become one file.

A compacted log closes a segment every minute, so that compaction can touch it, and compaction makes
each of them small. Without merges the number of files would grow with uptime, for ever.

Which segments: a run of neighbours of one term that compaction has seen, below the segment in which
the recovery point lies, so that the point never names a file that vanishes. A configuration is
always the head of its segment, so it may only be the first of a group. The new file is not larger
than `segment_bytes`.

When: sizes are geometric, as in an LSM tree. A file weighs its bytes and `FILE_COST`. From the
youngest on, an older segment joins if it weighs at most `RATIO` times what the younger ones of the
group weigh together, and a group is merged once it has `merge_files` members. So:

- Groups that wait have fewer members than that, and each weighs more than twice the one after it.
  Between 64 KiB (the smallest weight) and 128 MiB (a full segment) there are 11 doublings: at most
  33 files of a term besides the full ones, and half a dozen in practice.
- Of two neighbours that are too large for one file, one is at least half full. So n full segments'
  worth of data has at most 2 n files.
- What joins younger ones ends in a file that is half as heavy again at least (1 + 1 / RATIO), so a
  byte is copied 19 times at most on the way from 64 KiB to 128 MiB, however long the log lives.

How, and why a crash at any moment leaves the same records:

1. `MergeJob.run`, on a worker thread, syncs the directory: what the last merge left is durably
   gone. It writes the batches of the group to `<first>.log.staging`, syncs it, and saves the hint
   (`joined.py`). Placeholders that are not last any more are left out, as compaction does.
2. `Log.finish_merge`, on the loop, renames the new file over the first segment. The files of the
   others stay: each change of a name survives a crash on its own, and if their removal did while
   the rename did not, records would be lost. They are *left over*.
3. `SweepJob.run` syncs the directory. Then `Log.finish_sweep`, on the loop, removes them.

A suffix truncation or a reset does step 3 itself, and syncs the removal too: a cut file would not
reach the hint any more, and a new segment could get the name of one that is left over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.records import NO_TIMESTAMP, Batch, BatchType
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog
from tidelog.storage.joined import Joined, save_joined
from tidelog.storage.recovery import FILE_COST
from tidelog.storage.rewriting import Rewriter, discard
from tidelog.storage.segment import Segment, whole
from tidelog.storage.state import StateFile

# How much heavier than all younger ones together a segment may be and still join them. Less means
# more files, more means that bytes are copied more often.
RATIO: Final = 2
# Members of one group. Files that are left over are removed on the loop, where one takes 0.25 ms
# on a disk that was measured: 16 ms at most.
MAX_GROUP: Final = 64


@dataclass(slots=True)
class MergeJob:
    """One merge, prepared on the loop."""

    disk: Disk
    directory: str
    config: LogConfig
    state: StateFile
    segments: list[Segment]  # closed, flushed, neighbours of one term, oldest first
    generations: list[int]  # column of segments
    truncations: int
    # Of the new file, once it is written.
    size: int = 0
    max_time: int = NO_TIMESTAMP
    head: BatchType | None = None
    done: bool = False

    def run(self) -> None:
        """Write the new file. On any thread, once; an error means that nothing will be renamed."""
        try:
            self._run()
        except FileNotFoundError:
            self.discard()  # a prefix truncation pulled a file from under us: the job is void
        except DamagedLog:
            self.discard()
            if self.state.truncations == self.truncations:  # else a file was cut under us
                raise
        except BaseException:
            self.discard()
            raise
        else:
            self.done = True

    def _run(self) -> None:
        self.disk.sync_directory(self.directory)
        first, last = self.segments[0], self.segments[-1].last
        rewriter = Rewriter(self.disk, first, self.config.index_interval)
        with contextlib.closing(rewriter):
            rewriter.begin()
            for segment in self.segments:
                for batch in self._batches(segment):
                    spare = batch.type is BatchType.PLACEHOLDER and batch.last_offset < last
                    rewriter.put(batch, None if spare else batch)
            rewriter.commit(last)
        self.size = rewriter.size
        self.max_time = rewriter.index.max_time
        self.head = rewriter.head
        save_joined(self.disk, self.directory, Joined(first.base, first.term, last))

    def _batches(self, segment: Segment) -> Iterator[Batch]:
        with contextlib.closing(self.disk.open(segment.path)) as file:
            for _, batch in whole(file, file.size(), segment):
                yield batch

    def discard(self) -> None:
        """Remove what the job left beside the first segment."""
        discard(self.disk, self.segments[0])


@dataclass(slots=True)
class SweepJob:
    """Makes the name of a merged file durable, so that what it left over may go."""

    disk: Disk
    directory: str
    leftovers: list[Segment]  # the log's own list: another one means that they are gone
    done: bool = field(default=False)

    def run(self) -> None:
        """Sync the directory. On any thread, once; an error means that nothing may go."""
        self.disk.sync_directory(self.directory)
        self.done = True


def find_group(segments: Sequence[Segment], config: LogConfig) -> list[Segment]:
    """Return the group that is cheapest to merge, oldest first; empty if none is worth it.

    Sizes and heads of the segments are known. Cheapest first: where thousands of files wait, they
    become some of middle size, and those become one; no file is copied for each few that join it.
    """
    groups = [Group(config)]
    for segment in reversed(segments):
        if not groups[-1].takes(segment):
            groups.append(Group(config))
        groups[-1].add(segment)
    worth = [group for group in groups if group.is_worth_it()]
    return min(worth, key=Group.price).members[::-1] if worth else []


class Group:
    """Neighbours that would become one, youngest first."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self.members: list[Segment] = []
        self._bytes = 0

    def takes(self, older: Segment) -> bool:
        """Whether the segment before these joins them."""
        if not self.members:
            return True
        oldest = self.members[-1]
        weight = self._bytes + FILE_COST * len(self.members)
        return (
            older.term == oldest.term
            and oldest.head is not BatchType.CONFIGURATION
            and older.size + self._bytes <= self._config.segment_bytes
            and older.size + FILE_COST <= RATIO * weight
            and len(self.members) < MAX_GROUP
        )

    def add(self, older: Segment) -> None:
        """Let the segment before these join them."""
        self.members.append(older)
        self._bytes += older.size

    def is_worth_it(self) -> bool:
        """Whether a merge would remove enough files."""
        return len(self.members) >= max(self._config.merge_files, 2)

    def price(self) -> float:
        """Return the bytes to copy for each file less."""
        return self._bytes / (len(self.members) - 1)
