"""Bugs to plant: each a small change to the real classes while one run lasts.

The product has no hooks and no flags for these. A plant replaces a method or a function by one that
makes a mistake somebody could make, and puts the original back afterwards. It names the invariants
that should object; some mistakes show in more than one way, and whichever invariant is asked first
speaks. Where a mistake needs special circumstances, the plant also sets knobs that make them
common: it must be found by looking at a few worlds, not by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

from tidelog.cluster import replica as replica_module
from tidelog.cluster.replica import Replica
from tidelog.machines import Producers
from tidelog.machines import translation as translation_module
from tidelog.raft import messages as msg
from tidelog.raft import quorum
from tidelog.raft.core import Core
from tidelog.raft.election import Campaign, Outcome
from tidelog.raft.events import Done, Refusal, Refused, Send
from tidelog.raft.follower import Receiver
from tidelog.raft.leader import Leader
from tidelog.raft.membership import Membership
from tidelog.raft.progress import Progress
from tidelog.raft.proposals import Proposals
from tidelog.raft.snapshots import Shipping
from tidelog.raft.types import Level, ShippingMode
from tidelog.raft.voter import Voter
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset, Term, ghost
from tidelog.sim.network import NetworkKnobs
from tidelog.sim.scheduler import MS
from tidelog.storage import FlushJob, Log
from tidelog.storage import reader as reader_module
from tidelog.storage import vote as vote_module
from tidelog.storage.cleaning import Cleaner, KeyMap
from tidelog.storage.view import ReadableLog

# What a liveness failure begins with; invariant 30 demands progress.
NOT_ALIVE: Final = "not alive"


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute of a class or module, and what takes its place."""

    target: Any
    name: str
    make: Callable[[Any], Any]  # from the original

    @contextmanager
    def planted(self) -> Iterator[None]:
        original = self.target.__dict__[self.name]
        setattr(self.target, self.name, self.make(original))
        try:
            yield
        finally:
            setattr(self.target, self.name, original)


@dataclass(frozen=True, slots=True)
class Plant:
    name: str
    description: str
    invariants: tuple[int, ...]  # one of them objects
    patches: tuple[Patch, ...]
    knobs: Mapping[str, Any] = field(default_factory=dict)  # that make its circumstance common

    def install(self) -> AbstractContextManager[ExitStack]:
        """Make the mistake for as long as the context lasts."""
        stack = ExitStack()
        for patch in self.patches:
            stack.enter_context(patch.planted())
        return stack

    def is_caught_by(self, failure: str) -> bool:
        """Whether this failure is one of those that the mistake should cause."""
        return any(failure.startswith(f"invariant {number},") for number in self.invariants) or (
            30 in self.invariants and failure.startswith(NOT_ALIVE)
        )


def instead(target: Any, name: str, method: Any) -> Patch:
    """Put `method` in the place of the original."""
    return Patch(target, name, lambda _: method)


def around(target: Any, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Call `wrapper(original, *arguments)` in the place of the original."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def planted(*arguments: Any, **named: Any) -> Any:
            return wrapper(original, *arguments, **named)

        return planted

    return Patch(target, name, make)


# --- Circumstances ----------------------------------------------------------------------------

CRASHES: Final = {"crash": 12, "crash-mid-step": 8, "crash-all": 3, "isolate-leader": 6}
CUTS: Final = {"partition": 8, "isolate-leader": 10, "one-way-partition": 6, "crash": 3}
CHANGES: Final = {"reconfigure": 12, "cancel": 3, "crash": 3, "partition": 3, "slow-disk": 4}
SNAPSHOTS: Final = {"snapshot": 14, "compact": 12, "roll": 3, "crash": 5, "partition": 4, "wipe": 2}
REORDERED: Final = NetworkKnobs(
    delay=(100, 5_000), straggler=0.3, straggler_delay=(5_000, 60_000), duplication=0.3, pipes=False
)
SMALL_SEGMENTS: Final = {"segment_bytes": 256, "recovery_chunk": 400}


# --- Commit and visibility --------------------------------------------------------------------


def _committable_with_learners(leader: Leader) -> Offset:
    configuration = leader.core.configuration
    counted = configuration.voters + configuration.learners
    ranked = sorted((leader._durable_of(node) for node in counted), reverse=True)
    return min(ranked[len(configuration.voters) // 2], leader.core.flushed)


def _reached_in_memory(leader: Leader) -> Offset:
    return quorum.reached(leader.core.configuration.halves, leader._replicated_of)


def _commit_any_term(original: Callable[..., None], leader: Leader) -> None:
    offset = leader.committable()
    if offset > leader.core.committed:
        leader.core.commit_to(offset)
    original(leader)


def _claim_flushed(original: Callable[..., None], core: Core, message: msg.Message) -> None:
    if isinstance(message, msg.AppendReply):
        message = replace(message, flushed=message.dirty)
    original(core, message)


def _forget_commit(original: Callable[..., None], core: Core) -> None:
    core.committed = Offset(core.log.start - 1)
    original(core)


def _trust_visible(
    original: Callable[..., None], receiver: Receiver, request: msg.AppendRequest
) -> None:
    original(receiver, request)
    receiver.core.visible = max(receiver.core.visible, request.visible)


def _resolve_at_once(
    original: Callable[..., Iterator[Done]],
    proposals: Proposals,
    term: Term,
    committed: Offset,
    visible: Offset,
) -> Iterator[Done]:
    return original(proposals, term, max(committed, Offset(2**62)), visible)


def _call_it_truncated(original: Callable[..., None], leader: Leader) -> None:
    original(leader)
    for refused in leader.core.proposals.drop_all():
        leader.core.emit(Refused(refused.token, Refusal.TRUNCATED))


def _answer_barrier_alone(leader: Leader, event: Any) -> None:
    leader.core.done(event.token, leader.core.committed)


# --- Replication ------------------------------------------------------------------------------


def _no_stale_replies(progress: Progress, seq: int) -> bool:
    progress.received_seq = max(progress.received_seq, min(seq, progress.sent_seq))
    return True


def _match_what_is_dirty(
    original: Callable[..., None], progress: Progress, dirty: Offset, flushed: Offset
) -> None:
    original(progress, dirty, flushed)
    progress.match = dirty
    progress.next = max(progress.next, Offset(dirty + 1))


def _cut_duplicates(
    original: Callable[..., tuple[Batch, ...]], receiver: Receiver, batches: tuple[Batch, ...]
) -> tuple[Batch, ...]:
    fresh = original(receiver, batches)
    if fresh or not batches or batches[-1].last_offset >= receiver.core.dirty:
        return fresh
    for index, batch in enumerate(batches):
        if batch.base_offset > receiver.core.committed and not batch.is_ghost:
            return batches[index:]
    return ()


def _cut_at_heartbeat(
    original: Callable[..., None], receiver: Receiver, request: msg.AppendRequest
) -> None:
    core, prev = receiver.core, request.prev_offset
    earlier = not request.batches and core.committed <= prev < core.dirty
    if earlier and core.log.term_of(prev) == request.prev_term:
        core.truncate(Offset(prev + 1))
    original(receiver, request)


def _skip_prev_check(
    original: Callable[..., None], receiver: Receiver, request: msg.AppendRequest
) -> None:
    here = receiver.core.log.term_of(request.prev_offset)
    original(receiver, request if here is None else replace(request, prev_term=here))


def _end_with_a_ghost(original: Callable[..., list[Batch]], *arguments: Any) -> list[Batch]:
    filled = original(*arguments)
    ghosts = [index for index, batch in enumerate(filled) if batch.is_ghost]
    return filled[: ghosts[-1] + 1] if ghosts else filled


def _ghost_of_the_term_before(original: Callable[..., list[Batch]], *arguments: Any) -> list[Batch]:
    filled = original(*arguments)
    for index, batch in enumerate(filled):
        if batch.is_ghost and batch.term > 1:
            filled[index] = ghost(batch.base_offset, batch.last_offset, Term(batch.term - 1))
    return filled


# --- Elections and membership -----------------------------------------------------------------


def _send_before_persist(core: Core, message: msg.Message) -> None:
    core.emit(Send(message))


def _vote_for_anyone(
    original: Callable[..., None], voter: Voter, request: msg.VoteRequest
) -> None:
    core = voter.core
    original(voter, replace(request, last_term=core.log.last_term, last_offset=core.dirty))


def _half_is_enough(
    original: Callable[..., Outcome], campaign: Campaign, voter: Any, granted: bool
) -> Outcome:
    outcome = original(campaign, voter, granted)
    voters = campaign.configuration.voters
    if 2 * sum(campaign._votes.get(each, False) for each in voters) >= len(voters):
        return Outcome.WON
    return outcome


def _accept_while_transferring(
    original: Callable[..., None], leader: Leader, event: Any
) -> None:
    transfer, leader._transfer = leader._transfer, None
    original(leader, event)
    leader._transfer = transfer


def _any_revision(original: Callable[..., bool], core: Core, message: msg.Message) -> bool:
    if message.target.id == core.vnode.id:
        message = replace(message, target=core.vnode)
    return original(core, message)


def _forget_vote(original: Callable[..., Any], vote: Any) -> Any:
    return replace(original(vote), voted_for=None)


def _save_unsynced(_: Callable[..., None], disk: Any, path: str, magic: bytes, data: bytes) -> None:
    from crc32c import crc32c

    file = disk.open(path, create=True)
    file.truncate(0)
    file.append([magic, crc32c(data).to_bytes(4, "big"), data])


def _keep_configuration(original: Callable[..., None], core: Core, last: Offset) -> None:
    configurations = list(core._configurations)
    original(core, last)
    core._configurations = configurations


# --- Storage ----------------------------------------------------------------------------------


def _credit_anyway(original: Callable[..., Offset], log: Log, job: FlushJob) -> Offset:
    if job.truncations != log.truncations:
        job.truncations = log.truncations
        job.upto = min(job.upto, log.dirty)
    return original(log, job)


def _flush_without_sync(job: FlushJob) -> None:
    job.release()
    job.done = True


def _cut_too_much(original: Any) -> Any:
    def reopen(cls: type[Log], *arguments: Any, **named: Any) -> Log:
        log: Log = original.__func__(cls, *arguments, **named)
        batches = log.read(log.start, 1 << 20) if log.start <= log.dirty else []
        if len(batches) > 1 and batches[-1].last_offset == log.dirty:
            log.truncate_suffix(batches[-1].base_offset)
        return log

    return classmethod(reopen)


def _no_placeholder(
    original: Callable[..., Batch | None], cleaner: Cleaner, batch: Batch, last: Offset
) -> Batch | None:
    kept = original(cleaner, batch, last)
    vanished = kept is not None and kept.type is BatchType.PLACEHOLDER
    return None if vanished and batch.type is BatchType.DATA else kept


def _an_offset_too_late(original: Callable[..., Offset], keys: KeyMap, key: bytes) -> Offset:
    return Offset(original(keys, key) + 1)


def _end_too_early(original: Callable[..., Any], log: Log, term: Term) -> Any:
    found, end = original(log, term)
    return found, Offset(end - 1)


def _retain_without_snapshot(replica: Replica, first_kept: Offset) -> bool:
    if replica.failed is not None or not replica.log.start < first_kept <= replica.machines.applied:
        return False
    batch = replica.log.read(first_kept, 1)[0]
    first_kept = min(first_kept, batch.base_offset)
    if first_kept <= replica.log.start:
        return False
    term = replica.log.term_of(Offset(first_kept - 1))
    assert term is not None
    replica.log.truncate_prefix(first_kept, term)
    replica.machines.prefix_truncated(first_kept)
    return True


# --- Snapshots and machines -------------------------------------------------------------------


def _my_copy_is_enough(shipping: Shipping) -> Offset:
    return shipping._stored_of(shipping.core.vnode)


def _read_all_that_is_visible(shipping: Shipping) -> Offset:
    return shipping.core.visible


def _holes_do_not_taint(shipping: Shipping, _: Offset, compacted: Offset) -> None:
    shipping.core.raise_compacted(compacted)


def _install_anything(shipping: Shipping, snapshot: msg.SnapshotMeta) -> None:
    shipping.restore_pending = True
    shipping.core.committed = min(shipping.core.committed, Offset(snapshot.offset - 1))
    shipping.core.reset_log(snapshot)


def _forget_compacted(original: Callable[..., Any], state: Any) -> Any:
    return replace(original(state), compacted=NO_OFFSET)


def _no_producers(original: Callable[..., bytes], _: Producers) -> bytes:
    return original(Producers())


PLANTS: Final[dict[str, Plant]] = {
    plant.name: plant
    for plant in (
        # Commit and visibility
        Plant(
            "commit-on-dirty",
            "a commit counts what followers hold in memory, not what they have flushed",
            (1,),
            (instead(Progress, "durable", property(lambda progress: progress.replicated)),),
        ),
        Plant(
            "claim-flushed",
            "a follower reports its dirty offset as flushed",
            (1,),
            (around(Core, "send", _claim_flushed),),
        ),
        Plant(
            "count-a-learner",
            "a commit counts learners as if they were voters",
            (1,),
            (instead(Leader, "committable", _committable_with_learners),),
            {"faults": CHANGES, "spares": 2},
        ),
        Plant(
            "commit-older-term",
            "a leader commits entries of older terms by counting them",
            (2,),
            (around(Leader, "maybe_commit", _commit_any_term),),
            {"faults": CRASHES},
        ),
        Plant(
            "trust-the-leaders-visible",
            "a follower takes over the leader's visible offset, whatever it holds itself",
            (3,),
            (around(Receiver, "_accept", _trust_visible),),
        ),
        Plant(
            "new-leader-forgets-commit",
            "a new leader starts its commit index at the beginning of its log",
            (4,),
            (around(Core, "become_leader", _forget_commit),),
            {"faults": CRASHES},
        ),
        Plant(
            "visible-past-quorum",
            "relaxed writes become visible past a quorum write that is not committed",
            (16,),
            (instead(Leader, "showable", _reached_in_memory),),
        ),
        Plant(
            "acknowledge-before-commit",
            "a quorum write is acknowledged as soon as it is appended",
            (14,),
            (around(Proposals, "resolve_as_leader", _resolve_at_once),),
        ),
        Plant(
            "truncated-too-soon",
            "a leader that resigns tells its clients that their writes were truncated",
            (15,),
            (around(Leader, "resign", _call_it_truncated),),
            {"faults": CUTS},
        ),
        Plant(
            "barrier-without-quorum",
            "a read barrier is answered without asking whether others still follow",
            (31,),
            (instead(Leader, "on_barrier", _answer_barrier_alone),),
            {"faults": CUTS, "readers": 6, "writers": 4, "levels": {Level.QUORUM: 1}},
        ),
        # Replication
        Plant(
            "stale-replies",
            "a leader heeds replies that newer ones have overtaken",
            (25,),
            (instead(Progress, "is_news", _no_stale_replies),),
            {"network": REORDERED},
        ),
        Plant(
            "match-what-is-dirty",
            "a leader takes a follower's log end for agreement with its own log",
            (25,),
            (around(Progress, "saw", _match_what_is_dirty),),
            {"faults": CRASHES},
        ),
        Plant(
            "truncate-on-duplicate",
            "a follower cuts its log to append a request that it already holds",
            (11,),
            (around(Receiver, "_not_yet_here", _cut_duplicates),),
            {"network": REORDERED},
        ),
        Plant(
            "truncate-on-heartbeat",
            "a follower cuts its log at a heartbeat that names an earlier place",
            (11,),
            (around(Receiver, "on_append", _cut_at_heartbeat),),
            {"network": REORDERED},
        ),
        Plant(
            "skip-the-prev-check",
            "a follower appends without comparing the term of what comes before",
            (8,),
            (around(Receiver, "on_append", _skip_prev_check),),
            {"faults": CUTS},
        ),
        Plant(
            "trailing-ghost",
            "a recovery read ends with a ghost",
            (17,),
            (around(reader_module, "fill_gaps", _end_with_a_ghost),),
            {"faults": SNAPSHOTS, **SMALL_SEGMENTS},
        ),
        Plant(
            "ghost-of-another-term",
            "a ghost carries another term than the offsets it stands for",
            (17,),
            (around(reader_module, "fill_gaps", _ghost_of_the_term_before),),
            {"faults": SNAPSHOTS, **SMALL_SEGMENTS},
        ),
        Plant(
            "lost-appends-stay-lost",
            "a leader never notices that a request got lost",
            (30,),
            (instead(Progress, "is_stuck", lambda _: False),),
            {"network": NetworkKnobs(loss=0.1)},
        ),
        # Elections and membership
        Plant(
            "vote-before-persist",
            "messages leave before the term and vote they depend on are on disk",
            (6,),
            (instead(Core, "send", _send_before_persist),),
        ),
        Plant(
            "vote-not-synced",
            "the vote file is written without a sync",
            (6, 7),
            (around(vote_module, "save_sealed", _save_unsynced),),
        ),
        Plant(
            "forget-the-vote",
            "a restart forgets whom this term's vote went to",
            (5, 6),
            (around(replica_module, "_hard_state", _forget_vote),),
            {
                "faults": {"crash": 20, "partition": 4, "isolate-leader": 6},
                "fault_interval": 30 * MS,
            },
        ),
        Plant(
            "vote-for-a-shorter-log",
            "a vote is granted whatever the candidate's log holds",
            (9,),
            (around(Voter, "on_vote_request", _vote_for_anyone),),
            {"faults": CUTS},
        ),
        Plant(
            "half-is-enough",
            "half of the votes win an election",
            (5, 24),
            (around(Campaign, "record", _half_is_enough),),
            {"voters": 4},
        ),
        Plant(
            "write-during-transfer",
            "a leader accepts writes after it has handed over",
            (29,),
            (around(Leader, "on_propose", _accept_while_transferring),),
            {"faults": {"transfer": 10, "slow-disk": 3}, "writers": 5, "think": 5 * MS},
        ),
        Plant(
            "leave-joint-early",
            "the next step of a configuration change does not wait for the last to be committed",
            (24,),
            (instead(Membership, "_is_committed", lambda _: True),),
            {"faults": CHANGES, "spares": 2},
        ),
        Plant(
            "configuration-outlives-truncation",
            "a configuration stays in force after it was truncated",
            (24,),
            (around(Core, "_cut", _keep_configuration),),
            {"faults": {**CHANGES, **CUTS}, "spares": 2},
        ),
        Plant(
            "ignore-the-revision",
            "a node that was wiped heeds messages meant for its former self",
            (24,),
            (around(Core, "_admit", _any_revision),),
            {"faults": {"wipe": 10, "partition": 3}, "spares": 2},
        ),
        # Storage
        Plant(
            "credit-across-truncation",
            "a flush is credited although the log was truncated meanwhile",
            (13,),
            (around(Log, "finish_flush", _credit_anyway),),
            {"faults": CUTS, "disk_delay": (100, 20_000), "late_done": 0.8},
        ),
        Plant(
            "flush-without-sync",
            "a flush reports success without syncing anything",
            (13,),
            (instead(FlushJob, "run", _flush_without_sync),),
        ),
        Plant(
            "recovery-cuts-too-much",
            "a restart cuts off the last batch, though it was flushed",
            (12,),
            (Patch(Log, "open", _cut_too_much),),
            {"faults": CRASHES},
        ),
        Plant(
            "skip-the-placeholder",
            "compaction lets the last offset of a segment vanish",
            (18,),
            (around(Cleaner, "clean", _no_placeholder),),
            {"faults": SNAPSHOTS, **SMALL_SEGMENTS},
        ),
        Plant(
            "compact-the-newest",
            "compaction removes the newest record of a key too",
            (19,),
            (around(KeyMap, "newest", _an_offset_too_late),),
            {"faults": SNAPSHOTS, **SMALL_SEGMENTS},
        ),
        Plant(
            "tombstones-at-once",
            "compaction removes tombstones before their time",
            (19,),
            (instead(Cleaner, "_has_expired", lambda *_: True),),
            {"faults": SNAPSHOTS, "tombstones": 60_000, **SMALL_SEGMENTS},
        ),
        Plant(
            "epoch-ends-early",
            "the end offset of an epoch is one too low",
            (26,),
            (around(ReadableLog, "term_end", _end_too_early),),
            {"faults": CRASHES},
        ),
        Plant(
            "retain-without-snapshot",
            "retention removes what no snapshot covers",
            (21,),
            (instead(Replica, "truncate_prefix", _retain_without_snapshot),),
            {"faults": {"retention": 10, "crash": 3}},
        ),
        # Snapshots and machines
        Plant(
            "compact-before-majority",
            "compaction begins before a majority has the snapshot",
            (19,),
            (instead(Shipping, "stored_by_majority", _my_copy_is_enough),),
            {"faults": SNAPSHOTS, "shipping": ShippingMode.SIDE},
        ),
        Plant(
            "read-past-the-bound",
            "a replica serves reads of machines that met holes",
            (23, 31),
            (instead(Shipping, "readable", _read_all_that_is_visible),),
            {"faults": SNAPSHOTS, "shipping": ShippingMode.LOG, "readers": 6, **SMALL_SEGMENTS},
        ),
        Plant(
            "apply-a-tainted-log",
            "a replica that received holes takes its machines for exact",
            (23, 31, 20),
            (instead(Shipping, "received_holes", _holes_do_not_taint),),
            {"faults": SNAPSHOTS, **SMALL_SEGMENTS},
        ),
        Plant(
            "forget-compacted",
            "a restart forgets up to where the log may have holes",
            (12, 19, 23),
            (around(replica_module, "_vote", _forget_compacted),),
            {"faults": SNAPSHOTS, **SMALL_SEGMENTS},
        ),
        Plant(
            "install-backwards",
            "an old snapshot is installed over newer data",
            (4, 10, 22),
            (instead(Shipping, "_install", _install_anything),),
            {"faults": {**SNAPSHOTS, "retention": 10}, "network": REORDERED, **SMALL_SEGMENTS},
        ),
        Plant(
            "dedupe-not-in-snapshot",
            "a snapshot leaves out what is known of idempotent producers",
            (28,),
            (around(Producers, "snapshot", _no_producers),),
            {
                "faults": {**SNAPSHOTS, "transfer": 6, "isolate-leader": 6},
                "idempotent": 1.0,
                "client_loss": 0.2,
                "writers": 5,
            },
        ),
        Plant(
            "translation-counts-snapshots",
            "client offsets count snapshot batches as data",
            (27,),
            (Patch(translation_module, "_DATA", lambda data: data | {BatchType.SNAPSHOT}),),
            {"faults": SNAPSHOTS, "shipping": ShippingMode.LOG},
        ),
    )
}
