"""What the clients lived through, and the questions that are asked of it when the world is at rest.

The clients know nothing of terms, votes or flushes. They know what they asked for, what they were
told, and when. The ledger says what became of it: every committed entry, as it was written. From
the two follows whether the store kept its word:

- a quorum write that was acknowledged is there, once, at the offset that was named, and after every
  offset that was known before it began;
- nothing is there twice, nothing that was refused, nothing that nobody asked for;
- a consumer saw the committed order and lost only what was never committed;
- a balance that was read is the sum of all operations up to its offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tidelog.raft.types import GroupId, Level
from tidelog.records import NO_OFFSET, Offset, Record, Term
from tidelog.sim.truth import Entry, GroupTruth

# The header by which every record names the operation that it belongs to.
OPERATION = "op"

Accounts = Mapping[bytes, tuple[int, int]]  # key -> balance and number of updates


class Fate(Enum):
    """What the client believes of an operation."""

    OPEN = "open"  # not answered yet
    OK = "ok"
    FAILED = "failed"  # refused before it was appended: it must never show up
    UNKNOWN = "unknown"  # no answer, or one that says nothing


@dataclass(slots=True)
class Operation:
    """One batch that a client wanted written."""

    name: str  # unique in the world; in a header of each of its records
    group: GroupId
    level: Level
    records: Sequence[Record]
    floor: Offset  # highest offset known to be committed when it began
    attempts: int = 0
    fate: Fate = Fate.OPEN
    offset: Offset = NO_OFFSET  # as it was acknowledged


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch that a consumer was given."""

    base: Offset
    last: Offset
    term: Term


@dataclass(frozen=True, slots=True)
class Balance:
    """The accounts as a replica showed them."""

    reader: str
    node: str
    offset: Offset  # applied there
    accounts: Accounts


@dataclass(slots=True)
class Consumed:
    """What one consumer believes the log to be."""

    reader: str
    group: GroupId
    seen: list[Seen] = field(default_factory=list)
    dropped: list[Seen] = field(default_factory=list)  # taken back after a change of leader


class History:
    """The notes of all clients."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self.balances: dict[GroupId, list[Balance]] = {}
        self.consumed: list[Consumed] = []
        self.floors: dict[GroupId, Offset] = {}  # highest offset acknowledged at level QUORUM
        self.complaints: dict[GroupId, list[str]] = {}  # of what was wrong at once

    def floor(self, group: GroupId) -> Offset:
        return self.floors.get(group, NO_OFFSET)

    def complain(self, group: GroupId, text: str) -> None:
        self.complaints.setdefault(group, []).append(text)

    def acknowledged(self, operation: Operation, offset: Offset) -> None:
        """The client was told that its operation is written at this offset."""
        operation.fate = Fate.OK
        operation.offset = offset
        if operation.level is Level.QUORUM:
            self.floors[operation.group] = max(self.floor(operation.group), offset)

    def judge(self, group: GroupId, truth: GroupTruth) -> Iterator[str]:
        """Everything that is wrong with the notes about one group."""
        yield from self.complaints.get(group, ())
        yield from self._writes(group, truth)
        for consumed in self.consumed:
            if consumed.group == group:
                yield from _reads(consumed, truth)
        yield from _money(self.balances.get(group, ()), truth)

    def _writes(self, group: GroupId, truth: GroupTruth) -> Iterator[str]:
        found: dict[str, Entry] = {}
        for entry in truth.ledger.entries:
            if not entry.is_data:
                continue
            name = operation_of(entry.records)
            operation = self.operations.get(name or "")
            if operation is None or operation.group != group:
                yield f"{entry} was written by nobody: {name}"
            elif [_content(r) for r in entry.records] != [_content(r) for r in operation.records]:
                yield f"{entry} is not what {name} asked for"
            elif name in found:
                yield f"{name} was written twice: {found[name]} and {entry}"
            else:
                found[operation.name] = entry
        for operation in self.operations.values():
            if operation.group == group:
                yield from _verdict(operation, found.get(operation.name), truth)


def _verdict(operation: Operation, entry: Entry | None, truth: GroupTruth) -> Iterator[str]:
    name = f"{operation.name} (level {operation.level.name})"
    if operation.fate is Fate.OK:
        if entry is None:
            if operation.level is Level.QUORUM:
                yield f"{name} was acknowledged at {operation.offset} and is lost"
        elif entry.base != operation.offset and not _was_lost(operation, truth):
            yield f"{name} was acknowledged at {operation.offset} and is {entry}"
    elif operation.fate is Fate.FAILED and entry is not None:
        yield f"{name} was refused and is {entry}"
    elif operation.fate is Fate.OPEN:
        yield f"{name} is still open at the end"
    if entry is not None and entry.base <= operation.floor:
        yield f"{name} began when {operation.floor} was committed and is {entry}"


def _was_lost(operation: Operation, truth: GroupTruth) -> bool:
    """Whether a relaxed write was where it was acknowledged, until a change of leader took it back.

    An idempotent writer that heard of the acknowledgement late had sent it again by then, and that
    attempt is the one that stayed.
    """
    return operation.level is not Level.QUORUM and any(
        entry.base == operation.offset
        and entry.is_data
        and not truth.ledger.holds(entry)
        and operation_of(entry.records) == operation.name
        for entry in truth.entries.values()
    )


def _reads(consumed: Consumed, truth: GroupTruth) -> Iterator[str]:
    position = NO_OFFSET
    for seen in consumed.seen:
        if seen.base <= position:
            yield f"{consumed.reader} was given {seen} after offset {position}"
        position = seen.last
        entry = truth.ledger.at(seen.last)
        if entry is None or (entry.last, entry.term) != (seen.last, seen.term):
            yield f"{consumed.reader} was given {seen}; {entry} is what was committed there"
    for seen in consumed.dropped:
        entry = truth.ledger.at(seen.last)
        if entry is not None and (entry.last, entry.term) == (seen.last, seen.term):
            yield f"{consumed.reader} was made to forget {seen}, which is committed"


def _money(balances: Sequence[Balance], truth: GroupTruth) -> Iterator[str]:
    """Compare every balance that was read with the sum of the operations up to its offset."""
    accounts: dict[bytes, tuple[int, int]] = {}
    entries = iter(truth.ledger.entries)
    entry = next(entries, None)
    for balance in sorted(balances, key=lambda balance: balance.offset):
        while entry is not None and entry.last <= balance.offset:
            if entry.is_data:
                add_up(accounts, entry.records)
            entry = next(entries, None)
        if dict(balance.accounts) != accounts:
            yield (
                f"{balance.reader} was shown {dict(balance.accounts)} at offset {balance.offset} "
                f"on {balance.node}; the operations up to there make {accounts}"
            )


def add_up(accounts: dict[bytes, tuple[int, int]], records: Sequence[Record]) -> None:
    """Do what the records say, as a bank clerk would."""
    for record in records:
        assert record.key is not None
        if record.value is None:
            accounts.pop(record.key, None)
        else:
            total, updates = accounts.get(record.key, (0, 0))
            accounts[record.key] = total + int(record.value), updates + 1


def operation_of(records: Sequence[Record]) -> str | None:
    """The operation that these records name, if all name the same."""
    names = {dict(record.headers).get(OPERATION) for record in records}
    name = names.pop() if len(names) == 1 else None
    return name.decode() if name is not None else None


def _content(record: Record) -> tuple[bytes | None, bytes | None]:
    return record.key, record.value
