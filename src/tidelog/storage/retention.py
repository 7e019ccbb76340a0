"""Retention: how much of the log's front may go, by size and by time. A pure function.

Whole segments go, oldest first. By size, a segment goes only if what remains is still at least the
limit, so that the log never holds less than it was asked to; the newest segment always stays. By
time, a segment goes if its newest record is too old. A segment without records of its own (only
configurations, say) goes with the next one that has some: it is as old as its surroundings. So does
one with a time that nobody can have written yet: a single record from a broken clock must not keep
everything behind it for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.records import NO_TIMESTAMP, Offset

# How far the clock of a producer may be ahead: as much as Kafka takes by default
# (`message.timestamp.after.max.ms`).
AHEAD_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Retainable:
    """What retention must know of a segment."""

    last: Offset
    size: int
    max_time: int  # NO_TIMESTAMP if it holds no records


def retention_bound(
    start: Offset,
    segments: Sequence[Retainable],
    *,
    now: int,
    retention_bytes: int | None,
    retention_ms: int | None,
) -> Offset:
    """Return the first offset to keep; `start` if nothing may go."""
    bound = start
    if retention_bytes is not None:
        surplus = sum(segment.size for segment in segments) - retention_bytes
        for segment in segments[:-1]:
            surplus -= segment.size
            if surplus < 0:
                break
            bound = Offset(segment.last + 1)
    if retention_ms is not None:
        for segment in segments:
            if segment.max_time == NO_TIMESTAMP or segment.max_time > now + AHEAD_MS:
                continue
            if segment.max_time >= now - retention_ms:
                break
            bound = max(bound, Offset(segment.last + 1))
    return bound
