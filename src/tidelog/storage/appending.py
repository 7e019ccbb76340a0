"""Where batches go: which of them share a segment, decided before a byte is written.

Rules:
- Batches continue the log without a hole; ghosts count as batches here, and are never stored.
- Terms never fall. A ghost has the term of the batch that follows it, so it never comes last.
- A segment has one term, and a configuration is always the first batch of its segment, which is how
  a restart finds the newest one without reading the log.
- A new segment begins where its leading ghosts begin, so that names leave no hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.records import NO_TERM, Batch, BatchType, Offset, Term
from tidelog.storage.errors import LocalError


@dataclass(slots=True)
class Run:
    """Batches of one append that go to one segment, in one write."""

    base: Offset  # first offset covered, ghosts included
    term: Term
    fresh: bool  # whether the segment is to be created; only the first run may not be
    batches: list[Batch] = field(default_factory=list)


def plan_append(
    batches: Sequence[Batch], dirty: Offset, last_term: Term, room: int, segment_bytes: int
) -> list[Run]:
    """Split batches into runs. `room` is what the active segment still takes, 0 to begin another.

    A batch larger than a segment gets a segment of its own.
    """
    if not batches:
        raise LocalError("an append of no batches")
    expected = dirty + 1
    term = last_term
    gap: Batch | None = None  # the first of the ghosts before the batch at hand
    runs: list[Run] = []
    for batch in batches:
        if batch.base_offset != expected:
            raise LocalError(f"{batch} does not follow offset {expected - 1}")
        if batch.term < term or batch.term <= NO_TERM:
            raise LocalError(f"{batch} does not follow term {term}")
        expected = batch.last_offset + 1
        if batch.type is BatchType.GHOST:
            if gap is None:
                gap = batch
            elif batch.term != gap.term:
                raise LocalError(f"a gap of two terms, {gap.term} and {batch.term}")
            if batch.term != term:
                room = 0
            term = batch.term
            continue
        if gap is not None and gap.term != batch.term:
            raise LocalError(f"{batch} follows a ghost of term {gap.term}")
        if batch.term != term or batch.type is BatchType.CONFIGURATION:
            room = 0
        if room < batch.size:
            base = batch.base_offset if gap is None else gap.base_offset
            runs.append(Run(base, batch.term, fresh=True))
            room = segment_bytes
        elif not runs:
            runs.append(Run(Offset(dirty + 1), batch.term, fresh=False))
        runs[-1].batches.append(batch)
        room -= batch.size
        term = batch.term
        gap = None
    if gap is not None:
        raise LocalError(f"{gap} comes last: a gap is known by the batch that follows it")
    return runs
