"""The cache of recent batches: bounded in bytes, whatever logs do."""

import random

import pytest
from tests.storage.batches import batch

from tidelog.records import Batch, Offset
from tidelog.storage import BatchCache
from tidelog.storage.cache import CachedRun

FAR = Offset(1 << 40)


def test_the_oldest_batches_leave_first_whichever_log_they_belong_to() -> None:
    size = batch(0).size
    cache = BatchCache(4 * size)
    first, second = cache.new_run(), cache.new_run()
    first.add(batch(0))
    second.add(batch(0))
    first.add(batch(1))
    second.add(batch(1))
    assert cache.size == 4 * size
    second.add(batch(2))
    assert first.read(Offset(0), 1, FAR) is None
    assert second.read(Offset(0), 1, FAR) is not None
    assert cache.size == 4 * size


def test_a_run_answers_only_from_its_first_batch_on() -> None:
    run = BatchCache().new_run()
    assert run.read(Offset(0), 1, FAR) is None
    run.add(batch(5, 7))
    run.add(batch(10, 12))  # after a gap
    assert run.read(Offset(4), 100, FAR) is None
    found = run.read(Offset(8), 1, FAR)
    assert found is not None
    assert [each.base_offset for each in found] == [10]
    assert run.read(Offset(6), 1000, Offset(11)) == [batch(5, 7)]
    assert run.read(Offset(6), 1000, Offset(6)) == []


def test_a_batch_larger_than_the_cache_breaks_the_run() -> None:
    cache = BatchCache(200)
    run = cache.new_run()
    run.add(batch(0))
    run.add(batch(1, size=1000))
    assert run.read(Offset(0), 1, FAR) is None
    assert cache.size == 0
    run.add(batch(2))
    assert run.read(Offset(1), 1, FAR) is None
    assert run.read(Offset(2), 1, FAR) == [batch(2)]


@pytest.mark.parametrize("seed", range(20))
def test_the_cache_is_a_suffix_of_every_log_and_never_over_its_bound(seed: int) -> None:
    rng = random.Random(seed)
    cache = BatchCache(rng.choice((100, 1000, 20_000)))
    runs: list[CachedRun] = [cache.new_run() for _ in range(3)]
    logs: list[list[Batch]] = [[] for _ in runs]
    for _ in range(3000):
        number = rng.randrange(3)
        run, log = runs[number], logs[number]
        match rng.randrange(20):
            case 0:
                keep = rng.randrange(len(log) + 1)
                run.cut(Offset(log[keep].base_offset if keep < len(log) else 1 << 40))
                del log[keep:]
            case 1:
                drop = rng.randrange(len(log) + 1)
                run.drop_below(Offset(log[drop].base_offset if drop < len(log) else 1 << 40))
                del log[:drop]
            case 2:
                run.clear()
                log.clear()
            case _:
                base = log[-1].last_offset + 1 if log else 0
                log.append(batch(base, base + rng.randint(0, 3)))
                run.add(log[-1])
        assert 0 <= cache.size <= cache.limit
        held = 0
        for each, its in zip(logs, runs, strict=True):
            found = next(
                (got for one in each if (got := its.read(one.base_offset, 1 << 30, FAR))), []
            )
            assert found == each[len(each) - len(found) :]
            held += sum(one.size for one in found)
        assert held == cache.size
    assert len(cache._queue) <= 2 * sum(map(len, logs)) + 2100
