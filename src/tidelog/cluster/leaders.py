"""Who leads what, anywhere in the cluster: told by the leaders themselves.

A confirmed leader tells everybody when it begins, and all its groups again every few seconds, for
those who missed it. What a node believes here only directs clients; whoever they come to knows
for sure. Of two claims the higher term is true.
"""

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.raft.types import GroupId, NodeId

MAX_CLAIMS: Final = 1 << 17  # of one message: more than a node leads
MAX_NUMBER: Final = 2**63 - 1


class CorruptClaims(ValueError):
    """Bytes that are no list of claims."""


class Leadership(NamedTuple):
    term: int
    node: NodeId
    in_sync: tuple[NodeId, ...]  # replicas that have all that readers may see, the leader included


class Claim(NamedTuple):
    group: GroupId
    term: int
    in_sync: tuple[NodeId, ...]


def encode_claims(claims: Iterable[Claim]) -> bytes:
    return json.dumps(list(claims), separators=(",", ":")).encode()


def decode_claims(payload: bytes) -> list[Claim]:
    """Read what `encode_claims` wrote; raises `CorruptClaims`, whatever the bytes are."""
    try:
        claims = json.loads(payload)
        if type(claims) is not list or len(claims) > MAX_CLAIMS:
            raise CorruptClaims(f"this is no list of at most {MAX_CLAIMS} leaders")
        return [
            Claim(GroupId(_number(group)), _number(term), tuple(map(_node, in_sync)))
            for group, term, in_sync in claims
        ]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptClaims(f"these bytes are no list of leaders: {error}") from error


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise CorruptClaims(f"{ascii(value)[:40]} is no number of a claim")
    return value


def _node(value: object) -> NodeId:
    return NodeId(_number(value))


class LeaderTable:
    def __init__(self) -> None:
        self._leaders: dict[GroupId, Leadership] = {}
        # Groups that had a leader at some time, as far as this node knows.
        self._led: set[GroupId] = set()

    def get(self, group: GroupId) -> NodeId | None:
        found = self._leaders.get(group)
        return None if found is None else found.node

    def leadership(self, group: GroupId) -> Leadership | None:
        return self._leaders.get(group)

    def has_led(self, group: GroupId) -> bool:
        """Tell whether this group ever had a leader; one that never had is new, or out of sight."""
        return group in self._led

    def claim(self, node: NodeId, claim: Claim) -> bool:
        """Take over what a leader says of itself; tell whether that was news."""
        known = self._leaders.get(claim.group)
        if known is not None and (known.term, known.node) > (claim.term, node):
            return False
        told = Leadership(claim.term, node, claim.in_sync)
        if told == known:
            return False
        self._leaders[claim.group] = told
        self._led.add(claim.group)
        return True

    def lost(self, group: GroupId, term: int) -> None:
        """Nobody leads in a later term yet, but this one is over."""
        known = self._leaders.get(group)
        if known is not None and known.term < term:
            del self._leaders[group]

    def keep_only(self, groups: set[GroupId], next_group: int) -> None:
        """Forget groups that no longer exist.

        Those from `next_group` on do not exist here yet: leaders tell of themselves directly, which
        may be quicker than group 0 tells of the topic.
        """
        for group in self._leaders.keys() - groups:
            if group < next_group:
                del self._leaders[group]
        self._led = {group for group in self._led if group in groups or group >= next_group}
