"""Elections as the thesis tells them: chapters 3.4, 3.6, 3.10, 4.2.3 and 9.6, claim by claim."""

from dataclasses import replace

import pytest
from tests.raft.members import GROUP, Group, Member, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration
from tidelog.raft.types import HardState, Level, Role, Vnode
from tidelog.raft.voter import MAX_SAT_OUT
from tidelog.records import BatchType, Offset, Term


def ask(
    member: Member,
    source: Vnode,
    term: int,
    *,
    ballot: msg.Ballot = msg.Ballot.VOTE,
    last: tuple[int, int] = (99, 99),
) -> msg.VoteReply | None:
    """Ask a member for its vote; what it answers, if it answers at once."""
    member.group.drop()
    last_term, last_offset = last
    member.step(
        msg.VoteRequest(
            GROUP, source, member.vnode, Term(term), ballot, Offset(last_offset), Term(last_term)
        )
    )
    replies = member.group.take(msg.VoteReply)
    return replies[0] if replies else None


def grants(reply: msg.VoteReply | None) -> bool:
    assert reply is not None, "there was no answer"
    return reply.granted


# --- Pre-vote -----------------------------------------------------------------------------------


def test_a_prevote_changes_nothing_anywhere() -> None:
    group = Group.of(3)
    group.time_out(1)
    before = [member.hard for member in group]
    requests = group.take(msg.VoteRequest)
    assert [each.ballot for each in requests] == [msg.Ballot.PREVOTE] * 2
    for request in requests:
        group.hand_over(request)
    assert [reply.granted for reply in group.take(msg.VoteReply)] == [True, True]
    assert [member.hard for member in group] == before == [HardState()] * 3
    assert group[2].core.role is Role.FOLLOWER


def test_a_prevote_may_be_granted_to_many() -> None:
    group = Group.of(3)
    assert grants(ask(group[1], vnode(2), 1, ballot=msg.Ballot.PREVOTE))
    assert grants(ask(group[1], vnode(3), 1, ballot=msg.Ballot.PREVOTE))


def test_somebody_who_was_cut_off_does_not_disturb_a_leader_that_the_rest_hears() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group.cut_off = {3}
    group[3].hears_leader = False
    for _ in range(5):
        group[3].step(ev.ElectionTimeout())
        group.deliver()
    assert group[3].core.term == 1, "without a majority of pre-votes the term does not rise"
    group.cut_off = set()
    group[3].step(ev.ElectionTimeout())
    group.deliver()
    assert leader.core.role is Role.LEADER
    assert {member.core.term for member in group} == {1}
    group.beat(1)
    assert group[3].core.leader == leader.vnode


def test_a_prevote_for_another_term_than_the_one_asked_about_counts_nothing() -> None:
    group = Group.of(3)
    group.time_out(1)
    stale = msg.VoteReply(GROUP, vnode(2), vnode(1), Term(7), msg.Ballot.PREVOTE, True)
    group[1].step(stale)
    assert group[1].core.role is Role.PRECANDIDATE


def test_a_refused_prevote_with_a_newer_term_makes_the_asker_catch_up() -> None:
    group = Group.of(3)
    group.time_out(1)
    refusal = msg.VoteReply(GROUP, vnode(2), vnode(1), Term(7), msg.Ballot.PREVOTE, False)
    group[1].step(refusal)
    assert (group[1].core.term, group[1].core.role) == (7, Role.FOLLOWER)


# --- Votes --------------------------------------------------------------------------------------


def test_the_one_with_a_majority_leads_and_opens_its_term_with_the_configuration() -> None:
    group = Group.of(3)
    leader = group.elect(2)
    assert leader.core.term == 1
    assert [each.type for each in leader.log.batches] == [BatchType.CONFIGURATION]
    assert leader.entries() == [(0, 0, 1)]
    assert [member.core.leader for member in group] == [leader.vnode] * 3


def test_a_leader_is_confirmed_when_the_first_batch_of_its_term_is_committed() -> None:
    group = Group.of(3)
    group.time_out(1)
    group.deliver(kinds=(msg.VoteRequest, msg.VoteReply))
    assert group[1].core.role is Role.LEADER
    assert not group[1].core.confirmed
    group.deliver()
    assert group[1].core.confirmed
    assert group[1].core.ready


def test_a_single_voter_elects_itself_once_its_vote_is_on_disk() -> None:
    group = Group.of(1)
    group[1].slow_vote = True
    group.time_out(1)
    assert group[1].core.role is Role.CANDIDATE
    group[1].finish_votes()
    assert group[1].core.confirmed


def test_a_vote_leaves_only_after_it_is_on_disk() -> None:
    voter = Group.of(3)[1]
    voter.slow_vote = True
    assert ask(voter, vnode(2), 1) is None
    voter.finish_votes()
    (reply,) = voter.group.take(msg.VoteReply)
    assert reply.granted
    assert voter.hard == HardState(Term(1), vnode(2))


def test_even_a_refusal_waits_until_the_term_it_carries_is_on_disk() -> None:
    voter = Group.of(3)[1]
    voter.slow_vote = True
    assert ask(voter, vnode(2), 5, last=(-1, -1)) is None
    voter.finish_votes()
    (reply,) = voter.group.take(msg.VoteReply)
    assert (reply.granted, reply.term) == (False, 5)


def test_a_candidate_asks_for_votes_only_after_its_own_is_on_disk() -> None:
    group = Group.of(3)
    group[1].slow_vote = True
    group.time_out(1)
    group.deliver()
    assert group[1].core.role is Role.CANDIDATE
    assert not group[1].said(msg.VoteRequest)[2:], "only the two pre-votes left"
    group[1].finish_votes()
    group.deliver()
    assert group[1].core.role is Role.LEADER


def test_one_vote_a_term_also_across_a_restart() -> None:
    voter = Group.of(3)[1]
    assert grants(ask(voter, vnode(2), 1))
    assert not grants(ask(voter, vnode(3), 1))
    assert grants(ask(voter, vnode(2), 1)), "asked again, it says the same"
    voter.restart()
    assert not grants(ask(voter, vnode(3), 1))
    assert grants(ask(voter, vnode(2), 1))
    assert grants(ask(voter, vnode(3), 2)), "another term, another vote"


def test_a_vote_that_was_not_on_disk_at_a_crash_was_never_given() -> None:
    voter = Group.of(3)[1]
    voter.slow_vote = True
    assert ask(voter, vnode(2), 1) is None
    voter.slow_vote = False
    voter.restart()
    assert grants(ask(voter, vnode(3), 1))


@pytest.mark.parametrize(
    ("last", "granted"),
    [((1, 2), False), ((1, 3), True), ((1, 4), True), ((2, 0), True), ((0, 9), False)],
)
def test_a_vote_goes_to_a_log_at_least_as_up_to_date(last: tuple[int, int], granted: bool) -> None:
    group = Group.of(3)
    leader = group.elect(1)
    for token in range(3):
        leader.propose(token)
    group.deliver()
    voter = group[2]
    assert (voter.log.last_term, voter.core.dirty) == (1, 3)
    voter.hears_leader = False
    assert grants(ask(voter, vnode(3), 2, ballot=msg.Ballot.PREVOTE, last=last)) is granted
    assert grants(ask(voter, vnode(3), 2, last=last)) is granted


def test_a_learner_and_a_stranger_never_stand() -> None:
    configuration = Configuration((vnode(1), vnode(2)), (), (vnode(3),))
    group = Group.of(4, configuration=configuration)
    for number in (3, 4):
        group[number].step(ev.ElectionTimeout())
        assert group[number].core.role is Role.FOLLOWER
    assert not group.wire


def test_a_member_in_maintenance_stands_only_when_asked_to() -> None:
    group = Group.of(3)
    group[1].core.voter.electable = False
    for _ in range(5):
        group[1].step(ev.ElectionTimeout())
    assert group[1].core.role is Role.FOLLOWER
    group.elect(2)
    group[2].step(ev.Transfer(1, vnode(1)))
    group.deliver()
    assert group[1].core.role is Role.LEADER


def test_a_leader_that_cannot_lead_any_longer_lets_another_stand_at_once() -> None:
    group = Group.of(3)
    group.elect(1)
    group[1].step(ev.CannotLead())
    assert group[1].core.role is Role.FOLLOWER
    group.deliver()
    assert {number for number in (2, 3) if group[number].core.role is Role.LEADER}


def test_a_candidate_that_cannot_lead_gives_up() -> None:
    group = Group.of(3)
    group.time_out(1)
    group[1].step(ev.CannotLead())
    group.deliver()
    assert group[1].core.role is Role.FOLLOWER


def test_a_voter_that_cannot_lead_never_stands_and_votes_for_others() -> None:
    group = Group.of(3)
    group[1].step(ev.CannotLead())
    for _ in range(5):
        group[1].step(ev.ElectionTimeout())
    assert group[1].core.role is Role.FOLLOWER
    group.cut_off.add(3)
    group.elect(2)
    group[2].step(ev.Transfer(1, vnode(1)))
    group.deliver()
    assert group[1].core.role is Role.FOLLOWER, "not even when it is asked to"
    group[2].step(ev.TransferExpired())
    group.elect(2)


def test_the_preferred_voter_gets_the_first_chance() -> None:
    group = Group.of(3)
    for number in (3, 2):
        group[number].step(ev.ElectionTimeout())
        assert group[number].core.role is Role.FOLLOWER, "n1 is preferred"
    group[1].step(ev.ElectionTimeout())
    assert group[1].core.role is Role.PRECANDIDATE


def test_two_candidates_of_one_term_cannot_both_win() -> None:
    group = Group.of(4)
    group.time_out(1)
    group.time_out(2)
    # Let both win the pre-vote, so that they are candidates in the same term.
    group.deliver(kinds=(msg.VoteRequest, msg.VoteReply))
    leaders = [member.vnode for member in group if member.core.role is Role.LEADER]
    assert len(leaders) <= 1
    terms: dict[int, set[Vnode]] = {}
    for member in group:
        for reply in member.said(msg.VoteReply):
            if reply.granted and reply.ballot is msg.Ballot.VOTE:
                terms.setdefault(reply.term, set()).add(reply.source)
    assert terms


# --- Sticky leaders and check-quorum ------------------------------------------------------------


def test_a_vote_is_refused_while_a_leader_is_heard_and_the_term_is_not_taken_over() -> None:
    group = Group.of(3)
    group.elect(1)
    assert group[2].hears_leader
    reply = ask(group[2], vnode(3), 9)
    assert reply is not None
    assert (reply.granted, reply.term) == (False, 1)
    assert group[2].core.term == 1
    group[2].hears_leader = False
    assert grants(ask(group[2], vnode(3), 9))


def test_a_leader_refuses_a_vote_that_nobody_asked_it_for() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    assert not grants(ask(leader, vnode(3), 9))
    assert leader.core.role is Role.LEADER


def test_a_transfer_may_depose_a_leader_that_is_heard() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    assert grants(ask(group[2], vnode(3), 2, ballot=msg.Ballot.TRANSFER))
    assert grants(ask(leader, vnode(3), 2, ballot=msg.Ballot.TRANSFER))
    assert leader.core.role is Role.FOLLOWER


def test_a_leader_without_a_majority_steps_down_and_keeps_its_term() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.step(ev.QuorumLost())
    assert (leader.core.role, leader.core.term, leader.core.leader) == (Role.FOLLOWER, 1, None)
    leader.propose(1)
    assert leader.refusal(1) is ev.Refusal.NOT_LEADER


def test_a_newer_term_in_a_reply_deposes_a_leader() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1)
    request = group.take(msg.AppendRequest, target=2)[0]
    group.drop()
    group[2].hears_leader = False
    ask(group[2], vnode(3), 4)
    group[2].step(request)
    (reply,) = group.take(msg.AppendReply)
    assert (reply.status, reply.term) == (msg.Status.MISMATCH, 4)
    leader.step(reply)
    assert (leader.core.role, leader.core.term) == (Role.FOLLOWER, 4)
    assert leader.hard.term == 4, "the term is on disk, too"


def test_the_term_a_replica_learned_survives_a_crash() -> None:
    group = Group.of(3)
    group.elect(1)
    group[3].restart()
    assert group[3].core.term == 1


# --- Identity -----------------------------------------------------------------------------------


def test_a_message_to_or_from_a_former_self_changes_nothing() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1, Level.LEADER)
    (request,) = group.take(msg.AppendRequest, target=2)
    before = group[2].entries()
    group[2].step(replace(request, target=vnode(2, revision=1)))
    assert group[2].entries() == before
    assert not group.take(msg.AppendReply)
    group[2].step(request)
    (reply,) = group.take(msg.AppendReply)
    match = leader.core.progress[vnode(2)].match
    leader.step(replace(reply, source=vnode(2, revision=1)))
    assert leader.core.progress[vnode(2)].match == match
    leader.step(reply)
    assert leader.core.progress[vnode(2)].match == match + 1


def test_a_message_of_another_group_is_none_of_our_business() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.step(
        msg.AppendReply(
            type(GROUP)(GROUP + 1),
            vnode(2),
            vnode(1),
            Term(9),
            1,
            msg.Status.SUCCESS,
            Offset(0),
            Offset(0),
            Offset(0),
            Offset(0),
            Term(0),
            Offset(-1),
        )
    )
    assert leader.core.role is Role.LEADER


def test_a_leader_whose_disk_fails_lets_the_follower_with_most_of_the_log_stand_at_once() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group.cut_off.add(3)
    leader.propose(1)
    group.deliver()
    group.cut_off.clear()
    leader.step(ev.StorageLost("the disk fails"))
    group.deliver()
    assert group[2].core.role is Role.LEADER, "and nobody had to wait for a timeout"


def test_a_reluctant_replica_stands_only_when_nobody_else_wins() -> None:
    group = Group.of(3)
    replica = group[1]
    replica.core.voter.reluctant = True
    for _ in range(MAX_SAT_OUT):
        replica.step(ev.ElectionTimeout())
        assert replica.core.role is Role.FOLLOWER
    for _ in range(3):
        replica.step(ev.ElectionTimeout())
    assert replica.core.role is Role.PRECANDIDATE


def test_a_reluctant_replica_that_is_alone_stands_at_once() -> None:
    group = Group.of(1)
    group[1].core.voter.reluctant = True
    group[1].step(ev.ElectionTimeout())
    assert group[1].core.role is Role.LEADER
