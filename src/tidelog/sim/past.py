"""Worlds that failed once, and what they found: `tidelog sim` runs them before any other.

A seed draws another world when the simulator or the product draws otherwise, so an entry proves
little by itself: what it found has a test of its own, which does not depend on a seed.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Where(Enum):
    """What was wrong, and was mended."""

    PRODUCT = "product"
    WORLD = "world"  # it asked for what no protocol can do, or took right for wrong


@dataclass(frozen=True, slots=True)
class Past:
    """A seed that failed at a commit, and why."""

    seed: int
    commit: str
    where: Where
    what: str


_START: Final = "695ac21"
_COUNTED_ON: Final = "a learner was wiped while a leader was about to make it a voter"
_STRAGGLERS: Final = "stragglers outlasted election timeouts before the first leaders were elected"
_LEAVING: Final = "a leaving voter stopped standing after it had led once more"
_BELIEVED: Final = "of two answers to one request the older came last and was believed"
_CANDIDATE: Final = "a reader believed in the epoch of a candidate that never won"
_RELAXED: Final = "a relaxed write was acknowledged, lost, and stayed where its retry put it"
_REFUSED: Final = "a change whose first step a full disk refused stayed under way for good"
_ALONE: Final = "a leader alone never tried again to write what a full disk had refused"
_GAP: Final = "a base offset that had rotted was taken for a gap when the log was opened"
_WAITS: Final = "a replica without its snapshot waited for its peers, as it may"
_PEEKED: Final = "the world read a log that lost power while segments were being removed"
_CHECKPOINT: Final = "damage that a checkpoint met left the replica as an exception"
_REGISTRY: Final = "a registry that was gone counted as sound again while its node still ran"
_HEADER: Final = "a rotten snapshot header ended a replica whose log was whole"
_CLOSED: Final = "a lost replica whose directory was gone could not be closed"
_REPLACED: Final = "a segment that another replaced between two looks was taken for missing"

PAST: Final[tuple[Past, ...]] = (
    Past(786, _START, Where.WORLD, _COUNTED_ON),
    Past(904, _START, Where.WORLD, _COUNTED_ON),
    Past(981, _START, Where.PRODUCT, _LEAVING),
    Past(1085, "601a794", Where.PRODUCT, _BELIEVED),
    Past(1171, _START, Where.WORLD, _COUNTED_ON),
    Past(1407, _START, Where.WORLD, _STRAGGLERS),
    Past(1677, _START, Where.WORLD, _CANDIDATE),
    Past(1768, _START, Where.WORLD, _RELAXED),
    Past(2418, _START, Where.PRODUCT, _LEAVING),
    Past(2528, _START, Where.WORLD, _STRAGGLERS),
    Past(2735, _START, Where.WORLD, _COUNTED_ON),
    Past(30088, "6661035", Where.PRODUCT, _HEADER),
    Past(30095, "6661035", Where.PRODUCT, _GAP),
    Past(31065, "6661035", Where.PRODUCT, _ALONE),
    Past(31182, "6661035", Where.PRODUCT, _CLOSED),
    Past(31410, "6661035", Where.PRODUCT, _REFUSED),
    Past(31414, "6661035", Where.PRODUCT, _REPLACED),
    Past(1445501119, "f0d672f", Where.WORLD, _WAITS),
    Past(728, "eaa4e0d", Where.WORLD, _PEEKED),
    Past(2408, "eaa4e0d", Where.PRODUCT, _CHECKPOINT),
    Past(2947, "eaa4e0d", Where.WORLD, _PEEKED),
    Past(3768, "eaa4e0d", Where.WORLD, _REGISTRY),
)
