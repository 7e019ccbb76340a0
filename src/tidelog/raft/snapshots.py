"""Machine snapshots that are not bound to truncation (seed 3), on every role.

Compaction removes records that a machine may need. So before a leader compacts at X it takes a
snapshot of its machines at X and sees to it that every replica can get at that state:

    LOG   the snapshot is a batch of the log; whoever applies it has the state, and may compact
    SIDE  the snapshot is a file; once a majority stores it, appends say "compacted up to X", and a
          follower that lacks it asks everybody, downloads it in checked chunks and restores it

A replica is *tainted* while its log may lack records that its machines have not made up for. What
a leader sends below its own `compacted` mark taints the follower. A tainted replica serves reads
only below the taint. In LOG mode its machines go on, perhaps wrongly, and are put right when the
snapshot batch comes: rewound to X and fed again from there. In SIDE mode they wait for the file.

Restoring needs the log to be committed up to the snapshot, so `applied` never passes `committed`.
`compacted` is on disk before anything is compacted or a hole is acknowledged, so that a restart
knows.

The same download serves a follower whose log ended before the leader's begins (install), one that
reached the end of the log in LOG mode without a snapshot (its disk refused to keep the one that
came by, or the cluster shipped beside the log when that one was taken), and a replica that finds
its snapshot damaged when it is opened.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft import quorum
from tidelog.raft.progress import Progress, State
from tidelog.raft.types import ShippingMode, Vnode
from tidelog.records import NO_OFFSET, Offset

if TYPE_CHECKING:
    from tidelog.raft.core import Core


@dataclass(slots=True)
class _Shipment:
    """The leader's snapshot on its way to the replicas."""

    token: int
    snapshot: msg.SnapshotMeta | None = None  # None while it is being taken


@dataclass(slots=True)
class _Download:
    snapshot: msg.SnapshotMeta
    source: Vnode
    position: int = 0
    install: bool = False  # the log, too, must reach the snapshot
    # `position` at the last heartbeat: no change for a whole interval means loss.
    beat_position: int = -1


class Shipping:
    def __init__(self, core: "Core", snapshot: msg.SnapshotMeta | None) -> None:
        self.core = core
        self.snapshot = snapshot  # the newest on disk
        covered = snapshot.offset if snapshot is not None else NO_OFFSET
        compacted = core.hard.compacted
        # First offset that may lack records which the machines have not made up for.
        self.taint: Offset | None = Offset(covered + 1) if compacted > covered else None
        # The machines are to be put to `snapshot` before they may go on; without one they wait for
        # what a peer has, because the log begins too late for them.
        self.restore_pending = max(covered, Offset(core.log.start - 1)) > core.applied
        self._restoring = False
        self.collectible = compacted if compacted <= covered else NO_OFFSET
        self._announced = compacted  # the highest "compacted up to" that a leader told
        self._shipment: _Shipment | None = None
        self._download: _Download | None = None

    # --- What it means for machines and readers -------------------------------------------------

    def machines_are_exact(self) -> bool:
        return self.taint is None and not self.restore_pending

    def readable(self) -> Offset:
        bound = self.core.visible
        if self.restore_pending:
            bound = min(bound, self.core.applied)
        if self.taint is not None:  # through the log, machines are applied past it, wrongly
            bound = min(bound, Offset(self.taint - 1))
        return bound

    def received_holes(self, first: Offset, compacted: Offset) -> None:
        """Batches from `first` on come from a log that was compacted up to `compacted`."""
        covered = self.snapshot.offset if self.snapshot is not None else NO_OFFSET
        if compacted > self.core.hard.compacted:
            self.core.raise_compacted(compacted)
        if compacted > covered:
            self.taint = first if self.taint is None else min(self.taint, first)
        elif first <= covered:
            # The snapshot at hand makes up for them, once the log reaches it.
            self.restore_pending = True

    def settle(self) -> None:
        """Do what has become possible: restore, apply, compact."""
        core = self.core
        snapshot = self.snapshot
        if snapshot is not None and not self._restoring and core.committed >= snapshot.offset:
            makes_good = self.taint is not None and snapshot.offset >= core.hard.compacted
            if self.restore_pending or makes_good:
                self._restoring = True
                self.restore_pending = True
                core.emit(ev.Restore(snapshot))
        bound = self._apply_bound()
        if bound > core.applied:
            core.emit(ev.ApplyUpTo(bound))
        self.on_persisted()

    def _apply_bound(self) -> Offset:
        core = self.core
        if self.restore_pending:
            return core.applied
        if self.taint is not None and core.options.shipping is ShippingMode.SIDE:
            return min(core.committed, Offset(self.taint - 1))
        return core.committed

    def on_restored(self, event: ev.Restored) -> None:
        core = self.core
        self._restoring = False
        core.applied = event.snapshot.offset
        # Meanwhile the log may have been made to begin after a newer snapshot.
        self.restore_pending = core.log.start > event.snapshot.offset + 1
        if event.snapshot.offset >= core.hard.compacted:
            self.taint = None
        self._permit()
        self.on_persisted()
        self.settle()

    # --- Leave to compact -----------------------------------------------------------------------

    def _permit(self) -> None:
        """SIDE: what the leader compacted, and this replica has a snapshot for, may go here too."""
        if self.snapshot is None or self.taint is not None:
            return
        if self.core.leading is None and self.core.options.shipping is ShippingMode.SIDE:
            self._allow(min(self._announced, self.snapshot.offset))

    def _allow(self, upto: Offset) -> None:
        self.core.raise_compacted(upto)
        self.on_persisted()

    def on_persisted(self) -> None:
        """`compacted` is on disk: compaction may begin, where a snapshot covers it."""
        core = self.core
        if self.snapshot is None or self.taint is not None:
            return
        if core.committed < self.snapshot.offset:
            return  # a log that lost its beginning and does not reach its snapshot is worth nothing
        upto = min(core.persisted.compacted, self.snapshot.offset)
        if upto > self.collectible:
            self.collectible = upto
            self.core.emit(ev.Collectible(upto))

    # --- The leader ships -----------------------------------------------------------------------

    def on_compact(self, event: ev.Compact) -> None:
        core = self.core
        if core.leading is None:
            core.refuse(event.token, ev.Refusal.NOT_LEADER)
        elif self._shipment is not None:
            core.refuse(event.token, ev.Refusal.BUSY)
        elif not core.ready:
            core.refuse(event.token, ev.Refusal.NOT_READY)
        elif self.snapshot is not None and core.applied <= self.snapshot.offset:
            core.refuse(event.token, ev.Refusal.INVALID)
        else:
            self._shipment = _Shipment(event.token)
            core.emit(ev.TakeSnapshot())

    def _ship(self, snapshot: msg.SnapshotMeta) -> None:
        core = self.core
        assert self._shipment is not None
        self._shipment.snapshot = snapshot
        if core.options.shipping is ShippingMode.LOG:
            if snapshot.size > core.options.max_log_snapshot:
                self._end_shipment(ev.Refusal.INVALID)
            else:
                core.emit(ev.ShipInLog(snapshot))
            return
        for node in core.progress:
            self._offer(node, snapshot, msg.Purpose.STORE)
        self._check_majority()

    def _offer(self, node: Vnode, snapshot: msg.SnapshotMeta, purpose: msg.Purpose) -> None:
        core = self.core
        core.send(msg.SnapshotOffer(core.group, core.vnode, node, core.term, snapshot, purpose))

    def offer_install(self, node: Vnode) -> None:
        # The log begins after 0 only where a snapshot covers what is gone. If its file was damaged,
        # this replica is about to take one from a peer, and offers that.
        assert self.snapshot is not None or self.taint is not None, self.core
        if self.snapshot is not None:
            self._offer(node, self.snapshot, msg.Purpose.INSTALL)

    def _stored_of(self, node: Vnode) -> Offset:
        if node == self.core.vnode:
            return self.snapshot.offset if self.snapshot is not None else NO_OFFSET
        progress = self.core.progress.get(node)
        return progress.stored if progress is not None else NO_OFFSET

    def stored_by_majority(self) -> Offset:
        """The newest snapshot offset that a majority has on disk."""
        return quorum.reached(self.core.configuration.halves, self._stored_of)

    def is_covered(self, voters: Sequence[Vnode]) -> bool:
        """Whether a majority of these could make up for all that was compacted."""
        return quorum.reached((voters,), self._stored_of) >= self.core.hard.compacted

    def _check_majority(self) -> None:
        shipment = self._shipment
        if shipment is None or shipment.snapshot is None:
            return
        if self.core.options.shipping is ShippingMode.LOG:
            return
        if self.stored_by_majority() >= shipment.snapshot.offset:
            self._allow(shipment.snapshot.offset)
            self._end_shipment(None)

    def _end_shipment(self, why: ev.Refusal | None) -> None:
        shipment, self._shipment = self._shipment, None
        assert shipment is not None
        if why is not None:
            self.core.refuse(shipment.token, why)
        elif shipment.snapshot is not None:
            self.core.done(shipment.token, shipment.snapshot.offset)

    def abandon_shipment(self) -> None:
        if self._shipment is not None:
            self._end_shipment(ev.Refusal.NOT_LEADER)

    def on_failed(self, _: ev.SnapshotFailed) -> None:
        if self._shipment is not None:
            self._end_shipment(ev.Refusal.STORAGE)

    def on_stored(self, message: msg.SnapshotStored) -> None:
        core = self.core
        progress = core.progress.get(message.source)
        if progress is None or core.leading is None:
            return
        progress.stored = max(progress.stored, message.offset)
        self._check_majority()
        if message.installed:
            core.leading.installed(message.source, message.offset)
        core.leading.on_stored()

    def on_applied(self, event: ev.SnapshotApplied) -> None:
        """A snapshot batch is committed and its snapshot on this disk (LOG)."""
        self._keep(event.snapshot)
        if self.taint is None or event.snapshot.offset >= self.core.hard.compacted:
            self._allow(event.snapshot.offset)
        shipment = self._shipment
        if shipment is not None and shipment.snapshot == event.snapshot:
            self._end_shipment(None)
        self.settle()

    # --- Heartbeats drive what got stuck --------------------------------------------------------

    def is_quiet(self) -> bool:
        return self._shipment is None and self.taint is None

    def on_beat(self, node: Vnode, progress: Progress) -> None:
        """The leader is about to send a full heartbeat to this follower."""
        shipment = self._shipment
        side = self.core.options.shipping is ShippingMode.SIDE
        if side and shipment is not None and shipment.snapshot is not None:
            if progress.stored < shipment.snapshot.offset:
                self._offer(node, shipment.snapshot, msg.Purpose.STORE)
            self._check_majority()
        if progress.state is State.SNAPSHOT:
            self.offer_install(node)
        if self.taint is not None and node == next(iter(self.core.progress)):
            self._poke()  # once a round, whatever the number of followers

    def leader_compacted(self, upto: Offset, *, beat: bool) -> None:
        """The leader says that its log was compacted up to here."""
        self._announced = max(self._announced, upto)
        if beat:
            self._poke()
        self._permit()

    def _wanted(self) -> Offset | None:
        """The lowest offset at which a snapshot would help."""
        core = self.core
        folds = self.snapshot is not None or not self.restore_pending
        if core.options.shipping is ShippingMode.LOG and core.applied < core.committed and folds:
            return None  # the log may bring one yet
        covered = self.snapshot.offset if self.snapshot is not None else NO_OFFSET
        goal = max(self._announced, core.hard.compacted)
        return goal if goal > covered else None

    def _poke(self) -> None:
        download = self._download
        if download is not None:
            if download.position == download.snapshot.size:
                return  # all of it is here, and being saved
            if download.position != download.beat_position:
                download.beat_position = download.position
                self._request_chunk(download)
                return
            self._download = None  # silent for a whole interval: perhaps another peer has it
        wanted = self._wanted()
        if wanted is not None:
            core = self.core
            for node in core.configuration.members:
                if node != core.vnode:
                    core.send(msg.SnapshotQuery(core.group, core.vnode, node, core.term, wanted))

    # --- Finding, downloading, installing -------------------------------------------------------

    def on_query(self, message: msg.SnapshotQuery) -> None:
        core = self.core
        if self.snapshot is not None and self.snapshot.offset >= message.at_least:
            core.send(
                msg.SnapshotFound(core.group, core.vnode, message.source, core.term, self.snapshot)
            )

    def on_found(self, message: msg.SnapshotFound) -> None:
        wanted = self._wanted()
        if wanted is not None and message.snapshot.offset >= wanted and self._download is None:
            self._begin(_Download(message.snapshot, message.source))

    def on_offer(self, message: msg.SnapshotOffer) -> None:
        if message.source != self.core.leader:
            return
        install = message.purpose is msg.Purpose.INSTALL
        if self.snapshot is not None and self.snapshot.offset >= message.snapshot.offset:
            if install:
                self._install(self.snapshot)
            self._tell_stored(self.snapshot, installed=install)
            return
        download = self._download
        if download is not None and download.snapshot == message.snapshot:
            download.install = download.install or install
        elif download is None or download.snapshot.offset < message.snapshot.offset:
            self._begin(_Download(message.snapshot, message.source, install=install))

    def _begin(self, download: _Download) -> None:
        self._download = download
        self._request_chunk(download)

    def _request_chunk(self, download: _Download) -> None:
        core = self.core
        core.send(
            msg.SnapshotRequest(
                core.group,
                core.vnode,
                download.source,
                core.term,
                download.snapshot.offset,
                download.position,
            )
        )

    def on_request(self, message: msg.SnapshotRequest) -> None:
        core = self.core
        if self.snapshot is not None and self.snapshot.offset == message.offset:
            core.emit(ev.SendChunk(message))
            return
        core.send(
            msg.SnapshotChunk(
                core.group,
                core.vnode,
                message.source,
                core.term,
                message.offset,
                message.position,
                b"",
                0,
            )
        )

    def on_chunk(self, message: msg.SnapshotChunk) -> None:
        download = self._download
        if download is None or message.source != download.source:
            return
        if message.offset != download.snapshot.offset or message.position != download.position:
            return  # of an earlier try, or twice
        if not message.data:
            self._download = None
        else:
            self.core.emit(ev.StoreChunk(download.snapshot, message))

    def on_chunk_stored(self, event: ev.ChunkStored) -> None:
        download = self._download
        if download is None or download.snapshot.offset != event.offset:
            return
        download.position = event.position
        if event.position < download.snapshot.size:
            self._request_chunk(download)

    def on_chunk_refused(self, event: ev.ChunkRefused) -> None:
        if self._download is not None and self._download.snapshot.offset == event.offset:
            self._download = None

    def on_saved(self, event: ev.SnapshotSaved) -> None:
        snapshot = event.snapshot
        self._keep(snapshot)
        download = self._download
        if download is not None and download.snapshot.offset <= snapshot.offset:
            self._download = None
            if download.install:
                self._install(snapshot)
            self._tell_stored(snapshot, installed=download.install)
        shipment = self._shipment
        if self.core.leading is not None and shipment is not None and shipment.snapshot is None:
            self._ship(snapshot)
        self._permit()
        self.settle()

    def _keep(self, snapshot: msg.SnapshotMeta) -> None:
        if self.snapshot is None or snapshot.offset > self.snapshot.offset:
            self.snapshot = snapshot

    def _tell_stored(self, snapshot: msg.SnapshotMeta, *, installed: bool) -> None:
        core = self.core
        if core.leader is not None and core.leader != core.vnode:
            core.send(
                msg.SnapshotStored(
                    core.group, core.vnode, core.leader, core.term, snapshot.offset, installed
                )
            )

    def _install(self, snapshot: msg.SnapshotMeta) -> None:
        """Make the log reach the snapshot: it may hold it already, or has to begin after it."""
        core = self.core
        if snapshot.offset <= core.committed:
            return
        if core.log.term_of(snapshot.offset) == snapshot.term:
            # Log matching: everything up to it is here, and it is committed.
            core.commit_to(min(snapshot.offset, core.flushed))
            return
        self.restore_pending = True
        core.reset_log(snapshot)
