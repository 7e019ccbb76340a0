"""`tidelog node recover`: a node goes on with what it has, because the majority is gone for good.

Everything that follows is done on the directory of a stopped node, whose lock is held. It is worked
out on a copy of the controller's log, so until the last step nothing has happened:

    survey      copy group 0, make this node its only voter, fold it all: what is left?
    go on       write `RecoverCluster`, which gives the cluster another id and this node another
                revision; end the copy's log with that one as the only voter; sync; give the copy
                its name, register it, and replace the identity, which makes it true

Former members know the old id. They cannot connect to a node with the new one, so nothing that they
bring back is believed or counted: they join again, as new nodes with an empty directory. Only one
that was named as kept may come with its data, after `follow` has told its directory the new id.

Partitions are taken over when the node runs (`succession.py`, `inheriting.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import IO, Final

from tidelog.cluster import commands as cmd
from tidelog.cluster.directory import Taken, take
from tidelog.cluster.errors import ClusterError, StartFailed
from tidelog.cluster.hosting import directory_of
from tidelog.cluster.identity import (
    Identity,
    controller_directory,
    load_identity,
    recovered_id,
    save_identity,
)
from tidelog.cluster.inheriting import make_sole_voter
from tidelog.cluster.jointoken import JoinToken, Kept, SecretTrouble, keep_secret, read_secret
from tidelog.cluster.model import CONTROLLER_GROUP, PartitionState
from tidelog.cluster.offline import OfflineHost, lead, write
from tidelog.cluster.registry import Registry
from tidelog.cluster.replica import Replica
from tidelog.cluster.state import ClusterState
from tidelog.cluster.succession import has_majority, left_over
from tidelog.raft.core import Options
from tidelog.raft.types import NodeId, Vnode
from tidelog.records import NO_OFFSET, BatchType, Offset, Term, internal_batch
from tidelog.storage import DamagedLog, LogConfig, RealDisk, wall_ms
from tidelog.storage.state import StateFile

WORK: Final = "recovering"  # the copy, below the data directory


class RecoveryRefused(StartFailed):
    """This directory cannot be gone on with; the message says why, and what to do."""


class Fate(Enum):
    """What a recovery makes of a partition."""

    UNTOUCHED = "untouched"  # it has no replica on a node that is given up
    MAJORITY = "majority"  # the replicas that are left are a majority: nothing is lost
    ALONE = "alone"  # one replica is left, and the partition goes on with that
    UNDECIDED = "undecided"  # several are left, no majority: to be recovered when they run
    GONE = "gone"  # no replica is left


@dataclass(frozen=True, slots=True)
class PartitionFound:
    topic: str
    index: int
    replicas: tuple[NodeId, ...]
    fate: Fate
    survivor: NodeId | None  # of ALONE
    # Of the replica in this directory: how far its log is known to be on the disk; None without.
    flushed: Offset | None


@dataclass(frozen=True, slots=True)
class Survey:
    node: NodeId
    cluster_id: str
    members: tuple[NodeId, ...]
    lost: tuple[NodeId, ...]  # members that are given up
    term: Term
    # Of the controller's log: known to be committed, and the end, whose last part may not be.
    committed: Offset
    end: Offset
    version: int  # commands that the state holds
    partitions: tuple[PartitionFound, ...]

    def count(self, fate: Fate) -> int:
        return sum(each.fate is fate for each in self.partitions)

    @property
    def has_majority(self) -> bool:
        """Whether enough members are left that there is nothing to recover."""
        return 2 * len(self.lost) < len(self.members)


class Rescue:
    """The directory of a stopped node. Use `rescue`."""

    def __init__(self, data: Path, identity: Identity, registry: Registry, kept: Kept) -> None:
        self._data = data
        self._disk = RealDisk(data)
        self._identity = identity
        self._registry = registry
        self._kept = kept
        self._state = ClusterState()
        self._host = OfflineHost()
        self._replica: Replica | None = None
        self._end = NO_OFFSET

    # --- Looking --------------------------------------------------------------------------------

    def survey(self, keep: Sequence[int] = ()) -> Survey:
        """Find out what is left here if all but this node and those in `keep` are given up."""
        revision = self._identity.revision
        assert revision is not None
        me = Vnode(self._identity.id, revision)
        with self._explaining():
            self._let_go()
            self._copy(revision)
            replica = self._open(me)
            core = replica.core
            committed, end, term = core.committed, core.dirty, core.term
            replica.close()
            make_sole_voter(self._disk, WORK, me, LogConfig())
            self._lead(me)
        self._end = end
        state = self._state
        member = state.members.get(me.id)
        if member is None or member.revision != revision or not state.cluster_id:
            raise RecoveryRefused(
                f"the controller's log in {self._data} is older than the node's own membership, so"
                " it does not know the cluster as it was: recover on another node"
            )
        strangers = sorted(set(keep) - state.members.keys())
        if strangers:
            raise RecoveryRefused(
                f"nodes {_listed(strangers)} are not members of this cluster: its members are"
                f" {_listed(state.members)}"
            )
        lost = tuple(sorted(state.members.keys() - {me.id, *map(NodeId, keep)}))
        found = tuple(
            self._look_at(topic.name, partition, lost) for topic, partition in state.partitions()
        )
        members = tuple(sorted(state.members))
        return Survey(
            me.id, state.cluster_id, members, lost, term, committed, end, state.version, found
        )

    def _copy(self, revision: int) -> None:
        shutil.rmtree(self._data / WORK, ignore_errors=True)
        shutil.copytree(self._data / controller_directory(revision), self._data / WORK)

    def _open(self, vnode: Vnode) -> Replica:
        self._host, self._state = OfflineHost(), ClusterState()
        return Replica.open(
            self._host,
            self._disk,
            WORK,
            group=CONTROLLER_GROUP,
            vnode=vnode,
            initial=None,
            options=Options(),
            log_config=LogConfig(),
            machines=lambda: [self._state],
            cache=None,
            clock=wall_ms,
            known=True,
        )

    def _lead(self, vnode: Vnode) -> None:
        self._replica = self._open(vnode)
        lead(self._host, self._replica)

    def _look_at(
        self, topic: str, partition: PartitionState, lost: Sequence[NodeId]
    ) -> PartitionFound:
        left = left_over(partition, lost)
        survivor: NodeId | None = None
        if not {each.id for each in partition.known} & set(lost):
            fate = Fate.UNTOUCHED
        elif has_majority(partition, left):
            fate = Fate.MAJORITY
        elif len(left) == 1:
            fate, survivor = Fate.ALONE, left[0].id
        else:
            fate = Fate.UNDECIDED if left else Fate.GONE
        mine = partition.replica_on(self._identity.id)
        flushed = None if mine is None else self._flushed(directory_of(topic, partition, mine))
        return PartitionFound(topic, partition.index, partition.nodes, fate, survivor, flushed)

    def _flushed(self, directory: str) -> Offset | None:
        """How far the log in a directory is known to be on the disk; None if it is not there."""
        state = StateFile(self._disk, f"{directory}/log")
        with contextlib.suppress(OSError):
            if state.load():
                return max(state.marked, state.state.point.offset)
        return None

    # --- Going on -------------------------------------------------------------------------------

    def go_on(self, survey: Survey, *, empty: bool) -> str:
        """Make it so, and return the id of the cluster from now on; needs `survey` before.

        With `empty`, partitions that have no replica left begin anew on this node.
        """
        replica = self._replica
        assert replica is not None
        command = cmd.RecoverCluster(
            token=cmd.new_token(),
            node=self._identity.id,
            cluster_id=recovered_id(survey.cluster_id),
            lost=survey.lost,
            empty=empty,
            at_ms=wall_ms(),
            end=self._end,
        )
        with self._explaining():
            write(self._host, replica, internal_batch(BatchType.CHANGELOG, cmd.encode(command)))
            revision = self._state.results[command.token].get()
            assert revision is not None
            replica.close()
            me = Vnode(self._identity.id, revision)
            make_sole_voter(self._disk, WORK, me, LogConfig())
            self._lead(me)  # proves that the node can start with it
            assert self._replica is not None
            self._replica.close()
            self._replica = None
            self._put_in_place(revision, command.cluster_id)
        return command.cluster_id

    def _put_in_place(self, revision: int, cluster_id: str) -> None:
        place = controller_directory(revision)
        sync_tree(self._data / WORK)
        # Of an attempt that ended before it had replaced the identity.
        shutil.rmtree(self._data / place, ignore_errors=True)
        self._disk.rename(WORK, place)
        self._disk.sync_directory("")
        self._registry.add([(CONTROLLER_GROUP, revision)])
        changed = replace(self._identity, cluster_id=cluster_id, revision=revision, births={})
        save_identity(self._disk, changed)
        keep_secret(self._data, replace(self._kept, cluster_id=cluster_id))

    # --- Following ------------------------------------------------------------------------------

    def follow(self, token: JoinToken) -> None:
        """Let a node that was kept join the recovered cluster with the data that it has."""
        if token.secret != self._kept.secret:
            raise RecoveryRefused(
                "this token is of another cluster. Print the right one with `tidelog node token`"
                " on the machine of the node that was recovered"
            )
        if not token.cluster_id or token.cluster_id == self._identity.cluster_id:
            raise RecoveryRefused(
                "this token is from before the recovery: print a new one with `tidelog node token`"
                " on the machine of the node that was recovered"
            )
        revision = self._identity.revision
        assert revision is not None
        with self._explaining():
            why = "this cluster was recovered on another node"
            self._registry.lose(CONTROLLER_GROUP, revision, why)
            changed = replace(self._identity, cluster_id=token.cluster_id, births={})
            save_identity(self._disk, changed)
            seeds = token.seeds or self._kept.seeds
            keep_secret(self._data, Kept(self._kept.secret, token.cluster_id, seeds))

    # --- The end --------------------------------------------------------------------------------

    def _let_go(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            with contextlib.suppress(OSError):
                replica.close()

    def close(self) -> None:
        self._let_go()
        shutil.rmtree(self._data / WORK, ignore_errors=True)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except DamagedLog as error:
            raise RecoveryRefused(
                f"the controller's log of this node is damaged: {error.path}, at position"
                f" {error.position}. Recover on another node that is left"
            ) from error
        except (OSError, ClusterError) as error:
            raise RecoveryRefused(f"{self._data} cannot be recovered: {error}") from error


@contextlib.contextmanager
def rescue(data: Path, *, needs_log: bool = True) -> Iterator[Rescue]:
    """Hold the directory of a stopped node; raises `RecoveryRefused`.

    `needs_log`: the controller's log must be of use, as it is not to a node that follows another.
    """
    if load_identity(data) is None:
        raise RecoveryRefused(
            f"{data} is not the data directory of a node: say where it is with --data"
        )
    with _held(data):
        identity = load_identity(data)
        assert identity is not None
        if identity.revision is None:
            raise RecoveryRefused(
                f"the node in {data} never was a member of a cluster: there is nothing to go on"
                " with. Start it, and it joins the cluster of its seeds"
            )
        registry = Registry.load(RealDisk(data), identity.birth)
        here = registry is not None and registry.hosts(CONTROLLER_GROUP, identity.revision)
        if registry is None or not here:
            raise RecoveryRefused(
                f"{data} does not tell which replicas the node has: its registry is missing or"
                " damaged. Recover on another node that is left"
            )
        why = registry.why_lost(CONTROLLER_GROUP, identity.revision)
        if why is not None and needs_log:
            raise RecoveryRefused(
                f"the controller's log of this node is lost ({why}): recover on another node that"
                " is left"
            )
        try:
            kept = read_secret(data)
        except SecretTrouble as error:
            raise RecoveryRefused(str(error)) from error
        if kept is None:
            raise RecoveryRefused(f"the secret of the cluster is missing in {data}")
        found = Rescue(data, identity, registry, kept)
        try:
            yield found
        finally:
            found.close()


@contextlib.contextmanager
def _held(data: Path) -> Iterator[IO[bytes]]:
    try:
        lock = take(data)
    except Taken as error:
        raise RecoveryRefused(
            f"a node runs on {data}, as {error}: stop it first. As long as it runs, the others may"
            " come back and nothing is lost"
        ) from error
    except OSError as error:
        raise RecoveryRefused(f"{data} cannot be used: {error.strerror}") from error
    with lock:
        yield lock


def sync_tree(root: Path) -> None:
    """Make a copied tree durable."""
    for directory, _, files in os.walk(root):
        for path in [*(Path(directory) / name for name in files), Path(directory)]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
