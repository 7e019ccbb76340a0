"""A log in words: for tools, for golden scripts, for people who look for a gap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.records import NO_TERM, Batch, Offset, Term


@dataclass(frozen=True, slots=True)
class SegmentDescription:
    """One segment as its file is."""

    base: Offset
    last: Offset
    term: Term
    bytes: int
    gaps: tuple[tuple[Offset, Offset], ...]  # first and last offset of each, in order

    def __str__(self) -> str:
        gaps = "".join(f" <--gap {first}..{last}-->" for first, last in self.gaps)
        return f"[{self.base},{self.last}] term {self.term} {self.bytes} bytes{gaps}"


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A whole log as its files are."""

    start: Offset
    dirty: Offset
    flushed: Offset
    prefix_term: Term
    segments: tuple[SegmentDescription, ...]

    def __str__(self) -> str:
        ends = f"start={self.start} flushed={self.flushed} dirty={self.dirty}"
        return " | ".join([ends, *map(str, self.segments)])


def gaps_of(base: Offset, batches: Iterable[Batch]) -> tuple[tuple[Offset, Offset], ...]:
    """Return the gaps between the batches of a segment that begins at `base`."""
    gaps = []
    expected = base
    for batch in batches:
        if batch.base_offset > expected:
            gaps.append((expected, Offset(batch.base_offset - 1)))
        expected = Offset(batch.last_offset + 1)
    return tuple(gaps)


def draw(batches: Iterable[Batch], start: Offset) -> str:
    """Draw batches as seed 2 does, terms where they begin: `t1 [0,10]<--gap 11..32-->[33,40]`."""
    parts: list[str] = []
    term = NO_TERM
    expected = start
    for batch in batches:
        if batch.term != term:
            parts.append(f"{' ' if parts else ''}t{batch.term} ")
            term = batch.term
        if batch.base_offset > expected:
            parts.append(f"<--gap {expected}..{batch.base_offset - 1}-->")
        parts.append(f"[{batch.base_offset},{batch.last_offset}]")
        expected = Offset(batch.last_offset + 1)
    return "".join(parts) or "empty"
