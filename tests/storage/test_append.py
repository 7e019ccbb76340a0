"""Appending: what is refused, where segments begin, and all or nothing."""

import errno

import pytest
from tests.storage.batches import NOON, batch, configuration, flush, gap, open_log, read_all, spans
from tests.storage.faultdisk import FaultDisk

from tidelog.records import Batch, Offset
from tidelog.storage import BatchCache, LocalError, Log, LogConfig, StorageError


def names(disk: FaultDisk) -> list[str]:
    found = [name for name in disk.list("log") if name.endswith(".log")]
    return sorted(found, key=lambda name: int(name.split("-")[0]))


def test_an_empty_log_has_nothing_before_its_start() -> None:
    log = open_log(FaultDisk())
    assert (log.start, log.dirty, log.flushed, log.last_term) == (0, -1, -1, 0)
    assert log.read(Offset(0), 100) == []
    assert log.prepare_flush() is None
    assert log.draw() == "empty"


def test_appended_batches_read_back_as_the_bytes_they_were() -> None:
    log = open_log(FaultDisk())
    batches = [batch(0, 3), batch(4), batch(5, 6, term=2)]
    assert log.append(batches) == 6
    assert [bytes(each.data) for each in read_all(log)] == [bytes(each.data) for each in batches]
    assert (log.dirty, log.flushed, log.last_term) == (6, -1, 2)


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ([], "no batches"),
        ([batch(3)], "does not follow offset 1"),
        ([batch(1)], "does not follow offset 1"),
        ([batch(2, term=2), batch(4, term=2)], "does not follow offset 2"),
        ([batch(2, term=1)], "does not follow term 2"),
        ([batch(2, term=3), batch(3, term=2)], "does not follow term 3"),
        ([batch(2, term=2), gap(3, 9, 2)], "comes last"),
        ([gap(2, 3, 2), batch(4, term=3)], "follows a ghost of term 2"),
        ([gap(2, 3, 2), gap(4, 5, 3), batch(6, term=3)], "two terms"),
    ],
)
def test_what_does_not_continue_the_log_is_refused(batches: list[Batch], reason: str) -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0), batch(1, term=2)])
    before = (log.draw(), names(disk))
    with pytest.raises(LocalError, match=reason):
        log.append(batches)
    assert (log.draw(), names(disk), log.dirty) == (*before, 1)


def test_batches_without_a_term_are_refused() -> None:
    with pytest.raises(LocalError, match="does not follow term 0"):
        open_log(FaultDisk()).append([batch(0, term=0)])


def test_a_segment_has_one_term_and_is_named_by_it() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0, 4), batch(5, 6, term=3), batch(7, 8, term=3)])
    log.append([batch(9, term=4)])
    assert names(disk) == ["0-1-v1.log", "5-3-v1.log", "9-4-v1.log"]


def test_a_full_segment_is_followed_by_another() -> None:
    disk = FaultDisk()
    size = batch(0, size=100).size
    log = open_log(disk, LogConfig(segment_bytes=3 * size))
    log.append([batch(offset, size=100) for offset in range(7)])
    assert names(disk) == ["0-1-v1.log", "3-1-v1.log", "6-1-v1.log"]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    disk = FaultDisk()
    log = open_log(disk, LogConfig(segment_bytes=200))
    log.append([batch(0), batch(1, size=5000), batch(2)])
    assert names(disk) == ["0-1-v1.log", "1-1-v1.log", "2-1-v1.log"]
    assert spans(read_all(log)) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]


def test_an_old_segment_is_followed_by_another() -> None:
    disk = FaultDisk()
    now = NOON
    log = Log.open(disk, "log", LogConfig(segment_ms=1000), clock=lambda: now)
    log.append([batch(0)])
    now += 999
    log.append([batch(1)])
    now += 1
    log.append([batch(2)])
    assert names(disk) == ["0-1-v1.log", "2-1-v1.log"]


def test_every_configuration_opens_a_segment() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([configuration(0), batch(1), configuration(2), configuration(3), batch(4)])
    log.append([configuration(5)])
    assert names(disk) == ["0-1-v1.log", "2-1-v1.log", "3-1-v1.log", "5-1-v1.log"]


def test_a_ghost_is_never_stored_and_the_segment_begins_with_the_gap() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([gap(0, 9), batch(10), gap(11, 12), batch(13), gap(14, 20, 2), configuration(21, 2)])
    assert names(disk) == ["0-1-v1.log", "14-2-v1.log"]
    stored = sum(len(disk.content(f"log/{name}")) for name in names(disk))
    assert stored == batch(10).size + batch(13).size + configuration(21).size
    assert (
        log.draw() == "t1 <--gap 0..9-->[10,10]<--gap 11..12-->[13,13] t2 <--gap 14..20-->[21,21]"
    )
    assert [log.term_of(Offset(offset)) for offset in (0, 9, 13, 14, 20, 21)] == [1, 1, 1, 2, 2, 2]


def test_two_ghosts_in_a_row_are_one_gap() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0), gap(1, 5), gap(6, 9), batch(10)])
    assert log.draw() == "t1 [0,0]<--gap 1..9-->[10,10]"


def test_rolling_twice_makes_no_empty_segment() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.roll()
    log.append([batch(0)])
    log.roll()
    log.roll()
    log.append([batch(1)])
    assert names(disk) == ["0-1-v1.log", "1-1-v1.log"]
    log.check_invariants()


@pytest.mark.parametrize("room", range(0, 700, 23))
def test_a_full_disk_leaves_the_log_as_it_was(room: int) -> None:
    disk = FaultDisk()
    cache = BatchCache()
    log = open_log(disk, LogConfig(segment_bytes=300), cache=cache)
    log.append([batch(0), batch(1)])
    before = (log.draw(), names(disk), log.dirty, cache.size)
    more = [batch(2, size=150), batch(3, size=150), batch(4, size=150, term=2)]
    disk.room = room
    if room < sum(each.size for each in more):
        with pytest.raises(StorageError, match="append to log failed") as caught:
            log.append(more)
        assert caught.value.errno == errno.ENOSPC
        assert (log.draw(), names(disk), log.dirty, cache.size) == before
    disk.room = None
    if log.dirty == 1:
        log.append(more)
    assert (log.dirty, flush(log)) == (4, 4)
    log.check_invariants()
    assert open_log(disk.killed()).draw() == log.draw()


def test_an_append_that_cannot_be_undone_poisons_the_log() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0)])
    disk.room = 10
    disk.refuse_truncate = ".log"
    with pytest.raises(StorageError, match="append to log failed"):
        log.append([batch(1)])
    disk.room = None
    disk.refuse_truncate = ()
    with pytest.raises(StorageError, match="Open it again"):
        log.append([batch(1)])
    log = open_log(disk.killed())
    assert log.draw() == "t1 [0,0]"
    log.append([batch(1)])


def test_a_closed_log_takes_nothing() -> None:
    log = open_log(FaultDisk())
    log.append([batch(0)])
    log.close()
    log.close()
    with pytest.raises(LocalError, match="is closed"):
        log.append([batch(1)])


def test_a_log_closes_on_a_full_disk_and_opens_as_it_was() -> None:
    """What cannot be noted there makes the next start slower; it poisons nothing."""
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0), batch(1)])
    flush(log)
    before = log.draw()
    disk.room = 0
    log.close()
    assert not disk.exists("log/log.poisoned")
    assert open_log(disk.killed()).draw() == before
