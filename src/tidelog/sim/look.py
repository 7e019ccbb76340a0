"""How the judge looks at a live replica: turning one into the plain data that invariants read.

Only public attributes are read, and nothing is changed but caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.cluster.replica import Replica
from tidelog.machines import UnknownOffset
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Core
from tidelog.raft.events import Event
from tidelog.raft.messages import Message, SnapshotMeta
from tidelog.raft.types import NodeId, Vnode
from tidelog.records import Batch, Offset, Term
from tidelog.sim.facts import Exam, Glimpse, Marks, Segment, Sight, Translated, pair
from tidelog.sim.truth import GroupTruth

if TYPE_CHECKING:
    from tidelog.sim.world import World

# Data offsets that one exam translates, spread over the log.
SAMPLES: Final = 50
READ_BYTES: Final = 1 << 20


class Clocks:
    """By how much the wall clocks of the nodes were ever apart."""

    def __init__(self) -> None:
        self._behind = 0
        self._ahead = 0

    def look(self, world: World) -> None:
        for node in world.nodes.values():
            skew = node.wall_ms() - true_ms(world)
            self._behind = min(self._behind, skew)
            self._ahead = max(self._ahead, skew)

    def latest(self, world: World) -> int:
        """The latest time that a clock, once set back and forth, can have made of now."""
        return true_ms(world) + self._ahead - self._behind


def true_ms(world: World) -> int:
    """The wall clock of the world itself."""
    from tidelog.sim.node import EPOCH_MS

    return EPOCH_MS + world.now // 1000


def initial_configuration(world: World) -> Configuration:
    """The configuration that every group of this world began with."""
    return Configuration(tuple(Vnode(NodeId(n), 0) for n in range(1, world.knobs.voters + 1)))


def sight(replica: Replica) -> Sight:
    core, log = replica.core, replica.log
    return Sight(
        vnode=core.vnode,
        role=core.role,
        term=core.term,
        start=log.start,
        dirty=core.dirty,
        flushed=core.flushed,
        committed=core.committed,
        visible=core.visible,
        applied=replica.machines.applied,
        collectible=core.collectible,
        compacted=core.hard.compacted,
        readable=core.readable,
        prefix_term=log.prefix_term,
        confirmed=core.confirmed,
        tainted=core.tainted,
        waits=not core.shipping.machines_are_exact(),
        snapshot=core.snapshot,
        configuration=core.configuration,
        configuration_offset=core.configuration_offset,
        matches={node: progress.match for node, progress in core.progress.items()},
    )


def glimpse(core: Core, event: Event, *, handing_over: bool) -> Glimpse:
    marks = None
    if isinstance(event, Message) and (progress := core.progress.get(event.source)) is not None:
        marks = Marks(progress.match, progress.dirty, progress.flushed, progress.received_seq)
    return Glimpse(
        core.role,
        core.term,
        core.committed,
        core.applied,
        core.configuration_offset,
        marks,
        handing_over,
    )


def stored(replica: Replica) -> list[Batch]:
    """Every batch in the log."""
    log = replica.log
    batches: list[Batch] = []
    position = log.start
    while position <= log.dirty:
        found = log.read(position, READ_BYTES)
        if not found:
            break
        batches += found
        position = Offset(found[-1].last_offset + 1)
    return batches


def snapshot_state(replica: Replica, snapshot: SnapshotMeta) -> bytes | None:
    """A snapshot as the replica's files have it; None if it cannot be read whole."""
    info = replica.snapshots.find(snapshot.offset)
    if info is None or (info.size, info.crc) != (snapshot.size, snapshot.crc):
        return None
    try:
        return replica.snapshots.load(info)
    except OSError:
        return None


def examine(
    replica: Replica,
    seen: Sight,
    truth: GroupTruth,
    clocks: Clocks,
    world: World,
    *,
    opened: bool,
) -> Exam:
    lineage = truth.replica(seen.vnode).lineage
    pairs, strangers = pair(lineage, seen.start, stored(replica))
    description = replica.log.describe()
    return Exam(
        vnode=seen.vnode,
        sight=seen,
        opened=opened,
        pairs=pairs,
        strangers=strangers,
        segments=[Segment(each.base, each.last, each.term) for each in description.segments],
        state=_state(replica, seen),
        translated=_translated(replica, truth, seen),
        term_ends=_term_ends(replica, truth),
        now_ms=clocks.latest(world),
        delete_retention_ms=world.knobs.tombstones,
    )


def _state(replica: Replica, seen: Sight) -> bytes | None:
    if seen.applied > seen.readable:
        return None
    try:
        return replica.machines.snapshot()
    except UnknownOffset:
        return None  # the log begins anew, and the snapshot that leads to it is being restored


def _translated(replica: Replica, truth: GroupTruth, seen: Sight) -> list[Translated]:
    translation = replica.machines.translation
    data = [
        entry
        for entry in truth.replica(seen.vnode).lineage.between(seen.start - 1, seen.dirty)
        if entry.is_data and entry.base >= seen.start
    ]
    answers = []
    try:
        for entry in data[:: 1 + len(data) // SAMPLES]:
            for offset in (entry.base, entry.last):
                client = translation.to_client(offset)
                answers.append(Translated(offset, client, translation.to_log(client)))
    except UnknownOffset:
        return []  # as above
    return answers


def _term_ends(replica: Replica, truth: GroupTruth) -> dict[Term, tuple[Term, Offset]]:
    terms = dict.fromkeys(entry.term for entry in truth.ledger.entries)
    return {term: replica.log.term_end(term) for term in terms}
