"""Reading files that nobody asks for: segments rot whether they are read or not.

A `VerifyJob` reads one segment from end to end in steps of bounded work, on any thread, while the
log goes on. What it finds is believed only after the log has confirmed, on the loop, that the file
was not cut, replaced or removed meanwhile (`ReadableLog.confirm`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidelog.records import Batch
from tidelog.storage.config import BATCH_COST
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import DamagedLog
from tidelog.storage.segment import UNKNOWN, Segment, blaming, whole


@dataclass(slots=True)
class VerifyJob:
    """One segment to be read, as far as it is closed or flushed."""

    disk: Disk
    segment: Segment  # the log's own; its fields belong to the loop
    place: Segment  # what it was when the job was prepared
    generation: int
    truncations: int
    bytes: int = 0  # read so far
    damage: DamagedLog | None = None
    done: bool = False
    _file: File | None = field(default=None)
    _batches: Iterator[tuple[int, Batch]] | None = field(default=None)

    def step(self, budget: int, note: Callable[[Batch], object] | None = None) -> int:
        """Read on until so much work is done; return how much was. A batch costs `BATCH_COST` more.

        `note` is shown every batch. A file that may not be opened just now raises an `OSError` that
        is no `DamagedLog`: another step tries again.
        """
        spent = 0
        try:
            with blaming(self.place):
                for _, batch in self._rest():
                    self.bytes += batch.size
                    spent += batch.size + BATCH_COST
                    if note is not None:
                        note(batch)
                    if spent >= budget:
                        return spent
        except DamagedLog as damage:
            self.damage = damage
        self.done = True
        self.close()
        return spent

    def _rest(self) -> Iterator[tuple[int, Batch]]:
        if self._batches is None:
            self._file = self.disk.open(self.place.path)
            size = self._file.size() if self.place.size == UNKNOWN else self.place.size
            self._batches = whole(self._file, size, self.place)
        return self._batches

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
