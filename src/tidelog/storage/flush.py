"""One flush: files and end fixed on the loop, synced on any thread, credited on the loop.

What the job will prove is fixed when it is prepared. Reading the log's end in the flush thread
could credit bytes that were written after their file was synced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.records import Offset
from tidelog.storage.disk import Disk
from tidelog.storage.handles import Handle
from tidelog.storage.segment import Segment
from tidelog.storage.state import RecoveryPoint, StateFile


@dataclass(slots=True)
class FlushJob:
    """Syncs everything up to `upto`; one of these covers any number of appends."""

    upto: Offset  # dirty when the job was prepared
    truncations: int  # suffix truncations so far: if another comes, the job proves nothing
    point: RecoveryPoint  # the same end, as a place in the log
    cleaned: Offset
    checkpoint: bool  # whether to save the point as well
    index: bytes | None  # with it, of the segment in which the point lies, as far as the point
    directory: str | None  # to be synced, if one of the segments is new
    segments: list[Segment]  # that hold unflushed batches, oldest first
    # Files of these segments: an open one, or None to open it here. Only the last few are open.
    handles: list[Handle | None]
    disk: Disk
    state: StateFile
    done: bool = field(default=False)

    def run(self) -> None:
        """Sync and settle. On any thread, once; an OSError means that nothing is proved."""
        self.sync()
        self.settle()

    def start(self) -> Callable[[], None]:
        """Sync, and return what is left to do: it takes time, and no acknowledgement needs it."""
        self.sync()
        return self.settle

    def sync(self) -> None:
        """Put everything up to `upto` on the disk."""
        try:
            for segment, handle in zip(self.segments, self.handles, strict=True):
                if handle is not None:
                    handle.file.sync()
                else:
                    self._sync_closed(segment)
            if self.directory is not None:
                self.disk.sync_directory(self.directory)
        finally:
            self.release()
        self.done = True

    def settle(self) -> None:
        """Note for the next start how far the log was synced."""
        self.state.mark_flushed(self.upto, self.truncations)
        if self.checkpoint:
            # The data is safe. A point that stays behind only makes the next start slower.
            with contextlib.suppress(OSError):
                self.state.raise_point(self.point, self.truncations, self.cleaned)

    def release(self) -> None:
        """Let go of the files; a job that is given up calls this."""
        for handle in self.handles:
            if handle is not None:
                handle.release()
        self.handles = []

    def _sync_closed(self, segment: Segment) -> None:
        try:
            file = self.disk.open(segment.path)
        except FileNotFoundError:
            # Truncated since the job was prepared: a cut suffix is not credited, and of a cut
            # prefix nothing is left to lose.
            return
        try:
            file.sync()
        finally:
            file.close()
