"""What a failed replica knew to be on its disk, for its next life to find there.

A replica fails when its disk fails a sync: the kernel may have dropped what was not written, and
shows it in the page cache all the same. What was flushed before is not in doubt, and neither is a
vote that was saved. So the replica may be opened again, once the disk works; but if it then finds
less than this, it has forgotten what it promised, and is lost.
"""

from dataclasses import dataclass

from tidelog.machines import Machines
from tidelog.raft.core import Core
from tidelog.raft.types import HardState
from tidelog.records import NO_OFFSET, Offset
from tidelog.storage import Checkpoint, DamagedLog, Log


@dataclass(frozen=True, slots=True)
class Legacy:
    flushed: Offset
    hard: HardState  # saved
    # Where the machines stood, so that those that others hold on to need not begin anew.
    machines: Checkpoint | None

    @classmethod
    def of(cls, core: Core, log: Log, machines: Machines | None) -> "Legacy":
        """The core falls at once where the log is cut, also if the cut is what failed."""
        flushed = min(core.flushed, log.flushed)
        saved = None
        if machines is not None and not core.restore_pending:
            term = log.term_of(machines.applied)
            if term is not None:
                configuration = core.configuration_at(machines.applied).encode()
                state = machines.checkpoint()
                saved = Checkpoint(machines.applied, term, state, configuration)
        return cls(flushed, core.persisted, saved)

    def check(self, directory: str, log: Log, hard: HardState) -> None:
        """Raise `DamagedLog` if a replica that was opened again has forgotten something."""
        if log.dirty < self.flushed:
            reason = f"it ends at offset {log.dirty} and was flushed up to {self.flushed}"
            raise DamagedLog(f"{directory}/log", 0, Offset(log.dirty + 1), reason)
        before = self.hard
        forgot_vote = hard.term == before.term and before.voted_for not in (None, hard.voted_for)
        if hard.term < before.term or hard.compacted < before.compacted or forgot_vote:
            reason = f"it says {hard}, and {before} was saved"
            raise DamagedLog(f"{directory}/vote", 0, NO_OFFSET, reason)
