"""Bytes that rot, vanish or cannot be read: never handed out, never written again, always named."""

import contextlib
from collections.abc import Callable

import pytest
from tests.storage.batches import (
    NOON,
    batch,
    compact,
    configuration,
    flush,
    merge,
    open_log,
    read_all,
    records_of,
)
from tests.storage.faultdisk import FaultDisk

from tidelog.records import Batch, Offset, Record, Term, build_batch
from tidelog.records.batch import seal
from tidelog.storage import BatchCache, CheckpointFile, DamagedLog, Log, LogConfig
from tidelog.storage.checkpoint import Checkpoint

SMALL = LogConfig(segment_bytes=700, index_interval=150, recovery_bytes=1)
MERGING = LogConfig(segment_bytes=100_000, index_interval=150, recovery_bytes=1, merge_files=2)
FIRST = "log/0-1-v1.log"
SIZE = batch(0, 1).size  # of every batch that `closed` writes


def closed(disk: FaultDisk, config: LogConfig = SMALL, cache: BatchCache | None = None) -> Log:
    """Return a log of twelve batches of two offsets, flushed, in segments of a few each."""
    log = open_log(disk, config, cache=cache)
    for number in range(12):
        log.append([batch(2 * number, 2 * number + 1)])
    flush(log)
    log.close()
    return open_log(disk, config, cache=cache)


def flip(disk: FaultDisk, position: int, path: str = FIRST, bit: int = 1) -> None:
    content = bytearray(disk.content(path))
    content[position] ^= bit
    disk.overwrite(path, bytes(content))


@pytest.mark.parametrize("bit", [1, 0x80])
def test_no_flipped_bit_of_a_closed_segment_is_ever_read(bit: int) -> None:
    pristine = [bytes(each.data) for each in read_all(closed(FaultDisk()))]
    for position in range(SIZE, 2 * SIZE):  # each byte of the second batch
        disk = FaultDisk()
        log = closed(disk)
        flip(disk, position, bit=bit)
        for start in range(10):
            with contextlib.suppress(DamagedLog):
                found = log.read(Offset(start), 1)
                assert [bytes(each.data) for each in found] == [pristine[start // 2]]
        with pytest.raises(DamagedLog):
            read_all(log)


def test_damage_names_file_position_and_offset() -> None:
    disk = FaultDisk()
    log = closed(disk)
    flip(disk, 3 * SIZE - 1)
    assert log.read(Offset(0), 2 * SIZE)
    with pytest.raises(DamagedLog, match="CRC") as caught:
        log.read(Offset(4), 1)
    damage = caught.value
    assert (damage.path, damage.position, damage.offset) == (FIRST, 2 * SIZE, 4)


def test_whoever_owns_the_log_hears_of_damage_that_others_meet() -> None:
    disk = FaultDisk()
    log = closed(disk)
    heard: list[DamagedLog] = []
    log.on_damage = heard.append
    flip(disk, SIZE - 1)
    for ask in (
        lambda: log.read(Offset(0), 1),
        lambda: log.offset_at_time(NOON),
        log.describe,
        log.verify,
    ):
        before = len(heard)
        with pytest.raises(DamagedLog):
            ask()
        assert len(heard) == before + 1


def test_what_the_cache_holds_was_checked_and_is_not_read_again() -> None:
    disk = FaultDisk()
    log = open_log(disk, SMALL, cache=BatchCache())
    log.append([batch(2 * number, 2 * number + 1) for number in range(5)])
    flip(disk, SIZE + 70)
    assert records_of(read_all(log)).keys() == set(range(10))


def vanish(disk: FaultDisk) -> None:
    disk.delete(FIRST)


def shorten(disk: FaultDisk) -> None:
    disk.overwrite(FIRST, disk.content(FIRST)[:-1])


def spoil(disk: FaultDisk) -> None:
    disk.unreadable.add(FIRST)


@pytest.mark.parametrize("harm", [vanish, shorten, spoil])
def test_a_segment_that_vanishes_shrinks_or_cannot_be_read_is_damage(
    harm: Callable[[FaultDisk], None],
) -> None:
    disk = FaultDisk()
    log = closed(disk)
    harm(disk)
    with pytest.raises(DamagedLog, match=r"0-1-v1\.log"):
        read_all(log)
    assert log.read(Offset(20), 1)


def test_an_index_that_cannot_be_read_is_built_again() -> None:
    disk = FaultDisk()
    log = closed(disk)
    disk.unreadable.add(FIRST.replace(".log", ".index"))
    assert len(read_all(log)) == 12


def test_a_sector_that_cannot_be_read_at_the_end_of_a_log_is_no_torn_append() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0, 1)])
    flush(log)
    disk.killed()
    disk.delete("log/log.flushed")  # as a loss of power may do
    disk.unreadable.add(FIRST)
    with pytest.raises(DamagedLog, match="the disk cannot read it"):
        open_log(disk)


def keyed(base: int, keys: int = 2) -> Batch:
    records = [Record(delta, NOON, b"key%d" % delta, b"value") for delta in range(keys)]
    return build_batch(records, base_offset=Offset(base), term=Term(1))


def compactable(disk: FaultDisk) -> Log:
    """Return a log of four closed segments, all but the last of them to be emptied."""
    log = open_log(disk, MERGING)
    for number in range(4):
        log.append([keyed(4 * number), keyed(4 * number + 2)])
        log.roll()
    log.append([batch(16)])
    flush(log)
    return log


@pytest.mark.parametrize("position", [70, 61 + 20, 30])
def test_compaction_never_gives_rotten_bytes_a_new_checksum(position: int) -> None:
    disk = FaultDisk()
    log = compactable(disk)
    flip(disk, position, "log/12-1-v1.log")
    rotten = disk.content("log/12-1-v1.log")
    job = log.prepare_compaction(log.dirty, now=NOON)
    assert job is not None
    with pytest.raises(DamagedLog, match=r"12-1-v1\.log"):
        job.run()
    assert log.finish_compaction(job).segments == 0
    assert disk.content("log/12-1-v1.log") == rotten
    assert not [name for name in disk.list("log") if name.endswith(".staging")]


def test_a_merge_never_copies_rotten_bytes() -> None:
    disk = FaultDisk()
    log = compactable(disk)
    compact(log)
    path = "log/4-1-v1.log"
    flip(disk, len(disk.content(path)) - 1, path)
    names = disk.list("log")
    with pytest.raises(DamagedLog, match=r"4-1-v1\.log"):
        merge(log)
    assert disk.list("log") == names


def test_records_that_were_written_as_garbage_are_kept_and_are_no_damage() -> None:
    """A right checksum over records that cannot be read: every replica has the same."""
    disk = FaultDisk()
    log = open_log(disk, SMALL)
    data = bytearray(61) + b"\x7f garbage"
    garbage = seal(
        data,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=NOON,
        max_timestamp=NOON,
        count=1,
        base_offset=2,
        term=1,
    )
    log.append([keyed(0), garbage, keyed(3)])
    log.roll()
    log.append([batch(5)])
    flush(log)
    compact(log)
    assert [each.base_offset for each in read_all(log)] == [2, 3, 5]
    assert read_all(log)[0] == garbage
    assert log.offset_at_time(NOON) == (2, NOON)


def test_a_configuration_is_checked_before_it_is_believed() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([configuration(0), batch(1)])
    flush(log)
    flip(disk, 62)
    with pytest.raises(DamagedLog, match="CRC"):
        log.last_configuration(Offset(1))


def test_a_checkpoint_that_the_disk_cannot_read_counts_as_none() -> None:
    disk = FaultDisk()
    disk.make_directory("replica")
    file = CheckpointFile(disk, "replica/checkpoint")
    file.save(Checkpoint(Offset(3), Term(1), b"state", b""))
    assert file.load() is not None
    disk.unreadable.add("replica/checkpoint")
    assert file.load() is None


def test_a_segment_that_takes_the_place_of_another_is_not_taken_for_missing() -> None:
    disk = FaultDisk()
    log = open_log(disk, SMALL)
    log.append([batch(0, 1), batch(2, 3)])
    log.roll()
    log.append([batch(4, 5)])
    before = log.names()
    log.truncate_suffix(Offset(4))
    listed = set(disk.list("log"))
    log.append([batch(4, 5, term=2)])
    assert log.missing(listed, before) is None
    assert log.missing({"4-2-v1.log"}, log.names()) is not None
