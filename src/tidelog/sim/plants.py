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
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from tidelog.cluster import replica as replica_module
from tidelog.cluster.checkpoints import Checkpoints
from tidelog.cluster.replica import Replica
from tidelog.machines import Producers
from tidelog.machines import translation as translation_module
from tidelog.raft import admission
from tidelog.raft.core import Core
from tidelog.raft.election import Campaign
from tidelog.raft.follower import Receiver
from tidelog.raft.leader import Leader
from tidelog.raft.membership import Membership
from tidelog.raft.progress import Progress
from tidelog.raft.proposals import Proposals
from tidelog.raft.snapshots import Shipping
from tidelog.raft.types import Level, ShippingMode
from tidelog.raft.voter import Voter
from tidelog.records import BatchType
from tidelog.sim import mistakes
from tidelog.sim.circumstances import (
    CHANGES,
    CRASHES,
    CUTS,
    DIVERGING,
    LONG_TAILS,
    MERGES,
    MERGES_CUT_SHORT,
    READ_FROM_DISK,
    REORDERED,
    SMALL_SEGMENTS,
    SNAPSHOTS,
    under,
)
from tidelog.sim.memory import Memory
from tidelog.sim.network import NetworkKnobs
from tidelog.sim.scheduler import MS
from tidelog.storage import FlushJob, Log, SnapshotFiles, VoteFile
from tidelog.storage import log as log_module
from tidelog.storage import reader as reader_module
from tidelog.storage import recovery as recovery_module
from tidelog.storage.cleaning import Cleaner, KeyMap
from tidelog.storage.merging import Group
from tidelog.storage.reader import Reader
from tidelog.storage.view import ReadableLog

# What a liveness failure begins with; invariant 30 demands progress.
NOT_ALIVE: Final = "not alive"
# What a replica says whose log is not whole after a start; invariant 12 demands that it is.
NOT_WHOLE: Final = ("found damage that nobody did", "cannot read its own log")


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
        return (
            any(failure.startswith(f"invariant {number},") for number in self.invariants)
            or (30 in self.invariants and failure.startswith(NOT_ALIVE))
            or (12 in self.invariants and any(damage in failure for damage in NOT_WHOLE))
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
            (around(Core, "send", mistakes.claim_flushed),),
        ),
        Plant(
            "count-a-learner",
            "a commit counts learners as if they were voters",
            (1,),
            (instead(Leader, "committable", mistakes.committable_with_learners),),
            under(CHANGES, spares=2),
        ),
        Plant(
            "commit-older-term",
            "a leader commits entries of older terms by counting them",
            (2,),
            (around(Leader, "maybe_commit", mistakes.commit_any_term),),
            under(CRASHES),
        ),
        Plant(
            "trust-the-leaders-visible",
            "a follower takes over the leader's visible offset, whatever it holds itself",
            (3,),
            (around(Receiver, "_accept", mistakes.trust_visible),),
        ),
        Plant(
            "new-leader-forgets-commit",
            "a new leader starts its commit index at the beginning of its log",
            (4,),
            (around(Core, "become_leader", mistakes.forget_commit),),
            under(CRASHES),
        ),
        Plant(
            "visible-past-quorum",
            "relaxed writes become visible past a quorum write that is not committed",
            (16,),
            (instead(Leader, "showable", mistakes.reached_in_memory),),
        ),
        Plant(
            "acknowledge-before-commit",
            "a quorum write is acknowledged as soon as it is appended",
            (14,),
            (around(Proposals, "resolve_as_leader", mistakes.resolve_at_once),),
        ),
        Plant(
            "truncated-too-soon",
            "a leader that resigns tells its clients that their writes were truncated",
            (15,),
            (around(Leader, "resign", mistakes.call_it_truncated),),
            under(CUTS),
        ),
        Plant(
            "barrier-without-quorum",
            "a read barrier is answered without asking whether others still follow",
            (31,),
            (instead(Leader, "on_barrier", mistakes.answer_barrier_alone),),
            under(CUTS, readers=6, writers=4, levels={Level.QUORUM: 1}),
        ),
        # Replication
        Plant(
            "stale-replies",
            "a leader heeds replies that newer ones have overtaken",
            (25,),
            (instead(Progress, "is_news", mistakes.no_stale_replies),),
            under(network=REORDERED),
        ),
        Plant(
            "match-what-is-dirty",
            "a leader takes a follower's log end for agreement with its own log",
            (25,),
            (around(Progress, "saw", mistakes.match_what_is_dirty),),
            under({"isolate-leader": 10, "crash": 8}, **DIVERGING),
        ),
        Plant(
            "truncate-on-duplicate",
            "a follower cuts its log to append a request that it already holds",
            (11,),
            (around(Receiver, "_not_yet_here", mistakes.cut_duplicates),),
            under(network=REORDERED),
        ),
        Plant(
            "truncate-on-heartbeat",
            "a follower cuts its log at a heartbeat that names an earlier place",
            (11,),
            (around(Receiver, "on_append", mistakes.cut_at_heartbeat),),
            under(network=REORDERED),
        ),
        Plant(
            "skip-the-prev-check",
            "a follower appends without comparing the term of what comes before",
            (8,),
            (around(Receiver, "on_append", mistakes.skip_prev_check),),
            under(CUTS, **DIVERGING),
        ),
        Plant(
            "trailing-ghost",
            "a recovery read ends with a ghost",
            (17,),
            (around(reader_module, "fill_gaps", mistakes.end_with_a_ghost),),
            under(SNAPSHOTS, **SMALL_SEGMENTS),
        ),
        Plant(
            "ghost-of-another-term",
            "a ghost carries another term than the offsets it stands for",
            (17,),
            (around(reader_module, "fill_gaps", mistakes.ghost_of_the_term_before),),
            under(SNAPSHOTS, **SMALL_SEGMENTS),
        ),
        Plant(
            "lost-appends-stay-lost",
            "a leader never notices that a request got lost",
            (30,),
            (instead(Progress, "is_stuck", lambda _: False),),
            under({"pause": 1}, network=NetworkKnobs(loss=0.2), max_inflight_bytes=200),
        ),
        # Elections and membership
        Plant(
            "vote-before-persist",
            "messages leave before the term and vote they depend on are on disk",
            (6,),
            (instead(Core, "send", mistakes.send_before_persist),),
        ),
        Plant(
            "vote-not-synced",
            "the vote file is written without a sync",
            (6, 7),
            (around(VoteFile, "save", mistakes.save_unsynced),),
        ),
        Plant(
            "forget-the-vote",
            "a restart forgets whom this term's vote went to",
            (5, 6),
            (around(replica_module, "hard_state", mistakes.forget_vote),),
            under(CRASHES),
        ),
        Plant(
            "vote-for-a-shorter-log",
            "a vote is granted whatever the candidate's log holds",
            (9,),
            (around(Voter, "on_vote_request", mistakes.vote_for_anyone),),
            under(CUTS),
        ),
        Plant(
            "half-is-enough",
            "half of the votes win an election",
            (5, 24),
            (around(Campaign, "record", mistakes.half_is_enough),),
            under(voters=4),
        ),
        Plant(
            "write-during-transfer",
            "a leader accepts writes after it has handed over",
            (29,),
            (around(Leader, "on_propose", mistakes.accept_while_transferring),),
            under({"transfer": 10, "slow-disk": 3}, writers=5, think=5 * MS),
        ),
        Plant(
            "leave-joint-early",
            "the next step of a configuration change does not wait for the last to be committed",
            (24,),
            (instead(Membership, "_is_committed", lambda _: True),),
            under(CHANGES, spares=2),
        ),
        Plant(
            "configuration-waits-for-commit",
            "a configuration comes into force when it is committed, not when it is appended",
            (24,),
            (instead(Core, "configuration", property(mistakes.committed_configuration)),),
            under(CHANGES, spares=2),
        ),
        Plant(
            "wipe-keeps-revision",
            "a node whose disk was emptied comes back as who it was, and votes again",
            (6, 7, 12),
            (instead(Memory, "is_born", mistakes.come_back_as_before),),
            under({"wipe": 10, "partition": 3}),
        ),
        Plant(
            "ignore-the-revision",
            "a node that was wiped heeds messages meant for its former self",
            (24,),
            (around(Core, "_admit", mistakes.any_revision),),
            under({"wipe": 10, "partition": 3}, spares=2),
        ),
        Plant(
            "believe-strangers",
            "a replica takes over the term of any message, whoever sends it",
            (34,),
            (instead(admission, "objection", lambda *_: None),),
            under({"stranger": 10, "crash": 3}),
        ),
        # Storage
        Plant(
            "credit-across-truncation",
            "a flush is credited although the log was truncated meanwhile",
            (13,),
            (around(Log, "finish_flush", mistakes.credit_anyway),),
            under({"isolate-leader": 10, "slow-disk": 12}, **DIVERGING),
        ),
        Plant(
            "flush-without-sync",
            "a flush reports success without syncing anything",
            (13,),
            (instead(FlushJob, "sync", mistakes.flush_without_sync),),
        ),
        Plant(
            "trust-the-page-cache",
            "a log whose sync failed is opened again as if it had not",
            (13,),
            (instead(log_module, "leave_marker", lambda *_: None),),
            under({"failing-fsync": 12, "crash": 1}, fault_interval=40 * MS),
        ),
        Plant(
            "trust-a-vote-that-was-not-synced",
            "a vote file whose sync failed is opened again as if it had not",
            (5, 6, 7),
            (instead(VoteFile, "_leave_marker", lambda _: None),),
            under(
                {"failing-fsync": 12, "isolate-leader": 12},
                fault_interval=20 * MS,
                groups=3,
                max_faults=6,
            ),
        ),
        Plant(
            "recovery-cuts-too-much",
            "a restart cuts off the last batch, though it was flushed",
            (12,),
            (Patch(Log, "open", mistakes.cut_too_much),),
            under(CRASHES),
        ),
        Plant(
            "skip-the-placeholder",
            "compaction lets the last offset of a segment vanish",
            (18,),
            (around(Cleaner, "clean", mistakes.no_placeholder),),
            under(SNAPSHOTS, **SMALL_SEGMENTS),
        ),
        Plant(
            "compact-the-newest",
            "compaction removes the newest record of a key too",
            (19,),
            (around(KeyMap, "newest", mistakes.an_offset_too_late),),
            under(SNAPSHOTS, **SMALL_SEGMENTS),
        ),
        Plant(
            "tombstones-at-once",
            "compaction removes tombstones before their time",
            (19,),
            (instead(Cleaner, "_has_expired", lambda *_: True),),
            under(SNAPSHOTS, tombstones=60_000, **SMALL_SEGMENTS),
        ),
        Plant(
            "sweep-too-soon",
            "a merge removes files before the one that replaces them has its name for good",
            (12,),
            (around(Log, "finish_merge", mistakes.sweep_at_once),),
            under(SNAPSHOTS, {"crash": 12, "roll": 12}, **MERGES_CUT_SHORT),
        ),
        Plant(
            "ignore-the-hint",
            "a restart takes what a merge has left over for a part of the log",
            (12,),
            (instead(recovery_module, "find_leftovers", lambda *_: []),),
            under(SNAPSHOTS, {"crash": 12, "roll": 12}, **MERGES),
        ),
        Plant(
            "bury-a-configuration",
            "a merge puts a configuration into the middle of a segment",
            (24,),
            (around(Group, "takes", mistakes.bury_configurations),),
            under(SNAPSHOTS, {"crash": 12, "roll": 8, "reconfigure": 8}, **MERGES),
        ),
        Plant(
            "epoch-ends-early",
            "the end offset of an epoch is one too low",
            (26,),
            (around(ReadableLog, "term_end", mistakes.end_too_early),),
            under(CRASHES),
        ),
        Plant(
            "retain-without-snapshot",
            "retention removes what no snapshot covers",
            (21,),
            (instead(Replica, "truncate_prefix", mistakes.retain_without_snapshot),),
            under({"retention": 10, "crash": 3}),
        ),
        # Harm
        Plant(
            "trust-the-disk",
            "no checksum is checked when a batch leaves the disk for a follower or a reader",
            (35,),
            (around(Reader, "_read_chunks", mistakes.trust_the_disk),),
            under({"rot": 12, "crash": 2}, {"roll": 4}, readers=8, **READ_FROM_DISK),
        ),
        Plant(
            "missing-files-look-new",
            "a replica whose files are gone is opened again as an empty voter of its old revision",
            (6, 7, 12),
            (instead(replica_module, "check_whole", lambda *_: None),),
            under({"lose-file": 10, "crash": 4}),
        ),
        Plant(
            "insist-on-every-snapshot",
            "a snapshot with a rotten header keeps a replica from opening whose log is whole",
            (36,),
            (instead(SnapshotFiles, "_find", mistakes.insist_on_every_snapshot),),
            under({"rot": 10, "crash": 8}, {"snapshot": 14}, **READ_FROM_DISK),
        ),
        Plant(
            "trust-base-offsets",
            "a restart takes a base offset that rotted for a gap",
            (3, 8, 10, 12, 35),
            (instead(recovery_module, "_check_offsets", lambda *_: None),),
            under({"rot": 10, "crash": 10}, {"transfer": 1}, **LONG_TAILS),
        ),
        # Snapshots and machines
        Plant(
            "compact-before-majority",
            "compaction begins before a majority has the snapshot",
            (19,),
            (instead(Shipping, "stored_by_majority", mistakes.my_copy_is_enough),),
            under(SNAPSHOTS, shipping=ShippingMode.SIDE),
        ),
        Plant(
            "read-past-the-bound",
            "a replica serves reads of machines that met holes",
            (23, 31),
            (instead(Shipping, "readable", mistakes.read_all_that_is_visible),),
            under(SNAPSHOTS, shipping=ShippingMode.LOG, readers=6, **SMALL_SEGMENTS),
        ),
        Plant(
            "apply-a-tainted-log",
            "a replica that received holes takes its machines for exact",
            (23, 31, 20),
            (instead(Shipping, "received_holes", mistakes.holes_do_not_taint),),
            under(SNAPSHOTS, **SMALL_SEGMENTS),
        ),
        Plant(
            "forget-compacted",
            "a restart forgets up to where the log may have holes",
            (12, 19, 23),
            (around(replica_module, "vote_of", mistakes.forget_compacted),),
            under(SNAPSHOTS, **SMALL_SEGMENTS),
        ),
        Plant(
            "install-backwards",
            "an old snapshot is installed over newer data",
            (4, 10, 22),
            (instead(Shipping, "_install", mistakes.install_anything),),
            under(
                {"wipe": 10, "crash": 3, "reconfigure": 8, "snapshot": 14, "retention": 20},
                network=REORDERED,
                heartbeat=10 * MS,
                disk_delay=(1_000, 6_000),
                chore_interval=15 * MS,
                shipping=ShippingMode.SIDE,
                spares=2,
                groups=1,
                **SMALL_SEGMENTS,
            ),
        ),
        Plant(
            "dedupe-not-in-snapshot",
            "a snapshot leaves out what is known of idempotent producers",
            (28,),
            (around(Producers, "snapshot", mistakes.no_producers),),
            under(
                SNAPSHOTS,
                {"transfer": 6, "isolate-leader": 6},
                idempotent=1.0,
                client_loss=0.2,
                writers=5,
            ),
        ),
        Plant(
            "overtake-the-first",
            "the second batch of a producer that nobody knows is taken before its first",
            (33, 31),
            (instead(Replica, "_overtakes", lambda *_: False),),
            under(CUTS, idempotent=1.0, under_way=5, writers=5),
        ),
        Plant(
            "checkpoint-with-holes",
            "a checkpoint is taken of machines that met holes",
            (23, 32),
            (around(Checkpoints, "take", mistakes.checkpoint_with_holes),),
            under(
                {"wipe": 12, "crash": 14, "snapshot": 14, "compact": 12, "reconfigure": 6},
                fault_interval=30 * MS,
                chore_interval=20 * MS,
                spares=2,
                shipping=ShippingMode.LOG,
                recovery_bytes=100,
                segment_bytes=256,
                recovery_chunk=100,
                max_inflight_bytes=200,
            ),
        ),
        Plant(
            "start-past-the-checkpoint",
            "a restart does not fold in what its log holds past the checkpoint",
            (23, 32),
            (around(Checkpoints, "resume", mistakes.resume_at_the_end),),
            under(CRASHES, recovery_bytes=20_000),
        ),
        Plant(
            "translation-counts-snapshots",
            "client offsets count snapshot batches as data",
            (27,),
            (Patch(translation_module, "_DATA", lambda data: data | {BatchType.SNAPSHOT}),),
            under(SNAPSHOTS, shipping=ShippingMode.LOG),
        ),
    )
}
