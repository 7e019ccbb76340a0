"""Batches for the tests of this room, and short ways to write and read logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from tidelog.records import (
    NO_PRODUCER,
    Batch,
    BatchType,
    Codec,
    Offset,
    Record,
    Term,
    build_batch,
    ghost,
    internal_batch,
    read_records,
)
from tidelog.storage import Disk, Log, LogConfig

NOON = 1_700_000_000_000  # a time for records that do not care

Pair = tuple[bytes | None, bytes | None]


def batch(
    base: int,
    last: int | None = None,
    term: int = 1,
    *,
    pairs: Sequence[Pair] | None = None,
    size: int = 10,
    time: int = NOON,
    codec: Codec = Codec.NONE,
    producer: int = NO_PRODUCER,
    sequence: int = NO_PRODUCER,
    transactional: bool = False,
) -> Batch:
    """Build client data for [base, last]; values differ by offset and term."""
    count = len(pairs) if pairs is not None else (base if last is None else last) - base + 1
    if pairs is None:
        pairs = [(None, content(base + delta, term, size)) for delta in range(count)]
    return build_batch(
        [Record(delta, time + delta, key, value) for delta, (key, value) in enumerate(pairs)],
        codec=codec,
        base_offset=Offset(base),
        term=Term(term),
        producer_id=producer,
        producer_epoch=NO_PRODUCER if producer == NO_PRODUCER else 0,
        base_sequence=sequence,
        transactional=transactional,
    )


def content(offset: int, term: int, size: int) -> bytes:
    """Return bytes that no other offset or term has."""
    seed = hashlib.blake2b(f"{offset}/{term}".encode(), digest_size=16).digest()
    return (seed * (size // 16 + 1))[: max(size, 1)]


def internal(kind: BatchType, offset: int, term: int = 1, payload: bytes = b"payload") -> Batch:
    """Build a batch of ours at an offset."""
    return internal_batch(kind, payload).stamp(Offset(offset), Term(term))


def configuration(offset: int, term: int = 1) -> Batch:
    """Build a configuration at an offset."""
    return internal(BatchType.CONFIGURATION, offset, term)


def gap(base: int, last: int, term: int = 1) -> Batch:
    """Build a ghost."""
    return ghost(Offset(base), Offset(last), Term(term))


def open_log(disk: Disk, config: LogConfig | None = None, **more: object) -> Log:
    """Open the log of a test, with a clock that stands still."""
    config = LogConfig() if config is None else config
    return Log.open(disk, "log", config, clock=lambda: NOON, **more)  # type: ignore[arg-type]


def flush(log: Log) -> Offset:
    """Flush everything at once."""
    job = log.prepare_flush()
    if job is None:
        return log.flushed
    job.run()
    return log.finish_flush(job)


def compact(log: Log, upto: int | None = None, *, now: int = NOON, **more: object) -> int:
    """Compact until nothing changes any more; return the number of rounds."""
    rounds = 0
    bound = log.dirty if upto is None else Offset(upto)
    while job := log.prepare_compaction(bound, now=now, **more):  # type: ignore[arg-type]
        job.run()
        log.finish_compaction(job)
        rounds += 1
        if more:
            break
    return rounds


def merge(log: Log, upto: int | None = None) -> int:
    """Merge and sweep until nothing changes any more; return the number of merges."""
    merges = 0
    sweep(log)
    while job := log.prepare_merge(log.dirty if upto is None else Offset(upto)):
        job.run()
        if not log.finish_merge(job):
            break
        sweep(log)
        merges += 1
    return merges


def sweep(log: Log) -> None:
    """Remove what a merge has left over."""
    job = log.prepare_sweep()
    if job is not None:
        job.run()
        log.finish_sweep(job)


def read_all(log: Log, max_bytes: int = 1 << 20, *, fill_gaps: bool = False) -> list[Batch]:
    """Read a log from start to end in pieces."""
    batches: list[Batch] = []
    position = log.start
    while found := log.read(position, max_bytes, fill_gaps=fill_gaps):
        batches += found
        position = Offset(found[-1].last_offset + 1)
    return batches


def spans(batches: Iterable[Batch]) -> list[tuple[int, int, int]]:
    """Return (base, last, term) of each batch."""
    return [(each.base_offset, each.last_offset, each.term) for each in batches]


def records_of(batches: Iterable[Batch]) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return key and value of each record of client data, by offset."""
    return {
        each.base_offset + record.offset_delta: (record.key, record.value)
        for each in batches
        if each.type is BatchType.DATA and not each.is_control
        for record in read_records(each)
    }
