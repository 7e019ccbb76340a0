from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.raft.beats_twin import Twin

from tidelog.raft.beats import BeatOptions, Beats
from tidelog.raft.configuration import Configuration
from tidelog.raft.groupset import decode_beat, decode_reply
from tidelog.raft.types import GroupId, NodeId, Role, Vnode
from tidelog.records import Term

OPTIONS = BeatOptions(interval_ms=100, election_timeout_ms=1000, max_outstanding=4)
N1, N2, N3, N4, N5 = (NodeId(number) for number in range(1, 6))
V1, V2, V3, V4, V5 = (Vnode(node, 0) for node in (N1, N2, N3, N4, N5))
THREE = Configuration((V1, V2, V3))
PATIENCE = 700
NODES = [N1, N2, N3]
GROUPS = [GroupId(number) for number in (3, 4, 200, 70_000)]
CONFIGURATIONS = [
    THREE,
    Configuration((V1, V2)),
    Configuration((V3, V1, V2), (V1, V2)),
    Configuration((V1, Vnode(N2, 1), V3), (V1, V2, V3)),
    Configuration((V1, V2), (), (V3, V4, V5)),
    Configuration((V2, V3), (V1, V4, V5, V2)),
]


def always(_: Vnode) -> bool:
    return True


def never(_: Vnode) -> bool:
    return False


class Patient(Random):
    """Draws the same patience for everybody, so that the twin need not know the order of draws."""

    def randint(self, a: int, b: int) -> int:
        return PATIENCE


class Pair:
    """A table and its twin, which must agree on everything they are asked."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.real = Beats(node, OPTIONS, Patient(node))
        self.twin = Twin(node, OPTIONS, OPTIONS.election_timeout_ms + PATIENCE)

    def tick(self, now: int) -> dict[NodeId, bytes]:
        twin = self.twin
        wanted = self.real.next_due(now)
        due = self.real.tick(now)
        assert due.elections == twin.elections(now)
        if not twin.beat_is_due(now):
            assert (due.quorum_lost, due.full, due.light) == ([], [], {})
            return {}
        assert wanted == now
        assert due.quorum_lost == twin.quorum_lost(now)
        full, light = twin.beats()
        assert due.full == full
        assert due.light.keys() == light.keys()
        for peer, body in due.light.items():
            beat = decode_beat(body)
            assert beat.groups.tolist() == light[peer]
            checks = twin.remember(peer, beat.sequence, light[peer], now)
            assert beat.checks.tolist() == checks
        return due.light

    def heard_light(self, sender: NodeId, body: bytes, now: int) -> bytes:
        beat = decode_beat(body)
        answer = self.real.heard_light(sender, body, now)
        refused = self.twin.heard_light(
            sender, beat.sequence, beat.groups.tolist(), beat.checks.tolist(), now
        )
        assert decode_reply(answer).refused.tolist() == refused
        return answer

    def light_reply(self, peer: NodeId, body: bytes, now: int) -> None:
        reply = decode_reply(body)
        expected = self.twin.light_reply(peer, reply.sequence, reply.refused.tolist())
        assert self.real.light_reply(peer, body, now) == expected

    def agree(self, now: int) -> None:
        self.real.check_invariants()
        assert len(self.real) == len(self.twin.groups)
        for group in self.twin.groups:
            assert self.real.leader_alive(group, now) == self.twin.leader_alive(group, now)


def settle(pairs: dict[NodeId, Pair], group: GroupId, rng: Random, now: int) -> None:
    """Somebody leads the group, quietly, and most of the others have heard an append of it."""
    term = Term(rng.randint(1, 5))
    configuration = rng.choice(CONFIGURATIONS)
    chosen = rng.choice(NODES)
    for node, pair in pairs.items():
        row = pair.twin.groups.get(group)
        if row is None or rng.random() < 0.1:
            continue
        for side in (pair.real, pair.twin):
            if node == chosen:
                side.publish(group, Role.LEADER, term, configuration, always, now)
            else:
                side.publish(group, Role.FOLLOWER, term, configuration, never, now)
                side.heard(group, Vnode(chosen, 0), term, now)


def disturb(pair: Pair, rng: Random, now: int) -> None:
    """One of the things that happen to a single group of a node."""
    group = rng.choice(GROUPS)
    term = Term(rng.randint(1, 5))
    if group not in pair.twin.groups:
        vnode = Vnode(pair.node, rng.choice([0, 0, 0, 1]))
        for side in (pair.real, pair.twin):
            side.add(group, vnode, now)
        return
    choice = rng.randrange(5)
    role, configuration = rng.choice(list(Role)), rng.choice(CONFIGURATIONS)
    loud = rng.choice([V1, V2, V3, V4])
    row = pair.twin.groups[group]
    for side in (pair.real, pair.twin):
        if choice == 0:
            side.remove(group)
        elif choice == 1:
            side.publish(group, role, term, configuration, lambda peer: peer != loud, now)
        elif choice == 2:
            kept = row.configuration or THREE
            side.publish(group, row.role, Term(row.term), kept, lambda peer: peer != loud, now)
        elif choice == 3:
            side.heard(group, None if loud.id == pair.node else loud, term, now)
        else:
            side.replied(group, loud, now)


@given(st.integers(0, 2**32))
def test_the_table_does_what_a_loop_over_groups_would_do(seed: int) -> None:
    rng = Random(seed)
    pairs = {node: Pair(node) for node in NODES}
    beats: list[tuple[NodeId, NodeId, bytes]] = []
    replies: list[tuple[NodeId, NodeId, bytes]] = []
    now = 0
    for node, pair in pairs.items():
        for group in GROUPS:
            for side in (pair.real, pair.twin):
                side.add(group, Vnode(node, 0), now)
    for _ in range(120):
        now += rng.choice([0, 1, 10, 60, 100, 250, 900])
        pair = pairs[rng.choice(NODES)]
        action = rng.random()
        if action < 0.15:
            settle(pairs, rng.choice(GROUPS), rng, now)
        elif action < 0.3:
            disturb(pair, rng, now)
        elif action < 0.55:
            beats += [(pair.node, to, body) for to, body in pair.tick(now).items() if to in pairs]
        elif action < 0.8 and beats:
            sender, to, body = beats.pop(rng.randrange(len(beats)))
            replies.append((to, sender, pairs[to].heard_light(sender, body, now)))
        elif replies:
            sender, to, body = replies.pop(rng.randrange(len(replies)))
            pairs[to].light_reply(sender, body, now)
        for each in pairs.values():
            each.agree(now)
