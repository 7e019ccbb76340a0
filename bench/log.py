"""What a log costs over bare files: append and flush against `write` and `fdatasync`.

Both sides write the same bytes to the same disk, one write and one sync at a time, each to a file
of its own that grows. They take turns, write by write, so that a disk that is slow for a while is
slow for both. The log does more: it checks the batch, keeps its index, marks what was flushed and
moves its recovery point. Batches come stamped, as they do from the leader.

Two ratios are given: of the medians, which is the usual write, and of the sums, which also holds
the rare ones (a recovery point, a new segment) and everything that the machine did meanwhile.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator

from tidelog.records import Batch, Offset, Record, Term, build_batch
from tidelog.storage import Log, RealDisk

NAME = "log"
KIB = 1024
MIB = 1024 * KIB
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
AMOUNT = 64 * MIB  # each side, each size; the recovery point moves once
QUICK_AMOUNT = 8 * MIB
WRITES = (100, 1000)  # at least, so that medians mean something, and at most, for small sizes
GOAL = 0.8
GOAL_FROM = 64 * KIB


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure all sizes and yield a table."""
    amount = QUICK_AMOUNT if quick else AMOUNT
    yield "a write and its sync     log, MiB/s   bare, MiB/s   ratio of medians   of sums"
    counted: list[float] = []
    for size in SIZES:
        writes = min(max(amount // size, WRITES[0]), WRITES[1])
        logged, bare = measure(size, writes)
        rate = [size / MIB / statistics.median(times) for times in (logged, bare)]
        medians = rate[0] / rate[1]
        sums = sum(bare) / sum(logged)
        if size >= GOAL_FROM:
            counted.append(medians)
        yield (
            f"{size // KIB:>6} KiB, {writes:>4} times {rate[0]:11.1f} {rate[1]:13.1f}"
            f" {medians:18.2f} {sums:9.2f}"
        )
    yield f"goal: {GOAL} from {GOAL_FROM // KIB} KiB on; lowest there {min(counted):.2f}"


def measure(size: int, writes: int) -> tuple[list[float], list[float]]:
    """Seconds of each write with its sync: through the log, and bare."""
    directory = tempfile.mkdtemp(prefix="tidelog-bench-")
    content = bytes(build_batch([Record(0, 0, None, os.urandom(size), ())]).data)
    logged: list[float] = []
    bare: list[float] = []
    log = Log.open(RealDisk(directory), "log")
    descriptor = os.open(f"{directory}/bare", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for number in range(writes):
            batch = Batch.parse(bytearray(content)).stamp(Offset(number), Term(1))
            began = time.perf_counter()
            log.append((batch,))
            job = log.prepare_flush()
            assert job is not None
            job.run()
            log.finish_flush(job)
            logged.append(time.perf_counter() - began)

            began = time.perf_counter()
            os.write(descriptor, content)
            os.fdatasync(descriptor)
            bare.append(time.perf_counter() - began)
        assert log.flushed == writes - 1
        log.close()
    finally:
        os.close(descriptor)
        shutil.rmtree(directory)
    return logged, bare
