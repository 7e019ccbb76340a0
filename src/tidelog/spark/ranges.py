"""Which offsets a read takes, and how they are cut into tasks and batches. Nothing here does I/O.

Offsets of a stream are kept by Spark in the query's checkpoint as JSON, in the shape that Spark's
own Kafka source uses: {"orders": {"0": 23, "1": 42}}, each the offset of the next record to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tidelog.client import TopicPartition

Positions = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets of one partition, from `start` to before `end`: the work of one task."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets there are; records may be fewer."""
        return self.end - self.start


def to_json(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return positions as Spark keeps them."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(positions):
        found.setdefault(partition.topic, {})[str(partition.index)] = positions[partition]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Positions:
    """Read positions as Spark keeps them."""
    return {
        TopicPartition(topic, int(index)): int(offset)
        for topic, places in offsets.items()
        for index, offset in places.items()
    }


def slices(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Slice]:
    """Return what lies between two positions, partition by partition, without empty ones."""
    return [
        Slice(partition, start[partition], end[partition])
        for partition in sorted(start)
        if start[partition] < end.get(partition, 0)
    ]


def split(whole: Iterable[Slice], at_least: int | None, at_most: int | None) -> list[Slice]:
    """Cut slices into tasks of at most `at_most` offsets, and about `at_least` of them."""
    parts = list(whole)
    if at_most is not None:
        parts = [part for each in parts for part in _cut(each, math.ceil(each.size / at_most))]
    if at_least is not None and len(parts) < at_least:
        total = sum(each.size for each in parts)
        parts = [
            part
            for each in parts
            for part in _cut(each, max(1, round(each.size / total * at_least)))
        ]
    return parts


def _cut(whole: Slice, count: int) -> list[Slice]:
    count = min(count, whole.size)
    edges = [whole.start + whole.size * place // count for place in range(count + 1)]
    return [Slice(whole.partition, low, high) for low, high in pairwise(edges)]


def pack(whole: Iterable[Slice], rows: int) -> list[tuple[Slice, ...]]:
    """Put slices of different partitions together while they have at most `rows` offsets."""
    packed: list[tuple[Slice, ...]] = []
    room = 0
    for each in whole:
        if packed and each.size <= room:
            packed[-1] += (each,)
            room -= each.size
        else:
            packed.append((each,))
            room = rows - each.size
    return packed


def limit_rows(whole: Iterable[Slice], rows: int) -> list[Slice]:
    """Keep the first so many offsets, partition after partition."""
    kept: list[Slice] = []
    for each in whole:
        take = min(each.size, rows)
        if take:
            kept.append(Slice(each.partition, each.start, each.start + take))
            rows -= take
    return kept


def share(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> Positions:
    """Return how far a batch of `limit` offsets goes: each partition by its part of the backlog."""
    backlog = {p: max(0, end[p] - start.get(p, end[p])) for p in end}
    total = sum(backlog.values())
    if total <= limit:
        return dict(end)
    shared: Positions = {}
    for partition, size in backlog.items():
        part = limit * size / total
        # A partition with little to read is not left out for ever.
        step = math.ceil(part) if part < 1 else math.floor(part)
        begin = start.get(partition, end[partition])
        shared[partition] = min(begin + step, end[partition])
    return shared
