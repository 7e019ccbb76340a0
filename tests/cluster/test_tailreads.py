"""Reads at the end of logs: what is kept, for whom, and for how long."""

from dataclasses import astuple

from tidelog.cluster import tailreads
from tidelog.cluster.tailreads import Chunk, Place, TailReads
from tidelog.raft.types import GroupId


def place(
    offset: int = 0, *, group: int = 1, limit: int = 9, cuts: int = 0, maps: int = 0
) -> Place:
    return Place(GroupId(group), offset, limit, cuts, maps)


def chunk(*parts: bytes) -> Chunk:
    return Chunk(list(parts), sum(map(len, parts)), 9)


def test_the_next_reader_gets_the_same_bytes_in_one_piece() -> None:
    reads = TailReads()
    first = chunk(b"ab", b"cd", b"e")
    reads.put(place(), first)
    again = reads.get(place())
    assert again is not None
    assert astuple(again) == ([b"abcde"], 5, 9)
    assert reads.get(place()) is again
    assert first.parts == [b"ab", b"cd", b"e"]  # it may be on its way to the first reader


def test_whoever_reads_elsewhere_or_after_a_change_gets_nothing() -> None:
    reads = TailReads()
    reads.put(place(), chunk(b"a"))
    for other in (place(1), place(group=2), place(limit=10), place(cuts=1), place(maps=1)):
        assert reads.get(other) is None, other


def test_the_oldest_reads_go_when_bytes_are_short() -> None:
    reads = TailReads(most=10)
    for offset in range(6):
        reads.put(place(offset), chunk(b"abc"))
    assert [offset for offset in range(6) if reads.get(place(offset))] == [3, 4, 5]
    reads.put(place(6), chunk(b"x" * 11))  # larger than everything: not worth the others
    assert [offset for offset in range(7) if reads.get(place(offset))] == [3, 4, 5]
    reads.put(place(7), chunk(b"x" * 10))
    assert [offset for offset in range(8) if reads.get(place(offset))] == [7]


def test_the_number_of_reads_is_bounded_too() -> None:
    reads = TailReads()
    for offset in range(tailreads.MAX_READS + 10):
        reads.put(place(offset), chunk())
    assert len(reads) == tailreads.MAX_READS
    assert reads.get(place(9)) is None
    assert reads.get(place(10)) is not None
