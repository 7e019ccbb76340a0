"""Reading: limits, gaps, terms, times, configurations; from the cache and from the disk."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.batches import (
    NOON,
    batch,
    compact,
    configuration,
    flush,
    gap,
    internal,
    open_log,
    read_all,
    spans,
)
from tests.storage.faultdisk import FaultDisk

from tidelog.records import BatchType, Codec, Offset, Term, transaction_marker
from tidelog.records import MarkerType as Marker
from tidelog.storage import BatchCache, LocalError, Log, LogConfig

SMALL = LogConfig(segment_bytes=600, index_interval=150, open_segments=2)


def filled(count: int = 30, config: LogConfig = SMALL, cache: BatchCache | None = None) -> Log:
    """Return a log of batches of three offsets, two terms."""
    log = open_log(FaultDisk(), config, cache=cache)
    log.append([batch(3 * n, 3 * n + 2, term=1 + 2 * n // count) for n in range(count)])
    return log


@pytest.mark.parametrize("cache", [None, BatchCache(900), BatchCache()])
@pytest.mark.parametrize("max_bytes", [1, 300, 1000, 100_000])
def test_a_read_from_any_offset_begins_with_the_batch_that_holds_it(
    cache: BatchCache | None, max_bytes: int
) -> None:
    log = filled(cache=cache)
    for start in range(90):
        found = log.read(Offset(start), max_bytes)
        assert found[0].base_offset <= start <= found[0].last_offset
        assert sum(each.size for each in found) <= max_bytes or len(found) == 1
        bases = [each.base_offset for each in found]
        assert bases == list(range(bases[0], bases[0] + 3 * len(bases), 3))
        size = found[0].size
        assert len(found) >= min(max(max_bytes // size - 1, 1), 30 - start // 3)
    assert log.read(Offset(90), max_bytes) == []


@pytest.mark.parametrize("cache", [None, BatchCache()])
def test_no_batch_past_the_bound_is_returned(cache: BatchCache | None) -> None:
    log = filled(cache=cache)
    for start in range(0, 90, 7):
        for upto in range(start - 1, 92):
            found = log.read(Offset(start), 100_000, upto=Offset(upto))
            last = found[-1].last_offset if found else 3 * (start // 3) - 1
            assert last == max(3 * ((min(upto, 89) + 1) // 3) - 1, 3 * (start // 3) - 1)


def test_a_batch_larger_than_the_limit_and_the_chunk_is_read_whole() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0), batch(1, size=3_000_000), batch(2)])
    assert spans(log.read(Offset(1), 1)) == [(1, 1, 1)]
    assert spans(log.read(Offset(0), 500)) == [(0, 0, 1)]
    assert spans(log.read(Offset(2), 1)) == [(2, 2, 1)]


def test_a_sequential_reader_reads_each_byte_about_once() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(offset, size=1000) for offset in range(200)])
    position, reads = Offset(0), disk.reads
    while found := log.read(position, 20_000):
        position = Offset(found[-1].last_offset + 1)
    assert disk.reads - reads <= 200_000 // 20_000 + 3


def test_tail_reads_touch_no_disk() -> None:
    disk = FaultDisk()
    log = open_log(disk, SMALL, cache=BatchCache())
    log.append([batch(offset) for offset in range(50)])
    before = disk.reads
    for offset in range(50):
        assert log.read(Offset(offset), 1)[0].base_offset == offset
    assert disk.reads == before


def test_the_cache_hands_out_the_very_batches_that_were_appended() -> None:
    log = open_log(FaultDisk(), cache=BatchCache())
    appended = [batch(0), batch(1)]
    log.append(appended)
    found = log.read(Offset(0), 1000)
    assert all(one is other for one, other in zip(appended, found, strict=True))


def test_reading_below_the_start_is_an_error_of_the_caller() -> None:
    log = filled()
    log.truncate_prefix(Offset(9), Term(1))
    with pytest.raises(LocalError, match="below 9"):
        log.read(Offset(8), 1)


def with_gaps(rng: random.Random, cache: BatchCache | None = None) -> tuple[Log, dict[int, int]]:
    """Return a compacted log and the term of each offset before compaction."""
    log = open_log(FaultDisk(), LogConfig(segment_bytes=400, index_interval=100), cache=cache)
    offset, term = 0, 1
    for _ in range(rng.randint(5, 40)):
        term += rng.random() < 0.15
        if rng.random() < 0.1:
            log.append([gap(offset, offset + 4, term), batch(offset + 5, term=term)])
        else:
            pairs = [(b"%d" % rng.randrange(4), b"%d" % offset)] * rng.randint(1, 3)
            log.append([batch(offset, term=term, pairs=pairs)])
        offset = log.dirty + 1
    flush(log)
    if rng.random() < 0.5:
        log.roll()
    terms = {each: log.term_of(Offset(each)) or 0 for each in range(offset)}
    compact(log)
    return log, terms


@given(st.randoms(use_true_random=False), st.integers(1, 2000), st.booleans())
def test_filled_reads_are_contiguous_from_every_offset_and_keep_every_term(
    rng: random.Random, max_bytes: int, cached: bool
) -> None:
    log, terms = with_gaps(rng, BatchCache() if cached else None)
    assert {each: log.term_of(Offset(each)) for each in terms} == terms
    for start in range(log.dirty + 1):
        upto = Offset(rng.randint(start, log.dirty))
        found = log.read(Offset(start), max_bytes, upto=upto, fill_gaps=True)
        assert sum(each.size for each in found) <= max_bytes or len(found) <= 2
        if not found:
            assert log.read(Offset(start), max_bytes, upto=upto) == []
            continue
        first = found[0]
        assert first.base_offset == start or (
            not first.is_ghost and first.base_offset < start <= first.last_offset
        )
        assert not found[-1].is_ghost
        assert found[-1].last_offset <= upto
        for before, after in itertools.pairwise(found):
            assert after.base_offset == before.last_offset + 1
            assert not (before.is_ghost and after.is_ghost)
        for each in found:
            for offset in range(max(each.base_offset, start), each.last_offset + 1):
                assert terms[offset] == each.term


def test_a_gap_costs_61_bytes_whatever_its_length() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0), gap(1, 2**40), batch(2**40 + 1)])
    filled_gap = log.read(Offset(1), 1000, fill_gaps=True)[0]
    assert (filled_gap.base_offset, filled_gap.last_offset) == (1, 2**40)
    assert filled_gap.size == 61


def test_the_worked_example_of_seed_2_reads_without_a_hole() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0, 10), batch(11, 20), gap(21, 32, 3), batch(33, 40, term=3)])
    assert log.draw() == "t1 [0,10][11,20] t3 <--gap 21..32-->[33,40]"
    assert spans(log.read(Offset(11), 10_000, fill_gaps=True)) == [
        (11, 20, 1),
        (21, 32, 3),
        (33, 40, 3),
    ]
    follower = open_log(FaultDisk())
    follower.append([batch(0, 10)])
    follower.append(log.read(Offset(11), 10_000, fill_gaps=True))
    assert follower.draw() == log.draw()


def test_terms_are_known_by_offset_and_by_floor() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0, 4), batch(5, 6, term=3), batch(7, 9, term=3), batch(10, term=7)])
    assert [log.term_of(Offset(each)) for each in (-1, 0, 4, 5, 9, 10, 11)] == [
        None, 1, 1, 3, 3, 7, None,
    ]  # fmt: skip
    ends = {term: log.term_end(Term(term)) for term in range(9)}
    assert ends == {
        0: (0, 0),
        1: (1, 5),
        2: (1, 5),
        3: (3, 10),
        4: (3, 10),
        5: (3, 10),
        6: (3, 10),
        7: (7, 11),
        8: (7, 11),
    }
    assert [log.first_of_term_at(Offset(each)) for each in (0, 4, 5, 9, 10)] == [0, 0, 5, 5, 10]
    with pytest.raises(LocalError, match="outside"):
        log.first_of_term_at(Offset(11))


def test_terms_are_known_at_the_edge_of_a_truncated_log() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0, 4), batch(5, 6, term=3), batch(7, 9, term=3)])
    log.truncate_prefix(Offset(7), Term(3))
    assert [log.term_of(Offset(each)) for each in (5, 6, 7)] == [None, 3, 3]
    assert log.first_of_term_at(Offset(9)) == 7
    assert log.first_of_term_at(Offset(6)) == 6
    assert (log.term_end(Term(2)), log.term_end(Term(5))) == ((2, 6), (3, 10))
    log.truncate_prefix(Offset(10), Term(3))
    assert (log.last_term, log.term_of(Offset(9)), log.term_end(Term(4))) == (3, 3, (3, 10))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_time_leads_to_the_first_record_that_is_not_older(codec: Codec) -> None:
    log = open_log(FaultDisk(), LogConfig(segment_bytes=500, index_interval=150))
    times = [100, 300, 200, 900, 400, 950, 1000]
    for number, time in enumerate(times):
        log.append([batch(3 * number, 3 * number + 2, time=time, codec=codec)])
    expected = {
        0: (0, 100),
        102: (2, 102),
        103: (3, 300),
        302: (5, 302),
        303: (9, 900),
        903: (15, 950),
        1002: (20, 1002),
    }
    assert {time: log.offset_at_time(time) for time in expected} == expected
    assert log.offset_at_time(1003) is None


def test_only_what_clients_wrote_has_a_time() -> None:
    log = open_log(FaultDisk())
    marker = transaction_marker(
        Marker.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOON
    )
    log.append([configuration(0), marker.stamp(Offset(1), Term(1)), batch(2, time=5)])
    log.append([internal(BatchType.CHANGELOG, 3)])
    assert log.offset_at_time(1) == (2, 5)
    assert log.offset_at_time(6) is None


def test_a_time_below_the_start_of_the_log_does_not_count() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0, 4, time=100), batch(5, 9, time=100)])
    log.truncate_prefix(Offset(3), Term(1))
    assert log.offset_at_time(100) == (3, 103)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 55))
def test_time_lookup_agrees_with_reading_everything(times: list[int], wanted: int) -> None:
    log = open_log(FaultDisk(), LogConfig(segment_bytes=400, index_interval=90))
    log.append([batch(offset, time=time) for offset, time in enumerate(times)])
    naive = next(((at, time) for at, time in enumerate(times) if time >= wanted), None)
    assert log.offset_at_time(wanted) == naive


def test_the_newest_configuration_is_found_by_walking_back() -> None:
    log = open_log(FaultDisk(), SMALL)
    log.append([configuration(each) if each in {7, 8, 40} else batch(each) for each in range(60)])

    def found(upto: int) -> int | None:
        configuration = log.last_configuration(Offset(upto))
        return None if configuration is None else configuration.base_offset

    expected = {0: None, 6: None, 7: 7, 8: 8, 39: 8, 40: 40, 59: 40, 1000: 40, -1: None}
    assert {upto: found(upto) for upto in expected} == expected
    log.truncate_prefix(Offset(9), Term(1))
    assert (found(39), found(59)) == (None, 40)
    log.truncate_suffix(Offset(40))
    assert found(59) is None


def test_reads_go_on_over_a_segment_that_compaction_replaced() -> None:
    log = open_log(FaultDisk(), LogConfig(segment_bytes=300, index_interval=80))
    for offset in range(40):
        log.append([batch(offset, pairs=[(b"k%d" % (offset % 3), b"v")])])
    log.roll()
    flush(log)
    held = log.read(Offset(0), 1000)
    before = [bytes(each.data) for each in held]
    compact(log)
    assert [bytes(each.data) for each in held] == before
    assert spans(read_all(log))[-3:] == [(37, 37, 1), (38, 38, 1), (39, 39, 1)]
    assert len(read_all(log)) < 40
