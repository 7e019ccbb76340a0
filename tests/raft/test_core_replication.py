"""Bringing followers up to date: duplicates, losses, divergence, recovery without flushes, gaps."""

from dataclasses import replace

import pytest
from tests.raft.members import GROUP, Group, Member, data, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.core import MAX_HELD, Options
from tidelog.raft.follower import is_well_formed
from tidelog.raft.progress import State
from tidelog.raft.types import Level
from tidelog.records import NO_OFFSET, Offset, Term


def filled(count: int, *, options: Options | None = None, level: Level = Level.QUORUM) -> Group:
    """Three members, n1 leads, offsets 1..count are written and known to all."""
    group = Group.of(3, options=options)
    leader = group.elect(1)
    for token in range(1, count + 1):
        leader.propose(token, level)
        group.deliver()
    group.beat(1)
    return group


def truncations(member: Member) -> int:
    return sum(isinstance(output, ev.Truncate) for output in member.outputs)


# --- Duplicates, old and lost messages ----------------------------------------------------------


def test_duplicate_and_old_appends_never_truncate() -> None:
    group = filled(0)
    leader = group[1]
    requests = []
    for token in range(5):
        leader.propose(token)
        requests.append(group.take(msg.AppendRequest, target=2)[0])
    for request in requests:
        group[2].step(request)
    before = group[2].entries()
    assert len(before) == 6
    for request in requests[::-1] + requests[1:3]:
        group[2].step(request)
        assert group[2].entries() == before
    assert truncations(group[2]) == 0


def test_a_heartbeat_never_truncates() -> None:
    group = filled(2)
    leader = group[1]
    leader.propose(9)
    group[2].step(group.take(msg.AppendRequest, target=2)[0])
    old_beat = msg.AppendRequest(
        GROUP,
        vnode(1),
        vnode(2),
        Term(1),
        1,
        Offset(0),
        Term(1),
        (),
        Offset(0),
        Offset(0),
        NO_OFFSET,
        False,
    )
    group[2].step(old_beat)
    assert group[2].core.dirty == 3
    assert truncations(group[2]) == 0


def test_a_duplicate_of_a_committed_prefix_that_lies_about_its_term_changes_nothing() -> None:
    group = filled(3)
    group[1].propose(9)
    (request,) = group.take(msg.AppendRequest, target=2)
    group[2].step(replace(request, prev_offset=Offset(1), prev_term=Term(0)))
    assert truncations(group[2]) == 0


def test_old_replies_neither_raise_nor_lower_what_is_known_of_a_follower() -> None:
    group = filled(0)
    leader = group[1]
    replies = []
    for token in range(4):
        leader.propose(token, Level.LEADER)
        group.deliver(kinds=(msg.AppendRequest,))
        replies.append(next(each for each in group.take(msg.AppendReply) if each.source.id == 2))
    leader.step(replies[3])
    progress = leader.core.progress[vnode(2)]
    known = (progress.match, progress.dirty, progress.flushed)
    assert progress.match == 4
    for reply in replies[:3]:
        leader.step(reply)
        assert (progress.match, progress.dirty, progress.flushed) == known
    leader.step(replace(replies[3], seq=99, match=Offset(99)))
    assert progress.match == 4, "a reply to what was never sent"


def test_a_reply_cannot_claim_more_than_the_leader_has() -> None:
    group = filled(1)
    leader = group[1]
    leader.step(ev.BeatDue(vnode(2)))
    group.deliver(kinds=(msg.AppendRequest,))
    (reply,) = group.take(msg.AppendReply)
    leader.step(replace(reply, match=Offset(50), dirty=Offset(50), flushed=Offset(50)))
    assert leader.core.progress[vnode(2)].match == 1
    assert leader.core.committed == 1


def test_an_append_that_got_lost_is_sent_again() -> None:
    group = filled(0)
    leader = group[1]
    group.cut_off = {3}
    leader.propose(1)
    group.drop()
    group.beat(1)
    group.beat(1)
    assert leader.is_done(1)
    assert group[2].core.flushed == 1


def test_an_append_lost_before_others_is_noticed_by_the_first_that_arrives() -> None:
    group = filled(0)
    leader = group[1]
    leader.propose(1)
    group.drop()
    leader.propose(2)
    group.deliver()
    assert leader.is_done(2)
    assert group[3].core.dirty == 2


def test_a_reply_that_got_lost_is_made_up_for_by_a_heartbeat() -> None:
    group = filled(0)
    leader = group[1]
    leader.propose(1)
    group.deliver(kinds=(msg.AppendRequest,))
    group.drop()
    group.beat(1)
    assert leader.is_done(1)


def test_a_heartbeat_that_arrives_during_a_flush_does_not_hide_the_match() -> None:
    group = filled(0)
    leader = group[1]
    group.cut_off = {3}
    group[2].slow_disk = True
    leader.propose(1)
    group.deliver()
    group.beat(1)
    assert leader.core.progress[vnode(2)].match == 1
    assert not leader.is_done(1)
    group[2].finish_flush()
    group.deliver()
    assert leader.is_done(1)


def test_a_slow_flush_is_not_taken_for_a_loss() -> None:
    group = filled(0)
    leader = group[1]
    group.cut_off = {3}
    group[2].slow_disk = True
    leader.propose(1)
    group.deliver()
    for _ in range(4):
        group.beat(1)
    sent = [each for each in leader.said(msg.AppendRequest) if each.target == vnode(2)]
    assert [each.batches[0].base_offset for each in sent if each.batches] == [0, 1]
    assert leader.core.progress[vnode(2)].state is State.REPLICATE


def test_followers_answer_a_new_leader_while_their_disks_are_stuck() -> None:
    """Silence until the flush ends would cost this leader its majority, and each one after it."""
    group = Group.of(3)
    group[2].slow_disk = group[3].slow_disk = True
    group.time_out(1)
    group.deliver()
    assert group[2].is_flushing
    leading = group[1].core.leading
    assert leading is not None
    assert {each.state for each in leading.progress.values()} == {State.PROBE}
    group.beat(1)
    assert {each.state for each in leading.progress.values()} == {State.REPLICATE}
    assert {each.flushed for each in leading.progress.values()} == {NO_OFFSET}
    assert not group[1].core.confirmed, "an answer is no flush"
    group[2].finish_flush()
    group.deliver()
    assert group[1].core.confirmed


def test_a_flush_that_a_lost_probe_asked_for_is_asked_for_again() -> None:
    group = filled(0)
    leader = group[1]
    group.cut_off = {2, 3}
    leader.propose(1)
    for _ in range(4):
        group.beat(1)
    assert leader.core.progress[vnode(2)].state is State.PROBE
    group.cut_off = {3}
    group.beat(1)
    assert leader.is_done(1)


# --- Pipeline and bounds ------------------------------------------------------------------------


def test_appends_are_pipelined_within_a_bound_of_bytes() -> None:
    group = filled(0, options=Options(max_inflight_bytes=1000))
    leader = group[1]
    for token in range(20):
        leader.propose(token, batch=data(size=200))
    requests = group.take(msg.AppendRequest, target=2)
    sizes = [sum(batch.size for batch in each.batches) for each in requests]
    assert len(requests) == 4, "each of 275 bytes, the fourth crosses the bound and is the last"
    assert sum(sizes[:-1]) < 1000 <= sum(sizes)
    group.drop()
    for _ in range(3):
        group.beat(1)
    assert leader.is_done(19)


def test_recovery_sends_chunks_of_the_size_set() -> None:
    group = filled(0, options=Options(recovery_chunk=1000))
    group.cut_off = {3}
    leader = group[1]
    for token in range(12):
        leader.propose(token, batch=data(size=200))
    group.deliver()
    group.cut_off = set()
    seen = len(leader.said(msg.AppendRequest))
    group.beat(1)
    group.beat(1)
    chunks = [
        each.batches
        for each in leader.said(msg.AppendRequest)[seen:]
        if each.target == vnode(3) and each.batches
    ]
    assert [len(chunk) for chunk in chunks][-4:] == [3, 3, 3, 3]
    assert group[3].entries() == leader.entries()


def test_recovery_asks_for_no_flush_except_at_its_tail() -> None:
    group = filled(0, options=Options(recovery_chunk=1000))
    group.cut_off = {3}
    leader = group[1]
    for token in range(12):
        leader.propose(token, batch=data(size=200))
    group.deliver()
    group.cut_off = set()
    seen = len(leader.said(msg.AppendRequest))
    group[3].slow_disk = True
    group.beat(1)
    group.beat(1)
    flushes = [
        each.flush
        for each in leader.said(msg.AppendRequest)[seen:]
        if each.target == vnode(3) and each.batches
    ]
    assert flushes[-4:] == [False, False, False, True]
    assert group[3].core.flushed == 0
    assert leader.core.progress[vnode(3)].match >= 9, "it went on without waiting for a disk"


def test_recovery_of_relaxed_writes_asks_for_no_flush_at_all() -> None:
    group = filled(0, options=Options(recovery_chunk=1000))
    leader = group[1]
    group.drop()
    group.cut_off = {3}
    for token in range(12):
        leader.propose(token, Level.LEADER, batch=data(size=200))
        group.deliver()
    group.cut_off = set()
    seen = len(leader.said(msg.AppendRequest))
    group.beat(1)
    group.beat(1)
    sent = [each for each in leader.said(msg.AppendRequest)[seen:] if each.target == vnode(3)]
    assert any(each.batches for each in sent)
    assert not any(each.flush for each in sent)
    assert group[3].core.dirty == 12


def test_what_waits_for_the_vote_file_is_bounded() -> None:
    group = filled(0)
    follower = group[2]
    follower.slow_vote = True
    follower.hears_leader = False
    for term in range(2, MAX_HELD + 100):
        follower.step(
            msg.VoteRequest(
                GROUP, vnode(3), vnode(2), Term(term), msg.Ballot.VOTE, Offset(9), Term(1)
            )
        )
        follower.hears_leader = False
    group.drop()
    follower.finish_votes()
    assert len(group.take(msg.VoteReply)) == MAX_HELD


# --- Divergence ---------------------------------------------------------------------------------


def test_a_divergent_end_is_replaced_by_the_leaders() -> None:
    group = filled(2)
    old = group[1]
    for token in range(10, 14):
        old.propose(token)
    group.drop()
    group.cut_off = {1}
    new = group.elect(2)
    new.propose(20)
    group.deliver()
    group.cut_off = set()
    group.beat(2)
    group.beat(2)
    assert old.entries() == new.entries() == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 4, 2)]
    assert truncations(old) == 1


def test_a_follower_that_is_ahead_of_the_leader_falls_back_to_it() -> None:
    """The second case of seed 1's recovery: last_log_index of the follower is the greater one."""
    group = filled(1)
    old = group[1]
    for token in range(10, 19):
        old.propose(token, Level.LEADER)
    group.drop()
    group.cut_off = {1}
    new = group.elect(2)
    assert old.core.dirty > new.core.dirty
    group.cut_off = set()
    group.beat(2)
    group.beat(2)
    assert old.entries() == new.entries()


def test_a_flush_that_raced_with_a_truncation_is_not_credited() -> None:
    group = filled(1)
    old = group[1]
    old.slow_disk = True
    for token in range(10, 14):
        old.propose(token)
    assert old.is_flushing
    group.drop()
    group.cut_off = {1}
    new = group.elect(2)
    group.cut_off = set()
    group.beat(2)
    assert old.entries() == new.entries()
    assert old.core.flushed == 1
    old.finish_flush()
    assert old.core.flushed == 1, "that flush was of entries that are gone"
    group.deliver()
    while old.is_flushing:
        old.finish_flush()
    group.deliver()
    assert old.core.flushed == 2


@pytest.mark.parametrize("stray", [1, 3, 8])
def test_finding_agreement_takes_a_round_a_term(stray: int) -> None:
    group = filled(3)
    # Terms 2, 3, ...: each time n1 is elected by n3's vote and writes for itself alone.
    group.cut_off = {2}
    for _ in range(stray):
        group.time_out(1)
        group.deliver(kinds=(msg.VoteRequest, msg.VoteReply))
        for token in range(20):
            group[1].propose(token)
        group.drop()
    group.cut_off = {1}
    for member in (group[2], group[3]):
        member.hears_leader = False
    leader = group.elect(2)
    group.cut_off = set()
    seen = len(leader.said(msg.AppendRequest))
    leader.step(ev.BeatDue(vnode(1)))
    group.deliver()
    probes = [each for each in leader.said(msg.AppendRequest)[seen:] if each.target == vnode(1)]
    assert group[1].entries() == leader.entries()
    assert len(probes) <= stray + 3, "a round a term, though each term has twenty batches"


def test_a_follower_that_lost_its_dirty_end_in_a_crash_gets_it_again() -> None:
    group = filled(1)
    leader = group[1]
    for token in range(10, 15):
        leader.propose(token, Level.LEADER)
    group.deliver()
    assert group[2].core.dirty == 6
    group[2].restart()
    assert group[2].core.dirty == 1
    group.beat(1)
    assert group[2].entries() == leader.entries()
    assert leader.core.progress[vnode(2)].match == 6


def test_a_restart_loses_what_was_dirty_and_nothing_else() -> None:
    group = filled(3)
    leader = group[1]
    leader.propose(10, Level.LEADER)
    group.deliver()
    group[3].restart()
    assert group[3].entries() == leader.entries()[:-1]
    assert group[3].core.committed == -1, "what is committed it learns from a leader"
    group.beat(1)
    assert group[3].core.committed == 3
    assert group[3].machine.records == 3


# --- Gaps ---------------------------------------------------------------------------------------


def test_a_gap_in_the_leaders_log_reaches_the_follower_as_a_gap() -> None:
    group = filled(0)
    group.cut_off = {3}
    leader = group[1]
    for token in range(1, 7):
        leader.propose(token)
    group.deliver()
    leader.log.remove(2, 3, 5)
    group.cut_off = set()
    group.beat(1)
    group.beat(1)
    assert group[3].entries() == leader.entries()
    sent = [each for each in leader.said(msg.AppendRequest) if each.target == vnode(3)]
    ghosts = [batch for each in sent for batch in each.batches if batch.is_ghost]
    assert [(each.base_offset, each.last_offset) for each in ghosts] == [(2, 3), (5, 5)]
    assert all(not each.batches[-1].is_ghost for each in sent if each.batches)


def test_replicas_that_compacted_differently_still_agree() -> None:
    group = filled(6)
    leader = group[1]
    leader.log.remove(1, 2, 3)
    group[2].log.remove(2, 4)
    group[1].propose(9)
    (request,) = group.take(msg.AppendRequest, target=2)
    # The leader tries from the beginning, as it would after a probe that went far back.
    batches = tuple(leader.log.read(Offset(1), 10_000, fill_gaps=True))
    group[2].step(replace(request, prev_offset=Offset(0), batches=batches))
    assert truncations(group[2]) == 0
    assert group[2].core.dirty == 7
    assert group[2].entries()[-1] == (7, 7, 1)


def test_a_ghost_that_begins_inside_the_log_extends_it_by_the_rest() -> None:
    group = filled(2)
    group.cut_off = {3}
    leader = group[1]
    for token in range(3, 8):
        leader.propose(token)
    group.deliver()
    leader.log.remove(2, 3, 4)
    group.cut_off = set()
    assert group[3].core.dirty == 2
    batches = tuple(leader.log.read(Offset(2), 10_000, fill_gaps=True))
    assert (batches[0].base_offset, batches[0].last_offset) == (2, 4)
    group[3].step(
        msg.AppendRequest(
            GROUP,
            vnode(1),
            vnode(3),
            Term(1),
            1,
            Offset(1),
            Term(1),
            batches,
            Offset(2),
            Offset(2),
            NO_OFFSET,
            False,
        )
    )
    assert group[3].entries()[-4:] == [(2, 2, 1), (5, 5, 1), (6, 6, 1), (7, 7, 1)]


# --- Quiet --------------------------------------------------------------------------------------


def test_a_group_is_quiet_when_a_heartbeat_would_say_nothing_new() -> None:
    group = filled(2)
    leader = group[1]
    group.beat(1)
    assert leader.core.quiet(vnode(2))
    leader.propose(5)
    assert not leader.core.quiet(vnode(2)), "a request is in flight"
    group.deliver()
    assert not leader.core.quiet(vnode(2)), "it does not know that this is committed"
    group.beat(1)
    assert leader.core.quiet(vnode(2))
    leader.propose(6, Level.LEADER)
    group.deliver()
    group.beat(1)
    leader.step(ev.FlushDue())
    assert not leader.core.quiet(vnode(2)), "dirty there, flushed here: the commit waits for news"
    group[2].step(ev.FlushDue())
    group[3].step(ev.FlushDue())
    group.beat(1)
    group.beat(1)
    assert leader.core.committed == 4
    assert leader.core.quiet(vnode(2))
    assert not group[2].core.quiet(vnode(1)), "followers have no say"


def test_a_heartbeat_that_overtakes_data_does_not_count_as_news_of_its_commit() -> None:
    group = filled(0)
    leader = group[1]
    group.beat(1)
    leader.propose(1)
    (late,) = group.take(msg.AppendRequest, target=3)
    group.deliver()
    assert leader.is_done(1), "n1 and n2 are a majority"
    group.beat(1)
    group.hand_over(late)
    group.deliver()
    assert group[3].core.dirty == 1
    assert not leader.core.quiet(vnode(3)), "it got the commit before the data, and took no notice"
    group.beat(1)
    assert group[3].core.committed == 1
    assert leader.core.quiet(vnode(3))


def test_a_refusal_that_a_success_overtook_does_not_move_the_match_into_a_batch() -> None:
    """A request that arrives twice is refused, say, and then taken; the answers swap places."""
    group = filled(0)
    leader = group[1]
    leader.propose(1, batch=data(records=7))
    group.deliver()
    progress = leader.core.progress[vnode(2)]
    newest = group[2].said(msg.AppendReply)[-1]
    assert progress.match == newest.match == leader.core.dirty
    middle = Offset(newest.match - 3)  # where the log of n2 ended before it agreed
    refused = replace(
        newest, status=msg.Status.MISMATCH, match=NO_OFFSET, dirty=middle, hint_offset=Offset(0)
    )
    leader.step(refused)
    assert progress.match == newest.match
    leader.propose(2)
    assert all(is_well_formed(request) for request in group.take(msg.AppendRequest))
