"""The mistakes that `plants` can make: each a method or function as somebody could get it wrong.

One that takes `original` is called in its place with whatever it was given; one that does not
replaces the original for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tidelog.cluster.checkpoints import Checkpoints
from tidelog.cluster.replica import Replica
from tidelog.machines import Machines, Producers
from tidelog.raft import messages as msg
from tidelog.raft import quorum
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Core
from tidelog.raft.election import Campaign, Outcome
from tidelog.raft.events import Done, Refusal, Refused, Send
from tidelog.raft.follower import Receiver
from tidelog.raft.leader import Leader
from tidelog.raft.progress import Progress
from tidelog.raft.proposals import Proposals
from tidelog.raft.snapshots import Shipping
from tidelog.raft.voter import Voter
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset, Term, ghost
from tidelog.sim.memory import Memory
from tidelog.storage import Checkpoint, FlushJob, Log, MergeJob, SnapshotFiles, Vote
from tidelog.storage.cleaning import Cleaner, KeyMap
from tidelog.storage.segment import Segment

# --- Commit and visibility --------------------------------------------------------------------


def committable_with_learners(leader: Leader) -> Offset:
    configuration = leader.core.configuration
    counted = configuration.voters + configuration.learners
    ranked = sorted((leader._durable_of(node) for node in counted), reverse=True)
    return min(ranked[len(configuration.voters) // 2], leader.core.flushed)


def reached_in_memory(leader: Leader) -> Offset:
    return quorum.reached(leader.core.configuration.halves, leader._replicated_of)


def commit_any_term(original: Callable[..., None], leader: Leader) -> None:
    offset = leader.committable()
    if offset > leader.core.committed:
        leader.core.commit_to(offset)
    original(leader)


def claim_flushed(original: Callable[..., None], core: Core, message: msg.Message) -> None:
    if isinstance(message, msg.AppendReply):
        message = replace(message, flushed=message.dirty)
    original(core, message)


def forget_commit(original: Callable[..., None], core: Core) -> None:
    core.committed = Offset(core.log.start - 1)
    original(core)


def trust_visible(
    original: Callable[..., None], receiver: Receiver, request: msg.AppendRequest, **named: bool
) -> None:
    original(receiver, request, **named)
    receiver.core.visible = max(receiver.core.visible, request.visible)


def resolve_at_once(
    original: Callable[..., Iterator[Done]],
    proposals: Proposals,
    term: Term,
    committed: Offset,
    visible: Offset,
) -> Iterator[Done]:
    return original(proposals, term, max(committed, Offset(2**62)), visible)


def call_it_truncated(original: Callable[..., None], leader: Leader) -> None:
    original(leader)
    for refused in leader.core.proposals.drop_all():
        leader.core.emit(Refused(refused.token, Refusal.TRUNCATED))


def answer_barrier_alone(leader: Leader, event: Any) -> None:
    leader.core.done(event.token, leader.core.committed)


# --- Replication ------------------------------------------------------------------------------


def no_stale_replies(progress: Progress, seq: int, _: Offset) -> bool:
    progress.received_seq = max(progress.received_seq, min(seq, progress.sent_seq))
    return True


def match_what_is_dirty(
    original: Callable[..., None], progress: Progress, dirty: Offset, flushed: Offset
) -> None:
    original(progress, dirty, flushed)
    progress.match = dirty
    progress.next = max(progress.next, Offset(dirty + 1))


def cut_duplicates(
    original: Callable[..., tuple[Batch, ...]], receiver: Receiver, batches: tuple[Batch, ...]
) -> tuple[Batch, ...]:
    fresh = original(receiver, batches)
    if fresh or not batches or batches[-1].last_offset >= receiver.core.dirty:
        return fresh
    for index, batch in enumerate(batches):
        if batch.base_offset > receiver.core.committed and not batch.is_ghost:
            return batches[index:]
    return ()


def cut_at_heartbeat(
    original: Callable[..., None], receiver: Receiver, request: msg.AppendRequest
) -> None:
    core, prev = receiver.core, request.prev_offset
    earlier = not request.batches and core.committed <= prev < core.dirty
    if earlier and core.log.term_of(prev) == request.prev_term:
        core.truncate(Offset(prev + 1))
    original(receiver, request)


def skip_prev_check(
    original: Callable[..., None], receiver: Receiver, request: msg.AppendRequest
) -> None:
    here = receiver.core.log.term_of(request.prev_offset)
    original(receiver, request if here is None else replace(request, prev_term=here))


def end_with_a_ghost(original: Callable[..., list[Batch]], *arguments: Any) -> list[Batch]:
    filled = original(*arguments)
    ghosts = [index for index, batch in enumerate(filled) if batch.is_ghost]
    return filled[: ghosts[-1] + 1] if ghosts else filled


def ghost_of_the_term_before(original: Callable[..., list[Batch]], *arguments: Any) -> list[Batch]:
    filled = original(*arguments)
    for index, batch in enumerate(filled):
        if batch.is_ghost and batch.term > 1:
            filled[index] = ghost(batch.base_offset, batch.last_offset, Term(batch.term - 1))
    return filled


# --- Elections and membership -----------------------------------------------------------------


def send_before_persist(core: Core, message: msg.Message) -> None:
    core.emit(Send(message))


def vote_for_anyone(original: Callable[..., None], voter: Voter, request: msg.VoteRequest) -> None:
    core = voter.core
    original(voter, replace(request, last_term=core.log.last_term, last_offset=core.dirty))


def half_is_enough(
    original: Callable[..., Outcome], campaign: Campaign, voter: Any, granted: bool
) -> Outcome:
    outcome = original(campaign, voter, granted)
    voters = campaign.configuration.voters
    if 2 * sum(campaign._votes.get(each, False) for each in voters) >= len(voters):
        return Outcome.WON
    return outcome


def accept_while_transferring(original: Callable[..., None], leader: Leader, event: Any) -> None:
    transfer, leader._transfer = leader._transfer, None
    original(leader, event)
    leader._transfer = transfer


def any_revision(original: Callable[..., bool], core: Core, message: msg.Message) -> bool:
    if message.target.id == core.vnode.id:
        message = replace(message, target=core.vnode)
    return original(core, message)


def forget_vote(original: Callable[..., Any], vote: Any) -> Any:
    return replace(original(vote), voted_for=None)


class Unsynced:
    """A disk, or a file on it, that syncs nothing."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open(self, path: str, create: bool = False) -> Unsynced:
        return Unsynced(self._real.open(path, create))

    def sync(self) -> None: ...


def save_unsynced(original: Callable[..., None], file: Any, vote: Vote) -> None:
    real = file._disk
    if file._certain:  # the first one is not lost: a missing file would be noticed
        file._disk = Unsynced(real)
    try:
        original(file, vote)
    finally:
        file._disk = real


def committed_configuration(core: Core) -> Configuration:
    return core.configuration_at(core.committed)


# --- Storage ----------------------------------------------------------------------------------


def credit_anyway(original: Callable[..., Offset], log: Log, job: FlushJob) -> Offset:
    if job.truncations != log.truncations:
        job.truncations = log.truncations
        job.upto = min(job.upto, log.dirty)
    return original(log, job)


def flush_without_sync(job: FlushJob) -> None:
    job.release()
    job.done = True


def cut_too_much(original: Any) -> Any:
    def reopen(cls: type[Log], *arguments: Any, **named: Any) -> Log:
        log: Log = original.__func__(cls, *arguments, **named)
        batches = log.read(log.start, 1 << 20) if log.start <= log.dirty else []
        if len(batches) > 1 and batches[-1].last_offset == log.dirty:
            log.truncate_suffix(batches[-1].base_offset)
        return log

    return classmethod(reopen)


def no_placeholder(
    original: Callable[..., Batch | None], cleaner: Cleaner, batch: Batch, last: Offset
) -> Batch | None:
    kept = original(cleaner, batch, last)
    vanished = kept is not None and kept.type is BatchType.PLACEHOLDER
    return None if vanished and batch.type is BatchType.DATA else kept


def an_offset_too_late(original: Callable[..., Offset], keys: KeyMap, key: bytes) -> Offset:
    return Offset(original(keys, key) + 1)


def sweep_at_once(original: Callable[..., int], log: Log, job: MergeJob) -> int:
    removed = original(log, job)
    log._remove_leftovers()
    return removed


def bury_configurations(original: Callable[..., bool], group: Any, older: Segment) -> bool:
    if group.members and group.members[-1].head is BatchType.CONFIGURATION:
        group.members[-1].head = BatchType.DATA
    return original(group, older)


def end_too_early(original: Callable[..., Any], log: Log, term: Term) -> Any:
    found, end = original(log, term)
    return found, Offset(end - 1)


def retain_without_snapshot(replica: Replica, first_kept: Offset) -> bool:
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


def my_copy_is_enough(shipping: Shipping) -> Offset:
    return shipping._stored_of(shipping.core.vnode)


def read_all_that_is_visible(shipping: Shipping) -> Offset:
    return shipping.core.visible


def holes_do_not_taint(shipping: Shipping, _: Offset, compacted: Offset) -> None:
    shipping.core.raise_compacted(compacted)


def install_anything(shipping: Shipping, snapshot: msg.SnapshotMeta) -> None:
    core = shipping.core
    shipping.restore_pending = True
    core.committed = min(core.committed, Offset(snapshot.offset - 1))
    core.visible = min(core.visible, snapshot.offset)
    core.reset_log(snapshot)


def forget_compacted(original: Callable[..., Any], state: Any) -> Any:
    return replace(original(state), compacted=NO_OFFSET)


def no_producers(original: Callable[..., bytes], _: Producers) -> bytes:
    return original(Producers())


def checkpoint_with_holes(
    original: Callable[..., Any], checkpoints: Checkpoints, machines: Machines, core: Core, log: Log
) -> Any:
    vars(core.shipping)["machines_are_exact"] = lambda: True
    job = original(checkpoints, machines, core, log)
    del vars(core.shipping)["machines_are_exact"]
    return job


def resume_at_the_end(
    original: Callable[..., Checkpoint | None],
    checkpoints: Checkpoints,
    machines: Machines,
    log: Log,
    carried: Checkpoint | None = None,
) -> Checkpoint | None:
    used = original(checkpoints, machines, log, carried)
    if machines.applied > NO_OFFSET:
        machines.applied = log.dirty
    return used


# --- Harm -------------------------------------------------------------------------------------


def come_back_as_before(memory: Memory) -> None:
    memory._births += 1
    memory._began = False


def trust_the_disk(original: Callable[..., list[Batch]], *arguments: Any) -> list[Batch]:
    check = Batch.check_crc
    Batch.check_crc = lambda *_: None  # type: ignore[method-assign]
    try:
        return original(*arguments)
    finally:
        Batch.check_crc = check  # type: ignore[method-assign]


def insist_on_every_snapshot(files: SnapshotFiles, name: str) -> None:
    files._infos[name] = files._read_header(name)
