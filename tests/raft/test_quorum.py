"""Majorities, against a naive twin that tries every value and every subset."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.raft import quorum
from tidelog.raft.types import NodeId, Vnode
from tidelog.records import NO_OFFSET

NODES = [Vnode(NodeId(number), 0) for number in range(7)]
halves_strategy = st.tuples(
    st.lists(st.sampled_from(NODES), max_size=7, unique=True),
    st.lists(st.sampled_from(NODES), max_size=7, unique=True),
)
marks_strategy = st.fixed_dictionaries({node: st.integers(-1, 9) for node in NODES})


def quorums(half: list[Vnode]) -> list[set[Vnode]]:
    """Every set of voters that is more than half of them, by counting."""
    return [
        set(chosen)
        for size in range(len(half) + 1)
        for chosen in combinations(half, size)
        if 2 * size > len(half)
    ]


@given(halves_strategy, marks_strategy)
def test_an_offset_is_reached_if_some_quorum_of_each_half_reached_it(
    halves: tuple[list[Vnode], list[Vnode]], marks: dict[Vnode, int]
) -> None:
    voiced = [half for half in halves if half]

    def is_reached(offset: int) -> bool:
        return bool(voiced) and all(
            any(all(marks[node] >= offset for node in chosen) for chosen in quorums(half))
            for half in voiced
        )

    best = max((offset for offset in range(-1, 10) if is_reached(offset)), default=NO_OFFSET)
    assert quorum.reached(halves, marks.__getitem__) == best


@given(halves_strategy, st.sets(st.sampled_from(NODES)))
def test_agreement_needs_a_quorum_of_each_half(
    halves: tuple[list[Vnode], list[Vnode]], yes: set[Vnode]
) -> None:
    voiced = [half for half in halves if half]
    expected = bool(voiced) and all(
        any(chosen <= yes for chosen in quorums(half)) for half in voiced
    )
    assert quorum.agreed(halves, yes.__contains__) is expected


@given(st.integers(1, 100))
def test_two_majorities_of_the_same_voters_share_one(voters: int) -> None:
    assert 2 * quorum.majority(voters) > voters
    assert 2 * (quorum.majority(voters) - 1) <= voters, "and no fewer would do"


def test_without_voters_nothing_is_reached_and_nobody_agrees() -> None:
    assert quorum.reached(((), ()), lambda _: 5) == NO_OFFSET
    assert not quorum.agreed(((), ()), lambda _: True)
