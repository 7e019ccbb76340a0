"""The flush mark: what it says after a crash, and how many files it holds open for that."""

import random

import pytest
from tests.storage.faultdisk import FaultDisk

from tidelog.records import NO_OFFSET, Offset
from tidelog.storage.flushmark import MARK_NAME, FlushMark, OpenMarks


def mark(disk: FaultDisk, files: OpenMarks, name: str = "log") -> FlushMark:
    disk.make_directory(name)
    return FlushMark(disk, name, files)


def found(disk: FaultDisk, name: str = "log") -> Offset:
    """What a restart reads."""
    again = FlushMark(disk, name, OpenMarks())
    again.load()
    return again.offset


def after_power_cuts(disk: FaultDisk) -> set[Offset]:
    """What a restart may read if power is lost now."""
    return {found(each) for each in disk.outcomes(random.Random(1), 50)}


def test_a_mark_that_is_put_often_opens_its_file_once() -> None:
    disk, files = FaultDisk(), OpenMarks()
    busy = mark(disk, files)
    for offset in range(1000):
        busy.put(Offset(offset))
        assert disk.open_files == len(files) == 1
    assert found(disk) == 999
    busy.close()
    assert disk.open_files == len(files) == 0


def test_many_marks_hold_a_bounded_number_of_files() -> None:
    disk, files = FaultDisk(), OpenMarks(3)
    marks = [mark(disk, files, f"log-{number}") for number in range(10)]
    for offset in range(50):
        for each in marks[: 10 - offset % 5]:
            each.put(Offset(offset))
    assert len(files) == disk.open_files == 3
    assert [found(disk, f"log-{number}") for number in range(6)] == [49] * 6
    for each in marks:
        each.close()
    assert disk.open_files == 0


def test_marks_of_one_name_on_two_disks_do_not_share_a_file() -> None:
    files = OpenMarks()
    disks = FaultDisk(), FaultDisk()
    first, second = (mark(disk, files) for disk in disks)
    first.put(Offset(7))
    second.put(Offset(9))
    first.put(Offset(8))
    assert [found(disk) for disk in disks] == [8, 9]


def test_a_mark_is_lowered_to_what_stays_and_can_be_raised_again() -> None:
    disk, files = FaultDisk(), OpenMarks()
    lowered = mark(disk, files)
    lowered.create()
    disk.sync_directory("log")
    lowered.put(Offset(7))
    lowered.lower(Offset(3))
    assert after_power_cuts(disk) == {3}, "durably, or damage looks like a tear"
    lowered.put(Offset(5))
    assert found(disk) == 5
    lowered.lower(NO_OFFSET)
    assert found(disk) == NO_OFFSET


def test_no_loss_of_power_takes_back_a_mark_that_is_on_the_disk() -> None:
    disk, files = FaultDisk(), OpenMarks()
    marked = mark(disk, files)
    marked.create()
    disk.sync_directory("log")
    for offset in range(1, 1_000):  # the ring is full several times
        marked.put(Offset(offset))
        if offset % 100 == 0:
            marked.close()
            marked = FlushMark(disk, "log", files)
            marked.load()
        assert min(after_power_cuts(disk)) >= offset - 1 or offset == 1
        disk.open(f"log/{MARK_NAME}").sync()
        assert found(disk) == offset


def test_an_entry_that_rotted_hides_no_other() -> None:
    disk, files = FaultDisk(), OpenMarks()
    marked = mark(disk, files)
    for offset in range(1, 10):
        marked.put(Offset(offset))
    content = bytearray(disk.content(f"log/{MARK_NAME}"))
    content[20] ^= 1
    disk.overwrite(f"log/{MARK_NAME}", bytes(content))
    assert found(disk) == 9


def test_a_flush_that_ends_after_the_log_was_closed_leaves_no_file_open() -> None:
    disk, files = FaultDisk(), OpenMarks()
    late = mark(disk, files)
    late.put(Offset(1))
    late.close()
    late.put(Offset(2))
    assert found(disk) == 2
    assert disk.open_files == len(files) == 0


def test_after_a_write_that_failed_the_file_is_opened_anew() -> None:
    disk, files = FaultDisk(), OpenMarks()
    unlucky = mark(disk, files)
    unlucky.put(Offset(1))
    disk.room = 3
    with pytest.raises(OSError, match="full"):
        unlucky.put(Offset(2))
    assert disk.open_files == 0
    disk.room = None
    unlucky.put(Offset(3))
    assert found(disk) == 3
    unlucky.put(Offset(4))
    assert len(disk.content(f"log/{MARK_NAME}")) == 24, "no half an entry stays"
