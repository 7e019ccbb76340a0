"""Random operations on a log, compared with a model after each one, crashes included."""

import copy
import random

import pytest
from tests.storage.batches import NOON, batch, configuration, flush, gap, open_log
from tests.storage.faultdisk import FaultDisk
from tests.storage.model import Model

from tidelog.records import Batch, Codec, Offset, Term
from tidelog.storage import (
    BatchCache,
    CompactionJob,
    FlushJob,
    Log,
    LogConfig,
    MergeJob,
    StorageError,
    SweepJob,
)

OPERATIONS = 120


class Fuzz:
    """One run: a log on a disk that fails, its model, and a source of chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.config = LogConfig(
            segment_bytes=self.rng.choice((200, 700, 3000)),
            index_interval=self.rng.choice((1, 150, 1000)),
            delete_retention_ms=self.rng.choice((1, 1000)),
            key_map_bytes=self.rng.choice((1, 800, 4000, 100_000)),
            recovery_bytes=self.rng.choice((1, 500, 300_000)),
            open_segments=self.rng.choice((1, 2, 8)),
            merge_files=self.rng.choice((2, 2, 4)),
        )
        self.cache = BatchCache(self.rng.choice((1, 300, 2000, 1 << 20)))
        self.restless = self.rng.choice((0.02, 0.15))  # how often a term ends
        self.disk = FaultDisk()
        self.model = Model()
        self.now = NOON
        self.log = self.open()
        self.merges = 0
        self.flushing: list[FlushJob] = []
        # One of these jobs at a time.
        self.compacting: list[CompactionJob | MergeJob | SweepJob] = []

    def open(self) -> Log:
        return open_log(self.disk, self.config, cache=self.cache)

    def run(self) -> None:
        steps = [
            *[self.append] * 10,
            *[self.flush] * 2,
            *[self.begin_flush, self.end_flush] * 2,
            self.truncate_suffix,
            self.truncate_prefix,
            self.reset,
            self.roll,
            self.drop_indexes,
            *[self.begin_compaction, self.end_compaction] * 2,
            self.compact,
            *[self.begin_merge, self.end_compaction] * 2,
            *[self.merge] * 2,
            *[self.lose_power] * 2,
            *[self.lose_power_inside] * 3,
            self.kill,
            self.close_and_open,
            self.fill_disk,
            self.fail_sync,
        ]
        for _ in range(OPERATIONS):
            self.rng.choice(steps)()
            self.model.check(self.log)

    # --- Operations ------------------------------------------------------------------------------

    def batches(self) -> list[Batch]:
        rng = self.rng
        offset = self.model.dirty + 1
        term = max(self.model.last_term, 1)
        batches: list[Batch] = []
        for _ in range(rng.randint(1, 5)):
            if rng.random() < self.restless:
                term += rng.randint(1, 2)
            if rng.random() < 0.15:
                last = offset + rng.randint(0, 5)
                batches.append(gap(offset, last, term))
                offset = last + 1
            if rng.random() < self.restless:
                batches.append(configuration(offset, term))
                offset += 1
                continue
            pairs = [
                (
                    rng.choice((None, b"a", b"b", b"c", b"d", b"key-%d" % rng.randrange(30))),
                    rng.choice((None, b"%d/%d" % (offset, term), rng.randbytes(40))),
                )
                for _ in range(rng.randint(1, 4))
            ]
            codec = rng.choice((Codec.NONE, Codec.ZSTD))
            batches.append(batch(offset, term=term, pairs=pairs, codec=codec, time=self.now))
            offset = batches[-1].last_offset + 1
        return batches

    def append(self) -> None:
        batches = self.batches()
        self.log.append(batches)
        self.model.append(batches)

    def flush(self) -> None:
        assert flush(self.log) == self.model.dirty
        self.model.flush()

    def begin_flush(self) -> None:
        job = self.log.prepare_flush()
        if job is not None:
            if self.rng.random() < 0.7:
                job.run()
            self.flushing.append(job)

    def end_flush(self) -> None:
        if self.flushing:
            job = self.flushing.pop(0)
            if not job.done:
                job.run()
            before = self.log.truncations
            self.log.finish_flush(job)
            if job.truncations == before:
                self.model.flushed = max(self.model.flushed, job.upto)

    def boundary(self) -> Offset:
        """Choose an offset between two batches that are stored."""
        ends = [self.log.start - 1]
        position = self.log.start
        while found := self.log.read(position, 1 << 20):
            ends += [each.last_offset for each in found]
            position = Offset(found[-1].last_offset + 1)
        return Offset(max(self.rng.choice(ends[-12:]) + 1, self.log.start))

    def truncate_suffix(self) -> None:
        first_removed = self.boundary()
        if first_removed > self.model.compacted:  # as Raft does: what is committed stays
            self.log.truncate_suffix(first_removed)
            self.model.truncate_suffix(first_removed)

    def truncate_prefix(self) -> None:
        first_kept = self.boundary()
        term = self.log.term_of(Offset(first_kept - 1)) or Term(0)
        if first_kept > self.model.start:
            self.log.truncate_prefix(first_kept, term)
            self.model.truncate_prefix(first_kept, term)

    def reset(self) -> None:
        if self.rng.random() < 0.3:
            start = Offset(max(self.model.dirty + self.rng.randint(-5, 20), 0))
            term = Term(self.model.last_term + self.rng.randint(0, 1))
            self.log.reset(start, term)
            self.model.reset(start, term)

    def roll(self) -> None:
        self.log.roll()

    def drop_indexes(self) -> None:
        for name in self.disk.list("log"):
            if name.endswith(".index") and self.rng.random() < 0.5:
                path = f"log/{name}"
                if self.rng.random() < 0.5:
                    self.disk.delete(path)
                else:
                    self.disk.overwrite(path, self.rng.randbytes(self.rng.randint(0, 200)))

    def begin_compaction(self) -> None:
        if self.compacting:
            return  # one round at a time
        self.now += self.rng.choice((0, 0, 1, 2000))
        upto = self.rng.choice((self.model.dirty, self.rng.randint(-1, self.model.dirty)))
        job = self.log.prepare_compaction(Offset(upto), now=self.now)
        if job is not None:
            job.run()
            self.compacting.append(job)
            if job.segments:
                self.model.compacted = max(self.model.compacted, job.segments[-1].last)

    def begin_merge(self) -> None:
        if self.compacting:
            return
        upto = self.rng.choice((self.model.dirty, self.rng.randint(-1, self.model.dirty)))
        job = self.log.prepare_sweep() or self.log.prepare_merge(Offset(upto))
        if job is not None:
            job.run()
            self.compacting.append(job)

    def end_compaction(self) -> None:
        if self.compacting:
            match self.compacting.pop(0):
                case CompactionJob() as job:
                    self.log.finish_compaction(job)
                case MergeJob() as job:
                    self.merges += self.log.finish_merge(job) > 0
                case SweepJob() as job:
                    self.log.finish_sweep(job)

    def compact(self) -> None:
        self.compacting.clear()
        self.begin_compaction()
        self.end_compaction()

    def merge(self) -> None:
        """Compact, and merge what that leaves; sometimes without the sweep."""
        self.append()
        self.flush()
        self.compact()
        for _ in range(self.rng.randint(1, 4)):
            self.begin_merge()
            self.end_compaction()

    # --- Faults ----------------------------------------------------------------------------------

    def reopen(self) -> None:
        self.flushing.clear()
        self.compacting.clear()
        self.log = self.open()
        self.model.adopt(self.log)

    def lose_power(self) -> None:
        """Lose power, and perhaps once more while the log is being opened."""
        self.disk = next(self.disk.outcomes(self.rng, 1))
        if self.rng.random() < 0.3:
            found: list[FaultDisk] = []
            crash_at = self.rng.randint(1, 10)
            calls = 0

            def watch() -> None:
                nonlocal calls
                calls += 1
                if calls == crash_at:
                    found.append(next(self.disk.outcomes(self.rng, 1)))

            self.disk.watch = watch
            self.open()
            self.disk.watch = None
            if found:
                self.disk = found[0]
        self.reopen()

    def lose_power_inside(self) -> None:
        """Lose power at a random change that an operation makes to the disk."""
        before = copy.deepcopy(self.model)
        found: list[FaultDisk] = []
        crash_at = self.rng.randint(1, self.rng.choice((6, 30)))
        calls = 0

        def watch() -> None:
            nonlocal calls
            calls += 1
            if calls == crash_at:
                found.append(next(self.disk.outcomes(self.rng, 1)))

        self.disk.watch = watch
        self.rng.choice(
            (
                self.append,
                self.flush,
                self.truncate_suffix,
                self.truncate_suffix,
                self.truncate_prefix,
                self.roll,
                self.compact,
                self.merge,
                self.merge,
                self.reset,
            )
        )()
        self.disk.watch = None
        if found:
            self.disk = found[0]
            self.flushing.clear()
            self.compacting.clear()
            self.log = self.open()
            if self.log.start == before.start:
                before.compacted = self.model.compacted = max(
                    before.compacted, self.model.compacted
                )
                before.flushed = min(before.flushed, self.model.flushed)
                before.branches += self.model.branches
                if self.model.start == self.model.dirty + 1 == self.model.flushed + 1:
                    before.flushed = before.start - 1  # a reset: the snapshot has the rest
                self.model = before
            self.model.adopt(self.log)

    def kill(self) -> None:
        self.disk = self.disk.killed()
        self.reopen()

    def close_and_open(self) -> None:
        self.log.close()
        self.model.flush()
        self.reopen()
        self.model.check(self.log)

    def fill_disk(self) -> None:
        self.disk.room = self.rng.randint(0, 300)
        batches = self.batches()
        try:
            self.log.append(batches)
        except StorageError:
            pass
        else:
            self.model.append(batches)
        self.disk.room = None

    def fail_sync(self) -> None:
        batches = self.batches()
        self.log.append(batches)
        self.model.append(batches)
        job = self.log.prepare_flush()
        assert job is not None
        self.disk.failing_syncs = 1
        with pytest.raises(OSError, match="sync"):
            job.run()
        self.log.poison(OSError("sync"))
        if self.rng.random() < 0.5:
            self.kill()
            assert self.model.dirty == batches[-1].last_offset
        else:
            self.lose_power()


@pytest.mark.parametrize("seed", range(40))
def test_a_log_is_what_its_model_says_after_every_operation_and_every_crash(seed: int) -> None:
    Fuzz(seed).run()


def test_random_operations_do_merge_segments() -> None:
    runs = [Fuzz(seed) for seed in range(5)]
    for each in runs:
        each.run()
    assert sum(each.merges for each in runs) > 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_log_is_what_its_model_says_for_many_more_seeds() -> None:
    for seed in range(1000, 4000):
        try:
            Fuzz(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
