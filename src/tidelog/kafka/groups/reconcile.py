"""The next step of one member towards its target assignment (KIP-848).

    STABLE       has all that it was promised in its epoch
    UNREVOKED    must give partitions up first; its epoch stays until it has
    UNRELEASED   is in the target's epoch, and waits for partitions that others still hold

A partition goes to its new owner only when the old one has confirmed that it let go, or is gone. So
at no time do two members hold the same partition, and nobody stops reading what it may keep.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from uuid import UUID

from tidelog.kafka.groups.records import NO_PARTITIONS, Assigned


class MemberState(IntEnum):
    """The numbers are those of Kafka's records."""

    STABLE = 1
    UNREVOKED = 2
    UNRELEASED = 3


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has now."""

    epoch: int = 0
    previous_epoch: int = -1  # accepted once more, in case the answer with `epoch` was lost
    state: MemberState = MemberState.STABLE
    assigned: Assigned = NO_PARTITIONS
    revoking: Assigned = NO_PARTITIONS  # not in `assigned`, and not yet anybody else's

    @property
    def held(self) -> Assigned:
        return self.assigned | self.revoking


def advance(
    current: Current,
    target_epoch: int,
    target: Assigned,
    owned: Assigned | None,
    is_free: Callable[[tuple[UUID, int]], bool],
) -> Current:
    """Return what the member has after this heartbeat.

    `owned` is what the member says it holds, None if it did not say. `is_free` tells whether nobody
    else holds a partition.
    """
    if current.state is MemberState.UNREVOKED:
        if owned is None or owned & current.revoking:
            return current
    elif current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and (owned is None or owned & revoking):
        return replace(current, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    free = frozenset(partition for partition in target - kept if is_free(partition))
    complete = kept | free == target
    return Current(
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else current.epoch,
        state=MemberState.STABLE if complete else MemberState.UNRELEASED,
        assigned=kept | free,
    )
