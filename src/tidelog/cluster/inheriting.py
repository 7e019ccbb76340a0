"""How a replica goes on alone with the log of one that was outvoted by nobody: its peers are gone.

The log gets one more batch, a configuration of which the heir is the only voter, in a term that no
replica that is gone can have seen. Everything before it stays as it is, in the format that it has,
and is committed by the heir's first batch, whether it was committed before or not.

Steps, each of which may be the last before a crash, and is then done again:
1. the vote is saved: the new term, and nobody voted for in it;
2. the configuration is appended and synced;
3. the directory is renamed to that of the heir, which makes it the heir's;
4. the registry notes the heir, which may take part from then on.
"""

import logging
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.cluster.model import Heir
from tidelog.cluster.registry import Registry
from tidelog.cluster.wholeness import check_whole
from tidelog.raft.configuration import Configuration
from tidelog.raft.types import Vnode
from tidelog.records import NO_OFFSET, BatchType, Offset, Term, internal_batch
from tidelog.storage import (
    NO_NODE,
    NOTHING_PROMISED,
    DamagedLog,
    Disk,
    Log,
    LogConfig,
    SnapshotFiles,
    Vote,
    VoteFile,
)

log = logging.getLogger(__name__)

# Above every term that a replica may have reached that nobody can ask any more. An election raises
# the term by one and takes a second or so, and a group whose majority is gone holds none.
TERM_MARGIN: Final = 1000
STAGING: Final = ".heir"


class Inherited(NamedTuple):
    """What the heir begins with."""

    end: Offset  # last offset of what was left
    term: Term  # of the batch that makes it the only voter
    inexact: bool  # machines may lack what was compacted while it was catching up


def take_over(
    disk: Disk,
    root: Path,
    registry: Registry,
    heir: Heir,
    former: str | None,
    directory: str,
    config: LogConfig,
) -> Inherited | None:
    """Make `directory` the heir's, of the files in `former` or of none; None: it was done before.

    Raises `DamagedLog` if what is left cannot be gone on with.
    """
    inherited: Inherited | None = None
    if not disk.exists(directory):
        source = former
        if source is None:
            source = directory + STAGING
            shutil.rmtree(root / source, ignore_errors=True)
            _begin(disk, source, config)
        else:
            why = registry.why_lost(heir.group, heir.was)
            if why is not None:
                raise DamagedLog(source, 0, NO_OFFSET, f"it was lost before: {why}")
            check_whole(disk, source)
        inherited = make_sole_voter(disk, source, heir.vnode, config)
        disk.rename(source, directory)
        disk.sync_directory(directory.rpartition("/")[0])
    registry.add([(heir.group, heir.vnode.revision)])
    registry.remove([(heir.group, heir.was)])
    return inherited


def tell(name: str, inherited: Inherited | None) -> None:
    """Log that a partition goes on with one replica."""
    if inherited is None:
        return
    log.warning(
        "%s goes on with this replica alone, from offset %d of its log, in term %d: the majority of"
        " its replicas was given up%s",
        name,
        inherited.end,
        inherited.term,
        ". It was catching up with a compacted log, so offsets and producers may be off"
        if inherited.inexact
        else "",
    )


def _begin(disk: Disk, directory: str, config: LogConfig) -> None:
    disk.make_directory(directory)
    Log.open(disk, f"{directory}/log", config).close()
    VoteFile(disk, f"{directory}/vote").save(NOTHING_PROMISED)


def make_sole_voter(disk: Disk, directory: str, vnode: Vnode, config: LogConfig) -> Inherited:
    """End the log of a closed replica with a configuration of one voter; durable on return."""
    vote_file = VoteFile(disk, f"{directory}/vote")
    vote = vote_file.load()
    if vote is None:
        raise DamagedLog(f"{directory}/vote", 0, NO_OFFSET, "it is missing")
    snapshot = SnapshotFiles(disk, f"{directory}/snapshots").latest()
    covered = NO_OFFSET if snapshot is None else snapshot.offset
    log = Log.open(disk, f"{directory}/log", config)
    try:
        end, term = log.dirty, Term(max(vote.term, log.last_term) + TERM_MARGIN)
        # Nobody can tell any more what was compacted beyond the snapshot: what is there is all.
        compacted = min(vote.compacted, covered)
        vote_file.save(Vote(term, NO_NODE, 0, compacted))
        content = Configuration((vnode,)).encode()
        log.append([internal_batch(BatchType.CONFIGURATION, content).stamp(Offset(end + 1), term)])
    finally:
        log.close()  # syncs what was appended
    return Inherited(end, term, compacted < vote.compacted)
