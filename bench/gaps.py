"""What a gap costs on the wire: bytes of the ghosts that recovery sends for a compacted log.

A log is written in which every other batch is superseded, it is compacted, and what a leader would
send of it is read back. The gaps are of different lengths; a ghost is a header whatever the length.
"""

import random
from collections.abc import Iterator

from tidelog.records import Offset, Record, Term, build_batch, ghost
from tidelog.sim.disk import SimDisk
from tidelog.storage import Log

NAME = "gaps"
LENGTHS = (1, 100, 10_000)  # offsets of a batch that becomes a gap
GAPS = 200
QUICK_GAPS = 20
TERM = Term(1)
HUGE = 2**31 - 1  # the longest gap that one header can hold
GOAL = 61


def run(*, quick: bool = False) -> Iterator[str]:
    """Compact a log for each length of gap, and count."""
    for length in LENGTHS:
        yield _measure(length, QUICK_GAPS if quick else GAPS)
    huge = ghost(Offset(0), Offset(HUGE), TERM).size
    yield f"a gap of {HUGE + 1:,} offsets: {huge} B (goal: at most {GOAL})"


def _measure(length: int, gaps: int) -> str:
    log = Log.open(SimDisk(random.Random(1)), "log")
    for number in range(gaps):
        # A batch with one record that a later one replaces, then one that stays.
        _append(log, b"again", length)
        _append(log, b"key %d" % number, 1)
    _append(log, b"again", 1)
    before = _bytes(log)
    job = log.prepare_flush()
    assert job is not None
    job.run()
    log.finish_flush(job)
    log.roll()
    round_ = log.prepare_compaction(log.dirty, now=0)
    assert round_ is not None
    round_.run()
    log.finish_compaction(round_)
    filled = log.read(Offset(0), before * 2, fill_gaps=True)
    ghosts = [batch for batch in filled if batch.is_ghost]
    assert len(ghosts) == gaps
    assert ghosts[-1].last_offset - ghosts[-1].base_offset == length - 1
    sent = sum(batch.size for batch in filled)
    size = sent - _bytes(log)
    log.close()
    return (
        f"{gaps} gaps of {length:,} offsets: {size / gaps:.0f} B a gap on the wire;"
        f" the log was {before:,} B and is sent as {sent:,} B"
    )


def _append(log: Log, key: bytes, length: int) -> None:
    batch = build_batch([Record(length - 1, 0, key, bytes(100))])
    log.append((batch.stamp(Offset(log.dirty + 1), TERM),))


def _bytes(log: Log) -> int:
    return sum(batch.size for batch in log.read(Offset(0), 1 << 30))
