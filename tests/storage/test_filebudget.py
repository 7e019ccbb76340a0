"""How the descriptors of a process are divided, and logs that have to share a few of them."""

import os
import random
from pathlib import Path

import pytest
from tests.storage.batches import batch, flush, read_all

from tidelog.records import Offset
from tidelog.storage import FileBudget, Log, LogConfig, OpenEnds, RealDisk, SegmentPool
from tidelog.storage.filebudget import MIN_FILES


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("limit", [MIN_FILES, 1024, 65_536, 1 << 20])
def test_all_shares_together_leave_room_below_the_limit(limit: int) -> None:
    budget = FileBudget.of(limit)
    assert budget.own >= 64
    assert min(budget.backlog, budget.peers, budget.clients, budget.ends, budget.marks) >= 8


def test_a_limit_that_is_too_low_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match="ulimit -n"):
        FileBudget.of(MIN_FILES - 1)


def test_logs_append_read_and_cut_with_fewer_files_than_logs(tmp_path: Path) -> None:
    rng = random.Random(1)
    disk = RealDisk(tmp_path)
    pool, ends = SegmentPool(2), OpenEnds(3)
    before = descriptors()
    logs = [Log.open(disk, f"log-{n}", LogConfig(segment_bytes=2000)) for n in range(10)]
    for log in logs:
        log.share_files(pool, ends)
    for _ in range(1000):
        log = rng.choice(logs)
        match rng.choice(("append", "append", "append", "flush", "read", "cut", "roll")):
            case "append":
                log.append([batch(log.dirty + 1)])
            case "flush":
                flush(log)
            case "read":
                read_all(log)
            case "cut" if log.dirty > 5:
                log.truncate_suffix(Offset(log.dirty - 3))
            case "roll":
                log.roll()
        assert descriptors() - before <= 3 + 2 + len(logs)  # ends, closed segments, flush marks
        assert len(ends) <= 3
        log.check_invariants()
    contents = [[each.data for each in read_all(log)] for log in logs]
    for log in logs:
        log.close()
    assert len(ends) == 0
    again = [Log.open(disk, f"log-{n}", LogConfig(segment_bytes=2000)) for n in range(10)]
    assert [[each.data for each in read_all(log)] for log in again] == contents
    for log in again:
        log.close()


def test_a_log_whose_end_is_synced_is_closed_before_one_that_is_not(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    ends = OpenEnds(2)
    logs = [Log.open(disk, f"log-{n}") for n in range(3)]
    for log in logs:
        log.share_files(SegmentPool(2), ends)
    dirty, clean, third = logs
    dirty.append([batch(0)])
    clean.append([batch(0)])
    flush(clean)
    third.append([batch(0)])
    job = dirty.prepare_flush()
    assert job is not None
    assert job.handles[-1] is not None, "it is still open"
    job.release()
    for log in logs:
        log.close()
