"""The history that the judge keeps: a tree of entries, and logs as paths in it."""

from tests.sim.cases import N1, N2, N3, N4, TRIO, Story, data_batch

from tidelog.raft.configuration import Configuration
from tidelog.records import Offset, Term, ghost
from tidelog.sim.truth import Link, has_majority


def test_a_copy_continues_the_path_of_the_leader() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    (linked,) = story.truth.append(N2, [entry.batch])
    assert linked.link is Link.GOOD
    assert linked.entry is entry
    assert story.truth.replica(N2).lineage.tip is entry
    assert set(entry.held_by) == {N1, N2}


def test_a_ghost_stands_for_the_entries_of_the_path() -> None:
    story = Story(entries=1)
    gone = [story.write(N1, ("a", str(n)), term=1) for n in range(3)]
    kept = story.write(N1, ("a", "9"), term=1)
    gap = ghost(gone[0].base, gone[-1].last, Term(1))
    (linked,) = story.truth.append(N2, [gap, kept.batch])
    assert linked.link is Link.GOOD
    assert linked.covered == tuple(gone)
    assert story.truth.replica(N2).lineage.entries == story.truth.replica(N1).lineage.entries


def test_an_append_to_another_path_is_a_fork() -> None:
    story = Story()
    story.write(N2, ("b", "1"), term=2)
    entry = story.write(N1, ("a", "1"), term=1)
    after = story.write(N1, ("a", "2"), term=1)
    (linked,) = story.truth.append(N2, [after.batch])
    assert linked.link is Link.FORK
    assert entry.term == 1


def test_a_batch_without_a_leader_is_a_stranger() -> None:
    story = Story()
    (linked,) = story.truth.append(N2, [data_batch(("a", "1"), base=4, term=1)])
    assert linked.link is Link.STRANGER


def test_an_append_that_failed_may_be_written_again_with_other_content() -> None:
    story = Story()
    story.truth.lead(N1, [data_batch(("a", "1"), base=4, term=1)])
    second = data_batch(("a", "2"), base=4, term=1)
    entry = story.lead(N1, second)
    assert entry.data == second.data
    assert story.truth.replica(N1).lineage.tip is entry


def test_a_truncation_gives_back_what_it_removed() -> None:
    story = Story()
    assert story.truth.truncate(N2, Offset(2)) == [story.entry(2), story.entry(3)]
    assert story.truth.replica(N2).lineage.dirty == 1
    assert story.truth.replica(N2).flushed == 1


def test_a_crash_tells_who_lost_what() -> None:
    story = Story()
    entry = story.write(N1, ("a", "1"), term=1)
    story.truth.append(N2, [entry.batch])
    assert story.truth.recover(N2, Offset(3), Term(1)) == [entry]
    assert list(entry.lost_by) == [N2]
    story.truth.append(N2, [entry.batch])
    assert not entry.lost_by


def test_a_crash_may_bring_back_a_truncated_end() -> None:
    story = Story()
    old = story.write(N1, ("a", "1"), term=1)
    story.truth.append(N2, [old.batch])
    story.truth.truncate(N2, old.base)
    new = story.write(N3, ("b", "1"), term=2)
    story.truth.append(N2, [new.batch])
    assert story.truth.recover(N2, old.last, Term(1)) == [new]
    assert story.truth.replica(N2).lineage.tip is old


def test_a_crash_may_bring_back_a_batch_that_was_being_written() -> None:
    story = Story()
    (entry,) = story.truth.lead(N1, [data_batch(("a", "1"), base=4, term=1)])
    assert story.truth.recover(N1, Offset(4), Term(1)) == []
    assert story.truth.replica(N1).lineage.tip is entry
    assert list(entry.held_by) == [N1]


def test_the_ledger_grows_along_one_path_only() -> None:
    story = Story()
    ours = story.write(N1, ("a", "1"), term=1)
    theirs = story.write(N3, ("b", "1"), term=2)
    assert story.commit(N1) == [ours]
    assert story.commit(N3) == []
    assert story.truth.ledger.tip is ours
    assert not story.truth.ledger.holds(theirs)


def test_a_reset_log_stands_on_the_ledger() -> None:
    story = Story()
    story.truth.reset(N4, Offset(3))
    assert story.truth.replica(N4).lineage.entries == story.truth.ledger.entries[:3]
    assert story.truth.replica(N4).flushed == 2


def test_the_newest_configuration_follows_cuts() -> None:
    story = Story()
    pair = Configuration((N1, N2))
    entry = story.configure(N1, pair, term=1)
    lineage = story.truth.replica(N1).lineage
    assert lineage.configurations[-1].configuration == pair
    assert story.truth.configuration_before(entry) == TRIO
    story.truth.truncate(N1, entry.base)
    assert lineage.configurations[-1].configuration == TRIO


def test_the_first_vote_and_the_first_leader_stand() -> None:
    story = Story()
    assert story.truth.voted(N3, Term(2), N1) == N1
    assert story.truth.voted(N3, Term(2), N2) == N1
    assert story.truth.elected(N2, Term(1), TRIO).vnode == N1


def test_a_majority_is_one_of_each_half() -> None:
    joint = Configuration((N1, N2, N3), (N3, N4))
    assert has_majority(joint, {N1, N3, N4}.__contains__)
    assert not has_majority(joint, {N1, N2, N3}.__contains__)
    assert not has_majority(Configuration(()), {N1}.__contains__)


def test_the_fold_is_the_same_from_any_checkpoint() -> None:
    story = Story(entries=40)
    late = story.reference.state_at(Offset(39))
    early = story.reference.state_at(Offset(17))
    fresh = Story(entries=40)
    assert fresh.reference.state_at(Offset(17)) == early
    assert fresh.reference.state_at(Offset(39)) == late
    assert early != late
