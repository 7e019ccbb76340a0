from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from tidelog.raft.beats import BeatOptions, Beats, Due
from tidelog.raft.configuration import Configuration
from tidelog.raft.groupset import CorruptBeat, decode_beat, decode_reply
from tidelog.raft.types import GroupId, NodeId, Role, Vnode
from tidelog.records import Term

OPTIONS = BeatOptions(interval_ms=100, election_timeout_ms=1000, max_outstanding=4)
N1, N2, N3, N4, N5 = (NodeId(number) for number in range(1, 6))
V1, V2, V3, V4, V5 = (Vnode(node, 0) for node in (N1, N2, N3, N4, N5))
THREE = Configuration((V1, V2, V3))
G = GroupId(7)
T = Term(3)


def always(_: Vnode) -> bool:
    return True


def never(_: Vnode) -> bool:
    return False


def table(node: NodeId = N1, seed: int = 0) -> Beats:
    return Beats(node, OPTIONS, Random(seed))


def leader(
    *groups: GroupId,
    configuration: Configuration = THREE,
    quiet: Callable[[Vnode], bool] = always,
    term: Term = T,
    now: int = 0,
) -> Beats:
    beats = table(N1)
    for group in groups or (G,):
        beats.add(group, V1, now)
        beats.publish(group, Role.LEADER, term, configuration, quiet, now)
    beats.check_invariants()
    return beats


def follower(
    *groups: GroupId, of: Vnode = V1, vnode: Vnode = V2, term: Term = T, now: int = 0
) -> Beats:
    beats = table(vnode.id, seed=1)
    for group in groups or (G,):
        beats.add(group, vnode, now)
        beats.publish(group, Role.FOLLOWER, term, THREE, never, now)
        beats.heard(group, of, term, now)
    beats.check_invariants()
    return beats


def nothing(due: Due) -> bool:
    return not (due.elections or due.quorum_lost or due.full or due.light)


# --- Election timers ------------------------------------------------------------------------------


def test_a_silent_leader_is_noticed_after_one_to_two_timeouts() -> None:
    beats = table()
    groups = [GroupId(number) for number in range(200)]
    for group in groups:
        beats.add(group, V1, 0)
    fired: dict[GroupId, int] = {}
    for now in range(0, 2001, 10):
        for group in beats.tick(now).elections:
            fired.setdefault(group, now)
        beats.check_invariants()
    assert sorted(fired) == groups
    assert min(fired.values()) >= 1000
    assert len(set(fired.values())) > 50  # they do not all stand at once


def test_an_election_that_fails_is_followed_by_another_after_another_wait() -> None:
    beats = table()
    beats.add(G, V1, 0)
    times = [now for now in range(20_000) if beats.tick(now).elections]
    waits = [after - before for before, after in pairwise(times)]
    assert all(1000 <= wait <= 2000 for wait in waits)
    assert len(set(waits)) > 3


def test_elections_without_room_wait_for_their_turn_the_longest_overdue_first() -> None:
    groups = [GroupId(number) for number in range(10)]
    beats = follower(*groups)
    beats.suspect(N1, 0)
    began: list[GroupId] = []
    now = 100  # all of them are overdue
    while len(began) < len(groups):
        due = beats.tick(now, room=2)
        assert len(due.elections) == 2
        began += due.elections
        assert not beats.tick(now, room=0).elections
        beats.check_invariants()
        assert now < beats.next_due(now)
        assert (beats.next_due(now) <= now + 50) == (len(began) < len(groups))
        now = min(beats.next_due(now), now + 50)
    assert sorted(began) == groups
    assert not beats.tick(now, room=2).elections


def test_a_node_that_did_not_run_does_not_blame_others_for_the_silence() -> None:
    follows, leads = follower(G), leader()
    leads.tick(500)
    for beats in (follows, leads):
        beats.overslept(60_500, 61_000)
        due = beats.tick(61_000)
        assert not due.elections
        assert not due.quorum_lost
        beats.check_invariants()
    # From then on they are as impatient as ever.
    assert any(follows.tick(61_000 + later).elections for later in range(0, 2001, 10))
    assert any(leads.tick(61_000 + later).quorum_lost for later in range(0, 2001, 10))


def test_a_leader_that_is_heard_takes_its_group_out_of_the_queue_for_elections() -> None:
    beats = follower(G, GroupId(8))
    beats.suspect(N1, 0)
    assert not beats.tick(100, room=0).elections
    beats.heard(G, V1, T, 101)
    assert beats.tick(200, room=5).elections == [8]


def test_an_append_restarts_the_timer_and_so_does_a_vote() -> None:
    beats = table()
    beats.add(G, V1, 0)
    for now in range(0, 10_000, 900):
        beats.heard(G, V2 if now % 1800 else None, T, now)
        assert not beats.tick(now + 899).elections
    assert beats.tick(11_900).elections == [G]


def test_a_leader_that_steps_down_waits_a_whole_timeout_before_it_stands() -> None:
    beats = leader()
    beats.tick(50_000)
    beats.publish(G, Role.FOLLOWER, Term(4), THREE, never, 50_000)
    assert not beats.tick(50_999).elections
    assert beats.tick(52_000).elections == [G]


def test_a_leader_whose_node_seems_to_be_gone_is_not_waited_for() -> None:
    led_by_n1, led_by_n3 = GroupId(1), GroupId(2)
    beats = follower(led_by_n1)
    beats.add(led_by_n3, V2, 0)
    beats.publish(led_by_n3, Role.FOLLOWER, T, THREE, never, 0)
    beats.heard(led_by_n3, V3, T, 0)
    beats.suspect(N1, 5)
    beats.check_invariants()
    assert not beats.leader_alive(led_by_n1, 5)
    assert beats.leader_alive(led_by_n3, 5)
    assert beats.next_due(5) <= 50
    assert not beats.tick(10).elections  # the others must have noticed too
    assert beats.tick(60).elections == [led_by_n1]


def test_a_leader_that_is_heard_again_is_suspected_no_more() -> None:
    beats = follower()
    beats.suspect(N1, 5)
    beats.heard(G, V1, T, 10)
    assert beats.leader_alive(G, 10)
    assert not beats.tick(900).elections


def test_a_leader_has_no_election_timer() -> None:
    beats = leader()
    beats.replied(G, V2, 0)
    assert not beats.tick(100_000).elections


def test_a_leader_is_alive_if_it_was_heard_in_this_term_within_the_timeout() -> None:
    beats = follower()
    assert beats.leader_alive(G, 999)
    assert not beats.leader_alive(G, 1000)
    beats.publish(G, Role.FOLLOWER, Term(4), THREE, never, 10)
    assert not beats.leader_alive(G, 10)
    beats.heard(G, None, Term(4), 10)  # a vote is no leader
    assert not beats.leader_alive(G, 10)
    assert leader().leader_alive(G, 100_000)


# --- Rhythm ---------------------------------------------------------------------------------------


def test_beats_keep_their_rhythm_and_are_not_made_up_for() -> None:
    beats = leader()
    assert beats.tick(1000).light.keys() == {N2, N3}
    assert nothing(beats.tick(1099))
    assert beats.next_due(1099) == 1100
    assert beats.next_due(1130) == 1130
    assert beats.tick(1130).light  # a little late
    assert beats.next_due(1130) == 1200
    assert beats.tick(1750).light  # far too late: one beat, not five
    assert nothing(beats.tick(1849))
    assert beats.tick(1850).light


def test_nothing_is_due_before_next_due() -> None:
    beats = table()
    assert nothing(beats.tick(0))
    beats.add(G, V1, 0)
    now = 0
    for _ in range(20):
        due = beats.next_due(now)
        if due > now:
            assert nothing(beats.tick(due - 1))
        now = due
        if beats.tick(now).elections:
            break
    assert 1000 <= now <= 2000


def test_time_does_not_go_back() -> None:
    beats = table()
    beats.tick(10)
    with pytest.raises(ValueError, match="time went back from 10 to 9 ms"):
        beats.tick(9)


# --- Light and full beats -------------------------------------------------------------------------


def test_quiet_groups_share_one_beat_and_others_get_full_ones() -> None:
    groups = [GroupId(number) for number in range(1000)]
    beats = leader(*groups)
    beats.publish(GroupId(5), Role.LEADER, T, THREE, lambda peer: peer == V2, 0)
    due = beats.tick(0)
    assert due.full == [(GroupId(5), V3)]
    assert decode_beat(due.light[N2]).groups.tolist() == groups
    assert decode_beat(due.light[N3]).groups.tolist() == [g for g in groups if g != 5]
    assert len(due.light[N2]) <= 13 + 2 * len(groups)


def test_light_beats_hold_off_elections_and_their_replies_the_loss_of_the_quorum() -> None:
    groups = [GroupId(number) for number in range(0, 3000, 3)]
    one, two = leader(*groups), follower(*groups)
    for now in range(0, 6000, 100):
        due = one.tick(now)
        assert not due.quorum_lost
        assert not due.full
        answer = two.heard_light(N1, due.light[N2], now)
        assert one.light_reply(N2, answer, now) == []
        assert nothing(two.tick(now))
        assert two.leader_alive(groups[0], now)
    assert two.tick(8000).elections == groups


def refusal(beats: Beats, sender: Beats, now: int) -> list[int]:
    """The positions that node 2 refuses in a beat that is sent now."""
    answer = beats.heard_light(N1, sender.tick(now).light[N2], now)
    return list(decode_reply(answer).refused)


def test_a_beat_is_refused_by_whoever_does_not_follow_the_sender_in_its_term() -> None:
    sender = leader()
    assert refusal(follower(), sender, 100) == []
    assert refusal(table(N2), sender, 200) == [0]  # nothing is here
    assert refusal(follower(GroupId(6), GroupId(8)), sender, 300) == [0]  # but other groups
    assert refusal(follower(of=V3), sender, 400) == [0]  # another leader

    restarted = table(N2)
    restarted.add(G, V2, 0)
    restarted.publish(G, Role.FOLLOWER, T, THREE, never, 0)
    assert refusal(restarted, sender, 500) == [0]  # no append was heard since the start

    candidate = follower()
    candidate.publish(G, Role.PRECANDIDATE, T, THREE, never, 0)
    assert refusal(candidate, sender, 600) == [0]

    moved_on = follower()
    moved_on.publish(G, Role.FOLLOWER, Term(4), THREE, never, 0)
    assert refusal(moved_on, sender, 700) == [0]

    usurper = follower()
    usurper.publish(G, Role.LEADER, Term(4), THREE, never, 0)
    assert refusal(usurper, sender, 800) == [0]


@pytest.mark.parametrize(
    ("of", "vnode", "term"),
    [
        (V1, V2, Term(2)),  # follows the same node in a term that is over
        (Vnode(N1, 1), V2, T),  # ... or its wiped successor
        (V1, Vnode(N2, 1), T),  # is itself the successor of the one that is meant
    ],
)
def test_a_beat_of_another_term_or_revision_does_not_hold_off_the_election(
    of: Vnode, vnode: Vnode, term: Term
) -> None:
    sender, other = leader(), follower(of=of, vnode=vnode, term=term)
    refused = elections = 0
    for now in range(0, 20_000, 100):
        refused += refusal(other, sender, now) == [0]
        elections += len(other.tick(now).elections)
    assert refused >= 195  # of 200
    assert elections >= 9


def test_only_the_groups_that_refuse_get_a_full_beat_and_only_one() -> None:
    groups = [GroupId(number) for number in range(5)]
    one, two = leader(*groups), follower(GroupId(0), GroupId(2), GroupId(4))
    answer = two.heard_light(N1, one.tick(0).light[N2], 0)
    refused = [(GroupId(1), V2), (GroupId(3), V2)]
    assert one.light_reply(N2, answer, 0) == refused
    assert one.describe(GroupId(1)) == "g1 leader term=3 n2=quiet! n3=quiet"
    # The core still believes that there is nothing to tell.
    one.publish(GroupId(1), Role.LEADER, T, THREE, always, 50)
    due = one.tick(100)
    assert due.full == refused
    assert decode_beat(due.light[N2]).groups.tolist() == [0, 2, 4]
    due = one.tick(200)
    assert due.full == []
    assert decode_beat(due.light[N2]).groups.tolist() == groups


def test_of_two_revisions_of_a_node_only_the_newer_is_beaten_lightly() -> None:
    again = Vnode(N2, 1)
    one = leader(configuration=Configuration((V1, again, V3), (V1, V2, V3)))
    due = one.tick(0)
    assert due.full == [(G, V2)]
    answer = follower(vnode=again).heard_light(N1, due.light[N2], 0)
    assert decode_reply(answer).refused.tolist() == []


def test_a_single_voter_beats_nobody_and_never_loses_itself() -> None:
    one = leader(configuration=Configuration((V1,)))
    assert nothing(one.tick(100_000))


# --- The quorum -----------------------------------------------------------------------------------

JOINT = Configuration((V1, V2, V3), (V1, V4, V5))


@pytest.mark.parametrize(
    ("configuration", "answering", "lost"),
    [
        (THREE, [V2], False),
        (THREE, [], True),
        (Configuration((V1, V2, V3, V4)), [V2], True),
        (Configuration((V1, V2, V3, V4)), [V2, V4], False),
        (Configuration((V1, V2, V3, V4, V5)), [V5], True),
        (Configuration((V1, V2, V3, V4, V5)), [V5, V3], False),
        (Configuration((V1, V2, V3), (), (V4, V5)), [V4, V5], True),  # learners do not count
        (JOINT, [V2, V3], True),
        (JOINT, [V4, V5], True),
        (JOINT, [V3, V4], False),
        (Configuration((V2, V3), (V1, V2, V3)), [V2], True),  # the leader leaves: it counts once
        (Configuration((V2, V3), (V1, V2, V3)), [V2, V3], False),
    ],
)
def test_a_leader_needs_answers_from_a_majority_of_each_half(
    configuration: Configuration, answering: list[Vnode], lost: bool
) -> None:
    beats = leader(configuration=configuration)
    for now in range(0, 2500, 100):
        due = beats.tick(now)
        if now < 1000:
            assert not due.quorum_lost
        for peer in answering:
            beats.replied(G, peer, now)
    assert beats.tick(2500).quorum_lost == ([G] if lost else [])


def test_newcomers_have_a_whole_timeout_to_answer() -> None:
    beats = leader()
    beats.tick(900)
    beats.replied(G, V2, 900)
    wider = Configuration((V1, V2, V3, V4, V5))
    beats.publish(G, Role.LEADER, T, wider, always, 900)
    assert beats.tick(1899).quorum_lost == []
    assert beats.tick(1999).quorum_lost == [G]


def test_a_late_reply_proves_only_that_the_follower_was_there_when_the_beat_was_sent() -> None:
    one, two = leader(), follower()
    body = one.tick(0).light[N2]
    answer = two.heard_light(N1, body, 10)
    one.tick(900)
    one.light_reply(N2, answer, 990)
    assert one.tick(1000).quorum_lost == [G]


def test_a_reply_counts_once_and_only_from_the_node_that_was_asked() -> None:
    one, two = leader(), follower()
    beat = one.tick(500).light
    answer = two.heard_light(N1, beat[N2], 500)
    one.light_reply(N3, answer, 500)
    one.light_reply(N4, answer, 500)
    assert one.tick(1000).quorum_lost == [G]
    one.light_reply(N2, answer, 1000)
    assert one.tick(1100).quorum_lost == []
    assert one.light_reply(N2, answer, 1100) == []


def test_a_reply_to_a_former_life_of_the_node_matches_nothing() -> None:
    two = table(N2)  # refuses everything
    answer = two.heard_light(N1, leader().tick(0).light[N2], 0)
    reborn = Beats(N1, OPTIONS, Random(99))
    reborn.add(G, V1, 0)
    reborn.publish(G, Role.LEADER, T, THREE, always, 0)
    reborn.tick(0)
    assert reborn.light_reply(N2, answer, 0) == []


@pytest.mark.parametrize("change", ["term", "peers", "slot", "resigned"])
def test_a_reply_to_a_beat_of_another_leadership_changes_nothing(change: str) -> None:
    one = leader()
    answer = table(N2).heard_light(N1, one.tick(0).light[N2], 0)
    if change == "term":
        one.publish(G, Role.LEADER, Term(4), THREE, always, 0)
    elif change == "peers":
        one.publish(G, Role.LEADER, T, Configuration((V1, V3, V2)), always, 0)
    elif change == "slot":
        one.remove(G)
        one.add(GroupId(8), V1, 0)
        one.publish(GroupId(8), Role.LEADER, T, THREE, always, 0)
    else:
        one.publish(G, Role.FOLLOWER, T, THREE, never, 0)
    assert one.light_reply(N2, answer, 0) == []
    assert not one.tick(100).full
    one.check_invariants()


def test_beats_that_nobody_answers_are_forgotten() -> None:
    one, two = leader(), table(N2)
    answers = [two.heard_light(N1, one.tick(now).light[N2], now) for now in range(0, 600, 100)]
    one.check_invariants()
    known = [bool(one.light_reply(N2, answer, 600)) for answer in answers]
    assert known == [False, False, True, True, True, True]


# --- Hostile bytes, bounds, and the rest ----------------------------------------------------------


def test_bytes_that_are_no_beat_restart_no_timer() -> None:
    two = follower()
    body = leader().tick(0).light[N2]
    for bad in (body[:-1], body + b"\x00", b"\x02" + body[1:], b""):
        with pytest.raises(CorruptBeat):
            two.heard_light(N1, bad, 500)
    assert not two.leader_alive(G, 1000)


def test_a_reply_about_more_groups_than_were_asked_is_refused_and_the_beat_stays_open() -> None:
    one = leader()
    other = leader(G, GroupId(8))
    body = one.tick(0).light[N2]
    long_answer = bytearray(table(N2).heard_light(N1, other.tick(0).light[N2], 0))
    long_answer[1:9] = body[1:9]  # the sequence
    with pytest.raises(CorruptBeat, match="refuses group number 1 of a heartbeat that has 1"):
        one.light_reply(N2, bytes(long_answer), 0)
    assert one.light_reply(N2, table(N2).heard_light(N1, body, 0), 0) == [(G, V2)]


def test_bounds_are_said_in_a_sentence() -> None:
    small = Beats(N1, BeatOptions(max_groups=1, max_peers=2), Random(0))
    small.add(G, V1, 0)
    with pytest.raises(ValueError, match="1 groups are all this node takes"):
        small.add(GroupId(8), V1, 0)
    with pytest.raises(ValueError, match="has more than 2 peers"):
        small.publish(G, Role.LEADER, T, Configuration((V1, V2, V3, V4)), always, 0)
    with pytest.raises(ValueError, match="group 7 is in the table already"):
        small.add(G, V1, 0)
    with pytest.raises(ValueError, match="group 9 is not in the table of node 1"):
        small.replied(GroupId(9), V2, 0)
    with pytest.raises(ValueError, match="make the interval shorter"):
        BeatOptions(interval_ms=100, election_timeout_ms=100)
    with pytest.raises(ValueError, match="must be at least 1"):
        BeatOptions(max_outstanding=0)


def test_a_slot_that_is_used_again_remembers_nothing() -> None:
    beats = follower()
    beats.remove(G)
    beats.add(GroupId(8), V2, 0)
    beats.publish(GroupId(8), Role.FOLLOWER, T, THREE, never, 0)
    assert not beats.leader_alive(GroupId(8), 0)
    beats.remove(GroupId(8))
    assert len(beats) == 0
    assert nothing(beats.tick(100_000))
    beats.check_invariants()


def test_a_group_prints_as_one_line() -> None:
    one = leader(quiet=lambda peer: peer == V2)
    assert one.describe(G) == "g7 leader term=3 n2=quiet n3=full"
    assert str(one) == "n1 groups=1 led=1"
    two = follower(of=Vnode(N1, 2))
    assert two.describe(G).startswith("g7 follower term=3 leader=n1r2@0 due=1")
    two.publish(G, Role.CANDIDATE, Term(4), THREE, never, 0)
    assert two.describe(G).startswith("g7 candidate term=4 leader=- due=1")


# --- Whom beats are of interest from --------------------------------------------------------------


def test_a_node_follows_whom_it_heard_in_the_present_term_and_nobody_else() -> None:
    beats = follower(G, of=V1)
    assert beats.follows(N1)
    assert not beats.follows(N3)
    beats.publish(G, Role.FOLLOWER, Term(T + 1), THREE, never, 1)
    assert not beats.follows(N1), "that was in an earlier term"


def test_a_leader_awaits_an_answer_from_those_it_sent_a_beat_to_until_it_comes() -> None:
    beats = leader()
    assert not beats.awaits(N2)
    sent = beats.tick(OPTIONS.interval_ms).light
    assert beats.awaits(N2)
    assert not beats.awaits(N4)
    answer = follower().heard_light(N1, sent[N2], OPTIONS.interval_ms)
    beats.light_reply(N2, answer, OPTIONS.interval_ms)
    assert not beats.awaits(N2)
