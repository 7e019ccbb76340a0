"""The flush mark: what it says after a crash, and how many files it holds open for that."""

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


def test_a_mark_that_was_lowered_is_gone_and_can_be_put_again() -> None:
    disk, files = FaultDisk(), OpenMarks()
    lowered = mark(disk, files)
    lowered.put(Offset(7))
    lowered.lower(Offset(3))
    assert found(disk) == NO_OFFSET
    lowered.put(Offset(5))
    assert found(disk) == 5


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
    assert disk.content(f"log/{MARK_NAME}")[:8] == (3).to_bytes(8, "big")
