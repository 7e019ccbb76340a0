"""Worlds that failed once, and what they found: `tidelog sim` runs them before any other.

A seed draws another world when the simulator or the product draws otherwise, so an entry proves
little by itself: what it found has a test of its own, which does not depend on a seed.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Past:
    """A seed that failed at a commit, and why."""

    seed: int
    commit: str
    what: str


_START: Final = "695ac21"
_COUNTED_ON: Final = "a learner was wiped while a leader was about to make it a voter"
_STRAGGLERS: Final = "stragglers outlasted election timeouts before the first leaders were elected"
_LEAVING: Final = "a leaving voter stopped standing after it had led once more"

PAST: Final[tuple[Past, ...]] = (
    Past(786, _START, _COUNTED_ON),
    Past(904, _START, _COUNTED_ON),
    Past(981, _START, _LEAVING),
    Past(1085, "601a794", "of two answers to one request the older came last and was believed"),
    Past(1171, _START, _COUNTED_ON),
    Past(1407, _START, _STRAGGLERS),
    Past(1677, _START, "a reader believed in the epoch of a candidate that never won"),
    Past(1768, _START, "a relaxed write was acknowledged, lost, and stayed where its retry put it"),
    Past(2418, _START, _LEAVING),
    Past(2528, _START, _STRAGGLERS),
    Past(2735, _START, _COUNTED_ON),
)
