"""Compaction and merges of one replica's log, in the background: one job at a time.

A round of compaction comes first, then small segments become one for as long as that is worth it,
and files that a merge has left over go before the next. A job that fails leaves the log as it was;
whoever calls again tries again.
"""

from collections.abc import Callable
from typing import Protocol

from tidelog.records import Offset
from tidelog.storage import CompactionJob, DamagedLog, Log, MergeJob, SweepJob

LANE = "compact"
Done = Callable[[OSError | None], None]


class Owner(Protocol):
    """The replica whose log it is."""

    log: Log

    def submit(self, lane: str, job: Callable[[], None], done: Done) -> None:
        """Run a job elsewhere, then call `done` here."""

    def collectible(self) -> Offset:
        """How far records may vanish."""

    def change_log(self, change: Callable[[], object]) -> None:
        """Change the log; if that fails, the replica does."""

    def damaged(self, damage: DamagedLog) -> None:
        """A job met damage."""


class Tidying:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._log = owner.log
        self._busy = False

    def begin(self, now: int) -> None:
        """Compact and merge what may be, unless that is under way."""
        if self._busy:
            return
        try:
            job = self._log.prepare_compaction(self._owner.collectible(), now=now)
        except OSError:  # nothing was changed, and the next round looks again
            return
        if job is None:
            self._merge()
        else:
            self._submit(job.run, lambda error: self._compacted(job, error))

    def _submit(self, job: Callable[[], None], done: Done) -> None:
        self._busy = True

        def ended(error: OSError | None) -> None:
            done(error)
            if isinstance(error, DamagedLog):
                self._owner.damaged(error)

        self._owner.submit(LANE, job, ended)

    def _compacted(self, job: CompactionJob, error: OSError | None) -> None:
        self._busy = False
        if error is None:
            self._owner.change_log(lambda: self._log.finish_compaction(job))
            self._merge()

    def _merge(self) -> None:
        """Merge a group, or remove what the last merge has left over."""
        if self._log.poisoned:
            return
        sweep = self._log.prepare_sweep()
        if sweep is not None:
            self._submit(sweep.run, lambda error: self._swept(sweep, error))
            return
        try:
            job = self._log.prepare_merge(self._owner.collectible())
        except OSError:  # nothing was changed, and the next round looks again
            return
        if job is not None:
            self._submit(job.run, lambda error: self._merged(job, error))

    def _merged(self, job: MergeJob, error: OSError | None) -> None:
        self._busy = False
        before = self._log.segments
        if error is None:
            self._owner.change_log(lambda: self._log.finish_merge(job))
        if self._log.segments < before:
            self._merge()

    def _swept(self, job: SweepJob, error: OSError | None) -> None:
        self._busy = False
        if error is None and self._log.finish_sweep(job):
            self._merge()
