"""Who reads which partition, decided by the server (KIP-848).

An assignor is a pure function of the members' subscriptions, the topics' sizes and the assignment
so far. Equal input gives equal output, so it does not matter which node computes it.

    uniform  loads differ as little as subscriptions allow; nobody loses a partition without need
    range    each topic is cut into ranges in the order of the members, so that partitions with the
             same number of different topics meet in one member
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import cycle
from typing import Final
from uuid import UUID

from tidelog.kafka.groups.records import NO_PARTITIONS, Assigned

Partition = tuple[UUID, int]
# Each round of evening out looks at every subscription once. Loads are close after the first and
# almost always even after the second; a bound keeps odd cases from holding up the node.
_MAX_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class Subscriber:
    topics: frozenset[UUID]
    # What orders members: the instance id of a static one, so that it keeps its range for ever.
    order: str
    assigned: Assigned = NO_PARTITIONS  # what it was to have so far


Subscribers = Mapping[str, Subscriber]  # by member id
Sizes = Mapping[UUID, int]  # number of partitions by topic
Assignor = Callable[[Subscribers, Sizes], dict[str, Assigned]]


def range_assignor(subscribers: Subscribers, sizes: Sizes) -> dict[str, Assigned]:
    found: dict[str, set[Partition]] = {member: set() for member in subscribers}
    for topic, members in _by_topic(subscribers, sizes).items():
        share, extra = divmod(sizes[topic], len(members))
        start = 0
        for position, member in enumerate(members):
            end = start + share + (position < extra)
            found[member].update((topic, index) for index in range(start, end))
            start = end
    return {member: frozenset(partitions) for member, partitions in found.items()}


def uniform_assignor(subscribers: Subscribers, sizes: Sizes) -> dict[str, Assigned]:
    members = _by_topic(subscribers, sizes)
    kept = _keep(subscribers, sizes)
    if len({subscriber.topics for subscriber in subscribers.values()}) <= 1:
        _fill_equals(kept, members, sizes)
    else:
        _fill_others(kept, members, sizes)
        for _ in range(_MAX_ROUNDS):
            if not _even_out(kept, members):
                break
    return {member: frozenset(partitions) for member, partitions in kept.items()}


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": uniform_assignor, "range": range_assignor}
DEFAULT_ASSIGNOR: Final = "uniform"


def _by_topic(subscribers: Subscribers, sizes: Sizes) -> dict[UUID, list[str]]:
    """Return the members of each topic that has any, both in order."""
    ordered = sorted(subscribers, key=lambda member: (subscribers[member].order, member))
    found: dict[UUID, list[str]] = {}
    for member in ordered:
        for topic in subscribers[member].topics & sizes.keys():
            found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def _keep(subscribers: Subscribers, sizes: Sizes) -> dict[str, list[Partition]]:
    """Return what each member may keep of what it was to have."""
    taken: set[Partition] = set()
    kept: dict[str, list[Partition]] = {}
    for member in sorted(subscribers):
        subscriber = subscribers[member]
        kept[member] = [
            (topic, index)
            for topic, index in sorted(subscriber.assigned)
            if topic in subscriber.topics
            and 0 <= index < sizes.get(topic, 0)
            and (topic, index) not in taken
        ]
        taken.update(kept[member])
    return kept


def _free(
    kept: Mapping[str, list[Partition]], members: Mapping[UUID, list[str]], sizes: Sizes
) -> list[Partition]:
    taken = {partition for partitions in kept.values() for partition in partitions}
    return [
        (topic, index)
        for topic in members
        for index in range(sizes[topic])
        if (topic, index) not in taken
    ]


def _fill_equals(
    kept: dict[str, list[Partition]], members: Mapping[UUID, list[str]], sizes: Sizes
) -> None:
    """Deal partitions out to members that want the same topics: shares differ by one at most."""
    if not kept:
        return
    share, extra = divmod(sum(sizes[topic] for topic in members), len(kept))
    shares: dict[str, int] = {}
    # The shares that are one larger go to members that have that many already.
    for member in sorted(kept, key=lambda member: (-len(kept[member]), member)):
        shares[member] = share + (extra > 0)
        extra -= extra > 0
        del kept[member][shares[member] :]
    hungry = cycle(sorted(kept))
    for partition in _free(kept, members, sizes):
        member = next(member for member in hungry if len(kept[member]) < shares[member])
        kept[member].append(partition)


def _fill_others(
    kept: dict[str, list[Partition]], members: Mapping[UUID, list[str]], sizes: Sizes
) -> None:
    """Give each free partition to the member with the least, topics with few members first."""
    free: dict[UUID, list[Partition]] = {}
    for partition in _free(kept, members, sizes):
        free.setdefault(partition[0], []).append(partition)
    for topic in sorted(free, key=lambda topic: (len(members[topic]), topic)):
        loads = [(len(kept[member]), member) for member in members[topic]]
        heapify(loads)
        for partition in free[topic]:
            load, member = loads[0]
            kept[member].append(partition)
            heapreplace(loads, (load + 1, member))


def _even_out(kept: dict[str, list[Partition]], members: Mapping[UUID, list[str]]) -> bool:
    """Move partitions from those with most to those with least; tell whether any moved."""
    moved = False
    for topic, subscribed in members.items():
        least = [(len(kept[member]), member) for member in subscribed]
        heapify(least)
        givers = sorted(subscribed, key=lambda member: (-len(kept[member]), member))
        for giver in givers:
            own = [partition for partition in kept[giver] if partition[0] == topic]
            while own:
                load, taker = least[0]
                if load != len(kept[taker]):
                    heapreplace(least, (len(kept[taker]), taker))  # it gave some away before
                    continue
                if load + 2 > len(kept[giver]):
                    break
                partition = own.pop()
                kept[giver].remove(partition)
                kept[taker].append(partition)
                heappop(least)
                heappush(least, (load + 1, taker))
                moved = True
    return moved
