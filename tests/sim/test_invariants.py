"""Each invariant is shown a world in which all is well, and one in which it must object."""

import inspect
from dataclasses import replace

import pytest
from tests.sim.cases import N1, N2, N3, N4, NOW, TRIO, Story, data_batch, glimpse

from tidelog.raft.configuration import Configuration
from tidelog.raft.events import Accepted, Done, ElectionTimeout, Refusal, Refused, ResetLog
from tidelog.raft.messages import AppendReply, Ballot, Status, VoteReply, VoteRequest
from tidelog.raft.types import GroupId, HardState, Level, Role, Vnode
from tidelog.records import (
    NO_OFFSET,
    NO_TERM,
    Batch,
    BatchType,
    Offset,
    Term,
    ghost,
    internal_batch,
    placeholder,
)
from tidelog.sim.facts import (
    Case,
    Committed,
    Elected,
    Fed,
    Loss,
    Marks,
    Opening,
    Saved,
    Segment,
    Sent,
    Served,
    Step,
    Told,
    Translated,
    Truncation,
)
from tidelog.sim.invariants import INVARIANTS, When, clients, commit, election, harm, log, snapshots
from tidelog.sim.invariants.election import quorums_meet
from tidelog.sim.invariants.table import Bench, asked_of
from tidelog.sim.truth import Entry, Leadership
from tidelog.storage import Vote

GROUP = GroupId(1)


def objections(number: int, case: Case) -> list[str]:
    invariant = INVARIANTS[number - 1]
    assert invariant.number == number
    return list(invariant.check(case))


def objects(number: int, case: Case, *words: str) -> None:
    """The invariant objects, the first time with a sentence that holds these words."""
    found = objections(number, case)
    assert found, f"invariant {number} has no objection"
    for word in words:
        assert word in found[0]


def good_case() -> Case:
    """An event in which everything happens that can happen, all of it as it should."""
    story = Story()
    story.copy(N1, N2, N3)
    case = story.case()
    fresh = story.write(N1, ("k0", "9"), term=1, level=Level.QUORUM)
    case.linked += story.truth.append(N2, [fresh.batch])
    story.copy(N1, N2, N3)
    new = story.commit(N1)
    for vnode in (N1, N2, N3):
        case.sights[vnode] = story.sight(vnode), story.sight(vnode)
        case.flushes.append((vnode, fresh, fresh.last))
        case.exams.append(story.exam(vnode))
        story.disks.votes[vnode] = Vote(Term(1), 1, 0, NO_OFFSET)
    case.committed.append(Committed(N1, TRIO, new))
    case.elected.append(Elected(N1, Term(1), story.truth.leaders[Term(1)]))
    vote = VoteReply(GROUP, N2, N1, Term(1), Ballot.VOTE, True)
    case.sent.append(Sent(N2, vote, Term(1), story.disks.vote(N2)))
    case.sent.append(Sent(N1, story.request([fresh.batch]), Term(1)))
    case.openings.append(Opening(N3, fresh.last, fresh, [], fresh.last, fresh))
    case.saved.append(Saved(N1, story.snapshot(3), story.reference.state_at(Offset(3))))
    case.fed.append(Fed(N2, Offset(3), fresh.last, [fresh.batch]))
    case.served.append(Served(N2, [fresh.batch]))
    case.losses.append(Loss(N4, "a bit rots", "the CRC is wrong", needed=True))
    case.resealed.append((N3, fresh, fresh.batch))
    case.told.append(Told(N1, story.asked(fresh), Done(7, fresh.base), TRIO))
    case.told[0].asked.outcomes.append(case.told[0].outcome)
    was = glimpse(role=Role.LEADER)
    case.steps.append(Step(N1, ElectionTimeout(), [], was, replace(was, committed=fresh.last)))
    return case


@pytest.mark.parametrize("invariant", INVARIANTS, ids=str)
def test_no_invariant_objects_to_a_world_in_order(invariant: object) -> None:
    assert objections(INVARIANTS.index(invariant) + 1, good_case()) == []


def test_there_are_thirty_six_invariants_in_order() -> None:
    assert [invariant.number for invariant in INVARIANTS] == list(range(1, 37))
    at_rest = [invariant.number for invariant in INVARIANTS if invariant.when is When.END]
    assert at_rest == [30, 31]
    assert all(invariant.check.__doc__ for invariant in INVARIANTS)


def test_what_an_event_brought_is_read_by_the_invariants_themselves_and_by_no_helper() -> None:
    """So that `reads` is all that decides whether an invariant has something to judge."""
    brought = {part for invariant in INVARIANTS for part in invariant.reads}
    assert {"sights", "steps", "told", "saved", "exams"} <= brought
    for module in (clients, commit, election, harm, log, snapshots):
        for name, function in vars(module).items():
            if inspect.isfunction(function) and "case" in inspect.signature(function).parameters:
                reads = brought & set(function.__code__.co_names)
                assert bool(reads) == name.startswith("invariant_") or "_31_" in name, name


def test_only_invariants_that_have_something_to_judge_are_asked() -> None:
    asked = {invariant.number for invariant in asked_of(("saved",))}
    assert asked == {20, 22}
    assert asked_of(()) == ()
    bench = Bench()
    bench.judge(good_case(), When.EVENT)
    assert bench.exercised()["invariant 20"] == 1
    bench.judge(Story().case(), When.EVENT)  # it brings nothing
    assert bench.exercised()["invariant 20"] == 1


# --- Commitment -------------------------------------------------------------------------------


def test_01_objects_to_a_commit_on_one_disk_of_three() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    story.truth.append(N2, [entry.batch])
    story.disks.held[N1].append(entry)
    case = story.case()
    case.committed.append(Committed(N1, TRIO, story.commit(N1)))
    objects(1, case, "only (n1)")


def test_01_objects_to_a_joint_commit_that_one_half_lacks() -> None:
    story = Story()
    joint = Configuration((N4,), (N1, N2, N3))
    case = story.case()
    case.committed.append(Committed(N1, joint, [story.entry(3)]))
    objects(1, case, "committed")


def test_01_counts_no_learner() -> None:
    story = Story()
    case = story.case()
    entry = story.write(N1, ("a", "1"), term=1)
    for holder in (N1, N4):
        story.disks.held.setdefault(holder, []).append(entry)
    learning = Configuration((N1, N2, N3), (), (N4,))
    case.committed.append(Committed(N1, learning, [entry]))
    objects(1, case, "only (n1 n4)")


def test_02_objects_to_counting_an_entry_of_an_older_term() -> None:
    story = Story()
    case = story.case()
    was = glimpse(role=Role.LEADER, term=Term(2), committed=Offset(1))
    case.steps.append(Step(N1, ElectionTimeout(), [], was, replace(was, committed=Offset(3))))
    objects(2, case, "leader of term 2", "of term 1")


@pytest.mark.parametrize(
    "wrong",
    [
        {"committed": Offset(4)},
        {"flushed": Offset(1)},
        {"visible": Offset(9)},
        {"start": Offset(9)},
        {"dirty": Offset(9)},
    ],
    ids=str,
)
def test_03_objects_to_offsets_out_of_order(wrong: dict[str, Offset]) -> None:
    story = Story()
    case = story.case()
    case.sights[N2] = None, story.sight(N2, **wrong)
    objects(3, case, "n2")


def test_04_objects_to_a_commit_index_that_falls() -> None:
    story = Story()
    case = story.case()
    case.sights[N2] = story.sight(N2), story.sight(N2, committed=Offset(1))
    objects(4, case, "fell from 3 to 1")


def test_04_objects_to_opening_beyond_what_is_durable() -> None:
    story = Story()
    case = story.case()
    story.disks.held[N2].pop()
    case.openings.append(Opening(N2, Offset(2), story.entry(2), [], Offset(3), story.entry(3)))
    case.sights[N2] = None, story.sight(N2)
    objects(4, case, "not on its disk")


def test_09_objects_to_a_leader_without_a_committed_entry() -> None:
    story = Story()
    case = story.case()
    won = Leadership(Term(2), N3, story.entry(1), TRIO)
    case.elected.append(Elected(N3, Term(2), won))
    objects(9, case, "lacked the committed")


def test_09_objects_to_an_old_leader_that_commits_what_a_new_one_lacks() -> None:
    story = Story()
    late = story.write(N1, ("a", "1"), term=1)
    story.truth.leaders[Term(2)] = Leadership(Term(2), N3, story.entry(3), TRIO)
    case = story.case()
    case.committed.append(Committed(N1, TRIO, story.commit(N1)))
    objects(9, case, "won term 2", str(late))


def reply(seq: int, *, term: int = 1) -> AppendReply:
    return AppendReply(
        GROUP,
        N2,
        N1,
        Term(term),
        seq,
        Status.SUCCESS,
        Offset(3),
        Offset(3),
        Offset(3),
        NO_OFFSET,
        NO_TERM,
        NO_OFFSET,
    )


@pytest.mark.parametrize(("seq", "term"), [(4, 2), (6, 1)], ids=str)
def test_25_objects_to_a_stale_reply_that_changes_a_mark(seq: int, term: int) -> None:
    marks = Marks(Offset(1), Offset(1), Offset(1), 5)
    was = glimpse(role=Role.LEADER, term=Term(2), marks=marks)
    now = replace(was, marks=replace(marks, match=Offset(3)))
    case = Story().case()
    case.steps.append(Step(N1, reply(seq, term=term), [], was, now))
    objects(25, case, f"reply {seq}")
    case.steps[0] = replace(case.steps[0], now=was)
    assert objections(25, case) == []


def test_25_objects_to_a_match_that_the_follower_never_held() -> None:
    story = Story()
    case = story.case()
    entry = story.write(N1, ("a", "1"), term=1)
    case.sights[N1] = None, story.sight(N1, matches={N2: entry.last})
    objects(25, case, "never held")


# --- Elections --------------------------------------------------------------------------------


def test_05_objects_to_a_second_leader_of_a_term() -> None:
    story = Story()
    case = story.case()
    case.elected.append(Elected(N2, Term(1), story.truth.elected(N2, Term(1), TRIO)))
    objects(5, case, "n2 leads in term 1, in which n1 already led")


def test_06_objects_to_a_vote_that_is_not_on_disk() -> None:
    story = Story()
    vote = VoteReply(GROUP, N3, N2, Term(2), Ballot.VOTE, True)
    story.truth.voted(N3, Term(2), N2)
    case = story.case()
    case.sent.append(Sent(N3, vote, Term(2), Vote(Term(2), -1, 0, NO_OFFSET)))
    objects(6, case, "promised n2 term 2")


def test_06_objects_to_two_votes_in_a_term() -> None:
    story = Story()
    story.truth.voted(N3, Term(2), N2)
    standing = VoteRequest(GROUP, N3, N1, Term(2), Ballot.VOTE, Offset(3), Term(1))
    story.truth.voted(N3, Term(2), N3)
    case = story.case()
    case.sent.append(Sent(N3, standing, Term(2)))
    objects(6, case, "voted for n2 and for n3")


def test_06_objects_to_a_vote_that_a_restart_forgot() -> None:
    story = Story()
    story.truth.voted(N3, Term(2), N2)
    case = story.case()
    tip = story.entry(3)
    forgetful = Opening(N3, Offset(3), tip, [], Offset(3), tip, HardState(Term(2)))
    case.openings.append(forgetful)
    objects(6, case, "voted for n2 in term 2 and came back with None")
    case.openings[0] = replace(forgetful, hard=HardState(Term(2), N2))
    assert objections(6, case) == []


def test_06_objects_to_a_term_that_leaves_before_it_is_on_disk() -> None:
    case = Story().case()
    case.sent.append(Sent(N2, reply(1, term=4), Term(3)))
    objects(6, case, "of term 4", "only term 3 on disk")


def test_06_lets_a_prevote_pass() -> None:
    case = Story().case()
    case.sent.append(Sent(N2, VoteReply(GROUP, N2, N1, Term(9), Ballot.PREVOTE, True), Term(1)))
    assert objections(6, case) == []


def test_07_objects_to_a_term_that_a_crash_took_back() -> None:
    story = Story()
    story.truth.replica(N2).persisted_term = Term(5)
    story.disks.votes[N2] = Vote(Term(4), -1, 0, NO_OFFSET)
    case = story.case()
    case.openings.append(Opening(N2, Offset(3), story.entry(3), [], Offset(3), story.entry(3)))
    objects(7, case, "had term 5 on disk and opened with term 4")


def test_24_objects_to_another_configuration_than_the_log_says() -> None:
    story = Story()
    case = story.case()
    case.sights[N2] = None, story.sight(N2, configuration=Configuration((N1, N2)))
    objects(24, case, "its log says")


def test_24_objects_to_a_leader_without_a_majority_of_votes() -> None:
    story = Story()
    story.truth.voted(N2, Term(2), N2)
    story.truth.voted(N4, Term(2), N2)  # no voter
    case = story.case()
    case.elected.append(Elected(N2, Term(2), story.truth.elected(N2, Term(2), TRIO)))
    objects(24, case, "no majority")


def test_24_objects_to_neighbours_whose_quorums_do_not_meet() -> None:
    story = Story()
    batch = internal_batch(BatchType.CONFIGURATION, Configuration((N3, N4)).encode())
    batch = batch.stamp(story.end(N1), Term(1))
    story.truth.lead(N1, [batch])
    case = story.case()
    case.linked += story.truth.append(N1, [batch])
    objects(24, case, "need not meet")


def test_24_objects_to_two_changes_under_way() -> None:
    story = Story()
    story.configure(N1, Configuration((N1, N2, N3), (), (N4,)), term=1)
    joint = Configuration((N1, N2, N3, N4), (N1, N2, N3))
    batch = internal_batch(BatchType.CONFIGURATION, joint.encode()).stamp(story.end(N1), Term(1))
    story.truth.lead(N1, [batch])
    case = story.case()
    case.linked += story.truth.append(N1, [batch])
    objects(24, case, "2 changes of the configuration")


def test_24_objects_to_heeding_a_message_for_a_former_self() -> None:
    story = Story()
    case = story.case()
    message = replace(story.request([story.entry(3).batch]), target=Vnode(N2.id, 1))
    was = glimpse()
    case.steps.append(Step(N2, message, [], was, replace(was, term=Term(2))))
    objects(24, case, "meant for n2r1")


def test_quorums_meet_through_a_joint_configuration_only() -> None:
    old, new = Configuration((N1, N2, N3)), Configuration((N3, N4))
    assert not quorums_meet(old, new)
    assert quorums_meet(old, Configuration(new.voters, old.voters))
    assert quorums_meet(Configuration(new.voters, old.voters), new)
    assert quorums_meet(old, Configuration((N1, N2, N3, N4)))


def test_29_objects_to_a_write_after_the_hand_over() -> None:
    case = Story().case()
    was = glimpse(role=Role.LEADER, handing_over=True)
    accepted = Accepted(7, Offset(4), Offset(4), Term(1))
    case.steps.append(Step(N1, ElectionTimeout(), [accepted], was, was))
    objects(29, case, "after it had handed over")


# --- The log ----------------------------------------------------------------------------------


def test_08_objects_to_an_append_that_does_not_follow() -> None:
    story = Story()
    other = story.write(N3, ("a", "1"), term=2)  # n3 took another way after offset 3
    story.write(N1, ("b", "1"), term=1)
    case = story.case()
    case.linked += story.truth.append(N1, [other.batch])
    objects(8, case, "does not lead to it")


def test_08_objects_to_a_batch_that_no_leader_wrote() -> None:
    story = Story()
    case = story.case()
    case.linked += story.truth.append(N2, [data_batch(("a", "1"), base=4, term=1)])
    objects(8, case, "no leader wrote")


def test_08_objects_to_other_content_at_the_same_place() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    case = story.case()
    case.linked += story.truth.append(N2, [data_batch(("a", "2"), base=entry.base, term=1)])
    objects(8, case, "another one")


def test_08_objects_to_a_stored_batch_outside_of_the_history() -> None:
    story = Story()
    case = story.case()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    strange = data_batch(("z", "1"), base=2, term=9)
    case.exams.append(story.exam(N2, [*batches, strange]))
    objects(8, case, "no part of its log's history")


def test_10_objects_to_two_committed_histories() -> None:
    story = Story()
    story.truth.truncate(N3, Offset(3))
    story.write(N3, ("x", "1"), term=2)
    case = story.case()
    case.sights[N3] = None, story.sight(N3)
    objects(10, case, "in its place")


def test_10_objects_to_committed_content_that_changed() -> None:
    story = Story()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    batches[2] = data_batch(("k1", "999"), base=2, term=1)
    case = story.case()
    case.exams.append(story.exam(N2, batches))
    objects(10, case, "changed on n2")


def test_10_accepts_a_placeholder_and_an_emptied_batch() -> None:
    story = Story()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    batches[2] = internal_batch(BatchType.PLACEHOLDER, b"").stamp(Offset(2), Term(1))
    batches[3] = data_batch(base=3, term=1)
    case = story.case()
    case.exams.append(story.exam(N2, batches))
    assert objections(10, case) == []


def test_11_objects_to_cutting_off_what_is_committed() -> None:
    story = Story()
    cut = story.truth.truncate(N2, Offset(3))
    case = story.case()
    conflict = story.request([data_batch(("x", "1"), base=3, term=2)], term=2)
    case.truncations.append(Truncation(N2, Offset(3), cut, Offset(2), conflict))
    objects(11, case, "which is committed")


def test_11_objects_to_a_heartbeat_that_truncates() -> None:
    story = Story()
    story.truth.append(N2, [story.write(N1, ("a", "1"), term=1).batch])
    cut = story.truth.truncate(N2, Offset(4))
    case = story.case()
    beat = replace(story.request([story.entry(3).batch]), batches=())
    case.truncations.append(Truncation(N2, Offset(4), cut, Offset(3), beat))
    objects(11, case, "because of a heartbeat")


def test_11_objects_to_a_duplicate_that_truncates() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    story.truth.append(N2, [entry.batch])
    cut = story.truth.truncate(N2, entry.base)
    case = story.case()
    case.truncations.append(
        Truncation(N2, entry.base, cut, Offset(3), story.request([entry.batch]))
    )
    objects(11, case, "agrees with")


def test_12_objects_to_flushed_data_that_a_crash_took() -> None:
    story = Story()
    kept = story.entry(3)
    lost = story.truth.recover(N2, Offset(1), Term(1))
    case = story.case()
    case.openings.append(Opening(N2, Offset(3), kept, lost, Offset(1), story.entry(1)))
    objects(12, case, "came back without")


def test_12_objects_to_a_hole_after_a_crash() -> None:
    story = Story()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    del batches[2]
    case = story.case()
    case.exams.append(story.exam(N2, batches, opened=True))
    objects(12, case, "a hole")


def test_12_lets_a_crash_take_what_was_dirty() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    story.truth.append(N2, [entry.batch])
    kept = story.entry(3)
    lost = story.truth.recover(N2, Offset(3), Term(1))
    assert lost == [entry]
    case = story.case()
    case.openings.append(Opening(N2, Offset(3), kept, lost, Offset(3), kept))
    assert objections(12, case) == []


def test_13_objects_to_a_flush_of_what_is_not_on_disk() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    case = story.case()
    case.flushes.append((N1, entry, entry.last))
    objects(13, case, "is not on its disk")


def test_17_objects_to_a_stream_with_a_jump() -> None:
    story = Story()
    case = story.case()
    message = story.request([story.entry(1).batch, story.entry(3).batch])
    case.sent.append(Sent(N1, message, Term(1)))
    objects(17, case, "where offset 2 was due")


def test_17_objects_to_a_ghost_at_the_end() -> None:
    story = Story()
    case = story.case()
    batches = [story.entry(1).batch, ghost(Offset(2), Offset(3), Term(1))]
    case.sent.append(Sent(N1, story.request(batches), Term(1)))
    objects(17, case, "a ghost as the last batch")


def test_17_objects_to_a_ghost_of_another_term() -> None:
    story = Story()
    later = story.write(N1, ("a", "1"), term=2)
    case = story.case()
    batches = [ghost(Offset(1), Offset(3), Term(2)), later.batch]
    case.sent.append(Sent(N1, story.request(batches, prev=0), Term(2)))
    objects(17, case, "a ghost of term 2 for")
    case.sent[0] = Sent(
        N1, story.request([ghost(Offset(1), Offset(3), Term(1)), later.batch], prev=0), Term(2)
    )
    assert objections(17, case) == []


def test_17_objects_to_a_ghost_that_is_stored_or_applied() -> None:
    story = Story()
    gap = ghost(Offset(2), Offset(2), Term(1))
    stored = story.case()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    stored.exams.append(story.exam(N2, [*batches[:2], gap, *batches[3:]]))
    objects(17, stored, "stored a ghost")
    applied = story.case()
    applied.fed.append(Fed(N2, Offset(1), Offset(3), [gap]))
    objects(17, applied, "applied a ghost")


@pytest.mark.parametrize(
    "segments",
    [
        [Segment(Offset(0), Offset(1), Term(2)), Segment(Offset(2), Offset(3), Term(1))],
        [Segment(Offset(0), Offset(1), Term(1)), Segment(Offset(3), Offset(3), Term(1))],
        [Segment(Offset(0), Offset(1), Term(1)), Segment(Offset(2), Offset(3), Term(2))],
        [Segment(Offset(0), Offset(5), Term(1))],
    ],
    ids=["falling term", "hole", "batch of another term", "last offset gone"],
)
def test_18_objects_to_segments_in_disorder(segments: list[Segment]) -> None:
    story = Story()
    case = story.case()
    case.exams.append(story.exam(N2, segments=segments))
    objects(18, case, "n2")


# --- Compaction, snapshots, machines ----------------------------------------------------------


def test_19_objects_to_compaction_above_the_bound() -> None:
    story = Story()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    sight = story.sight(N2, collectible=Offset(0))
    case = story.case()
    case.exams.append(story.exam(N2, [batches[0], *batches[2:]], sight=sight))
    objects(19, case, "above the bound 0")
    sight = story.sight(N2, collectible=Offset(3), compacted=Offset(3))
    case.exams[0] = story.exam(N2, [batches[0], *batches[2:]], sight=sight)
    assert objections(19, case) == []  # a newer k0 is at offset 3


def test_19_objects_to_losing_the_newest_value_of_a_key() -> None:
    story = Story()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    sight = story.sight(N2, collectible=Offset(3), compacted=Offset(3))
    case = story.case()
    case.exams.append(story.exam(N2, [*batches[:2], batches[3]], sight=sight))
    objects(19, case, "the newest value of key b'k1'")


def test_19_objects_to_a_tombstone_that_went_too_soon() -> None:
    story = Story()
    story.write(N1, ("gone", None), term=1)
    story.write(N1, ("k0", "1"), term=1)
    story.copy(N1, N2, N3)
    story.commit(N1)
    batches = [entry.batch for entry in story.truth.ledger.entries]
    sight = story.sight(N2, collectible=Offset(5), compacted=Offset(5))
    without = [*batches[:4], batches[5]]
    case = story.case()
    case.exams.append(story.exam(N2, without, sight=sight, now_ms=NOW + 999))
    objects(19, case, "the newest tombstone")
    case.exams[0] = story.exam(N2, without, sight=sight, now_ms=NOW + 1_000)
    assert objections(19, case) == []


def test_19_objects_to_compacting_what_no_majority_has_a_snapshot_of() -> None:
    story = Story()
    story.truth.replica(N1).snapshots[Offset(3)] = None
    case = story.case()
    case.sights[N1] = story.sight(N1), story.sight(N1, compacted=Offset(3))
    objects(19, case, "only (n1)")
    story.truth.replica(N2).snapshots[Offset(3)] = None
    assert objections(19, case) == []


@pytest.mark.parametrize(
    ("collectible", "compacted", "words"),
    [
        (9, 9, "only 3 is committed"),
        (3, 2, "it would say 2"),
        (3, 3, "no snapshot of that on disk"),
    ],
    ids=str,
)
def test_19_objects_to_a_bound_that_nothing_covers(
    collectible: int, compacted: int, words: str
) -> None:
    story = Story()
    story.truth.safe_to_compact = Offset(9)
    story.truth.replica(N1).snapshots[Offset(2)] = None
    case = story.case()
    sight = story.sight(N1, collectible=Offset(collectible), compacted=Offset(compacted))
    case.sights[N1] = story.sight(N1), sight
    objects(19, case, words)


def test_20_objects_to_a_snapshot_that_is_not_the_fold() -> None:
    story = Story()
    case = story.case()
    case.saved.append(Saved(N2, story.snapshot(3), story.reference.state_at(Offset(2))))
    objects(20, case, "not the fold")


def test_21_objects_to_a_log_that_begins_late_without_a_snapshot() -> None:
    story = Story()
    case = story.case()
    case.sights[N2] = None, story.sight(N2, start=Offset(2), prefix_term=Term(1))
    objects(21, case, "begins at 2")


def test_21_objects_to_a_wrong_prefix_term() -> None:
    story = Story()
    case = story.case()
    sight = story.sight(N2, start=Offset(2), prefix_term=Term(9), snapshot=story.snapshot(3))
    case.sights[N2] = None, sight
    objects(21, case, "has term 9")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offset": Offset(9)}, "beyond what is committed"),
        ({"term": Term(7)}, "ends in"),
    ],
    ids=["beyond the ledger", "wrong term"],
)
def test_21_objects_to_a_snapshot_of_no_committed_entry(
    changes: dict[str, int], words: str
) -> None:
    story = Story()
    case = story.case()
    case.sights[N2] = story.sight(N2), story.sight(N2, snapshot=story.snapshot(3, **changes))
    objects(21, case, words)


def test_21_objects_to_a_snapshot_that_goes_back() -> None:
    story = Story()
    case = story.case()
    case.sights[N2] = (
        story.sight(N2, snapshot=story.snapshot(3)),
        story.sight(N2, snapshot=story.snapshot(1)),
    )
    objects(21, case, "back to")


def test_22_objects_to_an_install_that_goes_back() -> None:
    story = Story()
    for was in (glimpse(committed=Offset(3)), glimpse(committed=Offset(0), applied=Offset(3))):
        case = story.case()
        output = ResetLog(story.snapshot(1))
        case.steps.append(Step(N2, ElectionTimeout(), [output], was, was))
        objects(22, case, "up to 3")


def test_22_objects_to_a_visible_snapshot_that_is_not_whole() -> None:
    story = Story()
    case = story.case()
    case.saved.append(Saved(N2, story.snapshot(3), None))
    objects(22, case, "cannot be read whole")


def test_23_objects_to_applying_twice_or_too_early() -> None:
    story = Story()
    twice = story.case()
    twice.fed.append(Fed(N2, Offset(3), Offset(3), [story.entry(3).batch]))
    objects(23, twice, "again")
    early = story.case()
    early.fed.append(Fed(N2, Offset(2), Offset(2), [story.entry(3).batch]))
    objects(23, early, "committed up to 2")
    ahead = story.case()
    ahead.sights[N2] = None, story.sight(N2, applied=Offset(4))
    objects(23, ahead, "applied up to 4")


def test_23_objects_to_a_readable_state_that_is_not_the_fold() -> None:
    story = Story()
    wrong = story.reference.state_at(Offset(2))
    case = story.case()
    case.exams.append(story.exam(N2, state=wrong))
    objects(23, case, "not the fold")
    blocked = story.sight(N2, readable=Offset(1))
    case.exams[0] = story.exam(N2, state=wrong, sight=blocked)
    assert objections(23, case) == []  # it may be wrong as long as nobody may read it


def test_32_objects_to_a_start_from_machines_that_are_not_the_fold() -> None:
    story = Story()
    tip = story.entry(3)
    state_at = story.reference.state_at
    for applied, state, words in (
        (Offset(3), state_at(Offset(2)), "not the fold"),
        (Offset(4), state_at(Offset(3)), "only 3 is committed"),
    ):
        case = story.case()
        case.openings.append(
            Opening(N2, Offset(3), tip, [], Offset(3), tip, applied=applied, state=state)
        )
        objects(32, case, words)
    case = story.case()
    case.openings.append(
        Opening(N2, Offset(3), tip, [], Offset(3), tip, applied=tip.last, state=state_at(tip.last))
    )
    assert objections(32, case) == []


# --- Clients ----------------------------------------------------------------------------------


def tell(story: Story, level: Level, committed: bool) -> Case:
    """A leader that acknowledges a new entry which it alone holds."""
    entry = story.write(N1, ("a", "1"), term=1)
    if committed:
        story.copy(N1, N2, N3)
        story.commit(N1)
    case = story.case()
    asked = story.asked(entry, level)
    asked.outcomes.append(Done(7, entry.base))
    case.told.append(Told(N1, asked, Done(7, entry.base), TRIO))
    return case


@pytest.mark.parametrize("level", [Level.QUORUM, Level.MEMORY], ids=str)
def test_14_objects_to_an_acknowledgement_that_came_too_early(level: Level) -> None:
    objects(14, tell(Story(), level, committed=False), level.name)
    assert objections(14, tell(Story(), level, committed=True)) == []


def test_14_lets_a_leader_acknowledge_what_it_alone_holds() -> None:
    assert objections(14, tell(Story(), Level.LEADER, committed=False)) == []


def test_14_objects_to_a_wrong_offset_and_to_nothing_at_all() -> None:
    story = Story()
    case = story.case()
    case.told.append(Told(N1, story.asked(story.entry(3)), Done(7, Offset(1)), TRIO))
    objects(14, case, "with offset 1")
    case.told[0] = Told(N1, story.asked(None), Done(7, Offset(1)), TRIO)
    objects(14, case, "never appended")


def outcomes(story: Story, *said: object) -> Case:
    case = story.case()
    asked = story.asked(story.truth.replica(N1).lineage.tip)
    asked.outcomes += said
    last = said[-1]
    assert isinstance(last, Accepted | Done | Refused)
    case.told.append(Told(N1, asked, last, TRIO))
    return case


def test_15_objects_to_success_after_failure() -> None:
    case = outcomes(Story(), Refused(7, Refusal.UNKNOWN), Done(7, Offset(3)))
    objects(15, case, "of which it had said")


def test_15_objects_to_a_refusal_that_cannot_follow_acceptance() -> None:
    accepted = Accepted(7, Offset(3), Offset(3), Term(1))
    objects(15, outcomes(Story(), accepted, Refused(7, Refusal.BUSY)), "after it was accepted")
    assert objections(15, outcomes(Story(), Refused(7, Refusal.BUSY))) == []


def test_15_objects_to_calling_truncated_what_may_yet_be_committed() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    accepted = Accepted(7, entry.base, entry.last, Term(1))
    case = outcomes(story, accepted, Refused(7, Refusal.TRUNCATED))
    objects(15, case, "called request 7 of writer truncated")
    story.write(N2, ("b", "1"), term=2)
    story.commit(N2)
    assert objections(15, case) == []


def test_15_takes_an_entry_of_an_earlier_term_in_its_place_for_a_truncation() -> None:
    story = Story()
    left_over = story.write(N2, ("b", "1"), term=2)
    entry = story.write(N1, ("a", "1"), term=3)
    assert left_over.base == entry.base
    accepted = Accepted(7, entry.base, entry.last, Term(3))
    case = outcomes(story, accepted, Refused(7, Refusal.TRUNCATED))
    story.write(N2, ("c", "1"), term=4)
    story.commit(N2)
    assert objections(15, case) == []


def test_16_objects_to_showing_a_quorum_write_before_it_is_committed() -> None:
    story = Story()
    story.write(N1, ("a", "1"), term=1, level=Level.QUORUM)
    relaxed = story.write(N1, ("a", "1"), term=1, level=Level.MEMORY)
    case = story.case()
    case.sights[N1] = None, story.sight(N1, visible=relaxed.last)
    objects(16, case, "a quorum write that is not committed")


def test_16_objects_to_losing_what_was_visible_though_a_majority_kept_it() -> None:
    story = Story()
    shown = story.write(N1, ("a", "1"), term=1, level=Level.MEMORY)
    story.truth.append(N2, [shown.batch])
    story.truth.exposed[Term(1)] = shown, TRIO
    story.write(N3, ("b", "1"), term=2)
    case = story.case()
    case.committed.append(Committed(N3, TRIO, story.commit(N3)))
    objects(16, case, "never lost it")


def test_16_accepts_losing_what_a_crash_took_from_a_majority() -> None:
    story = Story()
    shown = story.write(N1, ("a", "1"), term=1, level=Level.MEMORY)
    story.truth.append(N2, [shown.batch])
    story.truth.exposed[Term(1)] = shown, TRIO
    story.truth.recover(N2, Offset(3), Term(1))
    story.write(N3, ("b", "1"), term=2)
    case = story.case()
    case.committed.append(Committed(N3, TRIO, story.commit(N3)))
    assert objections(16, case) == []


def test_26_objects_to_an_epoch_that_ends_elsewhere() -> None:
    story = Story()
    story.write(N1, ("a", "1"), term=3)
    story.copy(N1, N2, N3)
    story.commit(N1)
    case = story.case()
    answers = {Term(1): (Term(1), Offset(4)), Term(2): (Term(1), Offset(4))}
    case.exams.append(story.exam(N2, term_ends=answers))
    assert objections(26, case) == []
    case.exams[0] = story.exam(N2, term_ends={**answers, Term(2): (Term(2), Offset(4))})
    objects(26, case, "epoch 2 ended at (2, 4); it ended at (1, 4)")
    case.exams[0] = story.exam(N2, term_ends={Term(1): (Term(1), Offset(3))})
    objects(26, case, "epoch 1")


def test_27_objects_to_a_client_offset_that_counts_internal_batches() -> None:
    story = Story()
    case = story.case()
    wrong = [Translated(Offset(2), Offset(2), Offset(2))]
    case.exams.append(story.exam(N2, translated=wrong))
    objects(27, case, "into client offset 2")


def test_28_objects_to_a_sequence_that_is_committed_twice() -> None:
    story = Story()
    case = story.case()
    story.write(N1, ("a", "1"), term=1, producer=(9, 0, 5))
    story.write(N1, ("a", "1"), term=1, producer=(9, 0, 5))
    case.committed.append(Committed(N1, TRIO, story.commit(N1)))
    objects(28, case, "(9, 0, 5)")


def test_28_objects_to_a_retry_that_gets_another_offset() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1, producer=(9, 0, 5))
    story.commit(N1)
    asked = story.asked(entry)
    asked.producer = (9, 0, 5)
    case = story.case()
    case.told.append(Told(N1, asked, Done(7, Offset(1)), TRIO))
    objects(28, case, f"written at {entry.base}")


def test_33_objects_to_a_batch_whose_predecessor_is_missing() -> None:
    story = Story()
    case = story.case()
    story.write(N1, ("a", "1"), term=1, producer=(9, 0, 0))
    story.write(N1, ("a", "1"), term=1, producer=(9, 0, 1))
    story.write(N1, ("a", "1"), term=1, producer=(9, 1, 0))
    case.committed.append(Committed(N1, TRIO, story.commit(N1)))
    assert not objections(33, case)
    story.write(N1, ("a", "1"), term=1, producer=(9, 1, 2))
    case.committed.append(Committed(N1, TRIO, story.commit(N1)))
    objects(33, case, "(9, 1, 2)")


def test_33_objects_to_a_producer_that_does_not_begin_at_its_beginning() -> None:
    story = Story()
    case = story.case()
    story.write(N1, ("a", "1"), term=1, producer=(9, 0, 5))
    case.committed.append(Committed(N1, TRIO, story.commit(N1)))
    objects(33, case, "(9, 0, 5)")


def test_34_objects_to_a_term_that_no_replica_stood_in() -> None:
    story = Story()
    story.truth.stood = {Term(1), Term(2)}
    case = story.case()
    vote = VoteReply(GROUP, N4, N1, Term(2), Ballot.VOTE, False)
    was = glimpse()
    case.steps.append(Step(N1, vote, [], was, replace(was, term=Term(2))))
    assert not objections(34, case)
    case.steps.append(Step(N1, vote, [], was, replace(was, term=Term(3))))
    objects(34, case, "n1", "term 3")


def at_rest(story: Story) -> Case:
    case = story.case()
    case.exams += [story.exam(vnode) for vnode in (N1, N2, N3)]
    return case


def test_30_objects_to_logs_that_differ_at_rest() -> None:
    story = Story()
    story.truth.append(N3, [story.write(N1, ("a", "1"), term=1).batch])
    objects(30, at_rest(story), "the last committed entry")


def test_30_objects_to_machines_that_differ_at_rest() -> None:
    story = Story()
    case = at_rest(story)
    case.exams[2] = story.exam(N3, state=story.reference.state_at(Offset(1)))
    objects(30, case, "the machines of n3 differ")


def test_30_objects_to_a_member_that_is_missing_and_to_no_leader() -> None:
    story = Story()
    case = at_rest(story)
    missing = case.exams.pop()
    objects(30, case, f"{missing.vnode} is a member")
    case.exams = case.exams[1:]
    objects(30, case, "no replica leads")


def test_30_objects_to_stored_bytes_that_differ_above_the_compaction_bound() -> None:
    story = Story()
    batches = [entry.batch for entry in story.truth.ledger.entries]
    case = at_rest(story)
    case.exams[1] = story.exam(N2, [*batches[:2], *batches[3:]])
    objects(30, case, "n2 holds None instead of")


def test_30_objects_to_a_leader_that_does_not_know_that_it_is_done() -> None:
    story = Story()
    case = at_rest(story)
    case.exams[0] = story.exam(N1, sight=story.sight(N1, matches={N2: Offset(1)}))
    objects(30, case, "knows n2 at 1")


def test_31_passes_on_what_the_clients_complain_of() -> None:
    case = Story().case()
    case.complaints = ["writer-1 lost a write"]
    objects(31, case, "writer-1 lost a write")


# --- Harm -------------------------------------------------------------------------------------


def rotten(entry: Entry) -> Batch:
    data = bytearray(entry.data)
    data[-1] ^= 4
    return Batch.parse(data)


def test_35_objects_to_rot_that_is_sent_served_or_applied() -> None:
    story = Story()
    bad = rotten(story.entry(3))
    for part, fact in (
        ("sent", Sent(N1, story.request([bad]), Term(1))),
        ("served", Served(N1, [bad])),
        ("fed", Fed(N1, Offset(2), Offset(3), [bad])),
    ):
        case = story.case()
        getattr(case, part).append(fact)
        objects(35, case, "n1", "with other content")


def test_35_objects_to_a_batch_that_no_leader_wrote() -> None:
    story = Story()
    case = story.case()
    case.served.append(Served(N2, [data_batch(("k", "1"), base=77)]))
    objects(35, case, "n2 gave a reader", "which no leader wrote")


def test_35_objects_to_rot_under_a_right_checksum() -> None:
    story = Story()
    other = data_batch(("k0", "stolen"), base=story.entry(3).base)
    case = story.case()
    case.resealed.append((N2, story.entry(3), other))
    objects(35, case, "n2", "a right checksum")


def test_35_lets_compaction_empty_a_batch() -> None:
    story = Story()
    entry = story.entry(3)
    case = story.case()
    case.served.append(Served(N2, [placeholder(entry.last, entry.term)]))
    assert objections(35, case) == []


def test_36_objects_to_a_loss_for_what_is_not_needed() -> None:
    case = Story().case()
    case.losses.append(Loss(N2, "3 bits of a header rot", "the header is wrong", needed=False))
    objects(36, case, "n2", "3 bits of a header rot")
