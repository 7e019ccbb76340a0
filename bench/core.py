"""What consensus costs: processor time a replicated batch, without disk and network.

Three cores on logs in memory. Each proposal is one batch at quorum level, replicated to two
followers, flushed everywhere and committed; the time spent in the leader's steps and in one
follower's is measured apart. With pipelining, eight proposals are under way at a time.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from tidelog.raft import events as ev
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Core, Options
from tidelog.raft.messages import Message
from tidelog.raft.types import GroupId, HardState, Level, NodeId, Vnode
from tidelog.records import NO_OFFSET, NO_TERM, Batch, BatchType, Offset, Record, Term, build_batch

NAME = "core"
PROPOSALS = 20_000
QUICK_PROPOSALS = 2_000
PIPELINE = 8


class MemoryLog:
    """A `LogView` that keeps batches in a list."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.bases: list[int] = []
        self.start = Offset(0)
        self.dirty = NO_OFFSET
        self.flushed = NO_OFFSET
        self.last_term = NO_TERM

    def append(self, batches: tuple[Batch, ...]) -> None:
        self.batches.extend(batches)
        self.bases.extend(batch.base_offset for batch in batches)
        self.dirty = batches[-1].last_offset
        self.last_term = batches[-1].term

    def term_of(self, offset: Offset) -> Term | None:
        if not 0 <= offset <= self.dirty:
            return NO_TERM if offset == NO_OFFSET else None
        return self.batches[bisect_right(self.bases, offset) - 1].term

    def first_of_term_at(self, offset: Offset) -> Offset:
        term = self.term_of(offset)
        return next(batch.base_offset for batch in self.batches if batch.term == term)

    def read(
        self,
        start: Offset,
        max_bytes: int,
        *,
        upto: Offset | None = None,
        fill_gaps: bool = False,
    ) -> list[Batch]:
        del upto, fill_gaps
        found: list[Batch] = []
        for batch in self.batches[bisect_right(self.bases, start) - 1 :]:
            if found and max_bytes < batch.size:
                break
            max_bytes -= batch.size
            found.append(batch)
        return found

    def last_configuration(self, upto: Offset) -> Batch | None:
        for batch in reversed(self.batches):
            if batch.type is BatchType.CONFIGURATION and batch.base_offset <= upto:
                return batch
        return None


class Member:
    """A core with its log; `busy` is the time spent in its steps."""

    def __init__(self, vnode: Vnode, configuration: Configuration, wire: deque[Message]) -> None:
        self.log = MemoryLog()
        self.wire = wire
        self.busy = 0.0
        self.core = Core(
            GroupId(1),
            vnode,
            self.log,
            hard=HardState(),
            initial=configuration,
            snapshot=None,
            options=Options(),
            leader_alive=lambda: False,
        )

    def step(self, event: ev.Event) -> None:
        events = deque([event])
        while events:
            began = time.perf_counter()
            outputs = self.core.step(events.popleft())
            self.busy += time.perf_counter() - began
            for output in outputs:
                match output:
                    case ev.Send(message):
                        self.wire.append(message)
                    case ev.Append(batches):
                        self.log.append(batches)
                        events.appendleft(ev.Appended(self.log.dirty))
                    case ev.Flush():
                        self.log.flushed = self.log.dirty
                        events.append(ev.Flushed(self.log.flushed))
                    case ev.Persist(state):
                        events.append(ev.Persisted(state))
                    case ev.ApplyUpTo(offset):
                        events.append(ev.Applied(offset))
                    case _:
                        pass


def _cluster() -> tuple[list[Member], deque[Message]]:
    vnodes = tuple(Vnode(NodeId(number), 0) for number in (1, 2, 3))
    configuration = Configuration(vnodes)
    wire: deque[Message] = deque()
    members = [Member(vnode, configuration, wire) for vnode in vnodes]
    members[0].step(ev.ElectionTimeout())
    _deliver(members, wire)
    assert members[0].core.confirmed
    return members, wire


def _deliver(members: list[Member], wire: deque[Message]) -> None:
    while wire:
        message = wire.popleft()
        members[message.target.id - 1].step(message)


def _measure(records: list[Record], count: int, pipeline: int) -> str:
    members, wire = _cluster()
    leader, follower = members[0], members[1]
    template = bytes(build_batch(records).data)
    leader.busy = follower.busy = 0.0
    for first in range(0, count, pipeline):
        for token in range(first, first + pipeline):
            # A writable buffer of its own, as a request from the network would be.
            batch = Batch.parse(bytearray(template))
            leader.step(ev.Propose(token, (batch,), Level.QUORUM))
        _deliver(members, wire)
    assert leader.core.committed == leader.log.dirty
    microseconds = 1e6 / count
    return (
        f"{len(template):>6} B a batch, {pipeline} under way:"
        f" leader {leader.busy * microseconds:5.1f} us,"
        f" follower {follower.busy * microseconds:5.1f} us"
    )


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure small and large batches, one at a time and pipelined."""
    count = QUICK_PROPOSALS if quick else PROPOSALS
    small = [Record(0, 0, None, bytes(100), ())]
    large = [Record(delta, 0, None, bytes(1000), ()) for delta in range(64)]
    yield "processor time of the core a replicated batch (goal: under 100 us)"
    for records in (small, large):
        for pipeline in (1, PIPELINE):
            yield _measure(records, count, pipeline)
