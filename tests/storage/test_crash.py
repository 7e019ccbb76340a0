"""Crashes at every change that an operation makes to the disk, in every outcome the disk allows.

Each story runs once, undisturbed. Before every change of the disk the test looks at the disks that
a power failure would leave right then (all of them if they are few, a sample if not), opens a log
on each, and asks: is this a log that existed, with everything that was flushed?
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
from tests.storage.batches import (
    NOON,
    batch,
    compact,
    configuration,
    flush,
    gap,
    open_log,
    read_all,
    records_of,
)
from tests.storage.faultdisk import FaultDisk
from tests.storage.model import Model

from tidelog.records import Batch, Offset, Term
from tidelog.storage import LogConfig

OUTCOMES = 40
CONFIG = LogConfig(segment_bytes=250, index_interval=100, recovery_bytes=1)


class Story:
    """A log and its model, told step by step, with a crash looked at before every change."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.config = config
        self.rng = random.Random(7)
        self.disk = FaultDisk()
        self.log = open_log(self.disk, config)
        self.model = Model()
        self.before = self.model
        self.looked = 0

    def step(self, change: Callable[[Model], None]) -> None:
        """Tell the model what is about to happen, so that both before and after are acceptable."""
        self.before = copy.deepcopy(self.model)
        change(self.model)
        self.disk.watch = self.look

    def look(self) -> None:
        """Open every disk that a crash might leave now."""
        for disk in self.disk.outcomes(self.rng, OUTCOMES):
            self.looked += 1
            log = open_log(disk, self.config)
            model = copy.deepcopy(self.model if log.start == self.model.start else self.before)
            model.flushed = min(self.before.flushed, self.model.flushed)
            model.branches = [*self.before.branches, *self.model.branches]
            model.adopt(log)
            # What was recovered is durable: the next crash cannot take it.
            again = open_log(next(disk.outcomes(self.rng, 1)), self.config)
            assert again.draw() == log.draw()

    def append(self, *batches: Batch) -> None:
        self.step(lambda model: model.append(list(batches)))
        self.log.append(batches)
        self.check()

    def flush(self) -> None:
        self.before = copy.deepcopy(self.model)
        self.disk.watch = self.look
        flush(self.log)
        self.model.flush()
        self.check()

    def cut(self, first_removed: int) -> None:
        self.step(lambda model: model.truncate_suffix(first_removed))
        self.log.truncate_suffix(Offset(first_removed))
        self.check()

    def cut_front(self, first_kept: int) -> None:
        term = self.log.term_of(Offset(first_kept - 1))
        assert term is not None
        self.step(lambda model: model.truncate_prefix(first_kept, term))
        self.log.truncate_prefix(Offset(first_kept), term)
        self.check()

    def check(self) -> None:
        self.look()
        self.disk.watch = None
        self.model.check(self.log)


def test_a_crash_while_appending_loses_only_dirty_entries() -> None:
    story = Story()
    story.append(batch(0, 1), batch(2, 3))
    story.flush()
    story.append(batch(4, 5), batch(6, 7), batch(8, 9), batch(10, 12, term=2))
    story.append(batch(13, term=2), configuration(14, 2), batch(15, 16, term=2))
    story.flush()
    story.append(batch(17, 18, term=3))
    assert story.looked > 300


def test_a_crash_after_a_truncation_never_mixes_two_histories() -> None:
    story = Story()
    story.append(batch(0, 4), batch(5, 9), batch(10, 14), batch(15, 19))
    story.append(batch(20, 21, term=2), batch(22, 25, term=2), batch(26, 29, term=2))
    story.flush()
    story.cut(10)
    story.append(batch(10, 14, term=3), batch(15, 19, term=3))
    story.append(batch(20, 21, term=4), batch(22, 25, term=4))
    story.flush()
    story.cut(20)
    story.append(batch(20, 21, term=3), batch(22, 25, term=5))
    story.cut(22)
    story.append(batch(22, 25, term=6))
    story.flush()


def test_a_cut_inside_a_segment_is_durable_before_the_next_segment_exists() -> None:
    story = Story(LogConfig(segment_bytes=1000, index_interval=100, recovery_bytes=1))
    story.append(batch(0, 4), batch(5, 9))
    story.flush()
    story.cut(5)
    # Segments of the new history that would continue the old one, if the old one came back.
    story.append(batch(5, 9, term=2))
    story.append(batch(10, 12, term=3))
    story.flush()


def test_a_truncated_log_may_go_on_in_an_older_term() -> None:
    story = Story()
    story.append(batch(0, 4), batch(5, 6, term=2), batch(7, 9, term=2))
    story.flush()
    story.cut(5)
    story.append(batch(5, 6, term=1), batch(7, 9, term=1), batch(10, 12, term=1))
    story.flush()


def test_a_crash_while_the_front_is_removed_leaves_the_old_start_or_the_new() -> None:
    story = Story()
    for base in range(0, 30, 3):
        story.append(batch(base, base + 2, term=1 + base // 12))
    story.flush()
    story.cut_front(9)
    story.append(batch(30, 31, term=3))
    story.cut_front(21)
    story.cut(30)
    story.cut_front(30)
    story.append(batch(30, 32, term=5), batch(33, 35, term=6))
    story.flush()


def test_a_cut_front_hides_an_older_cut() -> None:
    story = Story(LogConfig(segment_bytes=1000, index_interval=100))
    story.append(batch(0, 4), batch(5, 9))
    story.flush()
    story.cut(5)
    story.cut_front(5)
    story.append(batch(5, 9, term=3))
    story.append(batch(10, 12, term=4))
    story.flush()


def test_gaps_survive_a_crash() -> None:
    story = Story()
    story.append(batch(0, 1), gap(2, 9), batch(10, 11))
    story.append(gap(12, 20, 2), batch(21, 22, term=2), gap(23, 30, 3), configuration(31, 3))
    story.flush()
    story.append(gap(32, 40, 3), batch(41, 45, term=3))
    story.cut(31)
    story.append(gap(31, 33, 4), batch(34, 35, term=4))
    story.flush()


@pytest.mark.parametrize("start", [0, 4, 9, 30])
def test_a_crash_while_a_log_is_reset_leaves_a_part_of_the_old_log_or_the_new(start: int) -> None:
    disk = FaultDisk()
    log = open_log(disk, CONFIG)
    rng = random.Random(start)
    for base in range(0, 12, 3):
        log.append([batch(base, base + 2)])
    flush(log)
    old = log.draw()

    def look() -> None:
        for outcome in disk.outcomes(rng, OUTCOMES):
            found = open_log(outcome, CONFIG)
            found.check_invariants()
            if found.start == 0 and start:
                assert old.startswith(found.draw()) or found.draw() == "empty"
            elif found.start == start != 0:
                assert (found.draw(), found.dirty) == ("empty", start - 1)
                assert found.term_of(Offset(start - 1)) == 4

    disk.watch = look
    log.reset(Offset(start), Term(4))
    look()
    assert log.draw() == "empty"
    disk.watch = None
    assert log.append([batch(start, start + 1, term=5)]) == start + 1


@pytest.mark.parametrize("map_bytes", [1, 100_000])
def test_a_crash_while_compacting_keeps_the_newest_value_of_every_key(map_bytes: int) -> None:
    config = LogConfig(
        segment_bytes=300, index_interval=100, key_map_bytes=map_bytes, delete_retention_ms=1
    )
    disk = FaultDisk()
    log = open_log(disk, config)
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    rng = random.Random(3)
    for offset in range(0, 60, 2):
        pairs = [
            (b"key-%d" % rng.randrange(6), rng.choice((None, b"%d" % offset))) for _ in range(2)
        ]
        log.append([batch(offset, pairs=pairs, term=1 + offset // 20)])
        newest |= {key: (offset + at, value) for at, (key, value) in enumerate(pairs) if key}
    log.roll()
    flush(log)
    looked = 0

    def look() -> None:
        nonlocal looked
        for outcome in disk.outcomes(rng, 10):
            looked += 1
            found = open_log(outcome, config)
            found.verify()
            assert found.dirty == log.dirty
            records = records_of(read_all(found))
            last = {key: (offset, value) for offset, (key, value) in sorted(records.items())}
            for key, (offset, value) in newest.items():
                if value is not None:
                    assert last[key] == (offset, value)
                else:  # gone, or still said to be gone; never an older value
                    assert last.get(key, (offset, None)) == (offset, None)

    disk.watch = look
    rounds = sum(compact(log, now=NOON + day) for day in range(0, 20, 2))
    look()
    assert looked > 100
    assert rounds > (5 if map_bytes == 1 else 1)
    live = {key for key, (_, value) in newest.items() if value is not None}
    assert {key for key, _ in records_of(read_all(log)).values()} == live
