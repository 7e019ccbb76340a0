"""Changing who takes part: learners, joint configurations, cancel, and handing over."""

from tests.raft.members import Group, Member, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.types import HardState, Level, NodeId, Role, Vnode

ONE_TO_THREE = Configuration((vnode(1), vnode(2), vnode(3)))


def group_of(count: int) -> Group:
    """The given number of members, of which the first three are the voters."""
    group = Group.of(count, configuration=ONE_TO_THREE)
    group.elect(1)
    return group


def settle(group: Group, leader: int = 1, rounds: int = 6) -> None:
    for _ in range(rounds):
        group.beat(leader)


def configurations(member: Member) -> list[str]:
    """Every configuration in the log, the one that opens a term only if it differs."""
    seen: list[str] = []
    for batch in member.log.batches:
        found = member.log.last_configuration(batch.base_offset)
        if found is batch:
            text = str(member.core.configuration_at(batch.base_offset))
            if not seen or seen[-1] != text:
                seen.append(text)
    return seen


# --- Changes ------------------------------------------------------------------------------------


def test_a_newcomer_learns_first_and_votes_after_a_joint_configuration() -> None:
    group = group_of(4)
    leader = group[1]
    leader.propose(1)
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), vnode(3), vnode(4))))
    settle(group)
    assert leader.is_done(7)
    assert configurations(leader) == [
        "(n1 n2 n3)",
        "(n1 n2 n3) learners=(n4)",
        "(n1 n2 n3 n4)&(n1 n2 n3)",
        "(n1 n2 n3 n4)",
    ]
    assert group[4].entries() == leader.entries()
    assert group[4].core.configuration == leader.core.configuration


def test_a_change_that_adds_nobody_goes_straight_to_the_joint_configuration() -> None:
    group = group_of(3)
    group[1].step(ev.ChangeConfiguration(7, (vnode(1), vnode(2))))
    settle(group)
    assert configurations(group[1]) == ["(n1 n2 n3)", "(n1 n2)&(n1 n2 n3)", "(n1 n2)"]
    assert set(group[1].core.progress) == {vnode(2)}


def test_a_learner_counts_nowhere() -> None:
    group = Group.of(5, configuration=ONE_TO_THREE.with_learners((vnode(4), vnode(5))))
    leader = group.elect(1)
    group.cut_off = {2, 3}
    leader.propose(1)
    leader.propose(2, Level.MEMORY)
    leader.step(ev.Barrier(3))
    group.deliver()
    group.beat(1)
    learners = [leader.core.progress[vnode(number)] for number in (4, 5)]
    assert [(each.durable, each.replicated) for each in learners] == [(1, 2), (1, 2)]
    assert leader.core.committed == 0
    assert leader.core.visible == 0
    assert [leader.outcome(3), leader.is_done(1), leader.is_done(2)] == [None, False, False]
    leader.step(ev.QuorumLost())
    group.time_out(1)
    group.deliver()
    assert leader.core.role is Role.PRECANDIDATE, "their votes are not asked for"


def test_a_joint_configuration_needs_a_majority_of_both_halves() -> None:
    group = group_of(5)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(4), vnode(5))))
    group.deliver_until(lambda: leader.core.configuration.is_joint)
    group.drop()
    assert str(leader.core.configuration) == "(n1 n4 n5)&(n1 n2 n3)"
    joint = leader.core.configuration_offset
    group.cut_off = {2, 3}
    group.beat(1)
    group.beat(1)
    assert leader.core.committed < joint, "n4 and n5 have it; n2 and n3 have not"
    group.cut_off = {4, 5}
    group.beat(1)
    group.beat(1)
    # n2 has it now and n4, n5 reported it before: both halves have a majority.
    assert leader.core.committed >= joint
    group.cut_off = set()
    settle(group)
    assert leader.is_done(7)
    assert str(leader.core.configuration) == "(n1 n4 n5)"


def test_learners_become_voters_only_when_they_have_caught_up() -> None:
    group = group_of(4)
    leader = group[1]
    group.cut_off = {4}
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), vnode(4))))
    settle(group)
    assert str(leader.core.configuration) == "(n1 n2 n3) learners=(n4)"
    assert not leader.is_done(7)
    group.cut_off = set()
    settle(group)
    assert leader.is_done(7)


def test_one_change_at_a_time() -> None:
    group = group_of(5)
    leader = group[1]
    group.cut_off = {4}
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), vnode(4))))
    leader.step(ev.ChangeConfiguration(8, (vnode(1), vnode(2), vnode(5))))
    assert leader.refusal(8) is ev.Refusal.CHANGING
    group.deliver()
    leader.step(ev.ChangeConfiguration(9, (vnode(1), vnode(2), vnode(5))))
    assert leader.refusal(9) is ev.Refusal.CHANGING


def test_what_makes_no_sense_is_refused_and_what_is_so_already_is_done() -> None:
    group = group_of(3)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(1, ()))
    assert leader.refusal(1) is ev.Refusal.INVALID
    leader.step(ev.ChangeConfiguration(2, (vnode(1), vnode(1, revision=3))))
    assert leader.refusal(2) is ev.Refusal.INVALID
    leader.step(ev.ChangeConfiguration(3, ONE_TO_THREE.voters))
    assert leader.is_done(3)
    leader.step(ev.CancelChange(4))
    assert leader.refusal(4) is ev.Refusal.NOT_CHANGING
    group[2].step(ev.ChangeConfiguration(5, (vnode(1),)))
    assert group[2].refusal(5) is ev.Refusal.NOT_LEADER
    assert configurations(leader) == ["(n1 n2 n3)"]


def test_a_leader_that_is_not_confirmed_changes_nothing() -> None:
    group = Group.of(3)
    group.time_out(1)
    group.deliver(kinds=(msg.VoteRequest, msg.VoteReply))
    group[1].step(ev.ChangeConfiguration(1, (vnode(1),)))
    assert group[1].refusal(1) is ev.Refusal.NOT_READY


# --- Cancel -------------------------------------------------------------------------------------


def test_a_change_is_cancelled_while_the_newcomers_learn() -> None:
    group = group_of(4)
    leader = group[1]
    group.cut_off = {4}
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), vnode(4))))
    group.deliver()
    leader.step(ev.CancelChange(8))
    settle(group)
    assert leader.is_done(8)
    assert leader.refusal(7) is ev.Refusal.NOT_CHANGING
    assert leader.core.configuration == ONE_TO_THREE


def test_a_change_is_cancelled_out_of_the_joint_configuration() -> None:
    group = group_of(4)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(4))))
    group.deliver_until(lambda: leader.core.configuration.is_joint)
    leader.step(ev.CancelChange(8))
    settle(group)
    assert leader.is_done(8)
    assert leader.refusal(7) is ev.Refusal.NOT_CHANGING
    assert leader.core.configuration == ONE_TO_THREE


def test_a_cancel_that_comes_too_late_is_told_so() -> None:
    group = group_of(3)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2))))
    group.deliver_until(lambda: str(leader.core.configuration) == "(n1 n2)")
    assert not leader.is_done(7)
    leader.step(ev.CancelChange(8))
    settle(group)
    assert leader.is_done(7)
    assert leader.refusal(8) is ev.Refusal.NOT_CHANGING
    assert str(leader.core.configuration) == "(n1 n2)"


def test_a_second_cancel_is_refused() -> None:
    group = group_of(4)
    leader = group[1]
    group.cut_off = {2, 3, 4}
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(4))))
    leader.step(ev.CancelChange(8))
    leader.step(ev.CancelChange(9))
    assert leader.refusal(9) is ev.Refusal.NOT_CHANGING
    assert leader.outcome(8) is None


# --- Leaders come and go ------------------------------------------------------------------------


def test_a_new_leader_leaves_a_joint_configuration_by_itself() -> None:
    group = group_of(4)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(7, (vnode(2), vnode(3), vnode(4))))
    group.deliver_until(lambda: leader.core.configuration.is_joint)
    group.deliver(kinds=(msg.AppendRequest,))
    group.drop()
    assert group[2].core.configuration.is_joint
    leader.step(ev.QuorumLost())
    assert leader.refusal(7) is ev.Refusal.UNKNOWN
    group.elect(2)
    settle(group, leader=2)
    assert str(group[2].core.configuration) == "(n2 n3 n4)"


def test_an_uncommitted_configuration_is_in_force_and_falls_with_a_truncation() -> None:
    group = group_of(4)
    old = group[1]
    group.cut_off = {1}
    old.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), vnode(4))))
    assert str(old.core.configuration) == "(n1 n2 n3) learners=(n4)"
    group.drop()
    group.elect(2)
    group.cut_off = set()
    settle(group, leader=2)
    assert old.core.configuration == ONE_TO_THREE
    assert old.entries() == group[2].entries()


def test_a_leader_that_is_removed_hands_over_and_steps_down() -> None:
    group = group_of(3)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(7, (vnode(2), vnode(3))))
    settle(group)
    assert leader.is_done(7)
    assert leader.core.role is Role.FOLLOWER
    group.deliver()
    new = group.leader()
    assert new.vnode in (vnode(2), vnode(3))
    assert str(new.core.configuration) == "(n2 n3)"
    settle(group, leader=new.vnode.id)
    assert new.core.confirmed


def test_a_leader_is_no_quorum_of_a_configuration_it_is_not_in() -> None:
    group = group_of(3)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(7, (vnode(2), vnode(3))))
    group.deliver_until(lambda: str(leader.core.configuration) == "(n2 n3)")
    assert leader.core.role is Role.LEADER
    final = leader.core.configuration_offset
    group.drop()
    group.cut_off = {3}
    group.beat(1)
    group.beat(1)
    assert leader.core.progress[vnode(2)].durable >= final
    assert leader.core.committed < final, "n2 alone is no majority of (n2 n3)"


def test_a_removed_member_that_missed_its_removal_cannot_depose_the_leader() -> None:
    group = group_of(3)
    group.cut_off = {3}
    group[1].step(ev.ChangeConfiguration(7, (vnode(1), vnode(2))))
    settle(group)
    group.cut_off = set()
    group[3].hears_leader = False
    for _ in range(5):
        group[3].step(ev.ElectionTimeout())
        group.deliver()
    assert group[1].core.role is Role.LEADER
    assert group[1].core.term == 1


def test_a_wiped_node_comes_back_as_somebody_else() -> None:
    group = group_of(3)
    leader = group[1]
    leader.propose(1)
    group.deliver()
    reborn = Vnode(NodeId(3), 1)
    group.members[3] = Member(group, reborn, None, Options())
    group.beat(1)
    group.beat(1)
    assert group[3].entries() == [], "what is meant for its former self does not reach it"
    assert group[3].hard == HardState()
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2), reborn)))
    settle(group)
    assert leader.is_done(7)
    assert str(leader.core.configuration) == "(n1 n2 n3r1)"
    assert group[3].entries() == leader.entries()


def test_a_member_that_comes_back_within_a_term_is_heard() -> None:
    group = group_of(3)
    leader = group[1]
    settle(group, rounds=20)  # it remembers the number of the newest request that it answered
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2))))
    settle(group)
    leader.propose(1)
    leader.step(ev.ChangeConfiguration(8, (vnode(1), vnode(2), vnode(3))))
    settle(group)
    assert leader.core.term == 1
    assert leader.is_done(8)
    assert group[3].entries() == leader.entries()


def test_a_barrier_is_not_confirmed_by_what_a_member_answered_before_it_left() -> None:
    group = group_of(3)
    leader = group[1]
    settle(group, rounds=20)
    for token, voters in ((7, (vnode(1), vnode(2))), (8, (vnode(1), vnode(2), vnode(3)))):
        leader.step(ev.ChangeConfiguration(token, voters))
        settle(group)
    group.cut_off = {2, 3}
    leader.step(ev.Barrier(9))
    group.deliver()
    assert leader.outcome(9) is None
    group.cut_off = {2}
    group.beat(1)
    assert leader.is_done(9)


def test_a_leaving_voter_stands_while_nobody_else_can_win() -> None:
    group = Group.of(2)
    leader = group.elect(1)
    leader.step(ev.ChangeConfiguration(7, (vnode(2),)))
    group.deliver_until(lambda: str(leader.core.configuration) == "(n2)")
    group.drop()  # n1 alone knows that the joint configuration was left
    leader.step(ev.FlushDue())
    leader.restart()
    group.time_out(2)
    group.deliver()
    assert group[2].core.role is not Role.LEADER, "the log of n1 is longer"
    group.time_out(1)
    group.deliver()
    settle(group, leader=1)
    group.deliver()
    assert group.leader() is group[2]
    assert str(group[2].core.configuration) == "(n2)"
    assert group[2].core.confirmed


def test_a_leaving_voter_still_stands_after_it_led_and_told_no_other_voter() -> None:
    group = Group.of(2)
    leader = group.elect(1)
    leader.step(ev.ChangeConfiguration(7, (vnode(2),)))
    group.deliver_until(lambda: str(leader.core.configuration) == "(n2)")
    group.drop()
    for term in (2, 3):  # each time it writes the configuration anew, and only it has that
        leader.step(ev.FlushDue())
        leader.restart()
        group.time_out(1)
        group.deliver_until(lambda: leader.core.role is Role.LEADER)
        assert leader.core.term == term
        group.drop()
    settle(group, leader=1)
    group.deliver()
    assert group.leader() is group[2]
    assert group[2].core.confirmed


def test_a_voter_that_has_left_stands_no_more() -> None:
    group = group_of(3)
    gone = group[1]
    gone.step(ev.ChangeConfiguration(7, (vnode(2), vnode(3))))
    settle(group)
    assert gone.core.committed >= gone.core.configuration_offset
    gone.hears_leader = False
    for _ in range(5):
        gone.step(ev.ElectionTimeout())
    assert gone.core.role is Role.FOLLOWER


# --- Transfer -----------------------------------------------------------------------------------


def test_a_transfer_makes_the_target_lead_in_the_next_term() -> None:
    group = group_of(3)
    group[1].step(ev.Transfer(7, vnode(3)))
    group.deliver()
    assert group[3].core.role is Role.LEADER
    assert group[3].core.term == 2
    assert group[1].core.role is Role.FOLLOWER
    assert group[1].is_done(7)


def test_a_transfer_first_brings_the_target_up_to_date() -> None:
    group = group_of(3)
    leader = group[1]
    group.cut_off = {3}
    for token in range(5):
        leader.propose(token)
    group.deliver()
    leader.step(ev.Transfer(7, vnode(3)))
    assert not group.take(msg.TimeoutNow)
    group.cut_off = set()
    group.beat(1)
    group.beat(1)
    assert group[3].core.role is Role.LEADER
    assert group[3].core.dirty == 6


def test_no_write_is_accepted_between_hand_over_and_step_down() -> None:
    group = group_of(3)
    leader = group[1]
    leader.step(ev.Transfer(7, vnode(3)))
    (handover,) = group.take(msg.TimeoutNow)
    end = leader.core.dirty
    for token in range(10, 13):
        leader.propose(token, Level(token - 10))
        assert leader.refusal(token) is ev.Refusal.TRANSFERRING
    leader.step(ev.ChangeConfiguration(20, (vnode(1), vnode(3))))
    assert leader.refusal(20) is ev.Refusal.TRANSFERRING
    leader.step(ev.TransferExpired())
    assert leader.core.role is Role.FOLLOWER, "it cannot know whether the target leads by now"
    leader.propose(14)
    assert leader.refusal(14) is ev.Refusal.NOT_LEADER
    assert leader.core.dirty == end
    group[3].step(handover)
    group.deliver()
    assert group[3].core.role is Role.LEADER


def test_writes_go_on_after_a_transfer_whose_target_never_caught_up() -> None:
    group = group_of(3)
    leader = group[1]
    group.cut_off = {3}
    leader.propose(1)
    group.deliver()
    leader.step(ev.Transfer(7, vnode(3)))
    leader.propose(2)
    assert leader.refusal(2) is ev.Refusal.TRANSFERRING
    leader.step(ev.TransferExpired())
    assert leader.refusal(7) is ev.Refusal.NOT_READY
    leader.propose(3)
    group.deliver()
    assert leader.is_done(3)


def test_a_transfer_that_makes_no_sense_is_refused() -> None:
    group = Group.of(4, configuration=ONE_TO_THREE.with_learners((vnode(4),)))
    leader = group.elect(1)
    for token, target in enumerate([vnode(1), vnode(4), vnode(9), vnode(3, revision=1)]):
        leader.step(ev.Transfer(token, target))
        assert leader.refusal(token) is ev.Refusal.INVALID
    leader.step(ev.Transfer(7, vnode(3)))
    leader.step(ev.Transfer(8, vnode(2)))
    assert leader.refusal(8) is ev.Refusal.TRANSFERRING


def test_leadership_is_not_transferred_during_a_joint_configuration() -> None:
    group = group_of(3)
    leader = group[1]
    leader.step(ev.ChangeConfiguration(7, (vnode(1), vnode(2))))
    assert leader.core.configuration.is_joint
    leader.step(ev.Transfer(8, vnode(2)))
    assert leader.refusal(8) is ev.Refusal.CHANGING
