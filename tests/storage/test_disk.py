"""The real disk: what it promises, and that it holds few files open."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.storage.batches import batch, flush, open_log, read_all

from tidelog.records import Buffer, Offset, Term
from tidelog.storage import BatchCache, Log, LogConfig, RealDisk, SegmentPool


def test_bytes_are_appended_read_and_cut(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "new" / "root")
    disk.make_directory("a/b")
    file = disk.open("a/b/file", create=True)
    assert file.append([b"hello ", memoryview(b"big "), bytearray(b"world")]) == 15
    assert (file.read(6, 3), file.read(10, 100), file.read(99, 1)) == (b"big", b"world", b"")
    file.truncate(5)
    assert file.append([b"!"]) == 1
    file.sync()
    assert (file.size(), file.read(0, 10)) == (6, b"hello!")
    again = disk.open("a/b/file")
    again.append([b"?"])
    assert (file.size(), again.size()) == (7, 7)
    file.close()
    again.close()


def test_names_are_listed_renamed_and_removed(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.make_directory("d")
    for name in ("b", "a"):
        disk.open(f"d/{name}", create=True).close()
    assert disk.list("d") == ["a", "b"]
    held = disk.open("d/b")
    held.append([b"old"])
    disk.rename("d/a", "d/b")
    assert (disk.list("d"), disk.exists("d/a"), disk.exists("d/b")) == (["b"], False, True)
    assert held.read(0, 3) == b"old"  # the file that was replaced stays readable
    held.close()
    disk.remove("d/b")
    disk.sync_directory("d")
    with pytest.raises(FileNotFoundError):
        disk.open("d/b")


def test_more_buffers_than_one_call_takes_are_all_written(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).open("file", create=True)
    buffers = [b"%d," % number for number in range(5000)]
    assert file.append(buffers) == file.size() == len(b"".join(buffers))
    assert file.read(0, 1 << 20) == b"".join(buffers)
    file.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def short(descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        return whole(descriptor, [b"".join(buffers)[:7]], position)

    file = RealDisk(tmp_path).open("file", create=True)
    monkeypatch.setattr(os, "pwritev", short)
    assert file.append([b"0123", b"456", b"789abc"]) == 13
    assert file.append([b"!"]) == 1
    assert file.read(0, 100) == b"0123456789abc!"
    file.close()


def test_a_short_read_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    file = RealDisk(tmp_path).open("file", create=True)
    file.append([b"0123456789"])
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))
    assert (file.read(1, 8), file.read(5, 100)) == (b"12345678", b"56789")
    file.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ten_thousand_segments_are_opened_with_a_handful_of_files(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    config = LogConfig(segment_bytes=1, open_segments=8)
    log = Log.open(disk, "log", config)
    before = descriptors()
    batches = [batch(offset, size=1, time=offset) for offset in range(10_000)]
    for first in range(0, 10_000, 100):
        log.append(batches[first : first + 100])
        assert descriptors() - before <= 8 + 1  # and one to append to
    assert len(log.describe().segments) == 10_000
    assert descriptors() - before <= 8 + 1
    for offset in range(0, 10_000, 101):
        assert log.read(Offset(offset), 1)[0].base_offset == offset
        assert log.term_of(Offset(offset)) == 1
    assert log.offset_at_time(9_000) == (9_000, 9_000)
    assert descriptors() - before <= 8 + 1
    log.truncate_prefix(Offset(9_900), Term(1))
    assert flush(log) == 9_999
    log.close()
    assert descriptors() <= before  # less, if files of other tests were closed meanwhile
    log = Log.open(disk, "log", config)
    assert (log.start, log.dirty) == (9_900, 9_999)
    assert descriptors() - before <= 1
    log.close()


def test_logs_share_one_pool_of_files(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    pool = SegmentPool(5)
    before = descriptors()
    logs = [Log.open(disk, f"log-{n}", LogConfig(segment_bytes=1), pool=pool) for n in range(4)]
    for log in logs:
        log.append([batch(offset) for offset in range(20)])
    for offset in range(20):
        for log in logs:
            assert log.read(Offset(offset), 1)[0].base_offset == offset
    assert len(pool) == 5
    assert descriptors() - before <= 5 + len(logs)  # and one file each to append to
    for log in logs:
        log.close()
    assert len(pool) == 0
    assert descriptors() <= before


def test_a_real_log_is_read_back_after_a_restart(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    config = LogConfig(segment_bytes=2000, index_interval=300)
    log = open_log(disk, config, cache=BatchCache(500))
    for offset in range(0, 200, 2):
        log.append([batch(offset, offset + 1, term=1 + offset // 50)])
        if offset % 20 == 0:
            flush(log)
    expected = [bytes(each.data) for each in read_all(log)]
    assert [bytes(each.data) for each in read_all(open_log(disk, config))] == expected
    log.close()
