"""The simulated disk: what a crash may take, what it never takes, and faults by switch."""

import errno
import random

import pytest

from tidelog.sim.disk import PowerLost, SimDisk
from tidelog.storage.disk import Disk


def disk_of(seed: int, rot: float = 0.0) -> SimDisk:
    disk = SimDisk(random.Random(seed), rot=rot)
    disk.make_directory("a/b")
    return disk


def synced(disk: SimDisk, path: str, data: bytes) -> None:
    disk.open(path, create=True).append([data])
    disk.open(path).sync()
    disk.sync_directory(path.rpartition("/")[0])


def content(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


def test_it_is_a_disk_as_storage_knows_it() -> None:
    disk: Disk = disk_of(0)
    file = disk.open("a/b/x", create=True)
    assert file.append([b"one", memoryview(b"two"), bytearray(b"three")]) == 11
    assert file.read(3, 3) == b"two"
    assert file.read(9, 99) == b"ee"
    file.truncate(4)
    assert file.append([b"!"]) == 1
    assert file.read(0, 99) == b"onet!"
    assert disk.list("a") == ["b"]
    assert disk.list("a/b") == ["x"]
    assert disk.exists("a/b/x")
    assert disk.exists("a/b")
    assert not disk.exists("a/b/y")
    disk.rename("a/b/x", "a/b/y")
    assert disk.list("a/b") == ["y"]
    disk.remove("a/b/y")
    assert disk.list("a/b") == []
    assert file.read(0, 99) == b"onet!", "an open file outlives its name"


@pytest.mark.parametrize("path", ["a/b/none", "none/x"])
def test_what_is_not_there_cannot_be_opened_renamed_or_removed(path: str) -> None:
    disk = disk_of(0)
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    with pytest.raises(FileNotFoundError):
        disk.rename(path, path + "2")
    with pytest.raises(FileNotFoundError):
        disk.remove(path)


def test_a_power_loss_never_changes_what_was_synced() -> None:
    for seed in range(200):
        disk = disk_of(seed, rot=1.0)
        synced(disk, "a/b/x", b"s" * 100)
        file = disk.open("a/b/x")
        for _ in range(5):
            file.append([b"u" * 30])
        disk.crash(power=True)
        assert content(disk, "a/b/x")[:100] == b"s" * 100


def test_a_power_loss_keeps_a_prefix_of_the_unsynced_writes_in_order() -> None:
    kept: set[int] = set()
    for seed in range(200):
        disk = disk_of(seed)
        synced(disk, "a/b/x", b"")
        file = disk.open("a/b/x")
        for number in range(1, 6):
            file.append([bytes([number]) * 10])
        disk.crash(power=True)
        survived = content(disk, "a/b/x")
        expected = b"".join(bytes([number]) * 10 for number in range(1, 6))
        whole = next((n for n in range(51) if survived[:n] != expected[:n]), 51) - 1
        # After the last byte that is right there is at most the rest of one torn write.
        assert len(survived) <= (whole // 10 + 1) * 10
        kept.add(whole)
    assert {0, 50} <= kept, "everything lost and everything kept both happen"
    assert any(number % 10 for number in kept), "some write is torn"


def test_a_torn_write_may_end_in_garbage_zeros_or_nothing() -> None:
    tails: set[str] = set()
    for seed in range(300):
        disk = disk_of(seed)
        synced(disk, "a/b/x", b"")
        disk.open("a/b/x").append([b"w" * 64])
        disk.crash(power=True)
        survived = content(disk, "a/b/x")
        rest = survived.lstrip(b"w")
        if not rest:
            tails.add("whole" if len(survived) == 64 else "short")
        else:
            tails.add("zeros" if set(rest) == {0} else "garbage")
    assert tails == {"whole", "short", "zeros", "garbage"}


def test_bit_rot_blanks_what_was_not_synced() -> None:
    holes = 0
    for seed in range(100):
        disk = disk_of(seed, rot=1.0)
        synced(disk, "a/b/x", b"s" * 50)
        for _ in range(4):
            disk.open("a/b/x").append([b"u" * 100])
        disk.crash(power=True)
        survived = content(disk, "a/b/x")
        holes += b"\0u" in survived
    assert holes > 0


def test_a_truncation_is_durable_only_once_it_is_synced() -> None:
    outcomes: set[bytes] = set()
    for seed in range(100):
        disk = disk_of(seed)
        synced(disk, "a/b/x", b"12345678")
        disk.open("a/b/x").truncate(3)
        disk.crash(power=True)
        outcomes.add(content(disk, "a/b/x"))
    assert outcomes == {b"123", b"12345678"}


def test_a_name_is_durable_only_once_its_directory_is_synced() -> None:
    names: set[tuple[str, ...]] = set()
    for seed in range(200):
        disk = disk_of(seed)
        synced(disk, "a/b/old", b"old")
        disk.open("a/b/new", create=True).sync()
        disk.rename("a/b/old", "a/b/renamed")
        disk.crash(power=True)
        names.add(tuple(disk.list("a/b")))
    assert names == {("old",), ("new", "old"), ("new", "renamed"), ("renamed",)}


def test_a_rename_replaces_atomically() -> None:
    for seed in range(100):
        disk = disk_of(seed)
        synced(disk, "a/b/x", b"old")
        temporary = disk.open("a/b/tmp", create=True)
        temporary.append([b"new"])
        temporary.sync()
        disk.rename("a/b/tmp", "a/b/x")
        disk.crash(power=True)
        assert content(disk, "a/b/x") in (b"old", b"new")


def test_a_killed_process_loses_nothing_and_makes_nothing_durable() -> None:
    disk = disk_of(0)
    synced(disk, "a/b/x", b"synced")
    file = disk.open("a/b/x")
    file.append([b" dirty"])
    disk.crash(power=False)
    assert content(disk, "a/b/x") == b"synced dirty"
    assert disk.durable_bytes("a/b/x") == b"synced"


def test_a_dead_process_cannot_write() -> None:
    disk = disk_of(0)
    file = disk.open("a/b/x", create=True)
    disk.crash(power=False)
    with pytest.raises(AssertionError):
        file.append([b"from the grave"])


def test_a_full_disk_takes_what_fits_and_refuses_the_rest() -> None:
    disk = disk_of(0)
    file = disk.open("a/b/x", create=True)
    disk.room = 5
    with pytest.raises(OSError, match="No space") as caught:
        file.append([b"1234567"])
    assert caught.value.errno == errno.ENOSPC
    assert file.read(0, 99) == b"12345"
    with pytest.raises(OSError, match="No space"):
        disk.open("a/b/y", create=True)
    disk.heal()
    assert file.append([b"67"]) == 2


def test_after_a_failed_sync_a_later_one_may_succeed_and_the_data_still_be_lost() -> None:
    lost = kept = 0
    for seed in range(100):
        disk = disk_of(seed)
        synced(disk, "a/b/x", b"safe")
        file = disk.open("a/b/x")
        file.append([b"doubtful"])
        disk.failing_syncs = 1.0
        with pytest.raises(OSError, match="failed to sync") as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        disk.heal()
        file.append([b"later"])
        file.sync()
        assert content(disk, "a/b/x") == b"safedoubtfullater", "the page cache shows it all"
        disk.crash(power=False)
        if content(disk, "a/b/x") == b"safedoubtfullater":
            kept += 1
        else:
            assert content(disk, "a/b/x") == b"safe" + bytes(8) + b"later"
            lost += 1
    assert lost > 0
    assert kept > 0


def test_power_is_lost_in_the_middle_and_nothing_works_until_the_crash() -> None:
    disk = disk_of(0)
    file = disk.open("a/b/x", create=True)
    disk.lose_power_in(3)
    file.append([b"1"])
    file.append([b"2"])
    with pytest.raises(PowerLost):
        file.append([b"3"])
    for touch in (file.sync, file.size, lambda: disk.list("a/b"), lambda: disk.open("a/b/x")):
        with pytest.raises(PowerLost):
            touch()
    disk.crash(power=False)
    assert content(disk, "a/b/x") == b"12"


def test_the_durable_copy_is_the_disk_after_the_worst_crash_and_leaves_the_disk_alone() -> None:
    disk = disk_of(0)
    synced(disk, "a/b/x", b"synced")
    disk.open("a/b/x").append([b" dirty"])
    disk.open("a/b/y", create=True)
    copy = disk.durable_copy()
    assert copy.list("a/b") == ["x"]
    assert content(copy, "a/b/x") == b"synced"
    copy.open("a/b/x").append([b" elsewhere"])
    assert content(disk, "a/b/x") == b"synced dirty"
    assert disk.durable_bytes("a/b/x") == b"synced"
    assert disk.durable_bytes("a/b/y") is None


def test_a_wiped_disk_is_empty() -> None:
    disk = disk_of(0)
    synced(disk, "a/b/x", b"gone")
    disk.wipe()
    assert disk.list("") == []


def test_one_seed_crashes_in_one_way() -> None:
    def survivors(seed: int) -> bytes:
        disk = disk_of(seed, rot=0.5)
        synced(disk, "a/b/x", b"s")
        for number in range(20):
            disk.open("a/b/x").append([bytes([number]) * number])
        disk.crash(power=True)
        return content(disk, "a/b/x")

    assert survivors(5) == survivors(5)
    assert len({survivors(seed) for seed in range(30)}) > 5
