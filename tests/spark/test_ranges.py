"""Offsets are cut into tasks and batches without a hole and without a double."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client import TopicPartition
from tidelog.spark.ranges import Slice, from_json, limit_rows, pack, share, slices, split, to_json

PARTITION = TopicPartition("t", 0)
backlogs = st.lists(st.integers(0, 1000), min_size=1, max_size=8)
limits = st.one_of(st.none(), st.integers(1, 50))


def positions(offsets: list[int]) -> dict[TopicPartition, int]:
    return {TopicPartition("t", index): offset for index, offset in enumerate(offsets)}


def test_offsets_look_in_a_checkpoint_as_those_of_sparks_own_source() -> None:
    offsets = {TopicPartition("b", 1): 5, TopicPartition("a", 10): 7, TopicPartition("b", 0): 0}
    assert to_json(offsets) == {"a": {"10": 7}, "b": {"0": 0, "1": 5}}
    assert from_json(to_json(offsets)) == offsets


def test_empty_partitions_are_no_work() -> None:
    found = slices(positions([3, 5, 9]), positions([3, 8]))
    assert found == [Slice(TopicPartition("t", 1), 5, 8)]


@given(backlogs, limits, limits)
def test_cutting_loses_and_doubles_nothing(
    sizes: list[int], at_least: int | None, at_most: int | None
) -> None:
    whole = slices(positions([7] * len(sizes)), positions([7 + size for size in sizes]))
    parts = split(whole, at_least, at_most)
    for each in whole:
        own = [part for part in parts if part.partition == each.partition]
        covered = [offset for part in own for offset in range(part.start, part.end)]
        assert covered == list(range(each.start, each.end))
    assert all(part.size > 0 for part in parts)
    if at_most is not None:
        assert all(part.size <= at_most for part in parts)


def test_small_slices_share_a_task_and_large_ones_have_one_each() -> None:
    whole = slices(positions([0] * 5), positions([400, 600, 1, 5000, 10]))
    packed = pack(whole, 1000)
    assert [[each.size for each in task] for task in packed] == [[400, 600], [1], [5000], [10]]
    assert [each for task in packed for each in task] == whole


def test_about_as_many_tasks_as_were_asked_for_by_size() -> None:
    whole = slices(positions([0, 0]), positions([900, 100]))
    parts = split(whole, 10, None)
    assert [part.partition.index for part in parts] == [0] * 9 + [1]


@given(backlogs, st.integers(0, 3000))
def test_a_limit_takes_the_first_offsets(sizes: list[int], rows: int) -> None:
    whole = slices(positions([0] * len(sizes)), positions(sizes))
    assert sum(part.size for part in limit_rows(whole, rows)) == min(rows, sum(sizes))


@given(backlogs, st.integers(1, 2000))
def test_a_batch_is_shared_by_backlog_and_always_goes_on(sizes: list[int], limit: int) -> None:
    start = positions([5] * len(sizes))
    end = positions([5 + size for size in sizes])
    found = share(start, end, limit)
    taken = sum(found.values()) - sum(start.values())
    assert all(start[p] <= found[p] <= end[p] for p in end)
    # Rounding a small part up may take one more for each partition, and never nothing.
    assert taken <= max(limit, 0) + len(sizes)
    assert taken > 0 or sum(sizes) == 0
    if sum(sizes) <= limit:
        assert found == end
