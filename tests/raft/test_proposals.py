"""When a write that was accepted is told how it went, and what it is told."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.raft.events import Done, Refusal, Refused
from tidelog.raft.proposals import Proposal, Proposals
from tidelog.raft.types import Level
from tidelog.records import Offset, Term

ONE, TWO = Term(1), Term(2)


def proposals(*writes: tuple[int, int, int, Level], size: int = 10) -> Proposals:
    """Accepted writes, each (token = base, last, term, level)."""
    waiting = Proposals()
    for base, last, term, level in writes:
        waiting.add(Proposal(base, Offset(base), Offset(last), Term(term), level, size))
    return waiting


def test_a_quorum_write_waits_for_committed_and_a_memory_write_for_visible() -> None:
    waiting = proposals((0, 1, 1, Level.QUORUM), (2, 3, 1, Level.MEMORY), (4, 5, 1, Level.QUORUM))
    assert list(waiting.resolve_as_leader(ONE, Offset(0), Offset(5))) == [Done(2, Offset(2))]
    assert list(waiting.resolve_as_leader(ONE, Offset(4), Offset(5))) == [Done(0, Offset(0))]
    assert list(waiting.resolve_as_leader(ONE, Offset(5), Offset(5))) == [Done(4, Offset(4))]
    assert not waiting


def test_a_new_leader_does_not_answer_for_a_write_of_an_earlier_term_by_its_offset() -> None:
    waiting = proposals((3, 3, 1, Level.MEMORY))
    assert list(waiting.resolve_as_leader(TWO, Offset(9), Offset(9))) == []
    assert len(waiting) == 1


def test_after_a_lost_leadership_the_commit_tells_what_survived() -> None:
    waiting = proposals((1, 2, 1, Level.QUORUM), (3, 4, 1, Level.QUORUM), (5, 5, 2, Level.MEMORY))
    terms = {2: ONE, 4: TWO, 5: TWO}
    said = list(waiting.resolve_by_commit(Offset(4), Offset(0), lambda at: terms[at]))
    assert said == [Done(1, Offset(1)), Refused(3, Refusal.TRUNCATED)]
    assert len(waiting) == 1, "offset 5 is not committed: that write may yet be reinstated"


def test_a_later_term_that_is_committed_settles_what_came_after_it_in_earlier_terms() -> None:
    waiting = proposals((6, 7, 1, Level.QUORUM), (5, 5, 2, Level.QUORUM), (8, 8, 1, Level.MEMORY))
    assert list(waiting.resolve_by_commit(Offset(3), Offset(0), lambda _: ONE)) == []
    assert waiting.has_older(TWO)
    said = list(waiting.resolve_by_commit(Offset(4), Offset(0), lambda _: TWO))
    assert said == [Refused(6, Refusal.TRUNCATED), Refused(8, Refusal.TRUNCATED)]
    assert not waiting.has_older(TWO)
    assert list(waiting.resolve_as_leader(TWO, Offset(5), Offset(5))) == [Done(5, Offset(5))]
    assert waiting.bytes == 0


def test_a_write_below_the_start_of_the_log_has_an_unknown_end() -> None:
    waiting = proposals((1, 2, 1, Level.QUORUM))
    said = list(waiting.resolve_by_commit(Offset(9), Offset(5), lambda _: None))
    assert said == [Refused(1, Refusal.UNKNOWN)]


@given(
    st.lists(
        st.tuples(st.sampled_from([Level.MEMORY, Level.QUORUM]), st.integers(1, 100)), max_size=20
    ),
    st.lists(st.integers(0, 20), max_size=5),
)
def test_bytes_are_those_of_what_waits(writes: list[tuple[Level, int]], commits: list[int]) -> None:
    waiting = Proposals()
    sizes: dict[int, int] = {}
    for offset, (level, size) in enumerate(writes):
        waiting.add(Proposal(offset, Offset(offset), Offset(offset), ONE, level, size))
        sizes[offset] = size
    for committed in sorted(commits):
        for done in waiting.resolve_as_leader(ONE, Offset(committed), Offset(committed)):
            del sizes[done.token]
        assert waiting.bytes == sum(sizes.values())
        assert len(waiting) == len(sizes)
        assert all(token > committed for token in sizes)
    assert {refused.token for refused in waiting.drop_all()} == sizes.keys()
    assert waiting.bytes == 0
