"""What compaction keeps of a batch: the rules, without files.

Per kind of batch:
- client data: of each key the newest record survives, older ones go; records without a key stay.
  A tombstone (no value) stays until its *delete horizon*: the first round that cleans it sets the
  horizon to now + `delete_retention_ms` in the batch itself, as Kafka does, and a later round
  removes it once that time has passed. By then every older value of the key is gone from the
  disk, so none can come back.
- transactional data: only what a commit marker covers counts as a value. Data of an open or aborted
  transaction never replaces anything, and stays; aborted data goes when the caller names the
  transaction (who knows that no reader needs it any more).
- transaction markers: stay as long as data of the transaction does, then get a horizon like a
  tombstone.
- the last batch of each producer id keeps its header, so that sequence numbers survive. A header
  without records names no codec.
- SNAPSHOT: only the newest keeps its content. PLACEHOLDER: only while it is the last of its
  segment. CONFIGURATION and CHANGELOG (a table's keys are not ours to judge) stay.
- a batch whose records cannot be read under a right checksum was written so, and stays as it is.
- the last offset of a segment survives, by a placeholder if need be: gaps never cross segments.

Memory is bounded by counting entries; what does not fit is treated as if it might matter.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from tidelog.records import (
    NO_OFFSET,
    NO_PRODUCER,
    Batch,
    BatchType,
    CorruptBatch,
    MarkerType,
    Offset,
    Record,
    empty_like,
    filter_batch,
    placeholder,
    read_marker,
    read_records,
)

# Digests instead of keys: keys may be long. 16 bytes do not collide by chance, and this hash not by
# intent either.
_DIGEST_SIZE: Final = 16
# A digest (49 bytes), an offset (32) and their share of a dict that is between a third and two
# thirds full (100), rounded up.
KEY_COST: Final = 200
# A number, its share of a list, and of the dict of producers.
_SURVEY_COST: Final = 100


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction whose data may go: it was aborted, and no reader is left that asks for it."""

    producer_id: int
    first: Offset
    last: Offset


class KeyMap:
    """The newest offset of each key seen, up to a number of keys."""

    __slots__ = ("_capacity", "_offsets")

    def __init__(self, budget: int) -> None:
        self._capacity = max(budget // KEY_COST, 1)
        self._offsets: dict[bytes, Offset] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: Offset) -> bool:
        """Note a key's newest offset; False if the map is full."""
        digest = _digest(key)
        if digest not in self._offsets and len(self._offsets) >= self._capacity:
            return False
        self._offsets[digest] = offset
        return True

    def newest(self, key: bytes) -> Offset:
        """Return the newest offset noted for a key, NO_OFFSET if none is."""
        return self._offsets.get(_digest(key), NO_OFFSET)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_SIZE).digest()


class Survey:
    """What must be known of the whole range before a batch in it can be judged."""

    def __init__(self, budget: int) -> None:
        self._left = max(budget // _SURVEY_COST, 1)
        # Of each producer: where its transactions ended, and which of these ends were commits.
        self._ends: dict[int, list[Offset]] = {}
        self._commits: set[Offset] = set()
        # Base of the last batch with data of each producer.
        self._last_batches: dict[int, Offset] = {}
        self._last_snapshot = NO_OFFSET

    def note(self, batch: Batch) -> None:
        """Look at one batch; they come in order."""
        if batch.type is BatchType.SNAPSHOT:
            self._last_snapshot = batch.base_offset
        elif batch.type is BatchType.DATA and batch.producer_id != NO_PRODUCER:
            producer = batch.producer_id
            if not batch.is_control:
                if producer in self._last_batches or self._spend(1):
                    self._last_batches[producer] = batch.base_offset
            elif self._spend(2):
                self._ends.setdefault(producer, []).append(batch.base_offset)
                with contextlib.suppress(CorruptBatch):
                    if read_marker(batch).type is MarkerType.COMMIT:
                        self._commits.add(batch.base_offset)

    def _spend(self, entries: int) -> bool:
        self._left -= entries
        return self._left >= 0

    def is_committed(self, batch: Batch) -> bool:
        """Whether the records of a data batch count: not transactional, or known as committed."""
        if not batch.is_transactional:
            return True
        ends = self._ends.get(batch.producer_id, [])
        following = bisect_right(ends, batch.last_offset)
        return following < len(ends) and ends[following] in self._commits

    def is_last_of_producer(self, batch: Batch) -> bool:
        """Whether the batch may be the last that a producer wrote here."""
        if batch.producer_id == NO_PRODUCER:
            return False
        return self._last_batches.get(batch.producer_id, NO_OFFSET) <= batch.base_offset

    def is_last_snapshot(self, batch: Batch) -> bool:
        """Whether no later snapshot is in the range."""
        return batch.base_offset >= self._last_snapshot


def map_keys(
    batches: Iterable[Batch], survey: Survey, keys: KeyMap, cleaned: Offset, end: Offset
) -> Offset:
    """Note the keys of records past `cleaned`; return up to where all of them fitted, or `end`."""
    for batch in batches:
        if batch.last_offset <= cleaned or not _holds_values(batch, survey):
            continue
        try:
            records = list(read_records(batch))
        except CorruptBatch:
            continue  # what cannot be read replaces nothing
        for record in records:
            offset = Offset(batch.base_offset + record.offset_delta)
            if offset <= cleaned or record.key is None:
                continue
            if not keys.put(record.key, offset):
                return Offset(offset - 1)
    return end


def _holds_values(batch: Batch, survey: Survey) -> bool:
    return batch.type is BatchType.DATA and not batch.is_control and survey.is_committed(batch)


@dataclass(slots=True)
class Cleaner:
    """Judges the batches of one round, in order."""

    survey: Survey
    keys: KeyMap
    cleaned: Offset  # up to here an earlier round has removed what is superseded, durably
    covered: Offset  # up to here `keys` is complete; later records stay
    now: int
    delete_retention_ms: int
    aborted: tuple[AbortedTransaction, ...]
    live_bytes: int  # memory for producers with transactions that are not ended yet
    # Earliest horizon that was kept: when another round could remove more. None: no horizon.
    due: int | None = None
    # Producers with transactional data kept since their last marker, as many as fit.
    _live: set[int] = field(default_factory=set)
    _crowded: bool = False  # whether some did not fit: then every marker may be needed

    def clean(self, batch: Batch, segment_last: Offset) -> Batch | None:
        """Return what stays of a batch: itself, a smaller one in its place, or nothing."""
        if batch.base_offset > self.covered:
            return batch
        last = batch.last_offset == segment_last
        try:
            kept = self._judge(batch, last=last)
        except CorruptBatch:
            return batch
        return placeholder(segment_last, batch.term) if kept is None and last else kept

    def _judge(self, batch: Batch, *, last: bool) -> Batch | None:
        match batch.type:
            case BatchType.DATA:
                return self._clean_marker(batch) if batch.is_control else self._clean_data(batch)
            case BatchType.SNAPSHOT:
                # Its offset stays: internal batches must not vanish, or client offsets would shift.
                needed = self.survey.is_last_snapshot(batch) or not batch.count
                return batch if needed else empty_like(batch)
            case BatchType.PLACEHOLDER:
                return batch if last else None
            case _:
                return batch

    def _clean_data(self, batch: Batch) -> Batch | None:
        committed = self.survey.is_committed(batch)
        aborted = not committed and self._is_aborted(batch)
        expired = self._has_expired(batch)
        tombstones = False

        def keep(record: Record) -> bool:
            nonlocal tombstones
            offset = Offset(batch.base_offset + record.offset_delta)
            if offset > self.covered:
                return True
            if not committed:
                return not aborted
            if record.key is None:
                return True
            if self.keys.newest(record.key) > offset:
                return False
            if record.value is None:
                if expired:
                    return False
                tombstones = True
            return True

        kept = filter_batch(batch, keep) if batch.count else None
        if kept is None:
            if not self.survey.is_last_of_producer(batch):
                return None
            # An older release left the codec in the headers of empty batches.
            return empty_like(batch) if batch.count or batch.is_compressed else batch
        if batch.is_transactional:
            self._note_live(batch.producer_id)
        return self._with_horizon(kept) if tombstones else kept

    def _note_live(self, producer_id: int) -> None:
        if len(self._live) < max(self.live_bytes // _SURVEY_COST, 1):
            self._live.add(producer_id)
        elif producer_id not in self._live:
            self._crowded = True

    def _clean_marker(self, marker: Batch) -> Batch | None:
        if marker.producer_id in self._live or self._crowded:
            self._live.discard(marker.producer_id)
            return marker
        return None if self._has_expired(marker) else self._with_horizon(marker)

    def _is_aborted(self, batch: Batch) -> bool:
        return any(
            each.producer_id == batch.producer_id
            and each.first <= batch.base_offset
            and batch.last_offset <= each.last
            for each in self.aborted
        )

    def _has_expired(self, batch: Batch) -> bool:
        """Whether tombstones or a marker may go: their time has come, and what they end is gone.

        A horizon may have been set by another replica, which says nothing about this disk; so the
        batch must also have been through an earlier round here.
        """
        return (
            batch.has_delete_horizon
            and batch.base_timestamp <= self.now
            and batch.last_offset <= self.cleaned
        )

    def _with_horizon(self, batch: Batch) -> Batch:
        if not batch.has_delete_horizon:
            horizon = self.now + self.delete_retention_ms
            batch = filter_batch(batch, lambda _: True, delete_horizon=horizon) or batch
        if self.due is None or batch.base_timestamp < self.due:
            self.due = batch.base_timestamp
        return batch
