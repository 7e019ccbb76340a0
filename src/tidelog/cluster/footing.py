"""What a replica stands on when it is opened: its newest snapshot, and who takes part.

A log that was compacted or lost its beginning tells only a part; a snapshot makes up for the rest.
Should that be gone or damaged, these are tried one after another:

    an older snapshot that reaches what is missing
    the checkpoint of the machines, which becomes a snapshot
    the log, if it misses nothing
    the peers: the replica is opened tainted, and takes their state before it serves or leads

If none is left, the replica is lost. It is lost as well if nothing tells who takes part: what the
topic began with may have changed since, and a majority of that would be the wrong one.
"""

from dataclasses import dataclass

from crc32c import crc32c

from tidelog.cluster.written import snapshot_meta
from tidelog.machines import Machines
from tidelog.raft.configuration import Configuration
from tidelog.raft.types import HardState, Vnode
from tidelog.records import NO_OFFSET, Offset, internal_payload
from tidelog.storage import Checkpoint, DamagedLog, Log, SnapshotFiles, SnapshotInfo


@dataclass(frozen=True, slots=True)
class Footing:
    snapshot: SnapshotInfo | None  # the newest that the log leads on from, or is to reach
    initial: Configuration | None  # in force where the log tells none


def find_footing(
    vnode: Vnode,
    directory: str,
    log: Log,
    hard: HardState,
    snapshots: SnapshotFiles,
    machines: Machines,
    checkpoint: Checkpoint | None,
    initial: Configuration | None,
) -> Footing:
    """Return what to begin with; raises `DamagedLog` if the replica is lost.

    `checkpoint` is where the machines were put already; `initial` is what the group began with.
    """
    missing = max(hard.compacted, Offset(log.start - 1))
    latest = _leading_on(log, snapshots.latest())
    if _falls_short(latest, missing) and checkpoint is not None and checkpoint.offset >= missing:
        latest = _write(snapshots, checkpoint, machines)
    reached = _leading_on(log, snapshots.latest(log.dirty))
    if reached is not None:
        initial = snapshot_meta(reached).configuration
    elif log.start > 0:
        initial = None
    batch = log.last_configuration(log.dirty)
    current = initial if batch is None else Configuration.decode(internal_payload(batch))
    if current is None and log.start > 0:
        raise _lost(directory, log.start, "neither the log nor a snapshot tells who takes part")
    alone = current is not None and set(current.members) == {vnode}
    if alone and _falls_short(latest, missing):
        reason = f"nothing makes up for what the log lacks up to offset {missing}"
        raise _lost(directory, Offset(missing), f"{reason}, and there is no peer to ask")
    return Footing(latest, initial)


def _falls_short(info: SnapshotInfo | None, missing: Offset) -> bool:
    return (NO_OFFSET if info is None else info.offset) < missing


def _leading_on(log: Log, info: SnapshotInfo | None) -> SnapshotInfo | None:
    """A snapshot with a hole between it and the beginning of the log is of no use."""
    return None if info is None or info.offset + 1 < log.start else info


def _write(files: SnapshotFiles, checkpoint: Checkpoint, machines: Machines) -> SnapshotInfo:
    """Put a snapshot of the machines in the place of the one that is missing."""
    state = machines.snapshot()
    info = SnapshotInfo(
        checkpoint.offset, checkpoint.term, len(state), crc32c(state), checkpoint.metadata
    )
    files.write(info, state)
    return info


def _lost(directory: str, offset: Offset, reason: str) -> DamagedLog:
    return DamagedLog(f"{directory}/snapshots", 0, offset, reason)
