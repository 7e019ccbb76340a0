"""Idempotent producers: a batch that is sent twice is written once.

A producer numbers its records. The machine remembers, for each producer id, the epoch and the last
five batches; five because that is how many requests a Kafka client keeps in flight, so every batch
that may still be retried is among them. A retry is answered with the offset of the original.

    same epoch   a batch among the five      DUPLICATE, with the offsets of the original
                 the next number             NEW
                 a later number              AHEAD: batches before it are missing here
                 anything else               OUT_OF_ORDER
    lower epoch                              FENCED: a newer instance of this producer exists
    higher epoch starting at 0               NEW, and the older epoch is fenced from then on
                 not starting at 0           AHEAD
    unknown producer                         NEW at any number: it may have been forgotten here

What is missing before a batch that is AHEAD may be on its way, and so may be the first batch of an
unknown producer. How long such a batch is told to come again is decided in `cluster.replica`.

Rules:
- The fold is over committed batches. What the leader has appended since lies in an overlay, which
  `check` looks at first and which is forgotten when the term changes: it then either comes back
  through `apply`, or is gone from the log. The leader's bound on uncommitted bytes bounds it.
- Producers are bounded in number. The one that has not written for the longest stretch of the log
  is forgotten first; the log decides, not a clock, so all replicas forget the same.
- Offsets are log offsets. Sequence numbers go from 0 to 2^31 - 1 and start over at 0.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tidelog.machines.encoding import MAX_OFFSET, Reader, Writer
from tidelog.machines.machine import NO_OBJECTION
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset

WINDOW: Final = 5
# About 200 bytes each in memory: 2 MB for a partition with as many writers as this.
MAX_PRODUCERS: Final = 10_000
_SEQUENCES: Final = 2**31
_MAX_EPOCH: Final = 2**15 - 1
_VERSION: Final = 1


class Standing(Enum):
    """How a batch stands to what its producer wrote before."""

    NEW = "new"
    DUPLICATE = "duplicate"
    AHEAD = "ahead of batches that are missing"
    OUT_OF_ORDER = "out of order"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Verdict:
    standing: Standing
    # Of the original, for a duplicate; else NO_OFFSET. The original may not be committed yet: the
    # answer to the retry waits for `last` like the answer to the original does.
    base: Offset = NO_OFFSET
    last: Offset = NO_OFFSET

    def __str__(self) -> str:
        where = f" of [{self.base}, {self.last}]" if self.standing is Standing.DUPLICATE else ""
        return self.standing.value + where


_NEW: Final = Verdict(Standing.NEW)
_AHEAD: Final = Verdict(Standing.AHEAD)
_OUT_OF_ORDER: Final = Verdict(Standing.OUT_OF_ORDER)
_FENCED: Final = Verdict(Standing.FENCED)


class Written(NamedTuple):
    """One batch of a producer."""

    sequence: int  # of its first record
    delta: int  # to the sequence of its last record, and to its last offset
    base: Offset

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.delta) % _SEQUENCES

    @property
    def next_sequence(self) -> int:
        return (self.last_sequence + 1) % _SEQUENCES


class Producer(NamedTuple):
    """What is remembered of one producer id. Never changed, only replaced."""

    epoch: int
    touched: Offset  # base offset of its last batch or marker; no two producers share one
    window: tuple[Written, ...]  # oldest first, at most WINDOW; empty after a marker raised epoch


class Producers:
    name = "producers"

    def __init__(self, limit: int = MAX_PRODUCERS) -> None:
        """`limit` is part of the fold: it must be the same on all replicas."""
        self._limit = limit
        # Invariant: in rising order of `touched`.
        self._applied: OrderedDict[int, Producer] = OrderedDict()
        # As `_applied` will be once what the leader appended is committed; only those that differ.
        self._accepted: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._applied)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        """All producers of committed batches, in the order in which they wrote last."""
        return iter(self._applied.items())

    def knows(self, producer_id: int) -> bool:
        """Whether there is a batch of this producer, committed or not."""
        return producer_id in self._applied or producer_id in self._accepted

    def check(self, batch: Batch) -> Verdict:
        """Judge a batch that a client wants to write, before it is appended."""
        if batch.producer_id < 0 or batch.type is not BatchType.DATA:
            return _NEW
        known = self._accepted.get(batch.producer_id) or self._applied.get(batch.producer_id)
        if known is not None and batch.producer_epoch < known.epoch:
            return _FENCED
        if batch.is_control:
            return _NEW
        if batch.producer_epoch < 0 or batch.base_sequence < 0:
            return _OUT_OF_ORDER
        if known is None:
            return _NEW
        if batch.producer_epoch > known.epoch:
            return _AHEAD if batch.base_sequence else _NEW
        for written in known.window:
            if written[:2] == (batch.base_sequence, batch.last_offset_delta):
                last = Offset(written.base + written.delta)
                return Verdict(Standing.DUPLICATE, written.base, last)
        expected = known.window[-1].next_sequence if known.window else 0
        if batch.base_sequence == expected:
            return _NEW
        # Sequences start over, so half of them count as later.
        later = (batch.base_sequence - expected) % _SEQUENCES < _SEQUENCES // 2
        return _AHEAD if later else _OUT_OF_ORDER

    def holds(self, batch: Batch) -> bool:
        """Whether this is the last batch of its producer, committed or not."""
        known = self._accepted.get(batch.producer_id) or self._applied.get(batch.producer_id)
        return (
            known is not None
            and known.epoch == batch.producer_epoch
            and bool(known.window)
            and known.window[-1].sequence == batch.base_sequence
        )

    def accept(self, batch: Batch) -> None:
        """The leader appended this batch, stamped with its offset."""
        known = self._accepted.get(batch.producer_id) or self._applied.get(batch.producer_id)
        after = _fold(known, batch)
        if after is not None:
            self._accepted[batch.producer_id] = after

    def forget_accepted(self) -> None:
        """The term changed: what was appended and not applied may never be."""
        self._accepted.clear()

    def apply(self, batch: Batch) -> None:
        producer_id = batch.producer_id
        after = _fold(self._applied.get(producer_id), batch)
        if after is None:
            return
        self._applied[producer_id] = after
        self._applied.move_to_end(producer_id)
        if len(self._applied) > self._limit:
            self._applied.popitem(last=False)
        ahead = self._accepted.get(producer_id)
        if ahead is not None and ahead.touched <= after.touched:
            del self._accepted[producer_id]

    def collectible(self) -> Offset:
        return NO_OBJECTION

    def snapshot(self) -> bytes:
        writer = Writer(_VERSION)
        writer.number(len(self._applied))
        previous = -1
        for producer_id in sorted(self._applied):
            producer = self._applied[producer_id]
            writer.number(producer_id - previous - 1)
            writer.number(producer.epoch)
            writer.number(producer.touched)
            writer.number(len(producer.window))
            for written in producer.window:
                writer.number(written.sequence)
                writer.number(written.delta)
                writer.number(written.base)
            previous = producer_id
        return writer.finish()

    def restore(self, state: bytes) -> None:
        restored = self._read(state) if state else []
        self._applied = OrderedDict(restored)
        self._accepted = {
            producer_id: ahead
            for producer_id, ahead in self._accepted.items()
            if producer_id not in self._applied
            or ahead.touched > self._applied[producer_id].touched
        }

    def _read(self, state: bytes) -> list[tuple[int, Producer]]:
        """Producers of a snapshot, in the order in which they wrote last."""
        reader = Reader(state, self.name, _VERSION)
        count = reader.number(len(state))
        if count > self._limit:
            raise reader.corrupt(f"it knows {count} producers and the limit here is {self._limit}")
        producers: list[tuple[int, Producer]] = []
        previous = -1
        for _ in range(count):
            producer_id = previous + 1 + reader.number(MAX_OFFSET)
            if producer_id > MAX_OFFSET:
                raise reader.corrupt(f"producer id {producer_id} does not exist")
            epoch = reader.number(_MAX_EPOCH)
            touched = Offset(reader.number(MAX_OFFSET))
            window = tuple(
                Written(
                    reader.number(_SEQUENCES - 1),
                    reader.number(_SEQUENCES - 1),
                    Offset(reader.number(MAX_OFFSET)),
                )
                for _ in range(reader.number(WINDOW))
            )
            ends = [NO_OFFSET, *(written.base + written.delta for written in window)]
            if any(written.base <= end for written, end in zip(window, ends, strict=False)):
                raise reader.corrupt(f"the batches of producer {producer_id} overlap")
            if window and window[-1].base > touched:
                raise reader.corrupt(f"producer {producer_id} wrote after its last batch")
            producers.append((producer_id, Producer(epoch, touched, window)))
            previous = producer_id
        reader.finish()
        producers.sort(key=lambda item: item[1].touched)
        if len({producer.touched for _, producer in producers}) != count:
            raise reader.corrupt("two producers wrote the same offset")
        return producers

    def check_invariants(self) -> None:
        assert len(self._applied) <= self._limit
        order = [producer.touched for producer in self._applied.values()]
        assert order == sorted(set(order)), order
        for producer_id, ahead in self._accepted.items():
            known = self._applied.get(producer_id)
            assert known is None or known.touched < ahead.touched, producer_id

    def __str__(self) -> str:
        return f"producers={len(self._applied)} ahead={len(self._accepted)}"


def _fold(known: Producer | None, batch: Batch) -> Producer | None:
    """What is known of a producer after its next batch; None if the batch says nothing of it.

    What is in the log was accepted by a leader, so it is taken as it stands: its sequence need not
    follow, since the producer may have been forgotten in between.
    """
    if batch.producer_id < 0 or batch.type is not BatchType.DATA or batch.producer_epoch < 0:
        return None
    if known is not None and batch.producer_epoch < known.epoch:
        return None
    window = known.window if known and known.epoch == batch.producer_epoch else ()
    if not batch.is_control:
        if batch.base_sequence < 0:
            return None
        written = Written(batch.base_sequence, batch.last_offset_delta, batch.base_offset)
        window = (*window[-WINDOW + 1 :], written)
    return Producer(batch.producer_epoch, batch.base_offset, window)
