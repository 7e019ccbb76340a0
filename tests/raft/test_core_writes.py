"""What a write is told and when: levels, commit, visibility, flushes (seed 1), and full disks."""

import pytest
from tests.raft.members import Group, data, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.core import Options
from tidelog.raft.types import Level, Role
from tidelog.records import NO_OFFSET, Offset, Term


def flush_bits(group: Group) -> list[bool]:
    """Of the requests with batches on the wire."""
    return [
        each.flush for each in group.wire if isinstance(each, msg.AppendRequest) and each.batches
    ]


# --- Levels -------------------------------------------------------------------------------------


def test_a_quorum_write_is_sent_to_followers_while_the_leader_flushes() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.slow_disk = True
    leader.propose(1)
    assert leader.is_flushing
    assert flush_bits(group) == [True, True]
    group.deliver()
    assert [group[2].core.flushed, group[3].core.flushed] == [1, 1]
    assert not leader.is_done(1), "committed never passes what the leader itself has on disk"
    leader.finish_flush()
    assert leader.is_done(1)
    assert leader.core.committed == 1


def test_a_quorum_write_is_done_when_a_majority_has_it_on_disk() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group[2].slow_disk = group[3].slow_disk = True
    leader.propose(1)
    group.deliver()
    assert leader.core.flushed == 1
    assert leader.core.committed == 0
    assert not leader.is_done(1)
    group[3].finish_flush()
    group.deliver()
    assert leader.is_done(1), "n1 and n3 are a majority"


def test_a_quorum_write_is_answered_before_it_is_folded() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    before = len(leader.outputs)
    leader.propose(1)
    group.deliver()
    said = [type(each) for each in leader.outputs[before:]]
    assert said.index(ev.Done) < said.index(ev.ApplyUpTo)


@pytest.mark.parametrize("level", [Level.LEADER, Level.NONE])
def test_a_relaxed_write_is_done_when_the_leader_has_appended_it(level: Level) -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1, level)
    assert leader.is_done(1)
    assert leader.core.flushed == 0, "and nobody was asked to flush it"
    assert flush_bits(group) == [False, False]
    group.deliver()
    assert [member.core.dirty for member in group] == [1, 1, 1]
    assert [member.core.flushed for member in group] == [0, 0, 0]


def test_a_memory_write_is_done_when_a_majority_has_it_in_memory() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group.cut_off = {3}
    leader.propose(1, Level.MEMORY)
    assert not leader.is_done(1)
    assert flush_bits(group) == [False, False]
    group.deliver()
    assert leader.is_done(1)
    assert leader.core.visible == 1
    assert [leader.core.committed, leader.core.flushed, group[2].core.flushed] == [0, 0, 0]


def test_flush_after_append_is_asked_for_quorum_writes_alone() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    asked = {}
    for level in Level:
        leader.propose(level, level)
        asked[level] = flush_bits(group)[0]
        group.deliver()
    assert asked == {
        Level.NONE: False,
        Level.LEADER: False,
        Level.MEMORY: False,
        Level.QUORUM: True,
    }


def test_a_relaxed_write_after_a_quorum_write_asks_for_no_flush() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1)
    leader.propose(2, Level.LEADER)
    assert flush_bits(group) == [True, True, False, False]


def test_the_first_stage_says_where_a_write_is_and_the_second_that_it_is_safe() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1, batch=data(records=3))
    assert leader.outcomes == [ev.Accepted(1, Offset(1), Offset(3), Term(1))]
    group.deliver()
    assert leader.outcome(1) == ev.Done(1, Offset(1))


# --- Commit -------------------------------------------------------------------------------------


def test_committed_counts_what_is_flushed_and_not_what_is_dirty() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1, Level.LEADER)
    group.deliver()
    group.beat(1)
    assert [member.core.dirty for member in group] == [1, 1, 1]
    assert leader.core.committed == 0, "in memory everywhere, on no disk"
    leader.step(ev.FlushDue())
    assert leader.core.committed == 0, "on one disk"
    group[2].step(ev.FlushDue())
    assert leader.core.committed == 0, "the leader does not know yet"
    group.beat(1)
    assert leader.core.committed == 1, "the heartbeat's answer told it"


def test_a_follower_commits_what_it_has_flushed_and_no_more() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group[3].slow_disk = True
    leader.propose(1)
    group.deliver()
    group.beat(1)
    assert leader.core.committed == 1
    assert group[2].core.committed == 1
    assert group[3].core.committed == 0, "it is told 1, and holds 1, in memory"
    group[3].finish_flush()
    assert group[3].core.committed == 1


def test_an_entry_of_an_earlier_term_is_committed_only_with_one_of_the_own() -> None:
    """Figure 8 of the Raft paper."""
    group = Group.of(3, options=Options(recovery_chunk=1))
    group.elect(1)
    group[1].propose(1)
    group.drop()
    group[1].step(ev.QuorumLost())
    group.cut_off = {3}
    group.time_out(1)
    group.deliver(kinds=(msg.VoteRequest, msg.VoteReply))
    leader = group[1]
    assert (leader.core.term, leader.core.term_start) == (2, 2)
    while group[2].core.dirty < 1:
        group.hand_over(group.wire.pop(0))
    group.drop()
    group[2].step(ev.FlushDue())
    leader.step(ev.BeatDue(vnode(2)))
    group.hand_over(group.take(msg.AppendRequest)[0])
    leader.step(group.take(msg.AppendReply)[0])
    assert leader.core.progress[vnode(2)].durable == leader.core.flushed - 1 == 1
    assert leader.core.committed == 0, "offset 1 is on a majority of disks, but of term 1"
    group.beat(1)
    group.beat(1)
    assert leader.core.committed == 2
    assert leader.is_done(1)


def test_committed_needs_the_log_to_match_and_not_only_to_be_long() -> None:
    group = Group.of(3)
    group.elect(1)
    for token in range(5):
        group[1].propose(token)
    group.drop()  # n1 alone has 1..5 of term 1
    group.cut_off = {1}
    group.elect(2)
    leader = group.elect(3)
    assert leader.entries() == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
    group.cut_off = {2}
    leader.propose(10)
    group.drop()
    leader.step(ev.BeatDue(vnode(1)))
    (request,) = group.take(msg.AppendRequest)
    group.hand_over(request)
    (reply,) = group.take(msg.AppendReply)
    assert (reply.status, reply.dirty) == (msg.Status.MISMATCH, 5)
    leader.step(reply)
    assert leader.core.progress[vnode(1)].durable == NO_OFFSET
    assert leader.core.committed == 2


# --- Visibility ---------------------------------------------------------------------------------


def test_a_relaxed_write_is_visible_when_a_majority_has_it_in_memory() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1, Level.LEADER)
    assert leader.core.visible == 0
    group.deliver()
    assert leader.core.visible == 1
    group.beat(1)
    assert [member.core.visible for member in group] == [1, 1, 1]
    assert [member.core.committed for member in group] == [0, 0, 0]


def test_nothing_is_visible_past_a_quorum_write_that_is_not_committed() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1, Level.LEADER)
    group.deliver()
    for follower in (group[2], group[3]):
        follower.slow_disk = True
    leader.propose(2)
    leader.propose(3, Level.LEADER)
    leader.propose(4, Level.MEMORY)
    group.deliver()
    group.beat(1)
    assert [progress.replicated for progress in leader.core.progress.values()] == [4, 4]
    assert leader.core.visible == 1
    assert not leader.is_done(4), "on a majority, and yet nobody may see it"
    group[2].finish_flush()
    group.deliver()
    assert (leader.core.committed, leader.core.visible) == (2, 4)
    assert leader.is_done(2)
    assert leader.is_done(4)


def test_what_earlier_leaders_left_is_visible_only_with_the_new_leaders_first_batch() -> None:
    group = Group.of(3)
    group.elect(1)
    group[1].propose(1)
    group[2].step(group.take(msg.AppendRequest, target=2)[0])
    group.drop()
    group.cut_off = {1}
    for member in group:
        member.slow_disk = True
    group.time_out(2)
    group.deliver()
    leader = group[2]
    assert leader.core.role is Role.LEADER
    assert leader.core.progress[vnode(3)].replicated == NO_OFFSET or not leader.core.confirmed
    assert leader.core.visible == 0
    for member in (group[2], group[3]):
        member.slow_disk = False
        member.finish_flush()
    group.deliver()
    assert leader.core.visible == 2


# --- Background flushes -------------------------------------------------------------------------


def test_enough_dirty_bytes_start_a_flush_that_nobody_asked_for() -> None:
    group = Group.of(3, options=Options(flush_bytes=1000))
    leader = group.elect(1)
    for token in range(3):
        leader.propose(token, Level.LEADER, data(size=200))
        group.deliver()
        assert [member.core.flushed for member in group] == [0, 0, 0]
    leader.propose(3, Level.LEADER, data(size=200))
    group.deliver()
    assert [member.core.flushed for member in group] == [4, 4, 4]


def test_a_flush_is_due_only_where_something_is_dirty() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    before = len(leader.outputs)
    leader.step(ev.FlushDue())
    assert not any(isinstance(each, ev.Flush) for each in leader.outputs[before:])
    leader.propose(1, Level.LEADER)
    leader.step(ev.FlushDue())
    assert leader.core.flushed == 1


# --- Refusals -----------------------------------------------------------------------------------


def test_only_a_leader_accepts_writes_and_only_in_the_term_expected() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group[2].propose(1)
    assert group[2].refusal(1) is ev.Refusal.NOT_LEADER
    leader.step(ev.Propose(2, (data(),), Level.QUORUM, expected_term=Term(7)))
    assert leader.refusal(2) is ev.Refusal.WRONG_TERM
    leader.step(ev.Propose(3, (data(),), Level.QUORUM, expected_term=Term(1)))
    group.deliver()
    assert leader.is_done(3)
    leader.step(ev.Propose(4, (), Level.QUORUM))
    assert leader.refusal(4) is ev.Refusal.INVALID


def test_too_much_that_waits_makes_the_leader_busy_until_it_is_committed() -> None:
    group = Group.of(3, options=Options(max_uncommitted_bytes=1000))
    leader = group.elect(1)
    tokens = 0
    while leader.refusal(tokens) is None:
        tokens += 1
        leader.propose(tokens, batch=data(size=200))
        assert tokens < 10
    assert leader.refusal(tokens) is ev.Refusal.BUSY
    assert leader.core.proposals.bytes <= 1000
    group.deliver()
    leader.propose(99, batch=data(size=200))
    group.deliver()
    assert leader.is_done(99)


def test_a_single_write_larger_than_the_bound_is_accepted_when_nothing_else_waits() -> None:
    group = Group.of(3, options=Options(max_uncommitted_bytes=100))
    leader = group.elect(1)
    leader.propose(1, batch=data(size=500))
    group.deliver()
    assert leader.is_done(1)


# --- Full and broken disks ----------------------------------------------------------------------


def test_a_full_disk_refuses_writes_and_the_leader_stays() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.full_disk = True
    leader.propose(1)
    assert leader.refusal(1) is ev.Refusal.STORAGE
    assert leader.core.role is Role.LEADER
    assert leader.core.dirty == 0
    group.beat(1)
    leader.step(ev.Barrier(2))
    group.deliver()
    assert leader.is_done(2), "readers are still served"
    leader.full_disk = False
    leader.propose(3)
    group.deliver()
    assert leader.is_done(3)
    assert leader.core.dirty == 1


def test_a_leader_elected_with_a_full_disk_opens_its_term_when_there_is_room() -> None:
    group = Group.of(3)
    group[1].full_disk = True
    group.time_out(1)
    group.deliver()
    leader = group[1]
    assert leader.core.role is Role.LEADER
    group.beat(1)
    assert not leader.core.confirmed
    leader.full_disk = False
    group.beat(1)
    group.beat(1)
    assert leader.core.confirmed
    assert leader.entries() == [(0, 0, 1)]


def test_a_leader_alone_with_a_full_disk_opens_a_term_when_there_is_room() -> None:
    alone = Group.of(1)
    alone[1].full_disk = True
    for _ in range(3):
        alone[1].step(ev.ElectionTimeout())
        assert not alone[1].core.confirmed
    alone[1].full_disk = False
    alone[1].step(
        ev.ElectionTimeout()
    )  # nobody gets heartbeats of it, so nothing else makes it try again
    assert alone[1].core.confirmed


def test_a_change_that_the_disk_refused_has_not_begun() -> None:
    group = Group.of(4, configuration=None)
    leader = group.elect(1)
    before = leader.core.configuration
    leader.full_disk = True
    leader.step(ev.ChangeConfiguration(1, (vnode(1), vnode(2))))
    assert leader.core.configuration == before
    assert set(leader.core.progress) == {vnode(2), vnode(3), vnode(4)}
    assert leader.refusal(1) is ev.Refusal.STORAGE
    leader.full_disk = False
    leader.step(ev.ChangeConfiguration(2, (vnode(1), vnode(2))))
    for _ in range(6):
        group.beat(1)
    assert leader.is_done(2), "it can be asked for again"


def test_a_follower_with_a_full_disk_is_tried_again_at_the_next_heartbeat() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group[3].full_disk = True
    leader.propose(1)
    group.deliver()
    assert leader.is_done(1), "the others are a majority"
    assert group[3].core.dirty == 0
    group.beat(1)
    group.beat(1)
    group[3].full_disk = False
    group.beat(1)
    assert group[3].core.dirty == 1


def test_a_replica_whose_disk_is_lost_leads_no_more_and_answers_nothing() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.slow_disk = True
    leader.propose(1)
    leader.step(ev.StorageLost("fsync failed"))
    assert leader.core.role is Role.FOLLOWER
    assert leader.refusal(1) is ev.Refusal.UNKNOWN
    leader.propose(2)
    assert leader.refusal(2) is ev.Refusal.STORAGE
    group.drop()
    group.time_out(2)
    group.deliver()
    assert group[2].core.role is Role.LEADER
    assert not leader.said(msg.VoteReply)
    assert leader.core.term == 1


@pytest.mark.parametrize(
    "event",
    [
        ev.Compact(7),
        ev.Barrier(7),
        ev.ChangeConfiguration(7, (vnode(1),)),
        ev.CancelChange(7),
        ev.Transfer(7, vnode(2)),
    ],
)
def test_whoever_asks_a_lost_replica_for_anything_gets_an_answer(event: ev.Event) -> None:
    member = Group.of(3).elect(1)
    member.step(ev.StorageLost("fsync failed"))
    member.step(event)
    assert member.refusal(7) is ev.Refusal.STORAGE


# --- What became of a write ---------------------------------------------------------------------


def test_a_write_that_outlives_its_leader_is_done_when_a_later_leader_commits_it() -> None:
    group = Group.of(3)
    old = group.elect(1)
    group[2].slow_disk = group[3].slow_disk = True
    old.propose(1)
    group.deliver()
    old.step(ev.QuorumLost())
    assert isinstance(old.outcome(1), ev.Accepted), "nobody knows yet"
    for follower in (group[2], group[3]):
        follower.slow_disk = False
        follower.finish_flush()
    group.drop()
    group.elect(2)
    assert old.is_done(1)


def test_a_write_that_another_leader_replaced_is_truncated_once_that_is_committed() -> None:
    group = Group.of(3)
    old = group.elect(1)
    group.cut_off = {1}
    old.propose(1)
    old.propose(2, Level.MEMORY)
    group.drop()
    new = group.elect(2)
    new.propose(9)
    group.deliver()
    old.step(ev.QuorumLost())
    assert old.refusal(1) is None
    group.cut_off = set()
    group.beat(2)
    group.beat(2)
    assert old.entries() == new.entries()
    assert old.refusal(1) is ev.Refusal.TRUNCATED
    assert old.refusal(2) is ev.Refusal.TRUNCATED


def test_a_leader_that_was_deposed_and_leads_again_answers_for_its_old_writes() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1)
    group.drop()
    leader.step(ev.QuorumLost())
    group.elect(1)
    assert leader.core.term == 2
    assert leader.is_done(1)


# --- Barrier ------------------------------------------------------------------------------------


def test_a_barrier_waits_for_a_majority_to_confirm_the_leader() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.step(ev.Barrier(1))
    assert leader.outcome(1) is None
    group.hand_over(group.wire.pop(0))
    group.deliver(kinds=(msg.AppendReply,))
    assert leader.outcome(1) == ev.Done(1, leader.core.committed)


def test_an_answer_from_before_the_barrier_confirms_nothing() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    leader.propose(1, Level.LEADER)
    group.deliver(kinds=(msg.AppendRequest,))
    leader.step(ev.Barrier(2))
    group.take(msg.AppendRequest)
    group.deliver(kinds=(msg.AppendReply,))
    assert leader.outcome(2) is None
    group.beat(1)
    assert leader.is_done(2)


def test_a_barrier_of_a_leader_that_is_cut_off_never_succeeds() -> None:
    group = Group.of(3)
    old = group.elect(1)
    group.cut_off = {1}
    old.step(ev.Barrier(1))
    new = group.elect(2)
    new.propose(5)
    group.deliver()
    assert old.outcome(1) is None
    group.cut_off = set()
    group.beat(2)
    assert old.refusal(1) is ev.Refusal.NOT_LEADER


def test_a_barrier_before_the_leader_is_confirmed_is_refused() -> None:
    group = Group.of(3)
    group.time_out(1)
    group.deliver(kinds=(msg.VoteRequest, msg.VoteReply))
    group[1].step(ev.Barrier(1))
    assert group[1].refusal(1) is ev.Refusal.NOT_READY


def test_the_number_of_waiting_barriers_is_bounded() -> None:
    group = Group.of(3, options=Options(max_barriers=2))
    leader = group.elect(1)
    for token in range(3):
        leader.step(ev.Barrier(token))
    assert leader.refusal(2) is ev.Refusal.BUSY
    group.deliver()
    assert leader.is_done(0)
    assert leader.is_done(1)
