"""Flushing: what is credited, when, and what a failure means."""

import random
import threading

import pytest
from tests.storage.batches import batch, flush, open_log
from tests.storage.faultdisk import FaultDisk

from tidelog.records import Offset
from tidelog.storage import LocalError, Log, LogConfig, RealDisk, StorageError


def test_append_moves_dirty_and_flush_moves_flushed() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0, 4)])
    assert (log.dirty, log.flushed) == (4, -1)
    assert flush(log) == 4
    assert (log.dirty, log.flushed) == (4, 4)
    assert log.prepare_flush() is None


def test_one_flush_covers_many_appends_and_many_segments() -> None:
    disk = FaultDisk()
    log = open_log(disk, LogConfig(segment_bytes=200))
    for offset in range(20):
        log.append([batch(offset)])
    assert flush(log) == 19
    for outcome in disk.outcomes(random.Random(1), 50):
        assert open_log(outcome).dirty == 19


def test_what_is_appended_while_a_flush_runs_is_not_credited() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0)])
    job = log.prepare_flush()
    assert job is not None
    log.append([batch(1)])
    job.run()
    assert log.finish_flush(job) == 0
    assert flush(log) == 1


def test_a_flush_is_not_credited_across_a_truncation() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0), batch(1), batch(2)])
    job = log.prepare_flush()
    assert job is not None
    job.run()
    log.truncate_suffix(Offset(1))
    log.append([batch(1, term=2), batch(2, term=2)])
    assert log.finish_flush(job) == -1
    assert (log.flushed, log.truncations) == (-1, 1)
    assert flush(log) == 2


def test_two_flushes_may_finish_in_any_order() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0)])
    first = log.prepare_flush()
    log.append([batch(1)])
    second = log.prepare_flush()
    assert first is not None
    assert second is not None
    second.run()
    first.run()
    assert log.finish_flush(second) == 1
    assert log.finish_flush(first) == 1


def test_a_flush_that_has_not_run_is_not_credited() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0)])
    job = log.prepare_flush()
    assert job is not None
    with pytest.raises(LocalError, match="has not run"):
        log.finish_flush(job)
    assert log.flushed == -1


def test_after_a_failed_sync_nothing_is_appended_or_flushed_until_the_log_is_opened_again() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0)])
    flush(log)
    log.append([batch(1)])
    job = log.prepare_flush()
    assert job is not None
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="the sync failed") as caught:
        job.run()
    log.poison(caught.value)
    assert log.finish_flush(job) == 0
    for refused in (lambda: log.append([batch(2)]), log.prepare_flush, log.roll):
        with pytest.raises(StorageError, match="takes nothing since a sync failed"):
            refused()
    assert len(log.read(Offset(0), 1000)) == 2
    again = open_log(disk.killed())
    assert (again.dirty, again.flushed) == (1, 1)


def test_what_the_page_cache_shows_after_a_failed_sync_is_written_again() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0), batch(1)])
    job = log.prepare_flush()
    assert job is not None
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="the sync failed") as caught:
        job.run()
    log.poison(caught.value)
    # Only the process is replaced: the next one reads the page cache, which is ahead of the disk.
    log = open_log(disk.killed())
    assert log.flushed == 1
    for outcome in disk.outcomes(random.Random(1), 100):
        assert open_log(outcome).dirty == 1


def test_a_failed_sync_at_open_is_remembered() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0)])
    disk.killed()
    disk.failing_syncs = 2  # of the directory, then of the file
    for _ in range(2):
        with pytest.raises(StorageError, match="Mend the disk"):
            open_log(disk)
    assert open_log(disk).flushed == 0
    for outcome in disk.outcomes(random.Random(1), 100):
        assert open_log(outcome).dirty == 0


def test_a_flush_runs_on_another_thread_while_the_log_rolls_and_appends(tmp_path: object) -> None:
    log = Log.open(RealDisk(str(tmp_path)), "log", LogConfig(segment_bytes=500, open_segments=1))
    offset = 0
    for _ in range(40):
        log.append([batch(offset)])
        job = log.prepare_flush()
        assert job is not None
        thread = threading.Thread(target=job.run)
        thread.start()
        for _ in range(8):  # several segments, so that the flushed file leaves the pool meanwhile
            offset += 1
            log.append([batch(offset)])
            log.read(Offset(0), 1)
        thread.join()
        assert log.finish_flush(job) == job.upto
        offset += 1
    log.close()


def test_a_flush_survives_the_removal_of_its_files() -> None:
    log = open_log(FaultDisk(), LogConfig(segment_bytes=200))
    for offset in range(10):
        log.append([batch(offset)])
    job = log.prepare_flush()
    assert job is not None
    log.truncate_prefix(Offset(8), log.last_term)
    job.run()
    assert log.finish_flush(job) == 9


def test_closing_flushes() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0, 9)])
    log.close()
    assert disk.open_files == 0
    for outcome in disk.outcomes(random.Random(1), 50):
        reads = outcome.reads
        again = open_log(outcome)
        assert (again.dirty, again.flushed) == (9, 9)
        # State, mark, index, and the one batch that shows whose index it is.
        assert outcome.reads - reads <= 4
