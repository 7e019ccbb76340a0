"""When the machines of a replica are saved, so that a start folds in only the end of the log.

Rules:
1. A checkpoint is taken of machines that are exact, at an offset that is committed and flushed
   here. No crash, truncation of a suffix or compaction makes it wrong; a log that begins after it
   makes it useless, and a newer snapshot goes before it.
2. It stays with the replica: it is sent to nobody, and nothing is compacted because of it. One that
   is lost or damaged costs time at the next start, and nothing else.
3. It stands in for a snapshot whose file is damaged (`footing.py`), so one is taken with each.
4. What lies past the newest one is bounded: it is taken after `recovery_bytes` of work, and after
   much less once the log is quiet. A log that stays quiet costs a comparison now and then.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from tidelog.machines import CannotApply, CorruptSnapshot, Machines
from tidelog.raft.core import Core
from tidelog.records import NO_OFFSET, Batch, Offset
from tidelog.storage import BATCH_COST, Checkpoint, CheckpointFile, Log

# A quiet log is saved after this part of the work that a busy one is saved after: 1 MiB of 64.
# Thousands of partitions may start at once, and most are quiet.
QUIET_PART: Final = 64
READ_BYTES: Final = 1024 * 1024  # of the log at once, while it is opened


class Checkpoints:
    """Those of one replica."""

    def __init__(self, file: CheckpointFile) -> None:
        self._file = file
        # What the machines took since the last one, as reading it again would cost.
        self._work = 0
        self._busy = False  # one is on its way to the disk
        self._seen = NO_OFFSET  # where the machines stood when the log was last looked at

    def resume(
        self, machines: Machines, log: Log, carried: Checkpoint | None = None
    ) -> Checkpoint | None:
        """Put new machines where they stood, and tell them what else the log holds already.

        What a former life of this replica carried over comes before what is on the disk. Returns
        the checkpoint that the machines are at now, if there is one.
        """
        saved = carried or self._file.load()
        used: Checkpoint | None = None
        if saved is not None and _is_of(saved, log):
            # If another release wrote it: the log, or a snapshot and the log, have it all.
            with contextlib.suppress(CorruptSnapshot, CannotApply):
                machines.resume(saved.state, saved.offset, log.start)
                used = saved
        position = Offset(machines.translation.end + 1)
        while position <= log.dirty:
            batches = log.read(position, READ_BYTES)
            for batch in batches:
                machines.appended(batch)
            position = Offset(batches[-1].last_offset + 1)
        return used

    def note(self, batch: Batch) -> None:
        """The machines are given one more batch."""
        self._work += batch.size + BATCH_COST

    def want(self, log: Log) -> None:
        """One is due soon, whatever the work: compaction is about to need something to lean on."""
        self._work = max(self._work, log.config.recovery_bytes)

    def is_due(self, log: Log) -> bool:
        return self._work >= log.config.recovery_bytes

    def is_due_at_rest(self, machines: Machines, log: Log) -> bool:
        """Whether nothing moved since this was last asked, and saving is worth it."""
        seen, self._seen = self._seen, machines.applied
        return seen == machines.applied and self._work * QUIET_PART >= log.config.recovery_bytes

    def take(self, machines: Machines, core: Core, log: Log) -> Callable[[], None] | None:
        """Return the job that saves the machines as they are now; None if that has to wait.

        A mark that is on its way to the disk may stem from a snapshot batch that the next start
        would not meet again, so it comes first.
        """
        exact = core.shipping.machines_are_exact()
        term = log.term_of(machines.applied)
        if self._busy or not exact or core.hard != core.persisted or term is None:
            return None
        configuration = core.configuration_at(machines.applied).encode()
        checkpoint = Checkpoint(machines.applied, term, machines.checkpoint(), configuration)
        self._busy = True
        self._work = 0
        return lambda: self._file.save(checkpoint)

    def taken(self, _: OSError | None) -> None:
        """The job has ended, well or not: the next one comes in its time."""
        self._busy = False


def _is_of(saved: Checkpoint, log: Log) -> bool:
    """Whether a log still leads on from a checkpoint."""
    if not log.start <= saved.offset + 1 <= log.dirty + 1:
        return False
    return log.term_of(saved.offset) == saved.term
