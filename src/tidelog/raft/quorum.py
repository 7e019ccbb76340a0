"""Majorities: pure arithmetic over sets of voters.

A joint configuration needs a majority of both halves (thesis 4.3), so a value is reached by it only
as far as both halves have reached it. An empty half has no say; a configuration without any voter
reaches nothing.
"""

from collections.abc import Callable, Iterable, Sequence

from tidelog.raft.types import Vnode
from tidelog.records import NO_OFFSET, Offset


def majority(voters: int) -> int:
    """How many of that many voters are a majority."""
    return voters // 2 + 1


def reached_by_majority(values: Iterable[int]) -> int:
    """The largest value that a majority of these voters has reached."""
    ranked = sorted(values)
    # Ascending, a majority stands at or above this place: of 3 the middle, of 4 the second.
    return ranked[(len(ranked) - 1) // 2]


def reached(halves: Sequence[Sequence[Vnode]], value_of: Callable[[Vnode], int]) -> Offset:
    """The largest offset that a majority of each half has reached."""
    lowest: int | None = None
    for half in halves:
        if half:
            value = reached_by_majority([value_of(voter) for voter in half])
            if lowest is None or value < lowest:
                lowest = value
    return NO_OFFSET if lowest is None else Offset(lowest)


def agreed(halves: Sequence[Sequence[Vnode]], says_yes: Callable[[Vnode], bool]) -> bool:
    """Whether a majority of each half says yes."""
    voiced = [half for half in halves if half]
    return bool(voiced) and all(
        sum(1 for voter in half if says_yes(voter)) >= majority(len(half)) for half in voiced
    )
