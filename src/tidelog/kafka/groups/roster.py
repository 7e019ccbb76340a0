"""The members of a classic group: who they are, which protocols they share, who leads them."""

from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.classic_types import (
    ClassicMemberView,
    Join,
    JoinedMember,
    Member,
    Protocols,
)
from tidelog.kafka.groups.records import ClassicMemberValue
from tidelog.kafka.groups.subscription import subscribed_topics


class Roster:
    """Members in the order in which they came."""

    def __init__(self) -> None:
        self.leader: str | None = None  # always a member, and None only while there is none
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._support: dict[str, int] = {}  # protocol -> how many members speak it

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Yield the members as they are now, so that they may leave meanwhile."""
        return iter(tuple(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def holder(self, instance_id: str | None) -> Member | None:
        """Return the member that is this instance now."""
        member_id = self._static.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self._members[member_id]

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Tell whether somebody who goes by these names is a member."""
        if instance_id is not None:
            holder = self.holder(instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            if holder.id != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self._members else ErrorCode.unknown_member_id

    # ------------------------------------------------------------------------- coming and going

    def add(self, member: Member) -> None:
        self._members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self._count(member, 1)

    def remove(self, member: Member) -> None:
        """Take a member out; if it led, the one that is here longest leads."""
        member.session.cancel()
        del self._members[member.id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._count(member, -1)
        if self.leader == member.id:
            self.leader = next(iter(self._members), None)

    def update(self, member: Member, request: Join) -> None:
        """Note what a member says of itself when it joins again."""
        self._count(member, -1)
        member.protocols = distinct(request.protocols)
        member.rebalance_timeout = request.rebalance_timeout
        member.session_timeout = request.session_timeout
        member.client_id = request.client_id
        member.client_host = request.client_host
        self._count(member, 1)

    def elect(self) -> bool:
        """See to it that the leader is somebody whose join waits; tell whether there is one."""
        if self.leader is not None and self._members[self.leader].joining is not None:
            return True
        for member in self._members.values():
            if member.joining is not None:
                self.leader = member.id
                return True
        return False

    # -------------------------------------------------------------------------------- protocols

    def agrees(self, request: Join) -> bool:
        """Tell whether all *other* members speak one of the protocols of this one."""
        known = self.holder(request.instance_id) or self._members.get(request.member_id)
        own = {name for name, _ in known.protocols} if known else set()
        others = len(self._members) - (known is not None)
        return any(
            self._support.get(name, 0) - (name in own) == others for name, _ in request.protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol that all members speak and most like best."""
        common = {name for name, count in self._support.items() if count == len(self._members)}
        votes: dict[str, int] = {}
        for member in self._members.values():
            favourite = next(name for name, _ in member.protocols if name in common)
            votes[favourite] = votes.get(favourite, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def described(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Return what the leader is told about everybody."""
        return tuple(
            JoinedMember(member.id, member.instance_id, member.metadata(protocol))
            for member in self._members.values()
        )

    def views(self, protocol: str | None) -> tuple[ClassicMemberView, ...]:
        """Return what tools are told; without a protocol there is no work to tell of."""
        return tuple(
            ClassicMemberView(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol),
                b"" if protocol is None else member.assignment,
            )
            for member in self._members.values()
        )

    def values(self, protocol: str | None) -> tuple[ClassicMemberValue, ...]:
        """Return what the log is told."""
        return tuple(
            ClassicMemberValue(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout,
                member.session_timeout,
                member.metadata(protocol),
                member.assignment,
            )
            for member in self._members.values()
        )

    def subscriptions(self, protocol: str | None) -> frozenset[str]:
        """Return the topics that members read, as far as their metadata can be understood."""
        topics: set[str] = set()
        for member in self._members.values():
            topics |= subscribed_topics(member.metadata(protocol) or member.protocols[0][1])
        return frozenset(topics)

    def _count(self, member: Member, step: int) -> None:
        for name, _ in member.protocols:
            count = self._support.get(name, 0) + step
            if count:
                self._support[name] = count
            else:
                del self._support[name]

    def check_invariants(self) -> None:
        """Raise AssertionError when this roster contradicts itself. For tests."""
        assert (self.leader in self._members) == bool(self._members)
        assert self._static == {
            m.instance_id: m.id for m in self._members.values() if m.instance_id is not None
        }
        spoken = [name for m in self._members.values() for name, _ in m.protocols]
        assert self._support == {name: spoken.count(name) for name in spoken}


def distinct(protocols: Protocols) -> Protocols:
    """Drop protocols that are named twice, so that each is counted once."""
    found: dict[str, bytes] = {}
    for name, content in protocols:
        found.setdefault(name, content)
    return tuple(found.items())
