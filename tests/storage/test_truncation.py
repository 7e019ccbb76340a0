"""Cutting a log at either end, and starting over."""

import random

import pytest
from tests.storage.batches import batch, compact, flush, gap, open_log, read_all, spans
from tests.storage.faultdisk import FaultDisk

from tidelog.records import BatchType, Offset, Term
from tidelog.storage import BatchCache, LocalError, Log, LogConfig, StorageError

SMALL = LogConfig(segment_bytes=300, index_interval=100)


def filled(disk: FaultDisk | None = None, cache: BatchCache | None = None) -> Log:
    """Return a flushed log of ten batches of three offsets in two terms, several segments."""
    log = open_log(disk or FaultDisk(), SMALL, cache=cache)
    log.append([batch(3 * n, 3 * n + 2, term=1 + n // 6) for n in range(10)])
    flush(log)
    return log


@pytest.mark.parametrize("cache", [None, BatchCache()])
@pytest.mark.parametrize("first_removed", range(0, 31, 3))
def test_a_cut_between_batches_keeps_what_is_before(
    first_removed: int, cache: BatchCache | None
) -> None:
    disk = FaultDisk()
    log = filled(disk, cache)
    log.truncate_suffix(Offset(first_removed))
    log.check_invariants()
    assert (log.dirty, log.flushed) == (first_removed - 1, first_removed - 1)
    assert log.truncations == (first_removed < 30)
    assert [each.last_offset for each in read_all(log)] == list(range(2, first_removed, 3))
    log.append([batch(first_removed, first_removed + 4, term=5)])
    assert flush(log) == first_removed + 4
    again = open_log(disk.killed(), SMALL)
    assert again.draw() == log.draw()


def test_a_cut_inside_a_batch_is_refused_and_changes_nothing() -> None:
    log = filled()
    before = log.draw()
    with pytest.raises(LocalError, match="would split"):
        log.truncate_suffix(Offset(10))
    assert (log.draw(), log.dirty, log.truncations) == (before, 29, 0)


def test_a_cut_below_the_start_is_refused() -> None:
    log = filled()
    log.truncate_prefix(Offset(9), Term(1))
    with pytest.raises(LocalError, match="starts at 9"):
        log.truncate_suffix(Offset(8))


def test_a_cut_past_the_end_is_no_cut() -> None:
    log = filled()
    log.truncate_suffix(Offset(30))
    log.truncate_suffix(Offset(99))
    assert (log.dirty, log.truncations) == (29, 0)


@pytest.mark.parametrize("first_removed", range(3, 12))
def test_a_cut_inside_a_gap_leaves_a_placeholder_at_its_end(first_removed: int) -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0, 2), gap(3, 10), batch(11)])
    flush(log)
    log.truncate_suffix(Offset(first_removed))
    log.check_invariants()
    assert (log.dirty, log.flushed) == (first_removed - 1, 2)
    last = read_all(log)[-1]
    if first_removed > 3:
        assert (last.type, last.base_offset) == (BatchType.PLACEHOLDER, first_removed - 1)
        assert flush(log) == first_removed - 1
    log.append([batch(first_removed, term=2)])
    flush(log)
    assert open_log(disk.killed()).draw() == log.draw()


def test_a_cut_inside_the_leading_gap_of_a_segment_keeps_its_term() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0, 2), gap(3, 10, 2), batch(11, term=2)])
    flush(log)
    log.truncate_suffix(Offset(6))
    assert log.draw() == "t1 [0,2] t2 <--gap 3..4-->[5,5]"
    assert (log.dirty, log.flushed, log.last_term) == (5, 2, 2)
    log.check_invariants()


def test_the_recovery_point_falls_before_the_cut() -> None:
    disk = FaultDisk()
    config = LogConfig(segment_bytes=10_000, recovery_bytes=1)
    log = open_log(disk, config)
    log.append([batch(0, 4), batch(5, 9)])
    flush(log)
    log.truncate_suffix(Offset(5))
    for outcome in disk.outcomes(random.Random(0), 1000):
        assert open_log(outcome, config).dirty in {4, 9}


def test_a_checkpoint_fixed_before_a_cut_is_not_saved_after_it() -> None:
    disk = FaultDisk()
    config = LogConfig(recovery_bytes=1)
    log = open_log(disk, config)
    log.append([batch(0, 4), batch(5, 9)])
    job = log.prepare_flush()
    assert job is not None
    assert job.checkpoint
    log.truncate_suffix(Offset(5))
    job.run()
    log.finish_flush(job)
    log.check_invariants()
    assert open_log(disk.killed(), config).dirty == 4


def test_a_full_disk_refuses_to_lower_the_recovery_point_and_the_log_goes_on() -> None:
    disk = FaultDisk()
    log = open_log(disk, LogConfig(recovery_bytes=1))
    log.append([batch(0, 4), batch(5, 9)])
    flush(log)
    disk.room = 0
    with pytest.raises(StorageError, match="could not be cut at offset 5"):
        log.truncate_suffix(Offset(5))
    assert (log.dirty, log.flushed) == (9, 9)
    disk.room = None
    log.truncate_suffix(Offset(5))
    log.append([batch(5, term=2)])
    assert flush(log) == 5


def test_a_cut_that_fails_half_way_poisons_the_log() -> None:
    disk = FaultDisk()
    log = filled(disk)
    disk.refuse_truncate = ".log"
    with pytest.raises(StorageError, match="could not be cut at offset 3"):
        log.truncate_suffix(Offset(3))
    disk.refuse_truncate = ()
    with pytest.raises(StorageError, match="Open it again"):
        log.append([batch(30, term=9)])
    again = open_log(disk.killed(), SMALL)
    assert again.dirty in {2, 5, 8}
    again.verify()


@pytest.mark.parametrize("first_kept", range(31))
def test_the_front_is_cut_at_any_offset(first_kept: int) -> None:
    disk = FaultDisk()
    log = filled(disk)
    term = log.term_of(Offset(first_kept - 1)) or Term(0)
    log.truncate_prefix(Offset(first_kept), term)
    log.check_invariants()
    assert (log.start, log.dirty, log.prefix_term) == (first_kept, 29, term)
    assert log.term_of(Offset(first_kept - 1)) == (term or None)
    assert [each.last_offset for each in read_all(log)] == [
        last for last in range(2, 30, 3) if last >= first_kept
    ]
    again = open_log(disk.killed(), SMALL)
    assert (again.start, again.dirty, again.prefix_term) == (first_kept, 29, term)
    assert again.draw() == log.draw()
    again.append([batch(30, term=3)])
    assert again.last_term == 3


def test_segments_below_the_start_are_removed() -> None:
    disk = FaultDisk()
    log = filled(disk)
    before = len(disk.list("log"))
    log.truncate_prefix(Offset(20), Term(2))
    assert len(disk.list("log")) < before
    log.truncate_prefix(Offset(30), Term(2))
    assert disk.list("log") == ["log.flushed", "log.state"]


def test_the_start_never_falls_and_never_passes_the_end() -> None:
    log = filled()
    log.truncate_prefix(Offset(9), Term(1))
    log.truncate_prefix(Offset(3), Term(1))
    assert log.start == 9
    with pytest.raises(LocalError, match="reset it"):
        log.truncate_prefix(Offset(31), Term(2))
    with pytest.raises(LocalError, match="has term 1, not 2"):
        log.truncate_prefix(Offset(12), Term(2))


def test_a_front_cut_past_what_was_flushed_counts_as_flushed() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0, 4), batch(5, 9)])
    log.truncate_prefix(Offset(5), Term(1))
    assert (log.start, log.flushed) == (5, 4)
    assert flush(log) == 9


def test_a_cut_at_the_start_empties_the_log() -> None:
    log = filled()
    log.truncate_prefix(Offset(10), Term(1))
    log.truncate_suffix(Offset(10))
    assert (log.start, log.dirty, log.flushed, log.draw()) == (10, 9, 9, "empty")
    assert log.last_term == 1
    log.append([batch(10, term=4)])
    log.check_invariants()


@pytest.mark.parametrize("start", [0, 7, 15, 30, 31, 1000])
def test_a_reset_empties_the_log_and_starts_it_anywhere(start: int) -> None:
    disk = FaultDisk()
    log = filled(disk, BatchCache())
    log.append([batch(30, term=2)])
    job = log.prepare_flush()
    assert job is not None
    job.run()
    log.reset(Offset(start), Term(3))
    log.check_invariants()
    assert log.finish_flush(job) == start - 1
    assert (log.start, log.dirty, log.flushed, log.last_term) == (start, start - 1, start - 1, 3)
    assert log.read(Offset(start), 1000) == []
    log.append([batch(start, start + 2, term=4)])
    flush(log)
    again = open_log(disk.killed(), SMALL)
    assert spans(read_all(again)) == [(start, start + 2, 4)]
    assert again.prefix_term == 3


def test_a_reset_to_an_earlier_start_is_possible() -> None:
    log = filled()
    log.truncate_prefix(Offset(20), Term(2))
    log.reset(Offset(5), Term(1))
    assert (log.start, log.dirty) == (5, 4)
    log.append([batch(5)])
    log.check_invariants()


def test_a_cut_inside_a_compacted_segment_survives_a_crash() -> None:
    disk = FaultDisk()
    config = LogConfig(segment_bytes=2000, index_interval=100)
    log = open_log(disk, config)
    log.append([batch(n, pairs=[(b"k%d" % (n % 3), b"%d" % n)]) for n in range(12)])
    log.roll()
    flush(log)
    compact(log)
    assert log.draw() == "t1 <--gap 0..8-->[9,9][10,10][11,11]"
    log.truncate_suffix(Offset(11))
    log.append([batch(11, term=2)])
    for outcome in disk.outcomes(random.Random(5), 500):
        found = open_log(outcome, config)
        found.verify()
        assert found.draw() in {
            "t1 <--gap 0..8-->[9,9][10,10][11,11]",
            "t1 <--gap 0..8-->[9,9][10,10]",
            "t1 <--gap 0..8-->[9,9][10,10] t2 [11,11]",
        }


def test_a_stored_index_goes_with_the_cut() -> None:
    # The segment grows again to the size and end it had, with other batches at other places.
    disk = FaultDisk()
    log = open_log(disk, LogConfig(index_interval=1))
    sizes = (10, 60, 10, 60)
    log.append([batch(n, size=size, time=n) for n, size in enumerate(sizes)])
    log.roll()
    flush(log)
    log.truncate_suffix(Offset(1))
    log.append([batch(n, size=size, time=n) for n, size in ((1, 10), (2, 60), (3, 60))])
    for outcome in disk.outcomes(random.Random(5), 300):
        found = open_log(outcome, LogConfig(index_interval=1))
        found.roll()
        for offset in range(found.dirty + 1):
            assert found.read(Offset(offset), 1)[0].base_offset == offset
            assert found.offset_at_time(offset) == (offset, offset)
