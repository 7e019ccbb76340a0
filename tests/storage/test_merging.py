"""Merging: which segments become one, that nothing but files changes, and what may come between."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from tests.storage.batches import (
    NOON,
    Pair,
    batch,
    compact,
    configuration,
    flush,
    internal,
    merge,
    open_log,
    read_all,
    records_of,
    spans,
    sweep,
)
from tests.storage.faultdisk import FaultDisk

from tidelog.records import Batch, BatchType, Offset, Term
from tidelog.storage import BatchCache, DamagedLog, Log, LogConfig, MergeJob
from tidelog.storage.config import MIB
from tidelog.storage.joined import JOINED_NAME, Joined, save_joined
from tidelog.storage.merging import MAX_GROUP, RATIO, find_group
from tidelog.storage.recovery import FILE_COST
from tidelog.storage.segment import Segment
from tidelog.storage.state import StateFile

CONFIG = LogConfig(segment_bytes=100_000, index_interval=100, merge_files=2)


def grown(segments: list[list[Batch]], disk: FaultDisk, config: LogConfig = CONFIG) -> Log:
    """Return a log with these closed segments, all compacted, and a last one behind the point."""
    log = open_log(disk, config)
    for batches in segments:
        log.append(batches)
        log.roll()
    term = segments[-1][-1].term
    log.append([batch(log.dirty + 1, term=term)])
    log.roll()
    flush(log)
    compact(log)
    disk.sync_directory("log")  # what a crash may take back is what the merge does
    return log


def keyed(base: int, *pairs: Pair, term: int = 1) -> Batch:
    """Build client data with keys."""
    return batch(base, term=term, pairs=pairs)


def small(count: int, *, term: int = 1, base: int = 0) -> list[list[Batch]]:
    """Return segments of one small batch each."""
    return [[batch(base + n, term=term)] for n in range(count)]


def files(disk: FaultDisk) -> list[str]:
    """Names of segments, without the rest of the names."""
    names = disk.list("log")
    return [name.removesuffix("-v1.log") for name in names if name.endswith(".log")]


def other_files(disk: FaultDisk) -> list[str]:
    """Names that only a job under way may leave."""
    return [name for name in disk.list("log") if name.endswith(".staging")]


def prepared(log: Log) -> MergeJob:
    """Return a merge that is to be."""
    job = log.prepare_merge(log.dirty)
    assert job is not None
    return job


def answers(log: Log) -> list[object]:
    """All that can be asked of a log and must not depend on its files."""
    offsets = [Offset(each) for each in range(log.start, log.dirty + 1)]
    kept = [each for each in read_all(log) if each.type is not BatchType.PLACEHOLDER]
    filled = read_all(log, fill_gaps=True)
    covered = {
        offset: each.term
        for each in filled
        for offset in range(each.base_offset, each.last_offset + 1)
    }
    heads = [log.last_configuration(offset) for offset in offsets]
    return [
        (log.start, log.dirty, log.flushed, log.last_term, log.prefix_term),
        [bytes(each.data) for each in kept],
        covered,
        [log.term_of(offset) for offset in offsets],
        [log.term_end(Term(term)) for term in range(8)],
        [log.first_of_term_at(offset) for offset in offsets],
        [log.offset_at_time(NOON + delta) for delta in range(-1, 12)],
        [None if head is None else head.base_offset for head in heads],
        [_first(log, offset) for offset in offsets],
        log.max_time(),
    ]


def _first(log: Log, offset: Offset) -> bytes | None:
    """What a reader gets first from an offset on, but for placeholders."""
    found = log.read(offset, 1 << 20)
    return next((bytes(e.data) for e in found if e.type is not BatchType.PLACEHOLDER), None)


# --- Which segments ------------------------------------------------------------------------------


def test_neighbours_become_one_file_and_the_others_go() -> None:
    disk = FaultDisk()
    log = grown(small(5), disk)
    assert merge(log) == 1
    assert files(disk) == ["0-1", "5-1"]
    assert spans(read_all(log)) == [(n, n, 1) for n in range(6)]
    log.verify()
    log.check_invariants()
    assert not other_files(disk)


def test_nothing_that_can_be_asked_changes() -> None:
    disk = FaultDisk()
    rng = random.Random(1)
    segments: list[list[Batch]] = []
    offset = 0
    for number in range(40):
        term = 1 + number // 15
        if rng.random() < 0.2:
            segments.append([configuration(offset, term)])
            offset += 1
            continue
        pairs: list[Pair] = [(b"%d" % rng.randrange(12), b"%d" % offset) for _ in range(3)]
        time = NOON + rng.randrange(10)
        segments.append([batch(offset, term=term, pairs=pairs, time=time)])
        offset += 3
    log = grown(segments, disk)
    before, count = answers(log), log.segments
    assert merge(log) > 3
    assert answers(log) == before
    assert log.segments < count / 2
    log.verify()
    log.close()
    log = open_log(disk, CONFIG)
    assert answers(log) == before
    log.verify()


def test_files_stay_few_however_often_a_segment_is_closed() -> None:
    disk = FaultDisk()
    config = LogConfig(segment_bytes=20_000)
    log = open_log(disk, config, cache=BatchCache())
    newest: dict[bytes, int] = {}
    most = 0
    for number in range(300):
        key = b"key-%d" % (number * 7 % 40)
        log.append([keyed(number, (key, b"%d" % number))])
        newest[key] = number
        log.roll()
        flush(log)
        compact(log)
        merge(log)
        most = max(most, len(files(disk)))
    # Some that wait to be four, twice, and the one in which the recovery point lies.
    assert most <= 8
    records = records_of(read_all(log))
    assert {key: offset for offset, (key, _) in records.items()} == newest
    log.verify()
    log.check_invariants()


def test_without_a_merge_each_round_would_leave_a_file() -> None:
    disk = FaultDisk()
    grown(small(60), disk)
    assert len(files(disk)) == 61


def segment(number: int, size: int, *, term: int = 1, head: BatchType = BatchType.DATA) -> Segment:
    made = Segment("log", Offset(number), Term(term))
    made.last = Offset(number)
    made.size = size
    made.head = head
    return made


def grouped(sizes: list[int], config: LogConfig) -> list[int]:
    """Sizes of the group that would be merged."""
    segments = [segment(number, size) for number, size in enumerate(sizes)]
    return [each.size for each in find_group(segments, config)]


def test_sizes_are_geometric() -> None:
    config = LogConfig(merge_files=2)
    assert grouped([10 * MIB, 1 * MIB, 1 * MIB], config) == [1 * MIB, 1 * MIB]
    assert grouped([3 * MIB, 1 * MIB, 1 * MIB], config) == [3 * MIB, 1 * MIB, 1 * MIB]
    assert grouped([10 * MIB, 1 * MIB], config) == []
    assert grouped([1 * MIB, 10 * MIB, 3 * MIB], config) == [1 * MIB, 10 * MIB]
    assert grouped([4 * MIB, 4 * MIB, 9, 9, 1 * MIB], config) == [9, 9, 1 * MIB], "cheapest first"
    assert grouped([10, 20, 1000, 5], config) == [10, 20, 1000, 5], "small ones weigh the same"


def test_files_are_logarithmic_in_size_and_so_is_the_work() -> None:
    config = LogConfig()
    sizes: list[int] = []
    copied = 0
    rng = random.Random(4)
    rounds, most = 5000, 0
    for _ in range(rounds):
        sizes.append(rng.choice((200, 8_000, 40_000)))
        while group := grouped(sizes, config):
            at = next(
                at for at in range(len(sizes) - 1, -1, -1) if sizes[at : at + len(group)] == group
            )
            sizes[at : at + len(group)] = [sum(group)]
            copied += sum(group)
        most = max(most, len(sizes))
    assert most <= 12
    assert sum(sizes) < 128 * MIB
    assert copied < 19 * sum(sizes)


def test_thousands_of_files_become_one_without_much_copying() -> None:
    config = LogConfig()
    sizes = [100] * 10_000
    copied = 0
    while group := grouped(sizes, config):
        at = next(at for at in range(len(sizes)) if sizes[at : at + len(group)] == group)
        sizes[at : at + len(group)] = [sum(group)]
        copied += sum(group)
    assert len(sizes) <= 3
    assert copied < 6 * sum(sizes)


def test_a_group_waits_until_it_is_worth_a_merge() -> None:
    config = LogConfig(merge_files=4)
    assert grouped([10] * 3, config) == []
    assert grouped([10] * 4, config) == [10] * 4
    assert len(grouped([10] * (MAX_GROUP + 50), config)) == MAX_GROUP
    heavy = RATIO * 3 * (FILE_COST + 10)
    assert grouped([heavy, 10, 10, 10], config) == []
    assert grouped([heavy - FILE_COST, 10, 10, 10], config) == [heavy - FILE_COST, 10, 10, 10]


def test_a_merged_file_is_not_larger_than_a_segment() -> None:
    config = LogConfig(segment_bytes=1000, merge_files=2)
    assert grouped([400] * 5, config) == [400, 400]
    assert grouped([600] * 5, config) == []
    disk = FaultDisk()
    log = grown(small(30), disk, LogConfig(segment_bytes=400, merge_files=2))
    merge(log)
    sizes = [each.bytes for each in log.describe().segments]
    assert max(sizes) <= 400
    assert all(one + two > 400 for one, two in pairwise(sizes[:-1]))


def test_terms_are_not_mixed() -> None:
    disk = FaultDisk()
    log = grown([*small(3), *small(3, term=2, base=3), *small(3, term=5, base=6)], disk)
    terms = [log.term_of(Offset(n)) for n in range(9)]
    merge(log)
    assert files(disk) == ["0-1", "3-2", "6-5", "9-5"]
    assert [log.term_of(Offset(n)) for n in range(9)] == terms
    log.verify()


@pytest.mark.parametrize("restart", [False, True])
def test_a_configuration_stays_the_head_of_its_segment(restart: bool) -> None:
    disk = FaultDisk()
    plain = small(8)
    segments = [*plain[:3], [configuration(3)], *plain[4:6], [configuration(6)], plain[7]]
    log = grown(segments, disk)
    if restart:
        log.close()
        log = open_log(disk, CONFIG)
        log.append([batch(9)])
        log.roll()
        flush(log)
        compact(log)
    before = answers(log)
    merge(log)
    assert files(disk)[:3] == ["0-1", "3-1", "6-1"]
    assert answers(log) == before
    assert log.segments <= 5


def test_what_compaction_has_not_seen_is_not_merged() -> None:
    disk = FaultDisk()
    log = open_log(disk, CONFIG)
    for batches in small(6):
        log.append(batches)
        log.roll()
    flush(log)
    assert log.prepare_merge(log.dirty) is None
    compact(log, upto=2)
    assert [each.base for each in prepared(log).segments] == [0, 1, 2]
    compact(log)
    assert [each.base for each in prepared(log).segments] == [0, 1, 2, 3, 4]
    assert log.prepare_merge(Offset(0)) is None
    upto = log.prepare_merge(Offset(3))
    assert upto is not None
    assert [each.base for each in upto.segments] == [0, 1, 2, 3]


def test_the_segment_in_which_the_recovery_point_lies_is_not_merged() -> None:
    disk = FaultDisk()
    log = open_log(disk, CONFIG)
    for batches in small(4):
        log.append(batches)
        log.roll()
    flush(log)
    compact(log)  # saves the point, at the end of the last segment
    for batches in small(4, base=4):
        log.append(batches)
        log.roll()
    flush(log)
    # Compaction saves the point again when it begins; one that was lost with the disk would not.
    log._cleaned = log.dirty
    assert [each.base for each in prepared(log).segments] == [0, 1, 2]


def test_a_point_that_may_be_lower_on_the_disk_than_in_memory_bounds_merges() -> None:
    bounded = 0
    for number in range(1, 12):
        disk = FaultDisk()
        log = grown(small(5), disk)
        _Refusing(disk, number)
        with refusals():
            log.truncate_suffix(Offset(3))
        disk.watch = None
        saved = StateFile(disk, "log")
        assert saved.load()
        if not log.poisoned and (job := log.prepare_merge(log.dirty)):
            assert job.segments[-1].last < saved.state.point.segment
        elif not log.poisoned:
            bounded += 1
    assert bounded


def test_placeholders_that_are_not_last_any_more_go() -> None:
    disk = FaultDisk()
    same: Pair = (b"a", b"1")
    log = grown([[keyed(n, same, same)] for n in range(0, 8, 2)], disk)
    assert [each.type for each in read_all(log)][:3] == [BatchType.PLACEHOLDER] * 3
    merge(log)
    assert spans(read_all(log)) == [(6, 7, 1), (8, 8, 1)]
    assert spans(read_all(log, fill_gaps=True)) == [(0, 5, 1), (6, 7, 1), (8, 8, 1)]
    log.verify()


def test_a_placeholder_stays_while_it_is_the_last_of_the_group() -> None:
    disk = FaultDisk()
    log = grown([[batch(0)], [batch(1)], [internal(BatchType.PLACEHOLDER, 2)]], disk)
    merge(log)
    assert spans(read_all(log)) == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1)]
    log.verify()


def test_the_cache_and_open_files_do_not_show_what_was_before() -> None:
    disk = FaultDisk()
    log = open_log(disk, CONFIG, cache=BatchCache())
    for batches in small(6):
        log.append(batches)
        log.roll()
    flush(log)
    compact(log)
    read_all(log)
    job = prepared(log)
    job.run()
    before = read_all(log, 1)
    log.finish_merge(job)
    assert spans(read_all(log, 1)) == spans(before)
    sweep(log)
    assert spans(read_all(log, 1)) == spans(before)


# --- What may come between -----------------------------------------------------------------------


def test_the_files_of_the_others_stay_until_the_merged_one_has_its_name_for_good() -> None:
    disk = FaultDisk()
    log = grown(small(3), disk)
    job = prepared(log)
    job.run()
    assert log.finish_merge(job) == 2
    assert log.segments == 2
    assert files(disk) == ["0-1", "1-1", "2-1", "3-1"]
    assert log.prepare_merge(log.dirty) is None, "one at a time"
    sweeping = log.prepare_sweep()
    assert sweeping is not None
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="sync"):
        sweeping.run()
    assert not log.finish_sweep(sweeping)
    assert files(disk) == ["0-1", "1-1", "2-1", "3-1"]
    sweep(log)
    assert files(disk) == ["0-1", "3-1"]
    assert log.prepare_sweep() is None


Between = Callable[[Log], None]


def _cut(log: Log) -> None:
    log.truncate_suffix(Offset(2))


def _cut_all(log: Log) -> None:
    log.truncate_suffix(Offset(0))


def _cut_the_end(log: Log) -> None:
    log.truncate_suffix(Offset(5))


def _cut_front(log: Log) -> None:
    log.truncate_prefix(Offset(2), Term(1))


def _cut_front_off(log: Log) -> None:
    log.truncate_prefix(Offset(5), Term(1))


def _reset(log: Log) -> None:
    log.reset(Offset(2), Term(1))


def _close(log: Log) -> None:
    log.close()


BETWEEN = [_cut, _cut_all, _cut_the_end, _cut_front, _cut_front_off, _reset, _close]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("when", ["prepared", "ran", "finished", "syncing", "swept"])
def test_a_merge_and_whatever_comes_between_leave_the_log_as_without_the_merge(
    when: str, between: Between
) -> None:
    plain_disk, disk = FaultDisk(), FaultDisk()
    plain, log = grown(small(5), plain_disk), grown(small(5), disk)
    between(plain)
    expected = log.draw() if between is _close else plain.draw()
    job = prepared(log)
    steps: list[tuple[str, Callable[[], object]]] = [
        ("prepared", job.run),
        ("ran", lambda: log.finish_merge(job)),
    ]
    for name, step in steps:
        if when == name:
            between(log)
        step()
    if when == "finished":
        between(log)
    sweeping = log.prepare_sweep()
    if sweeping is not None:
        sweeping.run()
        if when == "syncing":
            between(log)
        log.finish_sweep(sweeping)
    if when == "swept" or (when == "syncing" and sweeping is None):
        between(log)
    for each, its_disk in ((plain, plain_disk), (log, disk)):
        # What a process finds that is started now.
        assert open_log(copy.deepcopy(its_disk).killed(), CONFIG).draw() == expected
        if between is _close:
            each = open_log(its_disk, CONFIG)
        each.append([batch(each.dirty + 1, term=3), batch(each.dirty + 2, term=3)])
        flush(each)
        each.check_invariants()
        each.verify()
    assert not other_files(disk)
    # And after power was lost, whatever of the changes of names survived.
    rng = random.Random(7)
    drawn = open_log(next(plain_disk.outcomes(rng, 1)), CONFIG).draw()
    for outcome in disk.outcomes(rng, 20):
        found = open_log(outcome, CONFIG)
        found.verify()
        assert found.draw() == drawn


def test_a_new_segment_is_not_taken_for_one_that_a_merge_has_left_over() -> None:
    disk = FaultDisk()
    log = grown(small(5), disk)
    job = prepared(log)
    job.run()
    log.finish_merge(job)
    sweeping = log.prepare_sweep()
    assert sweeping is not None
    sweeping.run()
    log.truncate_suffix(Offset(2))
    log.roll()
    log.append([batch(2, 3)])  # in the file that was left over a moment ago
    log.finish_sweep(sweeping)
    flush(log)
    assert files(disk) == ["0-1", "2-1"]
    assert spans(read_all(log)) == [(0, 0, 1), (1, 1, 1), (2, 3, 1)]
    log.verify()


def test_a_sweep_removes_only_what_it_was_prepared_for() -> None:
    disk = FaultDisk()
    log = grown(small(5), disk)
    first = prepared(log)
    first.run()
    log.finish_merge(first)
    late = log.prepare_sweep()
    assert late is not None
    late.run()
    log.truncate_suffix(Offset(5))  # removes the files itself
    for batches in small(4, base=5):
        log.append(batches)
        log.roll()
    flush(log)
    compact(log)
    second = prepared(log)
    second.run()
    assert log.finish_merge(second)
    names = files(disk)
    assert not log.finish_sweep(late)
    assert files(disk) == names, "the second merge is not durable yet"


def test_a_compaction_between_makes_a_merge_void() -> None:
    disk = FaultDisk()
    pair: Pair = (b"a", b"1")
    log = grown([[keyed(0, pair)], [keyed(1, (b"b", b"1"))], [batch(2)]], disk)
    log.append([keyed(4, pair)])
    log.roll()
    flush(log)
    job = prepared(log)
    job.run()
    compact(log)
    assert log.finish_merge(job) == 0
    assert sorted(records_of(read_all(log))) == [1, 2, 3, 4]
    log.verify()
    assert merge(log) == 1


def test_a_compaction_may_follow_before_the_sweep() -> None:
    disk = FaultDisk()
    pair: Pair = (b"a", b"1")
    log = grown([[keyed(0, pair)], [keyed(1, (b"b", b"1"))], [batch(2)]], disk)
    job = prepared(log)
    job.run()
    log.finish_merge(job)
    log.append([keyed(4, pair)])
    log.roll()
    flush(log)
    compact(log)
    assert sorted(records_of(read_all(log))) == [1, 2, 3, 4]
    for outcome in disk.outcomes(random.Random(3), 50):
        found = open_log(outcome, CONFIG)
        found.verify()
        assert {1, 2, 3, 4} <= records_of(read_all(found)).keys()
    sweep(log)
    log.verify()


def test_damage_in_a_segment_stops_a_merge_and_is_reported() -> None:
    disk = FaultDisk()
    log = grown(small(4), disk)
    path = "log/1-1-v1.log"
    disk.overwrite(path, disk.content(path)[:-1])
    job = prepared(log)
    with pytest.raises(DamagedLog, match=r"1-1-v1\.log"):
        job.run()
    assert log.finish_merge(job) == 0
    assert not other_files(disk)
    disk.overwrite(path, b"")
    job = prepared(log)
    with pytest.raises(DamagedLog, match="ends at offset 0 instead of 1"):
        job.run()
    assert len(files(disk)) == 5


# --- Crashes and failures ------------------------------------------------------------------------


def story() -> list[list[Batch]]:
    """Segments with what matters: gaps, placeholders, a configuration, two terms."""
    pair: Pair = (b"a", b"1")
    return [
        [keyed(0, pair, pair)],
        [keyed(2, pair, (b"b", b"1"))],
        [keyed(4, pair)],
        [configuration(5)],
        [keyed(6, pair)],
        [keyed(7, pair, (b"c", b"1"))],
        [keyed(9, pair, term=2)],
        [keyed(10, (b"d", b"1"), term=2)],
    ]


@pytest.mark.parametrize("merge_files", [2, 3])
def test_a_crash_while_merging_leaves_the_same_records(merge_files: int) -> None:
    disk = FaultDisk()
    config = LogConfig(segment_bytes=100_000, index_interval=100, merge_files=merge_files)
    log = grown(story(), disk, config)
    before = answers(log)
    rng = random.Random(merge_files)
    looked = 0

    def look() -> None:
        nonlocal looked
        for outcome in disk.outcomes(rng, 8):
            looked += 1
            found = open_log(copy.deepcopy(outcome), config)
            found.verify()
            found.check_invariants()
            assert answers(found) == before
            # A second crash, at any change that opening the log makes.
            crash_in_recovery(outcome)
            # And life goes on: the next merge meets what the last one left.
            found.append([batch(found.dirty + 1, term=2)])
            found.roll()
            flush(found)
            compact(found)
            merge(found)
            found.verify()

    def crash_in_recovery(outcome: FaultDisk) -> None:
        crashed: list[FaultDisk] = []
        outcome.watch = lambda: crashed.append(next(outcome.outcomes(rng, 1)))
        open_log(outcome, config)
        outcome.watch = None
        for each in crashed:
            again = open_log(each, config)
            again.verify()
            assert answers(again) == before

    disk.watch = look
    assert merge(log) >= 1
    look()
    assert looked > 100


def test_a_crash_in_recovery_after_a_kill_does_not_lose_what_was_merged() -> None:
    """The page cache shows the rename, and the disk does not have it yet."""
    disk = FaultDisk()
    log = grown(small(4), disk)
    before = answers(log)
    job = prepared(log)
    job.run()
    log.finish_merge(job)
    disk = disk.killed()
    rng = random.Random(2)
    looked = 0

    def look() -> None:
        nonlocal looked
        disk.watch = None
        for outcome in disk.outcomes(rng, 64):
            looked += 1
            assert answers(open_log(outcome, CONFIG)) == before
        disk.watch = look

    disk.watch = look
    found = open_log(disk, CONFIG)
    assert answers(found) == before
    disk.watch = None
    assert looked > 64
    assert files(disk) == ["0-1", "4-1"]
    assert JOINED_NAME not in disk.list("log")


@pytest.mark.parametrize("between", [_cut, _cut_all, _cut_the_end, _cut_front, _reset])
def test_a_crash_while_a_log_with_files_left_over_is_cut_keeps_the_rest(between: Between) -> None:
    disk = FaultDisk()
    log = grown(small(5), disk)
    old = {each.base_offset: bytes(each.data) for each in read_all(log)}
    job = prepared(log)
    job.run()
    log.finish_merge(job)
    rng = random.Random(5)
    ends: dict[Between, int] = {_cut: 1, _cut_the_end: 4, _cut_front: 5}
    kept = ends.get(between, -1)

    def look() -> None:
        for outcome in disk.outcomes(rng, 64):
            found = open_log(outcome, CONFIG)
            found.verify()
            found.check_invariants()
            assert found.dirty >= kept
            for each in read_all(found):
                assert bytes(each.data) == old[each.base_offset]

    disk.watch = look
    between(log)
    look()
    disk.watch = None
    log.append([batch(log.dirty + 1, term=3)])
    flush(log)
    drawn = log.draw()
    for outcome in disk.outcomes(rng, 64):
        assert open_log(outcome, CONFIG).draw() == drawn


def test_an_index_that_fits_by_its_size_does_not_vouch_for_a_merge() -> None:
    """Merged, these two are as long as the first: its placeholder goes, the other one stays."""
    disk = FaultDisk()
    same: Pair = (b"a", b"1")
    first = [keyed(0, (b"b", b"1")), keyed(1, same)]
    segments = [first, [keyed(2, same)], [keyed(3, same, term=2)]]
    log = grown(segments, disk)
    before = answers(log)
    rng = random.Random(1)

    def look() -> None:
        for outcome in disk.outcomes(rng, 64):
            found = open_log(outcome, CONFIG)
            found.verify()
            assert answers(found) == before

    disk.watch = look
    size = log.describe().segments[0].bytes
    merge(log)
    assert log.describe().segments[0].bytes == size
    assert files(disk) == ["0-1", "3-2", "4-2"]


def test_a_stale_hint_drops_nothing() -> None:
    disk = FaultDisk()
    log = grown(small(6), disk)
    merge(log)
    assert JOINED_NAME in disk.list("log")
    log.truncate_suffix(Offset(3))
    log.append([batch(3, 4, term=2)])
    log.roll()
    log.append([batch(5, 9, term=2)])
    log.roll()
    flush(log)
    before = answers(log)
    for _ in range(2):  # with the merge's own hint, and once more with one that came back
        log.close()
        log = open_log(disk, CONFIG)
        assert answers(log) == before
        assert JOINED_NAME not in disk.list("log")
        save_joined(disk, "log", Joined(Offset(0), Term(1), Offset(5)))
    for hint in ((0, 1, 2), (0, 2, 99), (1, 1, 5), (3, 2, 9), (77, 1, 99)):
        save_joined(disk, "log", Joined(Offset(hint[0]), Term(hint[1]), Offset(hint[2])))
        log.close()
        log = open_log(disk, CONFIG)
        assert answers(log) == before


def test_a_damaged_hint_is_reported() -> None:
    disk = FaultDisk()
    log = grown(small(3), disk)
    merge(log)
    log.close()
    path = f"log/{JOINED_NAME}"
    disk.overwrite(path, disk.content(path)[:-1] + b"\xff")
    with pytest.raises(DamagedLog, match=r"log\.joined"):
        open_log(disk, CONFIG)


class _Refusing:
    """Fails the n-th change of a disk."""

    def __init__(self, disk: FaultDisk, number: int) -> None:
        self.left = number
        self.happened = False
        disk.watch = self

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.happened = True
            raise OSError(5, "refused")


def test_a_disk_that_refuses_any_change_leaves_the_log_as_it_was() -> None:
    number = 0
    while True:
        number += 1
        disk = FaultDisk()
        log = grown(story(), disk)
        before = answers(log)
        refusing = _Refusing(disk, number)
        for _ in range(3):
            with refusals():
                merge(log)
        disk.watch = None
        log.verify()
        log.check_invariants()
        assert answers(log) == before
        assert not log.poisoned
        for outcome in disk.outcomes(random.Random(number), 10):
            found = open_log(outcome, CONFIG)
            found.verify()
            assert answers(found) == before
        if not refusing.happened:
            break
        merge(log)
        assert log.segments <= 5
        assert answers(log) == before
        log.close()
        assert not other_files(disk)
        assert answers(open_log(disk, CONFIG)) == before
    assert number > 20


@contextmanager
def refusals() -> Iterator[None]:
    """Let go on after what a disk has refused."""
    try:
        yield
    except OSError as error:
        if "refused" not in str(error):
            raise


def test_a_point_fixed_before_a_segment_was_closed_does_not_outlive_its_compaction() -> None:
    disk = FaultDisk()
    log = open_log(disk, CONFIG)
    pair: Pair = (b"a", b"x" * 100)
    log.append([keyed(0, pair), keyed(1, pair)])
    flush(log)
    late = log.prepare_point()  # a position in the file as it is now
    assert late is not None
    log.roll()
    compact(log)
    late()
    log = open_log(disk.killed(), CONFIG)
    assert sorted(records_of(read_all(log))) == [1]
