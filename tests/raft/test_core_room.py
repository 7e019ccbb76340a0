"""A follower that spares the last of its disk for what the cluster itself writes."""

from __future__ import annotations

from tests.raft.members import Group, data, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.leader import REFUSED_CHUNK
from tidelog.raft.types import Level
from tidelog.records import BatchType, internal_batch


def ours() -> ev.Propose:
    return ev.Propose(9, (internal_batch(BatchType.CHANGELOG, b"delete it"),), Level.QUORUM)


def test_a_follower_without_room_takes_no_writes_of_clients() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group[3].core.receiver.sparing = True
    leader.propose(1)
    group.deliver()
    assert leader.is_done(1), "the others are a majority"
    assert (group[2].core.dirty, group[3].core.dirty) == (1, 0)
    assert group[3].core.receiver.spared == 1
    group[3].core.receiver.sparing = False
    group.beat(1)
    group.beat(1)
    assert group[3].core.dirty == 1


def test_followers_without_room_take_what_the_cluster_writes() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group[2].core.receiver.sparing = group[3].core.receiver.sparing = True
    leader.step(ours())
    group.deliver()
    assert leader.is_done(9)


def test_what_the_cluster_writes_is_taken_behind_a_write_that_was_refused() -> None:
    """Otherwise one write that came just before would keep records from being deleted."""
    group = Group.of(3)
    leader = group.elect(1)
    group[2].core.receiver.sparing = group[3].core.receiver.sparing = True
    leader.propose(1)
    group.deliver()
    assert not leader.is_done(1)
    leader.step(ours())
    group.beat(1)
    group.beat(1)
    assert leader.is_done(9)
    assert leader.is_done(1)


def test_a_follower_without_room_can_still_vote_and_lead() -> None:
    group = Group.of(3)
    group.elect(1)
    group[2].core.receiver.sparing = group[3].core.receiver.sparing = True
    group.elect(2)
    assert group[2].core.confirmed


def test_a_follower_that_refused_is_sent_little_until_it_takes_something() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group[3].core.receiver.sparing = True
    for token in range(1, 6):
        leader.propose(token, batch=data(size=REFUSED_CHUNK // 2))
    group.deliver()
    leader.step(ev.BeatDue(vnode(3)))
    [sent] = [
        each
        for each in group.wire
        if isinstance(each, msg.AppendRequest) and each.target == vnode(3) and each.batches
    ]
    assert sum(batch.size for batch in sent.batches) <= REFUSED_CHUNK
    group.deliver()
    group[3].core.receiver.sparing = False
    group.beat(1)
    assert group[3].core.dirty == leader.core.dirty
