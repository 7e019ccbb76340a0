"""What heartbeats cost: bytes and processor time a group, on three nodes.

Every group has a replica on each node; each node leads a third of them, so a node sends its two
peers a beat each and takes theirs. A round is what one node does in one interval: `tick` with the
encoding of two beats, two beats received and answered, two replies taken. Figures are a group that
the node holds, so the processor share of all heartbeats is groups * microseconds / interval.
"""

import time
from collections.abc import Iterator
from random import Random

from tidelog.raft.beats import BeatOptions, Beats
from tidelog.raft.configuration import Configuration
from tidelog.raft.types import GroupId, NodeId, Role, Vnode
from tidelog.records import Term

NAME = "beats"
ROUNDS = 200
QUICK_ROUNDS = 20
BUSY_SHARE = 100  # one group in so many has something to tell
OPTIONS = BeatOptions()
VNODES = tuple(Vnode(NodeId(number), 0) for number in (1, 2, 3))
CONFIGURATION = Configuration(VNODES)
TERM = Term(7)


def _quiet(_: Vnode) -> bool:
    return True


def _busy(_: Vnode) -> bool:
    return False


def _cluster(count: int, stride: int) -> dict[NodeId, Beats]:
    nodes = {vnode.id: Beats(vnode.id, OPTIONS, Random(vnode.id)) for vnode in VNODES}
    for number in range(count):
        group = GroupId(number * stride)
        leader = VNODES[number % len(VNODES)]
        for vnode in VNODES:
            beats = nodes[vnode.id]
            beats.add(group, vnode, 0)
            if vnode == leader:
                beats.publish(group, Role.LEADER, TERM, CONFIGURATION, _quiet, 0)
            else:
                beats.publish(group, Role.FOLLOWER, TERM, CONFIGURATION, _quiet, 0)
                beats.heard(group, leader, TERM, 0)
    return nodes


def _measure(count: int, stride: int, busy: int, rounds: int) -> str:
    """Best of the rounds, since others use the machine too."""
    nodes = _cluster(count, stride)
    # The first and every so many-th of the groups that the first node leads.
    loud = [GroupId(number * stride) for number in range(0, count, 3 * busy)] if busy else []
    best = [float("inf")] * 3
    sent = refused = 0
    for now in range(0, rounds * OPTIONS.interval_ms, OPTIONS.interval_ms):
        for group in loud:
            nodes[NodeId(1)].publish(group, Role.LEADER, TERM, CONFIGURATION, _busy, now)
        spent = [0.0] * 3
        sent = 0
        for source, beats in nodes.items():
            began = time.perf_counter()
            due = beats.tick(now)
            spent[0] += time.perf_counter() - began
            assert not due.elections
            for group, peer in due.full:  # the core sends an append, and an answer comes
                nodes[peer.id].heard(group, Vnode(source, 0), TERM, now)
                beats.replied(group, peer, now)
            for target, body in due.light.items():
                began = time.perf_counter()
                reply = nodes[target].heard_light(source, body, now)
                heard = time.perf_counter()
                refused += len(beats.light_reply(target, reply, now))
                spent[1] += heard - began
                spent[2] += time.perf_counter() - heard
                sent += len(body) + len(reply)
        best = [min(old, new) for old, new in zip(best, spent, strict=True)]
    assert not refused
    tick, receive, answer = (1e6 * seconds / len(nodes) / count for seconds in best)
    share = 100 * (tick + receive + answer) * count / 1000 / OPTIONS.interval_ms
    kind = f"ids {stride} apart" + (f", 1 in {busy} busy on n1" if busy else "")
    # Each group is named in two beats, to its two followers.
    return (
        f"{count:>6} groups, {kind}: {sent / (2 * count):.2f} B a group and follower;"
        f" tick {tick:.3f}, receive {receive:.3f}, replies {answer:.3f} us a group"
        f" ({share:.2f} % of a core)"
    )


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure dense and sparse group ids, and with some groups that are not quiet."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    yield f"a heartbeat round every {OPTIONS.interval_ms} ms, best of {rounds}"
    for count in (1_000, 10_000):
        yield _measure(count, 1, 0, rounds)
        yield _measure(count, 1_000, 0, rounds)
        yield _measure(count, 1, BUSY_SHARE, rounds)
