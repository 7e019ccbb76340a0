"""Batches as a log would hold them, for the tests of this room."""

from collections.abc import Iterable

from tidelog.records import (
    NO_PRODUCER,
    Batch,
    BatchType,
    Offset,
    Record,
    Term,
    build_batch,
    internal_batch,
)

TERM = Term(1)


def data(
    base: int,
    records: Iterable[tuple[bytes | None, bytes | None]] = ((b"key", b"1"),),
    *,
    producer: int = NO_PRODUCER,
    epoch: int = NO_PRODUCER,
    sequence: int = NO_PRODUCER,
    control: bool = False,
) -> Batch:
    """A batch of data at `base`, one record for each pair of key and value."""
    built = build_batch(
        [Record(delta, 0, key, value) for delta, (key, value) in enumerate(records)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        control=control,
    )
    return built.stamp(Offset(base), TERM)


def wide(base: int, last: int, kind: BatchType = BatchType.DATA) -> Batch:
    """A batch of any type that takes the offsets [base, last]."""
    built = build_batch([Record(last - base, 0, b"key", b"1")], type=kind)
    return built.stamp(Offset(base), TERM)


def internal(base: int, kind: BatchType = BatchType.CONFIGURATION) -> Batch:
    """An internal batch of one offset."""
    return internal_batch(kind, b"payload").stamp(Offset(base), TERM)
