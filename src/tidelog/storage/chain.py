"""The segments of one log in order, and what their names alone can answer.

Invariant: each segment's base is the previous one's last offset + 1, and terms never fall. So the
two columns below are sorted, and every question is a bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from tidelog.records import Offset, Term
from tidelog.storage.errors import LocalError
from tidelog.storage.segment import Segment


class Chain:
    """Segments, oldest first. All but the last are closed."""

    __slots__ = ("_bases", "_segments", "_terms")

    _segments: list[Segment]
    _bases: list[Offset]  # column of the segments, strictly rising
    _terms: list[Term]  # column of the segments, never falling

    def __init__(self) -> None:
        self._segments = []
        self._bases = []
        self._terms = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    def __contains__(self, segment: Segment) -> bool:
        number = self.locate(segment.base)
        return number >= 0 and self._segments[number] is segment

    @property
    def last(self) -> Segment | None:
        """The newest segment."""
        return self._segments[-1] if self._segments else None

    def add(self, segment: Segment) -> None:
        """Put a segment at the end."""
        before = self.last
        if before and (segment.base != before.last + 1 or segment.term < before.term):
            raise LocalError(f"segment {segment} does not follow {before}")
        self._segments.append(segment)
        self._bases.append(segment.base)
        self._terms.append(segment.term)

    def locate(self, offset: Offset) -> int:
        """Return the number of the segment that covers `offset`, or of the last one before it."""
        return bisect_right(self._bases, offset) - 1

    def remove_from(self, number: int) -> list[Segment]:
        """Take out segment `number` and all newer ones."""
        removed = self._segments[number:]
        for column in (self._segments, self._bases, self._terms):
            del column[number:]
        return removed

    def remove_before(self, number: int) -> list[Segment]:
        """Take out all segments older than `number`."""
        removed = self._segments[:number]
        for column in (self._segments, self._bases, self._terms):
            del column[:number]
        return removed

    def join(self, number: int, count: int) -> list[Segment]:
        """Let segment `number` cover the `count` after it; take those out."""
        joined = slice(number + 1, number + 1 + count)
        removed = self._segments[joined]
        self._segments[number].last = removed[-1].last
        for column in (self._segments, self._bases, self._terms):
            del column[joined]
        return removed

    def first_of_term(self, term: Term) -> Segment:
        """Return the oldest segment of a term that the chain has."""
        return self._segments[bisect_left(self._terms, term)]

    def floor(self, term: Term) -> Segment | None:
        """Return the newest segment of the largest term <= `term`."""
        number = bisect_right(self._terms, term) - 1
        return self._segments[number] if number >= 0 else None

    def check_invariants(self) -> None:
        """Raise `LocalError` unless bases, ends and terms fit together."""
        for number, segment in enumerate(self._segments):
            if segment.last < segment.base:
                raise LocalError(f"segment {segment} is empty")
            if number:
                before = self._segments[number - 1]
                if segment.base != before.last + 1 or segment.term < before.term:
                    raise LocalError(f"segment {segment} does not follow {before}")
            if (self._bases[number], self._terms[number]) != (segment.base, segment.term):
                raise LocalError(f"segment {segment} is filed under another name")
