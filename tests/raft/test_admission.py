"""What a replica does not heed: messages of strangers, absurd terms, and contradictions."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.raft.members import GROUP, Group, Member, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.admission import MAX_LEAP, MAX_TERM, Objection
from tidelog.raft.configuration import Configuration
from tidelog.raft.types import HardState, Role, Vnode
from tidelog.records import NO_OFFSET, NO_TERM, Offset, Term
from tidelog.rpc.codec import encode

STRANGER = vnode(99)
HERE = Offset(0)
SNAPSHOT = msg.SnapshotMeta(Offset(50), Term(1), Configuration((STRANGER,)), 8, 0)

Make = Callable[[Vnode, Vnode, int], msg.Message]


def vote_reply(source: Vnode, target: Vnode, term: int) -> msg.VoteReply:
    return msg.VoteReply(GROUP, source, target, Term(term), msg.Ballot.VOTE, False)


def append_reply(source: Vnode, target: Vnode, term: int) -> msg.AppendReply:
    ok = msg.Status.SUCCESS
    marks = (HERE, HERE, HERE, NO_OFFSET, NO_TERM, NO_OFFSET)
    return msg.AppendReply(GROUP, source, target, Term(term), 1, ok, *marks)


def append_request(source: Vnode, target: Vnode, term: int) -> msg.AppendRequest:
    marks = (NO_OFFSET, NO_OFFSET, NO_OFFSET, False)
    return msg.AppendRequest(GROUP, source, target, Term(term), 1, NO_OFFSET, NO_TERM, (), *marks)


def vote_request(source: Vnode, target: Vnode, term: int) -> msg.VoteRequest:
    last = (Offset(99), Term(1))
    return msg.VoteRequest(GROUP, source, target, Term(term), msg.Ballot.TRANSFER, *last)


# What only somebody who takes part may say.
OF_MEMBERS: dict[str, Make] = {
    "vote-reply": vote_reply,
    "append-reply": append_reply,
    "timeout-now": lambda *ends: msg.TimeoutNow(GROUP, *_head(*ends)),
    "offer": lambda *ends: msg.SnapshotOffer(GROUP, *_head(*ends), SNAPSHOT, msg.Purpose.INSTALL),
    "stored": lambda *ends: msg.SnapshotStored(GROUP, *_head(*ends), HERE, installed=True),
    "found": lambda *ends: msg.SnapshotFound(GROUP, *_head(*ends), SNAPSHOT),
    "query": lambda *ends: msg.SnapshotQuery(GROUP, *_head(*ends), HERE),
    "request": lambda *ends: msg.SnapshotRequest(GROUP, *_head(*ends), HERE, 0),
    "chunk": lambda *ends: msg.SnapshotChunk(GROUP, *_head(*ends), HERE, 0, b"x", 0),
}
OF_ANYBODY: dict[str, Make] = {"vote-request": vote_request, "append-request": append_request}


def _head(source: Vnode, target: Vnode, term: int) -> tuple[Vnode, Vnode, Term]:
    return source, target, Term(term)


def dropped(member: Member) -> list[Objection]:
    return [each.why for each in member.outputs if isinstance(each, ev.Dropped)]


def trio() -> tuple[Group, Member, Member]:
    """A leader and a follower, in term 1."""
    group = Group.of(3)
    leader = group.elect(1)
    group.drop()
    return group, leader, group[2]


# --- Strangers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["leader", "follower", "candidate"])
@pytest.mark.parametrize("make", OF_MEMBERS.values(), ids=OF_MEMBERS.keys())
def test_a_stranger_raises_the_term_of_no_replica(make: Make, role: str) -> None:
    group, leader, follower = trio()
    member = leader if role == "leader" else follower
    if role == "candidate":
        group.time_out(2)
        group.drop()
    before = (member.core.role, member.core.hard)
    member.step(make(STRANGER, member.vnode, member.core.term + 1))
    assert (member.core.role, member.core.hard) == before
    assert len(dropped(member)) == 1
    assert dropped(member)[0] in (Objection.SOURCE, Objection.CONTRADICTION)
    assert not group.wire, "and it gets no answer"


@pytest.mark.parametrize("make", OF_ANYBODY.values(), ids=OF_ANYBODY.keys())
def test_a_candidate_or_leader_that_a_replica_does_not_know_yet_is_heeded(make: Make) -> None:
    _, _, follower = trio()
    follower.step(make(vnode(4), follower.vnode, 2))
    assert follower.core.term == 2
    assert not dropped(follower)


def test_votes_of_a_stranger_count_in_no_campaign() -> None:
    group = Group.of(3)
    group.time_out(1)
    group[1].step(msg.VoteReply(GROUP, STRANGER, vnode(1), Term(1), msg.Ballot.PREVOTE, True))
    assert dropped(group[1]) == [Objection.SOURCE]
    assert group[1].core.role is Role.PRECANDIDATE


def test_a_snapshot_of_a_stranger_is_not_downloaded() -> None:
    group, _, follower = trio()
    follower.core.shipping.leader_compacted(Offset(0), beat=False)  # it wants one
    for make in (OF_MEMBERS["found"], OF_MEMBERS["offer"]):
        follower.step(make(STRANGER, follower.vnode, 1))
    assert len(dropped(follower)) == 2
    assert not group.take(msg.SnapshotRequest)


def test_a_snapshot_of_a_later_term_than_its_holder_is_a_contradiction() -> None:
    _, leader, follower = trio()
    later = replace(SNAPSHOT, term=Term(9))
    head = (GROUP, leader.vnode, follower.vnode, Term(1))
    follower.step(msg.SnapshotOffer(*head, later, msg.Purpose.INSTALL))
    follower.step(msg.SnapshotFound(*head, later))
    assert dropped(follower) == [Objection.CONTRADICTION] * 2


def test_another_leader_of_the_same_term_is_a_contradiction() -> None:
    _, leader, follower = trio()
    for member in (leader, follower):
        member.step(append_request(vnode(3), member.vnode, 1))
        member.step(msg.TimeoutNow(GROUP, vnode(3), member.vnode, Term(1)))
        assert dropped(member) == [Objection.CONTRADICTION] * 2
        assert member.core.leader == leader.vnode
    assert leader.core.role is Role.LEADER
    assert follower.core.role is Role.FOLLOWER


def test_an_answer_that_nobody_waits_for_any_more_is_no_offence() -> None:
    _, leader, follower = trio()
    leader.step(vote_reply(vnode(3), leader.vnode, 1))
    follower.step(append_reply(vnode(3), follower.vnode, 1))
    late = msg.VoteReply(GROUP, vnode(3), leader.vnode, Term(2), msg.Ballot.PREVOTE, True)
    leader.step(late)
    assert not dropped(leader)
    assert not dropped(follower)
    assert leader.core.role is Role.LEADER


# --- Terms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", [1 + MAX_LEAP + 1, MAX_TERM, MAX_TERM + 1])
@pytest.mark.parametrize(
    "make", [*OF_MEMBERS.values(), *OF_ANYBODY.values()], ids=[*OF_MEMBERS, *OF_ANYBODY]
)
def test_an_absurd_term_is_believed_of_nobody(make: Make, term: int) -> None:
    _, leader, follower = trio()
    for source, member in ((follower, leader), (leader, follower)):
        hard = member.core.hard
        member.step(make(source.vnode, member.vnode, term))
        assert dropped(member) == [Objection.TERM]
        assert member.core.hard == hard
    assert leader.core.role is Role.LEADER


def test_one_who_was_away_for_long_takes_over_the_term_of_the_leader() -> None:
    _, leader, follower = trio()
    follower.step(append_request(leader.vnode, follower.vnode, 1 + MAX_LEAP))
    assert follower.core.term == 1 + MAX_LEAP
    assert not dropped(follower)


def test_a_newcomer_joins_a_group_of_any_term() -> None:
    group = Group.of(4, configuration=Configuration((vnode(1), vnode(2), vnode(3))))
    old = 100 * MAX_LEAP
    for number in (1, 2, 3):
        group[number].hard = HardState(Term(old))
        group[number].restart()
    leader = group.elect(1)
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), vnode(3), vnode(4))))
    group.deliver()
    for _ in range(3):
        group.beat(1)
    assert leader.is_done(7)
    assert group[4].core.term == leader.core.term == old + 1
    assert group[4].entries() == leader.entries()


def test_a_newcomer_takes_no_absurd_term_from_anybody_but_a_leader() -> None:
    group = Group.of(4, configuration=Configuration((vnode(1), vnode(2), vnode(3))))
    newcomer = group[4]
    newcomer.step(vote_request(vnode(1), newcomer.vnode, MAX_LEAP + 1))
    newcomer.step(append_request(vnode(1), newcomer.vnode, MAX_TERM + 1))
    assert dropped(newcomer) == [Objection.TERM] * 2
    assert newcomer.core.term == 0


def test_a_newcomer_that_was_told_an_absurd_term_does_no_harm_to_the_others() -> None:
    group = Group.of(4, configuration=Configuration((vnode(1), vnode(2), vnode(3))))
    leader = group.elect(1)
    group[4].step(append_request(STRANGER, vnode(4), MAX_TERM))
    group.drop()
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), vnode(3), vnode(4))))
    group.deliver()
    group.beat(1)
    assert leader.core.role is Role.LEADER
    assert leader.core.term == 1
    assert set(dropped(leader)) == {Objection.TERM}


def test_a_replica_in_the_last_term_stands_no_more_and_says_nothing_that_has_no_bytes() -> None:
    group = Group.of(3)
    for member in group:
        member.hard = HardState(Term(MAX_TERM - 1))
        member.restart()
    leader = group.elect(1)
    assert leader.core.term == MAX_TERM
    for member in group:
        member.hears_leader = False
        member.step(ev.QuorumLost())
        for _ in range(5):
            member.step(ev.ElectionTimeout())
        assert member.core.role is Role.FOLLOWER
        for message in member.said(msg.Message):
            encode(message)


def test_the_last_term_has_bytes_and_no_later_one_has() -> None:
    last = vote_reply(vnode(1), vnode(2), MAX_TERM)
    assert encode(last)
    with pytest.raises(ValueError, match="cannot be encoded"):
        encode(replace(last, term=Term(MAX_TERM + 1)))


def test_there_is_a_rule_for_every_message() -> None:
    _, leader, _ = trio()
    makes = (OF_MEMBERS | OF_ANYBODY).values()
    kinds = {type(make(vnode(2), leader.vnode, 1)).__name__ for make in makes}
    assert kinds == {each.__name__ for each in msg.Message.__subclasses__()}


# --- The attack ---------------------------------------------------------------------------------


def test_a_stranger_with_the_last_term_ends_no_group() -> None:
    group, leader, _ = trio()
    for member in group:
        member.step(vote_reply(STRANGER, member.vnode, MAX_TERM))
    assert {member.core.term for member in group} == {1}
    group.time_out(2)
    group.deliver()
    assert group[2].core.role is Role.LEADER
    assert group[2].core.term == 2
    assert leader.core.role is Role.FOLLOWER
