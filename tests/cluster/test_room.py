"""The levels of room, the reserve, and what suits a disk: arithmetic only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tidelog.cluster.reserve import NAME, Reserve
from tidelog.cluster.room import MIB, Level, Room, Sample, Thresholds

TOTAL = 1000 * MIB
LOW, FULL = 100 * MIB, 20 * MIB


def room() -> Room:
    return Room(LOW, FULL)


def look(room: Room, free: int, held: int = 0) -> int:
    return room.look(Sample(free, TOTAL), held)


@pytest.mark.parametrize(
    ("total", "low", "full"),
    [
        (24 * MIB, 3 * MIB, 768 << 10),
        (1 << 30, 128 * MIB, 32 * MIB),
        (2 << 30, 256 * MIB, 64 * MIB),
        (1 << 40, 256 * MIB, 64 * MIB),
    ],
)
def test_a_small_disk_has_small_thresholds(total: int, low: int, full: int) -> None:
    assert Thresholds.of(total) == Thresholds(low, full)


def test_what_is_configured_counts_whatever_the_disk() -> None:
    assert Thresholds.of(24 * MIB, 5, 1) == Thresholds(5, 1)


def test_thresholds_of_0_never_refuse_anything() -> None:
    never = Room(0, 0)
    assert look(never, 0) == 0
    assert never.level is Level.ROOMY


def test_a_disk_that_fills_up_is_low_and_then_full() -> None:
    filling = room()
    seen = []
    for free in range(200 * MIB, -1, -5 * MIB):
        look(filling, free)
        seen.append(filling.level)
    assert seen == sorted(seen)
    assert set(seen) == set(Level)


def test_the_reserve_is_no_room() -> None:
    beside = room()
    look(beside, LOW + FULL)
    assert (beside.room, beside.level) == (LOW, Level.ROOMY)
    look(beside, LOW + FULL - 1)
    assert beside.level is Level.LOW


def test_a_level_is_left_with_a_quarter_more_room_than_it_was_entered() -> None:
    swaying = room()
    for _ in range(3):
        look(swaying, LOW + FULL - 1)
        assert swaying.level is Level.LOW
        look(swaying, LOW + FULL + LOW // 4 - 1)
        assert swaying.level is Level.LOW
    look(swaying, LOW + FULL + LOW // 4)
    assert swaying.level is Level.ROOMY


def test_full_is_left_for_low_first() -> None:
    emptied = room()
    look(emptied, 0)
    assert emptied.level is Level.FULL
    look(emptied, FULL + FULL + FULL // 4 - 1)
    assert emptied.level is Level.FULL
    look(emptied, FULL + FULL + FULL // 4)
    assert emptied.level is Level.LOW


def test_taking_the_reserve_and_letting_go_of_it_changes_no_level() -> None:
    for free in range(0, 400 * MIB, 7 * MIB):
        without, with_it = room(), room()
        look(without, free + FULL)
        look(with_it, free, FULL)
        assert (without.room, without.level) == (with_it.room, with_it.level)


def test_the_reserve_is_held_from_the_time_a_disk_fills_up_until_it_is_all_but_full() -> None:
    filling = room()
    held, steps = 0, []
    for used in range(0, TOTAL, MIB):
        free = TOTAL - used - held
        if free < 0:
            break
        wanted = look(filling, free, held)
        if wanted != held:
            steps.append((wanted, filling.level))
            held = wanted
    assert steps == [(FULL, Level.ROOMY), (0, Level.FULL)]


def test_the_reserve_is_taken_again_once_the_disk_is_no_longer_full() -> None:
    emptied = room()
    look(emptied, FULL)
    assert look(emptied, FULL + FULL) == 0, "what was freed is needed first"
    assert look(emptied, FULL + 2 * FULL) == FULL


def test_a_disk_with_much_room_has_no_reserve() -> None:
    assert look(room(), TOTAL) == 0
    assert look(room(), TOTAL, FULL) == 0


def test_a_file_system_without_inodes_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(os.statvfs(tmp_path))
    found[5], found[7] = 1000, 1
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(found))
    assert Sample.of(tmp_path).free == 0


def test_the_reserve_occupies_the_disk_and_gives_it_back(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    assert reserve.held() == 0
    reserve.settle(4 * MIB)
    assert reserve.held() >= 4 * MIB
    assert Reserve(tmp_path).held() == reserve.held(), "a former process may have taken it"
    reserve.settle(0)
    reserve.settle(0)
    assert (reserve.held(), list(tmp_path.iterdir())) == (0, [])


def test_a_reserve_that_cannot_be_had_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    Reserve(tmp_path).settle(MIB)
    assert not (tmp_path / NAME).exists()
