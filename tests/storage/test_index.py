"""The sparse index: lookups, cuts, and a stored form that is right or refused."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.batches import batch, configuration

from tidelog.records import NO_TIMESTAMP, Batch, Offset
from tidelog.storage.index import SparseIndex

LAYOUT = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 99), st.integers(1, 300)), max_size=40
)


def layout(shape: list[tuple[int, int, int]]) -> list[tuple[int, Batch]]:
    """Return batches with their positions: (offsets, time, bytes of value) each."""
    placed = []
    offset = position = 0
    for count, time, size in shape:
        each = batch(offset, offset + count - 1, time=time, size=size)
        placed.append((position, each))
        offset += count
        position += each.size
    return placed


def indexed(placed: list[tuple[int, Batch]], interval: int) -> SparseIndex:
    index = SparseIndex(interval)
    for position, each in placed:
        index.note(each, position)
    return index


@given(LAYOUT, st.integers(1, 2000))
def test_a_lookup_lands_at_or_before_the_batch_and_less_than_an_interval_away(
    shape: list[tuple[int, int, int]], interval: int
) -> None:
    placed = layout(shape)
    index = indexed(placed, interval)
    for position, each in placed:
        for offset in range(each.base_offset, each.last_offset + 1):
            base, found = index.position_for(Offset(offset))
            assert found <= position < found + interval
            assert (found, base) in {(at, one.base_offset) for at, one in placed}


@given(LAYOUT, st.integers(1, 2000), st.integers(0, 110))
def test_no_batch_before_the_position_for_a_time_reaches_it(
    shape: list[tuple[int, int, int]], interval: int, time: int
) -> None:
    placed = layout(shape)
    found = indexed(placed, interval).position_for_time(time)
    assert all(each.max_timestamp < time for position, each in placed if position < found)


@given(LAYOUT, st.integers(1, 500), st.randoms(use_true_random=False))
def test_a_cut_index_is_the_index_of_what_is_left(
    shape: list[tuple[int, int, int]], interval: int, rng: random.Random
) -> None:
    placed = layout(shape)
    keep = rng.randint(0, len(placed))
    end = placed[keep][0] if keep < len(placed) else sum(each.size for _, each in placed)
    index = indexed(placed, interval)
    again = index.cut(end)
    for position, each in placed[:keep]:
        if position >= again:
            index.note(each, position)
    expected = indexed(placed[:keep], interval)
    assert index.encode(1, Offset(0), Offset(1)) == expected.encode(1, Offset(0), Offset(1))


@given(LAYOUT, st.integers(1, 500))
def test_the_stored_form_is_read_back(shape: list[tuple[int, int, int]], interval: int) -> None:
    index = indexed(layout(shape), interval)
    data = index.encode(5, Offset(7), Offset(9))
    found = SparseIndex.decode(data, 5, Offset(7), Offset(9))
    assert found is not None
    assert found.encode(5, Offset(7), Offset(9)) == data
    assert found.max_time == index.max_time


def test_a_stored_form_that_is_torn_changed_or_of_another_segment_is_refused() -> None:
    data = indexed(layout([(1, 5, 10)] * 20), 100).encode(5, Offset(7), Offset(9))
    for end in range(len(data)):
        assert SparseIndex.decode(data[:end], 5, Offset(7), Offset(9)) is None
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        assert SparseIndex.decode(bytes(changed), 5, Offset(7), Offset(9)) is None
    for size, base, last in ((6, 7, 9), (5, 8, 9), (5, 7, 10)):
        assert SparseIndex.decode(data, size, Offset(base), Offset(last)) is None


@pytest.mark.parametrize("count", [0, 3])
def test_batches_of_ours_have_no_time(count: int) -> None:
    index = SparseIndex(100)
    for number in range(count):
        index.note(configuration(number), number)
    assert index.max_time == NO_TIMESTAMP
