"""Writes that wait for their level.

A proposal resolves when its level is reached on this leader. When leadership is lost the rest
stay, because a write that was truncated here may yet be reinstated by a third leader. Two things
settle it on this replica:
- its commit index covers the offset: the write succeeded if the entry still has the term in which
  it was appended, and was truncated otherwise;
- an entry of a later term is committed below the offset: every later leader has that entry, and
  what follows it in any log is at least as new (log matching), so the write is gone for good.
"""

from collections import deque
from collections.abc import Callable, Iterator

from tidelog.raft.events import Done, Refusal, Refused
from tidelog.raft.types import Level
from tidelog.raft.values import value
from tidelog.records import NO_TERM, Offset, Term


@value
class Proposal:
    token: int
    base: Offset
    last: Offset
    term: Term
    level: Level
    size: int


class Proposals:
    """The accepted proposals that wait, in log order, per level."""

    __slots__ = ("_memory", "_quorum", "bytes")

    def __init__(self) -> None:
        # Invariant: each is ordered by `last` within one term; terms never decrease.
        self._quorum: deque[Proposal] = deque()
        self._memory: deque[Proposal] = deque()
        self.bytes = 0  # of everything that waits

    def __len__(self) -> int:
        return len(self._quorum) + len(self._memory)

    def has_older(self, term: Term) -> bool:
        """Whether something waits that was accepted before this term."""
        return any(queue and queue[0].term < term for queue in (self._quorum, self._memory))

    def add(self, proposal: Proposal) -> None:
        queue = self._quorum if proposal.level is Level.QUORUM else self._memory
        queue.append(proposal)
        self.bytes += proposal.size

    def resolve_as_leader(self, term: Term, committed: Offset, visible: Offset) -> Iterator[Done]:
        """Those of this leader's own term whose level is reached."""
        yield from self._reached(self._quorum, term, committed)
        yield from self._reached(self._memory, term, visible)

    def resolve_by_commit(
        self, committed: Offset, start: Offset, term_of: Callable[[Offset], Term | None]
    ) -> Iterator[Done | Refused]:
        """Those that the commit index settles, whoever leads now."""
        if not self:
            return
        newest = term_of(committed) or NO_TERM
        for queue in (self._quorum, self._memory):
            while queue and (queue[0].last <= committed or queue[0].term < newest):
                proposal = queue.popleft()
                self.bytes -= proposal.size
                if proposal.last > committed:
                    yield Refused(proposal.token, Refusal.TRUNCATED)
                elif proposal.last < start:
                    yield Refused(proposal.token, Refusal.UNKNOWN)
                elif term_of(proposal.last) == proposal.term:
                    yield Done(proposal.token, proposal.base)
                else:
                    yield Refused(proposal.token, Refusal.TRUNCATED)

    def drop_all(self) -> Iterator[Refused]:
        """Their log is gone or no longer to be trusted: nobody can tell from here."""
        for queue in (self._quorum, self._memory):
            while queue:
                yield Refused(queue.popleft().token, Refusal.UNKNOWN)
        self.bytes = 0

    def _reached(self, queue: deque[Proposal], term: Term, upto: Offset) -> Iterator[Done]:
        while queue and queue[0].last <= upto and queue[0].term == term:
            proposal = queue.popleft()
            self.bytes -= proposal.size
            yield Done(proposal.token, proposal.base)
