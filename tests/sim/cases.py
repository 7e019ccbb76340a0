"""Small histories and cases to judge: three replicas, one leader, a handful of entries.

`Story` tells what happened; `Story.case` is an event in which all is well, and a test changes the
one thing that it wants to see objected to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidelog.machines import Balances, Machine, Producers
from tidelog.raft.configuration import Configuration
from tidelog.raft.messages import AppendRequest, SnapshotMeta
from tidelog.raft.types import GroupId, Level, NodeId, Role, Vnode
from tidelog.records import (
    NO_OFFSET,
    Batch,
    BatchType,
    Offset,
    Record,
    Term,
    build_batch,
    internal_batch,
)
from tidelog.sim.facts import Case, Exam, Glimpse, Segment, Sight, Translated, pair
from tidelog.sim.reference import Reference
from tidelog.sim.truth import Asked, Entry, GroupTruth
from tidelog.storage import Vote

N1, N2, N3, N4 = (Vnode(NodeId(number), 0) for number in (1, 2, 3, 4))
GROUP = GroupId(1)
TRIO = Configuration((N1, N2, N3))
NOW = 1_000_000


def machines() -> list[Machine]:
    return [Balances(), Producers()]


def data_batch(
    *pairs: tuple[str, str | None],
    base: int = 0,
    term: int = 1,
    producer: tuple[int, int, int] = (-1, -1, -1),
    operation: str = "op",
) -> Batch:
    """A batch of deposits, as a client writes it."""
    records = [
        Record(
            delta,
            NOW,
            key.encode(),
            None if value is None else value.encode(),
            (("op", operation.encode()),),
        )
        for delta, (key, value) in enumerate(pairs)
    ]
    return build_batch(
        records,
        base_offset=Offset(base),
        term=Term(term),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


class FakeDisks:
    """Disks that hold what a test says."""

    def __init__(self) -> None:
        self.held: dict[Vnode, list[Entry]] = {}
        self.votes: dict[Vnode, Vote] = {}

    def holds(self, vnode: Vnode, entry: Entry) -> bool:
        return any(each is entry for each in self.held.get(vnode, ()))

    def vote(self, vnode: Vnode) -> Vote | None:
        return self.votes.get(vnode)


class Story:
    """A group of three whose first leader wrote a configuration and some deposits."""

    def __init__(self, entries: int = 4) -> None:
        self.truth = GroupTruth(TRIO)
        self.disks = FakeDisks()
        self.reference = Reference(self.truth.ledger, machines)
        self.truth.elected(N1, Term(1), TRIO)
        for voter in (N1, N2):
            self.truth.voted(voter, Term(1), N1)
        self.configure(N1, TRIO, term=1)
        for number in range(entries - 1):
            self.write(N1, (f"k{number % 2}", str(number)), term=1)
        self.copy(N1, N2, N3)
        self.commit(N1)

    # --- What happens ---------------------------------------------------------------------------

    def lead(self, leader: Vnode, batch: Batch) -> Entry:
        entry = self.truth.lead(leader, [batch])[0]
        self.truth.append(leader, [batch])
        return entry

    def configure(self, leader: Vnode, configuration: Configuration, *, term: int) -> Entry:
        batch = internal_batch(BatchType.CONFIGURATION, configuration.encode())
        return self.lead(leader, batch.stamp(self.end(leader), Term(term)))

    def write(
        self,
        leader: Vnode,
        *pairs: tuple[str, str | None],
        term: int,
        level: Level | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
        operation: str = "op",
    ) -> Entry:
        batch = data_batch(
            *pairs, base=self.end(leader), term=term, producer=producer, operation=operation
        )
        entry = self.lead(leader, batch)
        entry.level = level
        return entry

    def end(self, vnode: Vnode) -> Offset:
        return Offset(self.truth.replica(vnode).lineage.dirty + 1)

    def copy(self, source: Vnode, *targets: Vnode) -> None:
        """Bring these replicas up to the source's log, on disk too."""
        for target in (source, *targets):
            held = self.truth.replica(target).lineage
            missing = [e for e in self.truth.replica(source).lineage.entries if not held.holds(e)]
            if missing and held.dirty >= missing[0].base:
                self.truth.truncate(target, missing[0].base)
            self.truth.append(target, [entry.batch for entry in missing])
            self.disks.held[target] = list(self.truth.replica(source).lineage.entries)
            self.truth.replica(target).flushed = self.truth.replica(source).lineage.dirty

    def commit(self, vnode: Vnode) -> list[Entry]:
        return self.truth.commit(vnode, self.truth.replica(vnode).lineage.dirty)

    def entry(self, depth: int) -> Entry:
        return self.truth.ledger.entries[depth]

    # --- What is seen ---------------------------------------------------------------------------

    def case(self) -> Case:
        return Case(self.truth, self.disks, self.reference.state_at)

    def sight(self, vnode: Vnode, **changes: Any) -> Sight:
        lineage = self.truth.replica(vnode).lineage
        end = lineage.dirty
        configurations = lineage.configurations
        known = Sight(
            vnode=vnode,
            role=Role.LEADER if vnode == N1 else Role.FOLLOWER,
            term=Term(1),
            start=Offset(0),
            dirty=end,
            flushed=end,
            committed=min(end, self.truth.ledger.dirty),
            visible=min(end, self.truth.ledger.dirty),
            applied=min(end, self.truth.ledger.dirty),
            collectible=NO_OFFSET,
            compacted=NO_OFFSET,
            readable=min(end, self.truth.ledger.dirty),
            prefix_term=Term(0),
            confirmed=vnode == N1,
            tainted=False,
            waits=False,
            snapshot=None,
            configuration=configurations[-1].configuration if configurations else TRIO,
            configuration_offset=configurations[-1].base if configurations else NO_OFFSET,
            matches={N2: end, N3: end} if vnode == N1 else {},
        )
        return replace(known, **changes)

    def exam(self, vnode: Vnode, stored: list[Batch] | None = None, **changes: Any) -> Exam:
        lineage = self.truth.replica(vnode).lineage
        sight = changes.pop("sight", None) or self.sight(vnode)
        batches = [entry.batch for entry in lineage.entries] if stored is None else stored
        pairs, strangers = pair(lineage, sight.start, batches)
        known = Exam(
            vnode=vnode,
            sight=sight,
            opened=False,
            pairs=pairs,
            strangers=strangers,
            segments=[Segment(Offset(0), lineage.dirty, Term(1))],
            state=self.reference.state_at(sight.applied),
            translated=[
                Translated(entry.base, Offset(entry.base - 1), entry.base)
                for entry in lineage.entries
                if entry.is_data
            ],
            term_ends={},
            now_ms=NOW,
            delete_retention_ms=1_000,
        )
        return replace(known, **changes)

    def snapshot(self, at: int, /, **changes: Any) -> SnapshotMeta:
        entry = self.truth.ledger.at(at)
        term = entry.term if entry is not None else Term(1)
        return replace(SnapshotMeta(Offset(at), term, TRIO, 10, 0), **changes)

    def request(
        self, entries: list[Batch], *, term: int = 1, prev: int | None = None, target: Vnode = N2
    ) -> AppendRequest:
        before = entries[0].base_offset - 1 if prev is None else prev
        at = self.truth.ledger.at(before)
        return AppendRequest(
            GROUP,
            N1,
            target,
            Term(term),
            1,
            Offset(before),
            at.term if at is not None else Term(0),
            tuple(entries),
            NO_OFFSET,
            NO_OFFSET,
            NO_OFFSET,
            False,
        )

    def asked(self, entry: Entry | None, level: Level = Level.QUORUM) -> Asked:
        return Asked(7, "writer", level, b"", N1, None, entry)


def glimpse(**changes: Any) -> Glimpse:
    known = Glimpse(Role.FOLLOWER, Term(1), Offset(3), Offset(3), Offset(0))
    return replace(known, **changes)
