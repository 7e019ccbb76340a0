"""Where two logs could still agree: found in a round a term, not in a round a batch."""

from hypothesis import given
from hypothesis import strategies as st
from tests.raft.members import MemoryLog

from tidelog.raft.log import last_not_above, term_at
from tidelog.records import NO_OFFSET, NO_TERM, Offset, Record, Term, build_batch


def log_of(terms: list[int]) -> MemoryLog:
    """A log with one offset for each term given."""
    log = MemoryLog()
    for offset, term in enumerate(terms):
        batch = build_batch([Record(0, 0, b"k", b"v")]).stamp(Offset(offset), Term(term))
        log.append((batch,))
    return log


rising = st.lists(st.integers(1, 5), max_size=25).map(sorted)


@given(rising, st.integers(-1, 30), st.integers(0, 6))
def test_the_last_place_not_above_a_term_is_what_a_scan_finds(
    terms: list[int], at: int, term: int
) -> None:
    at = min(at, len(terms) - 1)
    best = max((o for o in range(at + 1) if terms[o] <= term), default=NO_OFFSET)
    expected = (best, terms[best] if best != NO_OFFSET else NO_TERM)
    assert last_not_above(log_of(terms), Offset(at), Term(term)) == expected


def test_the_place_before_the_first_is_agreed_on_by_everybody() -> None:
    assert term_at(log_of([]), NO_OFFSET) == NO_TERM
    assert term_at(log_of([1]), Offset(0)) == 1
    assert term_at(log_of([1]), Offset(1)) is None


def rounds_to_agree(leader: MemoryLog, follower: MemoryLog) -> tuple[Offset, int]:
    """Probe from the leader's end as leader and follower do; where they agree, and in how many."""
    prev, rounds = leader.dirty, 1
    while True:
        term = term_at(leader, prev)
        assert term is not None
        if prev <= follower.dirty and term_at(follower, prev) == term:
            return prev, rounds
        place = min(prev, follower.dirty)
        hint, hint_term = last_not_above(follower, place, term)
        prev, _ = last_not_above(leader, min(hint, leader.dirty), hint_term)
        rounds += 1


@st.composite
def diverged(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs of one group: a common beginning, then each on its own with terms of its own."""
    common = draw(rising)
    floor = common[-1] if common else 0
    # A term has one leader, so past the common part no term is in both.
    mine = draw(st.lists(st.sampled_from([1, 3, 5, 7]), max_size=20).map(sorted))
    other = draw(st.lists(st.sampled_from([2, 4, 6, 8]), max_size=20).map(sorted))
    return common + [floor + t for t in mine], common + [floor + t for t in other]


@given(diverged())
def test_agreement_is_found_at_the_true_place_in_a_round_a_term(
    logs: tuple[list[int], list[int]],
) -> None:
    leader, follower = logs
    common = 0
    while common < min(len(leader), len(follower)) and leader[common] == follower[common]:
        common += 1
    agreed, rounds = rounds_to_agree(log_of(leader), log_of(follower))
    assert agreed == common - 1
    tails = {*leader[max(common - 1, 0) :]} | {*follower[max(common - 1, 0) :]}
    assert rounds <= len(tails) + 2


def test_a_long_divergent_term_is_one_step() -> None:
    leader = log_of([1] * 10 + [4] * 10)
    follower = log_of([1] * 10 + [2] * 500)
    assert rounds_to_agree(leader, follower) == (9, 2)
