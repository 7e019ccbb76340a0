"""One replica: the core, its log, its machines and its snapshots, made to work together.

The replica does what the core says. It has no clock, task or thread of its own: whoever hosts it
(an asyncio node, the simulator) brings messages and timers in as events and runs the blocking jobs
it submits. Appends and truncations are done at once, because the page cache takes them; a flush, a
vote, a snapshot file and a compaction are jobs, and their completion is an event.

Rules:
1. Events are taken one after another, also those that arise while one is being executed; the
   answer to an `Append` goes before all others, as the core demands.
2. At most one flush and one vote are under way; whatever was asked meanwhile is done with the next.
3. A disk that refuses is survived: a full one refuses single writes, and `failed` says when the
   replica has to be opened again, as after a failed fsync. Until then it acknowledges nothing; what
   it must find on the disk when it is opened again is its `legacy`.
4. A machine that cannot go on in this release stops the fold: `stopped` says why. The replica votes
   and keeps its log as before, so that others can go on, but it leads no more. A later release goes
   on from where the machines stand.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from crc32c import crc32c

from tidelog.cluster.checkpoints import Checkpoints
from tidelog.cluster.chunks import Chunks
from tidelog.cluster.errors import reason_of
from tidelog.cluster.footing import find_footing
from tidelog.cluster.host import Host, Job
from tidelog.cluster.legacy import Legacy
from tidelog.cluster.tidying import Tidying
from tidelog.cluster.wholeness import check_whole
from tidelog.cluster.written import (
    decode_snapshot,
    encode_snapshot,
    hard_state,
    snapshot_info,
    snapshot_meta,
    vote_of,
)
from tidelog.machines import (
    CannotApply,
    CorruptSnapshot,
    Machine,
    Machines,
    Producers,
    Standing,
    Translation,
)
from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.admission import Objection
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Core, Options
from tidelog.raft.types import GroupId, HardState, Level, Vnode
from tidelog.records import (
    NO_OFFSET,
    Batch,
    BatchType,
    Offset,
    internal_batch,
    internal_payload,
)
from tidelog.storage import (
    NOTHING_PROMISED,
    BatchCache,
    CheckpointFile,
    DamagedLog,
    Disk,
    FlushJob,
    Log,
    LogConfig,
    SnapshotFiles,
    SnapshotInfo,
    StorageError,
    VoteFile,
    remove_staging,
)

logger = logging.getLogger(__name__)

# How long a batch is told to come again while batches before it are missing here. Clients give a
# leader 30 s for an answer (`request.timeout.ms`), and may have sent the missing ones to the leader
# before shortly after this one was elected; then they send them here. Twice that is enough.
EARLIER_BATCH_MS = 60_000
# How much of the log the machines take before other groups get a turn: 256 KiB of the smallest
# batches take some 20 ms.
APPLY_BYTES = 256 * 1024


class Replica:
    def __init__(
        self,
        host: Host,
        log: Log,
        vote_file: VoteFile,
        snapshots: SnapshotFiles,
        checkpoints: Checkpoints,
        machines: Machines,
        core: Core,
        clock: Callable[[], int],
    ) -> None:
        """Use `open`."""
        self.host = host
        self.log = log
        self.vote_file = vote_file
        self.snapshots = snapshots
        self.checkpoints = checkpoints
        self.machines = machines
        self.core = core
        self.failed: str | None = None  # why it has to be opened again
        self.on_failed: Callable[[str], None] = _ignore
        self.on_refused: Callable[[OSError], None] = _ignore  # the disk took nothing of an append
        # Whether there is room for what clients write. The cluster's own batches are always taken.
        self.takes_writes = True
        self.on_no_room: Callable[[], None] = _nothing  # a client's write was refused for that
        # Why nothing it says or holds can be trusted. It ends, and another one takes its place.
        self.lost: str | None = None
        self.on_lost: Callable[[str], None] = _ignore
        self.stopped: str | None = None  # why the machines stay where they are
        self.on_stopped: Callable[[str], None] = _ignore
        self.on_dropped: Callable[[Objection], None] = _ignore  # a message
        self.cleans = True  # compact by key; otherwise only retention removes anything
        self._turned_away_at = 0
        self._clock = clock
        self._producers = next((m for m in machines.machines if isinstance(m, Producers)), None)
        self._events: deque[ev.Event] = deque()
        self._stepping = False
        self._flushing = False
        self._flush_again = False
        self._unsaved: deque[HardState] = deque()  # votes to persist, oldest first
        self._saving = False
        self._asked_to_persist = False  # by the step at hand
        self._apply_goal = NO_OFFSET
        self._apply_busy = False  # a snapshot batch is being saved, or others have their turn
        self._restoring: msg.SnapshotMeta | None = None
        self._chunks = Chunks(snapshots)
        self._tidying = Tidying(self)
        self._proven: SnapshotInfo | None = None  # was checked, and is about to be sent
        log.on_damage = self.damaged

    @classmethod
    def open(
        cls,
        host: Host,
        disk: Disk,
        directory: str,
        *,
        group: GroupId,
        vnode: Vnode,
        initial: Configuration | None,
        options: Options,
        log_config: LogConfig,
        machines: Callable[[], Sequence[Machine]],
        cache: BatchCache | None,
        clock: Callable[[], int],
        known: bool | None = None,
        legacy: Legacy | None = None,
    ) -> "Replica":
        """Open what the directory holds, or begin there. The first step comes after `start`.

        `known` is what the host remembers of it: it may have taken part, so nothing may be missing;
        or it never has, so there must be nothing that it promised. `legacy` is what a former life
        that failed had on its disk. Raises `DamagedLog` if there is less than that.
        """
        if known:
            check_whole(disk, directory)
        disk.make_directory(directory)
        remove_staging(disk, directory)
        vote_file = VoteFile(disk, f"{directory}/vote", f"group {group} {vnode}")
        vote = vote_file.load()
        hard = hard_state(vote)
        log = Log.open(disk, f"{directory}/log", log_config, cache=cache, clock=clock)
        snapshots = SnapshotFiles(disk, f"{directory}/snapshots")
        checkpoints = Checkpoints(CheckpointFile(disk, f"{directory}/checkpoint"))
        partition = Machines(machines(), Translation(log.start))
        if legacy is not None:
            try:
                legacy.check(directory, log, hard)
            except DamagedLog:
                log.close()
                raise
        checkpoint = checkpoints.resume(partition, log, None if legacy is None else legacy.machines)
        try:
            footing = find_footing(
                vnode, directory, log, hard, snapshots, partition, checkpoint, initial
            )
        except OSError:
            log.close()
            raise
        latest = footing.snapshot
        if known is False and (log.dirty > NO_OFFSET or vote not in (None, NOTHING_PROMISED)):
            log.close()
            raise DamagedLog(
                directory, 0, NO_OFFSET, "it was used, and this node does not know that it was"
            )
        if vote is None:
            vote_file.save(NOTHING_PROMISED)
        core = Core(
            group,
            vnode,
            log,
            hard=hard,
            initial=footing.initial,
            snapshot=snapshot_meta(latest) if latest is not None else None,
            applied=partition.applied,
            options=options,
            leader_alive=host.leader_alive,
        )
        return cls(host, log, vote_file, snapshots, checkpoints, partition, core, clock)

    def start(self) -> None:
        """Do what the core wants done before anything else."""
        self._run(self.core.start())

    def close(self) -> None:
        """Let go of all files. What the disk does not take any more was promised to nobody."""
        self._chunks.abort()
        try:
            self.log.close()
        except OSError as error:
            logger.warning("%s was closed without a last flush: %s", self.log.directory, error)

    # --- The way in -----------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        self._events.append(event)
        if isinstance(event, ev.FlushDue):
            self._save_vote()  # in case the disk refused it before
        if not self._stepping:
            self._run([])

    def produce(self, token: int, batch: Batch, level: Level) -> None:
        """Propose a client's batch; what an idempotent producer sends twice is written once."""
        if batch.producer_id >= 0 and self._producers is not None:
            if self.core.leading is None:
                self.host.resolved(ev.Refused(token, ev.Refusal.NOT_LEADER))
                return
            if not self.core.ready:
                self.turned_away()
                self.host.resolved(ev.Refused(token, ev.Refusal.NOT_READY))
                return
            verdict = self._producers.check(batch)
            if verdict.standing is Standing.DUPLICATE and verdict.last <= self.core.committed:
                self.host.resolved(ev.Done(token, verdict.base))
                return
            if self._overtakes(batch, verdict.standing):
                self.host.resolved(ev.Refused(token, ev.Refusal.EARLY))
                return
            if verdict.standing is not Standing.NEW:
                self.host.resolved(ev.Refused(token, _WHY[verdict.standing]))
                return
            self._propose(token, batch, level)
            if not self._producers.holds(batch):
                self.turned_away()
        else:
            self._propose(token, batch, level)

    def _propose(self, token: int, batch: Batch, level: Level) -> None:
        if self.takes_writes or self.core.leading is None:
            self.step(ev.Propose(token, (batch,), level))
        else:
            self.on_no_room()
            self.host.resolved(ev.Refused(token, ev.Refusal.NO_ROOM))

    def turned_away(self) -> None:
        """A batch of some producer may have been refused, here or elsewhere, that comes again."""
        self._turned_away_at = self.host.now()

    def _overtakes(self, batch: Batch, standing: Standing) -> bool:
        """Whether an earlier batch of this producer may be on its way.

        A client that has several under way may have sent the first to another leader, or here when
        it was refused.

        - The second of an unknown producer, taken as it comes, would be in the log, and the first
          could not follow.
        - The second of a known producer leaves a gap. If it were told so, the client would raise
          its epoch and send all it has no answer for again, to all partitions; what of it is
          written already would be written twice.

        If no batch was turned away for long, the producer was forgotten here, writes to a topic
        that was deleted and created again, or really has lost batches.
        """
        assert self._producers is not None
        unknown = batch.base_sequence > 0 and not self._producers.knows(batch.producer_id)
        return (
            standing is Standing.AHEAD or (standing is Standing.NEW and unknown)
        ) and self.host.now() - self._turned_away_at < EARLIER_BATCH_MS

    def compact_now(self) -> None:
        """Compact the closed segments that may be compacted, and merge small ones."""
        if self.failed is None and self.lost is None and self.cleans:
            self._tidying.begin(self._clock())

    def lose(self, why: str) -> None:
        """Its memory is gone or damaged: it serves nothing more, and its host replaces it.

        A leader keeps its office for the moment that it takes to hand over.
        """
        if self.lost is None:
            self.lost = why
            if self.core.leading is None:
                self._end(why)
            self.on_lost(why)

    def damaged(self, damage: DamagedLog) -> None:
        """A file of this replica is not what was written: what else it holds is in doubt too."""
        self.lose(str(damage))

    def give_up(self, error: OSError) -> None:
        """Take no part until its host has opened it again."""
        self._fail(error)

    def _end(self, why: str) -> None:
        """Take no part from now on, before anything else that waits is done."""
        self._events.appendleft(ev.StorageLost(why))
        if not self._stepping:
            self._run([])

    def truncate_prefix(self, first_kept: Offset) -> bool:
        """Remove the log's beginning, where a snapshot covers it; say whether it was done."""
        if self.failed is not None or self.lost is not None:
            return False
        if not self.log.start < first_kept <= self.collectible() + 1:
            return False
        term = self.log.term_of(Offset(first_kept - 1))
        assert term is not None, first_kept
        self.change_log(lambda: self.log.truncate_prefix(first_kept, term))
        if self.log.start < first_kept:
            return False
        self.machines.prefix_truncated(self.log.start)
        return True

    # --- cluster.tidying.Owner ------------------------------------------------------------------

    def submit(self, lane: str, job: Job, done: Callable[[OSError | None], None]) -> None:
        self.host.submit(lane, job, done)

    def collectible(self) -> Offset:
        """How far records may vanish: not before the machines have them, though a snapshot does."""
        machines = self.machines
        return min(self.core.collectible, machines.collectible(), machines.applied)

    def change_log(self, change: Callable[[], object]) -> None:
        try:
            change()
        except DamagedLog as damage:
            self.log.poison(damage)  # what the core believes was changed was not
            self.damaged(damage)
        except OSError as error:
            self._fail(error)

    # --- The outputs of the core ----------------------------------------------------------------

    def _run(self, outputs: list[ev.Output]) -> None:
        self._stepping = True
        try:
            while True:
                for output in outputs:
                    self._execute(output)
                if self._asked_to_persist:  # once, if a step takes over a term and votes in it
                    self._asked_to_persist = False
                    self._save_vote()
                if not self._events:
                    return
                outputs = self._step(self._events.popleft())
        finally:
            self._stepping = False

    def _step(self, event: ev.Event) -> list[ev.Output]:
        try:
            return self.core.step(event)
        except DamagedLog as damage:
            # The core stands in the middle of a step: it ends here. What it has said already, the
            # outcomes of requests among it, leaves with the last thing it says.
            self.damaged(damage)
            return self.core.step(ev.StorageLost(str(damage)))

    def _execute(self, output: ev.Output) -> None:
        match output:
            case ev.Send(message):
                # It may speak of what could not be done just now; a hand-over claims nothing.
                if self.failed is None or isinstance(message, msg.TimeoutNow):
                    self.host.send(message)
            case ev.Append(batches):
                self._append(batches)
            case ev.Flush():
                self._flush()
            case ev.Persist(state):
                self._unsaved.append(state)
                self._asked_to_persist = True
            case ev.ApplyUpTo(offset):
                self._apply_goal = offset
                self._apply()
            case ev.Accepted() | ev.Done() | ev.Refused():
                self.host.resolved(output)
            case ev.HeardLeader():
                self.host.heard_leader()
            case ev.Truncate(first_removed):
                self.change_log(lambda: self.log.truncate_suffix(first_removed))
                self.machines.truncated(first_removed)
            case ev.RoleChanged():
                self.turned_away()
                if self._producers is not None:
                    self._producers.forget_accepted()
                self.host.role_changed(output)
            case ev.TakeSnapshot():
                self._take_snapshot()
            case ev.ShipInLog(snapshot):
                self._ship_in_log(snapshot)
            case ev.StoreChunk(snapshot, chunk):
                self._store_chunk(snapshot, chunk)
            case ev.SendChunk(request):
                self._send_chunk(request)
            case ev.ResetLog(snapshot):
                start = Offset(snapshot.offset + 1)
                self.change_log(lambda: self.log.reset(start, snapshot.term))
                self.machines.log_reset(start)
            case ev.Restore(snapshot):
                self._restore(snapshot)
            case ev.Collectible():
                if self.cleans:
                    self.change_log(self.log.roll)
                    self.compact_now()
            case ev.DoubtCache():
                self.log.forget_cached()
            case ev.Dropped(why):
                self.on_dropped(why)

    # --- Log ------------------------------------------------------------------------------------

    def _append(self, batches: tuple[Batch, ...]) -> None:
        try:
            dirty = self.log.append(batches)
        except OSError as error:
            if self.log.poisoned:  # what was written could not be taken back
                self._fail(error)
            self._events.appendleft(ev.AppendFailed(str(error)))
            self.on_refused(error)
            return
        for batch in batches:
            self.machines.appended(batch)
            if self._producers is not None and self.core.leading is not None:
                self._producers.accept(batch)
        self._events.appendleft(ev.Appended(dirty))
        if self.log.flushed < dirty:
            self.host.arm_flush()

    def _flush(self) -> None:
        if self._flushing:
            self._flush_again = True
            return
        if self.failed is not None:
            return
        try:
            job = self.log.prepare_flush()
        except OSError as error:  # an append could not be undone, and nothing is to be trusted
            self._fail(error)
            return
        if job is not None:
            self._flushing = True
            self.host.submit("flush", job.start, lambda error: self._flushed(job, error))

    def _flushed(self, job: FlushJob, error: OSError | None) -> None:
        self._flushing = False
        if error is not None:
            self._fail(error)
            return
        upto = self.log.finish_flush(job)
        if self._flush_again:
            self._flush_again = False
            self._flush()
        self.step(ev.Flushed(upto))

    def _fail(self, error: OSError) -> None:
        if self.failed is None and self.lost is None:
            self.failed = reason_of(error)
            self.log.poison(error)
            self.step(ev.StorageLost(self.failed))
            self.on_failed(self.failed)

    def legacy(self, *, machines: bool) -> Legacy:
        """What a failed replica leaves to its next life; with `machines`, their state as well."""
        return Legacy.of(self.core, self.log, self.machines if machines else None)

    # --- Vote -----------------------------------------------------------------------------------

    def _save_vote(self) -> None:
        if self._saving or not self._unsaved or self.failed is not None:
            return
        self._saving = True
        state = self._unsaved[-1]
        vote = vote_of(state)
        self.host.submit(
            "vote", lambda: self.vote_file.save(vote), lambda error: self._vote_saved(state, error)
        )

    def _vote_saved(self, state: HardState, error: OSError | None) -> None:
        self._saving = False
        if error is not None:
            # The file is replaced as a whole, so trying again is safe. Until it succeeds this
            # replica says nothing that depends on it.
            self.host.arm_flush()
            return
        saved: HardState | None = None
        while saved is not state:
            saved = self._unsaved.popleft()
            self.step(ev.Persisted(saved))
        self._save_vote()

    # --- Machines -------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Feed the machines a stretch of the log, up to the goal or the next snapshot batch."""
        applied = self.machines.applied
        if self._apply_busy or self._restoring is not None:
            return
        if self.failed is not None or self.lost is not None or self.stopped is not None:
            return
        if applied >= self._apply_goal:
            return
        shipped: Batch | None = None
        batches: list[Batch] = []
        try:
            found = self.log.read(Offset(applied + 1), APPLY_BYTES, upto=self._apply_goal)
        except DamagedLog:
            return  # `damaged` was told
        for batch in found:
            batches.append(batch)
            self.checkpoints.note(batch)
            if batch.type is BatchType.SNAPSHOT and batch.count:
                shipped = batch
                break
        try:
            self.machines.apply(batches)
        except CannotApply as error:
            self.step(ev.Applied(self.machines.applied))
            self._stop(str(error))
            return
        if not batches:
            self.machines.applied = self._apply_goal  # nothing there but a gap
        self.step(ev.Applied(self.machines.applied))
        if shipped is not None:
            self._save_shipped(shipped)
            return
        if self.checkpoints.is_due(self.log):
            self._save_checkpoint()
        if self.machines.applied < self._apply_goal:
            self._pause_apply("apply", _nothing, _ignore)

    def _stop(self, why: str) -> None:
        """Fold no further, and leave leading to replicas that can go on."""
        self.stopped = why
        self.step(ev.CannotLead())
        self.on_stopped(why)

    def _save_checkpoint(self) -> None:
        try:
            job = self.checkpoints.take(self.machines, self.core, self.log)
        except DamagedLog:
            return  # `damaged` was told
        if job is not None:
            self.host.submit("snapshot", job, self.checkpoints.taken)

    def rest(self) -> bool:
        """Save what a start would read again, if nothing moves; say whether there is work to do.

        Called every so often. It leaves busy replicas alone, which do this by themselves.
        """
        if self.failed is not None or not self.checkpoints.is_due_at_rest(self.machines, self.log):
            return False
        self._save_checkpoint()
        job = self.log.prepare_point()
        if job is not None:
            self.host.submit("snapshot", job, _ignore)
        return True

    def _pause_apply(
        self, lane: str, job: Callable[[], None], done: Callable[[OSError | None], None]
    ) -> None:
        """Go on applying after a job."""
        self._apply_busy = True

        def resume(error: OSError | None) -> None:
            self._apply_busy = False
            done(error)
            self._apply()

        self.host.submit(lane, job, resume)

    def _restore(self, snapshot: msg.SnapshotMeta) -> None:
        self._restoring = snapshot
        loaded: list[bytes] = []

        def load() -> None:
            loaded.append(self.snapshots.load(snapshot_info(snapshot)))

        def done(error: OSError | None) -> None:
            self._restoring = None
            if error is None:
                try:
                    self.machines.restore(loaded[0], snapshot.offset)
                except CannotApply as cannot:
                    self._stop(str(cannot))
                    return
                except CorruptSnapshot as corrupt:
                    error = StorageError(str(corrupt))
            if isinstance(error, DamagedLog):
                self.damaged(error)
            elif error is not None:
                self._fail(error)
            if error is not None:
                return
            self._apply_goal = NO_OFFSET  # the core says anew how far
            self._drop_old_snapshots()
            self.step(ev.Restored(snapshot))

        self.host.submit("snapshot", load, done)

    # --- Snapshots ------------------------------------------------------------------------------

    def _take_snapshot(self) -> None:
        applied = self.machines.applied
        try:
            term = self.log.term_of(applied)
            configuration = self.core.configuration_at(applied)
        except DamagedLog:
            return  # `damaged` was told
        assert term is not None, applied
        state = self.machines.snapshot()
        snapshot = msg.SnapshotMeta(applied, term, configuration, len(state), crc32c(state))
        self.host.submit(
            "snapshot",
            lambda: self.snapshots.write(snapshot_info(snapshot), state),
            lambda error: self._snapshot_taken(snapshot, error),
        )

    def _snapshot_taken(self, snapshot: msg.SnapshotMeta, error: OSError | None) -> None:
        if error is not None:
            self.step(ev.SnapshotFailed(str(error)))
        else:
            self._drop_old_snapshots()
            self.checkpoints.want(self.log)
            self._save_checkpoint()
            self.step(ev.SnapshotSaved(snapshot))

    def _drop_old_snapshots(self) -> None:
        """Keep the newest, and the newest that the log has reached.

        The log may have lost what that one covers. Should the replica start again before the log
        reaches the newest, only that one can tell the configuration.
        """
        latest = self.snapshots.latest()
        reached = self.snapshots.latest(self.core.committed)
        if latest is not None and self._restoring is None:
            self.change_log(lambda: self.snapshots.remove_before(latest.offset, but=reached))

    def _ship_in_log(self, snapshot: msg.SnapshotMeta) -> None:
        try:
            state = self.snapshots.load(snapshot_info(snapshot))
        except OSError as error:
            if isinstance(error, DamagedLog):
                self.damaged(error)
            self._events.append(ev.SnapshotFailed(str(error)))
            return
        batch = internal_batch(BatchType.SNAPSHOT, encode_snapshot(snapshot, state))
        self._events.append(ev.Propose(ev.INTERNAL, (batch,), Level.QUORUM))

    def _save_shipped(self, batch: Batch) -> None:
        """The machines met a snapshot batch: it is on disk before anything builds on it."""
        snapshot, state = decode_snapshot(internal_payload(batch))
        latest = self.snapshots.latest()
        if latest is not None and latest.offset >= snapshot.offset:
            self._events.append(ev.SnapshotApplied(snapshot))
            self._pause_apply("apply", _nothing, _ignore)
            return

        def done(error: OSError | None) -> None:
            if error is not None:
                # Without the file this replica just does not compact there.
                self.step(ev.SnapshotFailed(str(error)))
            else:
                self._drop_old_snapshots()
                self.step(ev.SnapshotApplied(snapshot))

        info = snapshot_info(snapshot)
        self._pause_apply("snapshot", lambda: self.snapshots.write(info, state), done)

    def _store_chunk(self, snapshot: msg.SnapshotMeta, chunk: msg.SnapshotChunk) -> None:
        position = self._chunks.store(snapshot, chunk)
        if position is None:
            self._events.append(ev.ChunkRefused(snapshot.offset))
            return
        self._events.append(ev.ChunkStored(snapshot.offset, position))
        if position == snapshot.size:
            self.host.submit(
                "snapshot", self._chunks.finish(), lambda error: self._received(snapshot, error)
            )

    def _received(self, snapshot: msg.SnapshotMeta, error: OSError | None) -> None:
        if error is not None:
            self.step(ev.ChunkRefused(snapshot.offset))
        else:
            self._drop_old_snapshots()
            self.step(ev.SnapshotSaved(snapshot))

    def _send_chunk(self, request: msg.SnapshotRequest) -> None:
        info = self.snapshots.find(request.offset)
        if self.core.hard != self.core.persisted:
            return  # nothing with this term may leave yet; whoever asks will ask again
        if info is None or request.position or info == self._proven:
            self._proven = None
            try:
                self.host.send(self._chunks.read(self.core, request))
            except DamagedLog as damage:
                self.damaged(damage)
            return

        def checked(error: OSError | None) -> None:
            if isinstance(error, DamagedLog):
                self.damaged(error)
            elif error is None:
                self._proven = info
                self.step(request)

        self.host.submit("snapshot", lambda: self.snapshots.check(info), checked)

    # --- Looking at it --------------------------------------------------------------------------

    def check_invariants(self) -> None:
        self.core.check_invariants()
        self.log.check_invariants()
        self.machines.check_invariants()
        assert self.core.appended == self.log.dirty, self
        assert self.core.flushed <= self.log.flushed, self

    def __str__(self) -> str:
        return str(self.core) + (f" FAILED: {self.failed}" if self.failed is not None else "")


# A retry of what is not committed yet has no answer yet: the client tries once more.
_WHY = {
    Standing.DUPLICATE: ev.Refusal.BUSY,
    Standing.AHEAD: ev.Refusal.OUT_OF_ORDER,
    Standing.OUT_OF_ORDER: ev.Refusal.OUT_OF_ORDER,
    Standing.FENCED: ev.Refusal.FENCED,
}


def _nothing() -> None: ...


def _ignore(_: object) -> None: ...
