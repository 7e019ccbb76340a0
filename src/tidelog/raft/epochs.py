"""Leader epochs: the fencing rule that every reader of a partition goes through (seed 5).

The epoch of a partition is the term of its *confirmed* leader. The epoch is compared before
leadership is, on followers too, as Kafka does it.
"""

from enum import Enum

from tidelog.records import Term


class Fence(Enum):
    PASS = "pass"
    FENCED = "fenced"  # the client's metadata is older than this replica's
    UNKNOWN = "unknown"  # the client has heard of a leader that this replica has not
    NOT_LEADER = "not leader"


NO_EPOCH = -1


def check_epoch(requested: int, current: Term, *, needs_leader: bool, is_leader: bool) -> Fence:
    """Whether a request that believes in epoch `requested` may proceed (-1: it did not say)."""
    if requested != NO_EPOCH:
        if requested < current:
            return Fence.FENCED
        if requested > current:
            return Fence.UNKNOWN
    return Fence.NOT_LEADER if needs_leader and not is_leader else Fence.PASS
