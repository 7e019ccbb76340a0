"""What clients did and were told, and whether one log explains all of it.

Writers note a write before they hand it to their client, and what the client says of it later.
Readers note each record that they were given. Everybody notes the end of a partition if told. When
the cluster is at rest the log is read once more, and `check` asks:

- every acknowledged write is at its offset, and at no other;
- nothing is there twice, and nothing that nobody wrote. A write that failed may be there, once;
- offsets count up by one from the first;
- a write is behind every offset that was known before it began, and the writes of one writer to
  one partition are in the order in which it made them;
- a reader was given the log from its first offset on, record by record, without a repetition, and
  by the time the cluster is at rest to its end;
- an end, once known, is never taken back.

A write that the leader alone acknowledged is not shown to others yet, and goes with that leader if
it dies: such a write is where it was said to be, or it is nowhere. What was read or told as an end
still holds.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FAULTS_SHOWN = 20

# Offset and value of every record of a partition, in order, for each partition.
Logs = Mapping[int, Sequence[tuple[int, bytes]]]


# What a fault is called: by the names of Jepsen's checker for Kafka where it has one.
KINDS = {
    "lost-write": "an acknowledged record is not in the log, or a record that was read is gone",
    "unseen": "a reader was not given records of the log, however long it waited at the end",
    "duplicate": "one record is in the log twice",
    "inconsistent-offsets": "two records were seen at one offset, or the log skips an offset",
    "nonmonotonic-send": "two records of one writer are in the log in the wrong order",
    "nonmonotonic-poll": "a reader was given an offset that it already had",
    "poll-skip": "a reader was not given an offset",
    "real-time": "a record was written after a later offset was known",
    "end-taken-back": "a partition was said to end before an offset that was known",
    "phantom": "the log has a record that no client wrote there",
}


class Fault(NamedTuple):
    kind: str
    text: str


@dataclass(slots=True)
class Write:
    """One record that a writer wanted written."""

    value: bytes  # unique
    writer: str
    partition: int
    floor: int  # the highest offset of the partition that anybody knew when it began
    offset: int | None = None  # as it was acknowledged
    failure: str | None = None  # why it was not


@dataclass(frozen=True, slots=True)
class Read:
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class End:
    """Somebody asked where a partition ends."""

    floor: int  # the highest offset that anybody knew when the question was asked
    told: int


@dataclass(slots=True)
class History:
    """Everything that happened to the clients; any thread may add to it."""

    relaxed: bool = False  # the leader alone acknowledges
    leaders_die: bool = False  # what it alone acknowledged may go with it
    readers: Sequence[str] = ()  # who has to be given everything by the end
    writes: dict[bytes, Write] = field(default_factory=dict)
    # Reader and partition, what was read.
    reads: dict[tuple[str, int], list[Read]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, list[End]] = field(default_factory=lambda: defaultdict(list))
    _known: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- Noting ---------------------------------------------------------------------------------

    def known(self, partition: int) -> int:
        """Return the highest offset that some client was told of; -1 if there is none."""
        with self._lock:
            return self._known.get(partition, -1)

    def begin(self, writer: str, partition: int, value: bytes) -> None:
        """A writer is about to write."""
        with self._lock:
            assert value not in self.writes, "values are unique, so that records can be told apart"
            floor = self._known.get(partition, -1)
            self.writes[value] = Write(value, writer, partition, floor)

    def acknowledge(self, value: bytes, offset: int) -> None:
        with self._lock:
            write = self.writes[value]
            write.offset = offset
            if not self.relaxed:
                self._learn(write.partition, offset)

    def fail(self, value: bytes, why: str) -> None:
        with self._lock:
            self.writes[value].failure = why

    def read(self, reader: str, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            self.reads[reader, partition].append(Read(offset, value))
            self._learn(partition, offset)

    def end(self, partition: int, floor: int, told: int) -> None:
        """Somebody was told an end; `floor` is what was known before it asked."""
        with self._lock:
            self.ends[partition].append(End(floor, told))
            self._learn(partition, told - 1)

    def _learn(self, partition: int, offset: int) -> None:
        if offset > self._known.get(partition, -1):
            self._known[partition] = offset

    # --- Counting -------------------------------------------------------------------------------

    def acknowledged(self) -> int:
        with self._lock:
            return sum(write.offset is not None for write in self.writes.values())

    def failures(self) -> list[str]:
        with self._lock:
            return [each.failure for each in self.writes.values() if each.failure is not None]


def check(history: History, logs: Logs) -> None:
    """Raise if the logs, read when all was over, do not explain the history."""
    complain(list(find_faults(history, logs)))


def complain(faults: Sequence[Fault]) -> None:
    """Raise if there are any faults."""
    shown = "\n".join(f"{each.kind}: {each.text}" for each in faults[:FAULTS_SHOWN])
    assert not faults, f"{len(faults)} faults in this history:\n{shown}"


def count_kinds(faults: Sequence[Fault]) -> dict[str, int]:
    """Return how many there are of each kind that is looked for."""
    found = Counter(each.kind for each in faults)
    return {kind: found[kind] for kind in KINDS}


def find_faults(history: History, logs: Logs) -> Iterator[Fault]:
    """Yield everything that cannot be."""
    for partition, log in logs.items():
        yield from _log_faults(history, partition, log)
        yield from _order_faults(history, partition, log)
    yield from _write_faults(history, logs)
    yield from _reader_faults(history, logs)
    yield from _unseen_faults(history, logs)
    for partition, ends in history.ends.items():
        for end in ends:
            if end.told <= end.floor:
                yield Fault(
                    "end-taken-back",
                    f"partition {partition} was said to end at {end.told}"
                    f" when its offset {end.floor} was known",
                )


def _log_faults(
    history: History, partition: int, log: Sequence[tuple[int, bytes]]
) -> Iterator[Fault]:
    seen: dict[bytes, int] = {}
    for place, (offset, value) in enumerate(log):
        if offset != place:
            yield Fault(
                "inconsistent-offsets",
                f"partition {partition} has offset {offset} in place {place}",
            )
        if value in seen:
            yield Fault(
                "duplicate",
                f"{value!r} is at {seen[value]} and at {offset} of partition {partition}",
            )
        seen[value] = offset
        write = history.writes.get(value)
        if write is None:
            yield Fault(
                "phantom", f"nobody wrote {value!r}, which is at {offset} of partition {partition}"
            )
        elif write.partition != partition:
            yield Fault(
                "phantom", f"{value!r} was written to {write.partition} and is in {partition}"
            )
        elif offset <= write.floor:
            yield Fault(
                "real-time",
                f"{value!r} is at {offset} of partition {partition},"
                f" but {write.floor} was known before it was written",
            )


def _order_faults(
    history: History, partition: int, log: Sequence[tuple[int, bytes]]
) -> Iterator[Fault]:
    """Compare the order in the log with the one in which each writer began its writes."""
    places = {value: place for place, value in enumerate(history.writes)}
    last: dict[str, tuple[int, bytes]] = {}
    for _, value in log:
        write = history.writes.get(value)
        # A write that failed and was written late after all may be anywhere.
        if write is None or write.offset is None:
            continue
        before = last.get(write.writer)
        if before is not None and before[0] > places[value]:
            yield Fault(
                "nonmonotonic-send",
                f"{write.writer} wrote {value!r} before {before[1]!r},"
                f" but partition {partition} has it after",
            )
        last[write.writer] = (places[value], value)


def _write_faults(history: History, logs: Logs) -> Iterator[Fault]:
    found = {partition: dict(log) for partition, log in logs.items()}
    if history.relaxed and history.leaders_die:
        yield from _moved_writes(history, logs)
        return
    taken: dict[tuple[int, int], bytes] = {}
    for write in history.writes.values():
        if write.offset is None:
            continue
        place = (write.partition, write.offset)
        if place in taken:
            yield Fault(
                "inconsistent-offsets",
                f"{write.value!r} and {taken[place]!r} were both acknowledged at {place}",
            )
        taken[place] = write.value
        there = found.get(write.partition, {}).get(write.offset)
        if there is None:
            yield Fault("lost-write", f"{write.value!r}, acknowledged at {place}, is lost")
        elif there != write.value:
            yield Fault(
                "inconsistent-offsets",
                f"{write.value!r} was acknowledged at {place}, where {there!r} is",
            )


def _moved_writes(history: History, logs: Logs) -> Iterator[Fault]:
    for partition, log in logs.items():
        for offset, value in log:
            write = history.writes.get(value)
            if write is not None and write.offset not in (None, offset):
                at = f"{write.offset} of {partition}"
                yield Fault(
                    "inconsistent-offsets", f"{value!r} was acknowledged at {at}, not at {offset}"
                )


def _reader_faults(history: History, logs: Logs) -> Iterator[Fault]:
    for (reader, partition), reads in history.reads.items():
        log = logs.get(partition, ())
        for place, read in enumerate(reads):
            if read.offset != place:
                kind = "poll-skip" if read.offset > place else "nonmonotonic-poll"
                text = f"{reader} was given {read.offset} of partition {partition} as its {place}."
                yield Fault(kind, text)
                break
            if place >= len(log):
                yield Fault(
                    "lost-write",
                    f"{reader} read {read.value!r} at {place} of {partition}, and it is gone",
                )
            elif log[place][1] != read.value:
                yield Fault(
                    "inconsistent-offsets",
                    f"{reader} read {read.value!r} at {place} of partition {partition},"
                    f" where {log[place][1]!r} is",
                )


def _unseen_faults(history: History, logs: Logs) -> Iterator[Fault]:
    for reader in history.readers:
        for partition, log in logs.items():
            seen = len(history.reads.get((reader, partition), ()))
            if seen < len(log):
                yield Fault(
                    "unseen",
                    f"{reader} was given {seen} of {len(log)} records of partition {partition}",
                )
