"""The fencing table of leader epochs (seed 5), line by line."""

import pytest

from tidelog.raft.epochs import NO_EPOCH, Fence, check_epoch
from tidelog.records import Term

CURRENT = Term(7)


@pytest.mark.parametrize(
    ("requested", "needs_leader", "is_leader", "expected"),
    [
        (NO_EPOCH, True, True, Fence.PASS),
        (NO_EPOCH, True, False, Fence.NOT_LEADER),
        (NO_EPOCH, False, False, Fence.PASS),
        (7, True, True, Fence.PASS),
        (7, True, False, Fence.NOT_LEADER),
        (7, False, False, Fence.PASS),
        (6, True, True, Fence.FENCED),
        (6, True, False, Fence.FENCED),  # the epoch is compared before leadership is
        (6, False, False, Fence.FENCED),
        (8, True, True, Fence.UNKNOWN),
        (8, True, False, Fence.UNKNOWN),
        (8, False, False, Fence.UNKNOWN),
        (0, True, True, Fence.FENCED),
    ],
)
def test_the_epoch_is_judged_before_leadership(
    requested: int, needs_leader: bool, is_leader: bool, expected: Fence
) -> None:
    assert (
        check_epoch(requested, CURRENT, needs_leader=needs_leader, is_leader=is_leader) is expected
    )
