"""Taking appends from a leader.

A request is checked, in this order: is what it follows on there, with the same term? What of it is
here already? A duplicate or an old request never truncates anything: only a batch that this log
contradicts does. What is left is appended.

The answer goes out when the append is done or, if the leader asked for a flush, when it is on disk
(seed 1). Requests that arrive while a flush runs are covered by the next one, and one answer, for
the newest of them, speaks for all. A request that brings nothing new is answered at once as well:
a leader sends it again because it heard nothing, and takes a follower that stays silent for dead,
however slow the disk. The answer names what is flushed, so it claims no more than is true.
"""

from typing import TYPE_CHECKING, Final

from tidelog.raft import messages as msg
from tidelog.raft.log import last_not_above
from tidelog.records import (
    NO_OFFSET,
    NO_TERM,
    Batch,
    BatchType,
    CorruptBatch,
    Offset,
    Term,
    ghost,
)

if TYPE_CHECKING:
    from tidelog.raft.core import Core

# What clients wrote, or what is left of it after compaction.
_OF_CLIENTS: Final = frozenset({BatchType.DATA, BatchType.GHOST, BatchType.PLACEHOLDER})


def is_well_formed(request: msg.AppendRequest) -> bool:
    """Whether the batches follow on without a hole, terms do not fall, and no ghost is last."""
    expected = request.prev_offset + 1
    term = request.prev_term
    for batch in request.batches:
        if batch.base_offset != expected or not term <= batch.term <= request.term:
            return False
        expected = batch.last_offset + 1
        term = batch.term
    return not request.batches or not request.batches[-1].is_ghost


def _are_sound(batches: tuple[Batch, ...]) -> bool:
    """Whether the batches have their checksums: what rots on one replica must stay there."""
    try:
        for batch in batches:
            batch.check_crc()
    except CorruptBatch:
        return False
    return True


def _seq(request: msg.AppendRequest) -> int:
    return request.seq


class Receiver:
    __slots__ = (
        "_appending",
        "_awaiting_flush",
        "_commit_hint",
        "_newest",
        "core",
        "spared",
        "sparing",
    )

    def __init__(self, core: "Core") -> None:
        self.core = core
        # The disk is all but full: what is left is for the cluster's own batches, and for what
        # comes before them in the same request. How many requests were refused for that.
        self.sparing = False
        self.spared = 0
        # The request whose batches the driver is appending: it reports before the next step.
        self._appending: msg.AppendRequest | None = None
        # The newest request answered or to be answered in this term, and how far it matched.
        self._newest: tuple[msg.AppendRequest, Offset] | None = None
        # An answer waits until this offset is flushed.
        self._awaiting_flush: Offset | None = None
        # Known committed and held here, perhaps not yet flushed.
        self._commit_hint = NO_OFFSET

    def forget(self) -> None:
        """The term changed: whoever waits for an answer no longer leads."""
        self._appending = None
        self._newest = None
        self._awaiting_flush = None

    def cut(self, last: Offset) -> None:
        """The log lost its end: an answer must not claim it."""
        if self._newest is not None and self._newest[1] > last:
            self._newest = None
            self._awaiting_flush = None

    # --- Requests -------------------------------------------------------------------------------

    def on_append(self, request: msg.AppendRequest) -> None:
        core = self.core
        prev = request.prev_offset
        if not is_well_formed(request):
            return  # no leader of ours sends such a thing, and silence harms only who did
        # Up to `committed` every log of the group is the same.
        if prev > core.dirty or (
            prev > core.committed and core.log.term_of(prev) != request.prev_term
        ):
            self.refuse(request, msg.Status.MISMATCH)
            return
        core.shipping.leader_compacted(request.compacted, beat=not request.batches)
        fresh = self._not_yet_here(request.batches)
        if not fresh:
            self._accept(request, fresh=False)
            return
        if not _are_sound(fresh):
            self.refuse(request, msg.Status.DAMAGED)
            return
        if self.sparing and all(batch.type in _OF_CLIENTS for batch in fresh):
            self.spared += 1
            self.refuse(request, msg.Status.UNAVAILABLE)
            return
        first = fresh[0].base_offset
        if first <= request.compacted and request.compacted > core.persisted.compacted:
            # These may have holes, and a crash must not leave holes that nobody knows of. The
            # answer waits until the mark is on disk; then the leader sends them again.
            core.raise_compacted(request.compacted)
            self.refuse(request, msg.Status.MISMATCH)
            return
        if first <= core.dirty:
            core.truncate(first)
        if first <= request.compacted:
            core.shipping.received_holes(first, request.compacted)
        self._appending = request
        core.append(fresh)

    def _not_yet_here(self, batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
        """The batches from the first one that this log lacks or contradicts."""
        core = self.core
        for index, batch in enumerate(batches):
            if batch.base_offset > core.dirty:
                return batches[index:]
            here = min(batch.last_offset, core.dirty)
            if here > core.committed and core.log.term_of(here) != batch.term:
                return batches[index:]
            if batch.last_offset > core.dirty:
                # Compaction can join gaps, so a ghost may begin in what is here; a batch cannot.
                assert batch.is_ghost, f"{batch} begins inside this log and ends beyond it"
                rest = ghost(Offset(core.dirty + 1), batch.last_offset, batch.term)
                return (rest, *batches[index + 1 :])
        return ()

    def on_appended(self) -> None:
        request, self._appending = self._appending, None
        if request is not None:
            self._accept(request, fresh=True)

    def on_append_failed(self) -> None:
        request, self._appending = self._appending, None
        if request is not None:
            self.refuse(request, msg.Status.UNAVAILABLE)

    # --- Answers --------------------------------------------------------------------------------

    def _accept(self, request: msg.AppendRequest, *, fresh: bool) -> None:
        core = self.core
        match = request.batches[-1].last_offset if request.batches else request.prev_offset
        newest = request
        if self._newest is not None:
            # What matched in this term stays so: a heartbeat that overtakes says it too. And an
            # answer to a request that was overtaken would be taken for old news.
            match = max(match, self._newest[1])
            newest = max(request, self._newest[0], key=_seq)
        self._newest = (newest, match)
        self._commit_hint = max(self._commit_hint, min(request.committed, match))
        core.show_to(min(request.visible, match))
        self._commit()
        waits = request.flush and match > core.flushed
        if waits:
            self._awaiting_flush = match
            core.flush()
        if not (waits and fresh):
            self._answer()
        if not waits:
            core.note_unflushed(sum(batch.size for batch in request.batches))

    def on_flushed(self) -> None:
        self._commit()
        if self._awaiting_flush is not None and self._awaiting_flush <= self.core.flushed:
            self._awaiting_flush = None
            self._answer()

    def _commit(self) -> None:
        self.core.commit_to(min(self._commit_hint, self.core.flushed))

    def _answer(self) -> None:
        assert self._newest is not None
        request, match = self._newest
        self._reply(request, msg.Status.SUCCESS, match=match)

    def refuse(self, request: msg.AppendRequest, status: msg.Status) -> None:
        core = self.core
        hint, hint_term = NO_OFFSET, NO_TERM
        if status is msg.Status.MISMATCH:
            place = min(request.prev_offset, core.dirty)
            hint, hint_term = last_not_above(core.log, place, request.prev_term)
        self._reply(request, status, hint=hint, hint_term=hint_term)

    def _reply(
        self,
        request: msg.AppendRequest,
        status: msg.Status,
        *,
        match: Offset = NO_OFFSET,
        hint: Offset = NO_OFFSET,
        hint_term: Term = NO_TERM,
    ) -> None:
        core = self.core
        core.send(
            msg.AppendReply(
                core.group,
                core.vnode,
                request.source,
                core.term,
                request.seq,
                status,
                match,
                core.appended,
                core.flushed,
                hint,
                hint_term,
                core.snapshot.offset if core.snapshot is not None else NO_OFFSET,
            )
        )
