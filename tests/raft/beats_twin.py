"""Heartbeats as one would write them for one group: the naive twin of `Beats`.

One object a group, one entry a peer, and a Python loop over everything. Beats and replies are
lists of group ids here; the sequences and the random numbers are those of the real table.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.raft.beats import BeatOptions
from tidelog.raft.configuration import Configuration
from tidelog.raft.quorum import agreed
from tidelog.raft.types import GroupId, NodeId, Role, Vnode
from tidelog.records import Term

MASK = 2**64 - 1


def check_byte(sequence: int, group: int, term: int, leader: int, follower: int) -> int:
    mixed = group * 0x9E3779B97F4A7C15 & MASK
    mixed ^= term * 0xC2B2AE3D27D4EB4F & MASK
    mixed ^= leader * 0x165667B19E3779F9 & MASK
    mixed ^= follower * 0xD6E8FEB86659FD93 & MASK
    mixed = mixed + sequence * 0xA0761D6478BD642F & MASK
    mixed ^= mixed >> 32
    return (mixed * 0xBF58476D1CE4E5B9 & MASK) >> 56


@dataclass
class Peer:
    replied_at: int
    quiet: bool = False
    refused: bool = False


@dataclass
class Group:
    vnode: Vnode
    timer: int
    role: Role = Role.FOLLOWER
    term: int = 0
    leader: Vnode | None = None  # whose append was heard last, and in which term
    leader_term: int = -1
    heard_at: int | None = None
    configuration: Configuration | None = None  # while leader
    peers: dict[Vnode, Peer] = field(default_factory=dict)


@dataclass
class Sent:
    """A beat with everything it was made of; `peers` are those that its reply is about."""

    at: int
    groups: list[tuple[GroupId, Vnode, Peer]]


class Twin:
    def __init__(self, node: NodeId, options: BeatOptions, patience: int) -> None:
        self.node = node
        self.options = options
        self.patience = patience  # the same for all groups, always
        self.groups: dict[GroupId, Group] = {}
        self.next_beat = 0
        self.sent: dict[NodeId, dict[int, Sent]] = {}

    def add(self, group: GroupId, vnode: Vnode, now: int) -> None:
        self.groups[group] = Group(vnode, now)

    def remove(self, group: GroupId) -> None:
        del self.groups[group]

    def publish(
        self,
        group: GroupId,
        role: Role,
        term: Term,
        configuration: Configuration,
        quiet: Callable[[Vnode], bool],
        now: int,
    ) -> None:
        row = self.groups[group]
        if role is not Role.LEADER:
            if row.role is Role.LEADER:
                row.timer = now
            row.peers = {}
        else:
            if row.role is not Role.LEADER or row.term != term:
                row.peers = {}
            elif row.configuration != configuration:
                # Old replies are about the old peers; what they proved stays.
                row.peers = {
                    peer: Peer(old.replied_at, refused=old.refused)
                    for peer, old in row.peers.items()
                }
            members = [peer for peer in configuration.members if peer != row.vnode]
            row.peers = {peer: row.peers.get(peer, Peer(now)) for peer in members}
            for peer, state in row.peers.items():
                shadowed = any(p.id == peer.id and p.revision > peer.revision for p in members)
                state.quiet = quiet(peer) and not shadowed
            row.configuration = configuration
        row.role, row.term = role, term

    def heard(self, group: GroupId, leader: Vnode | None, term: Term, now: int) -> None:
        row = self.groups[group]
        row.timer = now
        if leader is not None:
            row.leader, row.leader_term, row.heard_at = leader, term, now

    def replied(self, group: GroupId, peer: Vnode, now: int) -> None:
        if peer in self.groups[group].peers:
            self.groups[group].peers[peer].replied_at = now

    def leader_alive(self, group: GroupId, now: int) -> bool:
        row = self.groups[group]
        if row.role is Role.LEADER:
            return True
        heard = row.heard_at is not None and now - row.heard_at < self.options.election_timeout_ms
        return heard and row.leader_term == row.term

    def elections(self, now: int) -> list[GroupId]:
        expired = [
            group
            for group, row in sorted(self.groups.items())
            if row.role is not Role.LEADER and row.timer + self.patience <= now
        ]
        for group in expired:
            self.groups[group].timer = now
        return expired

    def beat_is_due(self, now: int) -> bool:
        led = any(row.role is Role.LEADER for row in self.groups.values())
        if not led or now < self.next_beat:
            return False
        on_time = now < self.next_beat + self.options.interval_ms
        self.next_beat = (self.next_beat if on_time else now) + self.options.interval_ms
        return True

    def quorum_lost(self, now: int) -> list[GroupId]:
        oldest = now - self.options.election_timeout_ms
        lost = []
        for group, row in sorted(self.groups.items()):
            if row.role is Role.LEADER and row.configuration is not None:
                alive = {peer for peer, state in row.peers.items() if state.replied_at > oldest}
                if not agreed(row.configuration.halves, lambda v: v == row.vnode or v in alive):  # noqa: B023
                    lost.append(group)
        return lost

    def beats(self) -> tuple[list[tuple[GroupId, Vnode]], dict[NodeId, list[GroupId]]]:
        full: list[tuple[GroupId, Vnode]] = []
        light: dict[NodeId, list[GroupId]] = {}
        for group, row in sorted(self.groups.items()):
            for peer, state in row.peers.items():
                if state.quiet and not state.refused:
                    light.setdefault(peer.id, []).append(group)
                else:
                    state.refused = False
                    full.append((group, peer))
        return full, light

    def remember(self, peer: NodeId, sequence: int, groups: list[GroupId], now: int) -> list[int]:
        """A beat leaves: return its check bytes."""
        rows = [
            (group, vnode, state)
            for group in groups
            for vnode, state in self.groups[group].peers.items()
            if vnode.id == peer and state.quiet
        ]
        outstanding = self.sent.setdefault(peer, {})
        if len(outstanding) == self.options.max_outstanding:
            del outstanding[min(outstanding)]
        outstanding[sequence] = Sent(now, rows)
        return [
            check_byte(
                sequence,
                group,
                self.groups[group].term,
                self.groups[group].vnode.revision,
                vnode.revision,
            )
            for group, vnode, _ in rows
        ]

    def heard_light(
        self, sender: NodeId, sequence: int, groups: list[int], checks: list[int], now: int
    ) -> list[int]:
        """Return the positions that are refused."""
        refused = []
        for position, (group, check) in enumerate(zip(groups, checks, strict=True)):
            row = self.groups.get(GroupId(group))
            if (
                row is None
                or row.role is not Role.FOLLOWER
                or row.leader is None
                or row.leader.id != sender
                or row.leader_term != row.term
                or check
                != check_byte(sequence, group, row.term, row.leader.revision, row.vnode.revision)
            ):
                refused.append(position)
            else:
                row.timer = row.heard_at = now
        return refused

    def light_reply(
        self, peer: NodeId, sequence: int, refused: list[int]
    ) -> list[tuple[GroupId, Vnode]]:
        sent = self.sent.get(peer, {}).pop(sequence, None)
        if sent is None:
            return []
        answer = []
        for position, (group, vnode, state) in enumerate(sent.groups):
            row = self.groups.get(group)
            if row is None or row.peers.get(vnode) is not state:
                continue
            if position in refused:
                state.refused = True
                answer.append((group, vnode))
            else:
                state.replied_at = max(state.replied_at, sent.at)
        return answer
