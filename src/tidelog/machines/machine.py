"""What a machine is: a deterministic fold of one partition's committed log.

Rules every machine keeps, because the replicas of a partition compare only logs, never states:
1. The state is a function of the batches applied, in order, and of nothing else: no clock, no
   chance, no configuration that may differ between nodes.
2. `apply` never raises for what a client wrote. The broker does not look into records, so a batch
   may hold anything; a machine that cannot read it skips it, on every replica alike. What another
   release of ours wrote is not skipped, because that release did not: see `CannotApply`.
3. A fold over a compacted log is another fold. Therefore the state below a compaction is carried
   by a snapshot, and a machine may rely on having seen every record (seed 3).
"""

from typing import Final, Protocol

from tidelog.machines.encoding import MAX_OFFSET
from tidelog.records import Batch, Offset

# `collectible` of a machine that does not mind what compaction removes.
NO_OBJECTION: Final = Offset(MAX_OFFSET)


class CannotApply(Exception):
    """This release cannot go on from here; the message says why and what to do, in a sentence.

    Raised before anything has changed, by the first machine of a partition only: the others have
    then not folded in what it could not. The replica stops there and says so, and another release
    goes on from the same place.
    """


class Machine(Protocol):
    @property
    def name(self) -> str:
        """The key of this machine's state in snapshots: never changed once released."""

    def apply(self, batch: Batch) -> None:
        """Fold in the next committed batch. Every type comes, internal ones too; never a ghost.

        Raises `CannotApply` for a batch that only another release understands.
        """

    def snapshot(self) -> bytes:
        """The state as bytes; equal states give equal bytes on every replica."""

    def restore(self, state: bytes) -> None:
        """Become the state that `snapshot` wrote, or the initial one for `b""`.

        Raises `CorruptSnapshot`, and is then unchanged, for bytes that are no such state, and
        `CannotApply` for the state of another release.
        """

    def collectible(self) -> Offset:
        """Last offset that compaction may touch as far as this machine is concerned."""
