"""Opening a log: what is trusted, what is cut, what is reported."""

import copy
import random
from collections.abc import Iterator

import pytest
from tests.storage.batches import NOON, batch, compact, configuration, flush, open_log, read_all
from tests.storage.faultdisk import FaultDisk

from tidelog.records import Offset, Term, ghost
from tidelog.storage import BATCH_COST, DamagedLog, File, Log, LogConfig, SegmentPool
from tidelog.storage import segment as segment_module
from tidelog.storage.index import SparseIndex
from tidelog.storage.segment import Segment
from tidelog.storage.state import StateFile

SMALL = LogConfig(segment_bytes=300, index_interval=100, recovery_bytes=1)
LAZY = LogConfig(segment_bytes=300, index_interval=100)  # the recovery point stays at the start


def written(disk: FaultDisk, config: LogConfig, count: int = 12) -> Log:
    """Return a flushed log of `count` batches of two offsets."""
    log = open_log(disk, config)
    for number in range(count):
        log.append([batch(2 * number, 2 * number + 1)])
    flush(log)
    return log


def segments(disk: FaultDisk) -> list[str]:
    """Return the paths of the segments, oldest first."""
    found = [f"log/{name}" for name in disk.list("log") if name.endswith(".log")]
    return sorted(found, key=lambda path: int(path.split("/")[1].split("-")[0]))


def damaged_copies(disk: FaultDisk) -> Iterator[tuple[FaultDisk, int, int]]:
    """Yield what a killed process left, with one byte changed: also the batch and the position."""
    size = batch(0, 1).size
    for number in range(12):
        for position in (0, 9, 14, 18, 40, 70, size - 1):
            damaged = copy.deepcopy(disk).killed()
            path = segments(damaged)[number // 3]
            content = bytearray(damaged.content(path))
            content[(number % 3) * size + position] ^= 0x41
            damaged.overwrite(path, bytes(content))
            yield damaged, number, position


def test_the_log_is_cut_at_the_first_bad_batch_that_was_not_flushed() -> None:
    disk = FaultDisk()
    log = open_log(disk, LAZY)
    log.append([batch(2 * number, 2 * number + 1) for number in range(12)])
    for damaged, number, position in damaged_copies(disk):
        if position == 0:
            continue  # no tear: a base offset may look like a gap, or lie before the batch before
        found = open_log(damaged, LAZY)
        assert found.dirty <= 2 * number - 1
        found.check_invariants()
    assert log.dirty == 23


def test_damage_between_the_recovery_point_and_the_flush_mark_is_reported() -> None:
    disk = FaultDisk()
    written(disk, LAZY)
    for damaged, number, _ in damaged_copies(disk):
        path = segments(damaged)[number // 3]
        before = damaged.content(path)
        with pytest.raises(DamagedLog, match="was flushed up to 23") as caught:
            open_log(damaged, LAZY)
        assert (caught.value.path, caught.value.offset) == (path, 2 * number)
        assert caught.value.position == number % 3 * batch(0, 1).size
        assert damaged.content(path) == before
        assert damaged.open_files == 0


@pytest.mark.parametrize("bit", [0, 1, 2, 3, 5, 20, 40, 62])
def test_a_base_offset_that_rots_upwards_is_not_taken_for_a_gap(bit: int) -> None:
    disk = FaultDisk()
    written(disk, LAZY)
    for number in range(12):
        damaged = copy.deepcopy(disk).killed()
        path = segments(damaged)[number // 3]
        content = bytearray(damaged.content(path))
        content[(number % 3) * batch(0, 1).size + 7 - bit // 8] ^= 1 << bit % 8
        damaged.overwrite(path, bytes(content))
        with pytest.raises(DamagedLog, match=r"was flushed up to 23|came before"):
            open_log(damaged, LAZY)


def test_a_gap_that_a_leader_sent_is_not_taken_for_damage() -> None:
    disk = FaultDisk()
    log = open_log(disk, LAZY)
    log.append([batch(0, 1), ghost(Offset(2), Offset(9), Term(1)), batch(10, 11)])
    flush(log)
    log.append([batch(12, 12)])
    assert open_log(copy.deepcopy(disk).killed(), LAZY).dirty == 12


def test_without_its_mark_a_flushed_log_is_cut_like_any_other() -> None:
    disk = FaultDisk()
    written(disk, LAZY)
    for damaged, number, position in damaged_copies(disk):
        damaged.delete("log/log.flushed")  # a power failure may take it: it is not synced
        if position == 0:
            continue  # as above
        assert open_log(damaged, LAZY).dirty <= 2 * number - 1


def test_damage_below_the_recovery_point_is_reported_and_nothing_is_cut() -> None:
    disk = FaultDisk()
    written(disk, SMALL)
    disk.killed()
    path = segments(disk)[1]
    content = bytearray(disk.content(path))
    content[70] ^= 1
    disk.overwrite(path, bytes(content))
    log = open_log(disk, SMALL)
    assert log.dirty == 23
    with pytest.raises(DamagedLog, match="rebuilds this replica from its peers") as caught:
        log.verify()
    assert (caught.value.path, caught.value.position, caught.value.offset) == (path, 0, 6)
    assert disk.content(path) == bytes(content)


def test_a_damaged_header_below_the_recovery_point_is_found_by_a_read() -> None:
    disk = FaultDisk()
    written(disk, SMALL)
    disk.killed()
    path = segments(disk)[0]
    content = bytearray(disk.content(path))
    content[batch(0, 1).size + 16] = 9  # the magic of the second batch
    disk.overwrite(path, bytes(content))
    log = open_log(disk, SMALL)
    with pytest.raises(DamagedLog, match="magic") as caught:
        log.read(Offset(2), 100)
    assert caught.value.path == path


def test_a_segment_missing_below_the_recovery_point_is_reported() -> None:
    for number in range(4):
        disk = FaultDisk()
        written(disk, SMALL)
        disk.killed()
        disk.delete(segments(disk)[number])
        with pytest.raises(DamagedLog, match=r"missing|ends at offset"):
            open_log(disk, SMALL).verify()


def test_bytes_missing_below_the_recovery_point_are_reported() -> None:
    disk = FaultDisk()
    log = written(disk, SMALL, count=11)  # the last segment has room
    disk.killed()
    path = segments(disk)[-1]
    disk.overwrite(path, disk.content(path)[:-1])
    with pytest.raises(DamagedLog, match="1 bytes are missing"):
        open_log(disk, SMALL)
    assert log.dirty == 21


def test_bytes_missing_in_a_closed_segment_are_found_by_a_read() -> None:
    disk = FaultDisk()
    written(disk, SMALL)
    disk.killed()
    path = segments(disk)[0]
    disk.overwrite(path, disk.content(path)[: batch(0, 1).size])
    log = open_log(disk, SMALL)
    with pytest.raises(DamagedLog, match="ends at offset 1 instead of 5"):
        log.read(Offset(0), 1)


def test_a_state_file_that_is_missing_or_damaged_is_reported() -> None:
    disk = FaultDisk()
    written(disk, SMALL)
    disk.killed()
    whole = disk.content("log/log.state")
    for content in (b"", whole[:5], b"XXXX" + whole[4:], whole[:-1] + b"\x77", whole + b"more"):
        disk.overwrite("log/log.state", content)
        with pytest.raises(DamagedLog, match=r"log\.state"):
            open_log(disk, SMALL)
    disk.delete("log/log.state")
    with pytest.raises(DamagedLog, match="the segments are not"):
        open_log(disk, SMALL)


@pytest.mark.parametrize("config", [SMALL, LAZY])
def test_indexes_that_are_missing_or_wrong_are_built_again(config: LogConfig) -> None:
    disk = FaultDisk()
    log = written(disk, config)
    expected = [bytes(each.data) for each in read_all(log)]
    disk.killed()
    rng = random.Random(4)
    names = [f"log/{name}" for name in disk.list("log") if name.endswith(".index")]
    # Of closed segments, and of the one in which a recovery point was saved.
    assert len(names) == (4 if config is SMALL else 3)
    for round_ in range(20):
        whole = {name: disk.content(name) for name in names}
        for name in names:
            content = bytearray(whole[name])
            match round_ % 4:
                case 0:
                    disk.overwrite(name, b"")
                case 1:
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
                    disk.overwrite(name, bytes(content))
                case 2:
                    disk.overwrite(name, bytes(content[: rng.randrange(len(content))]))
                case _:
                    disk.overwrite(name, whole[rng.choice(names)])
        found = open_log(disk, config)
        for offset in rng.sample(range(24), 10):
            assert bytes(found.read(Offset(offset), 1)[0].data) == expected[offset // 2]
        for name in names:
            disk.overwrite(name, whole[name])


def test_opening_reads_only_what_is_past_the_recovery_point() -> None:
    disk = FaultDisk()
    config = LogConfig(segment_bytes=3000, recovery_bytes=1)
    log = open_log(disk, config)
    for number in range(300):
        log.append([batch(number)])
    flush(log)
    log.append([batch(300)])
    disk.killed()
    before = disk.reads
    assert open_log(disk, config).dirty == 300
    # The state, the mark, an index with the batch that shows whose it is, the tail of one segment.
    assert disk.reads - before <= 5


def test_a_restart_in_the_middle_of_a_segment_finds_its_way_without_walking_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultDisk()
    config = LogConfig(index_interval=200, recovery_bytes=50 * BATCH_COST)
    log = open_log(disk, config)
    for number in range(90):
        log.append([batch(number)])
        flush(log)
    walks: list[str] = []
    walk = segment_module.build_index

    def watched(file: File, size: int, segment: Segment, interval: int) -> SparseIndex:
        walks.append(segment.path)
        return walk(file, size, segment, interval)

    monkeypatch.setattr(segment_module, "build_index", watched)
    found = open_log(disk.killed(), config)
    for offset in range(90):
        assert found.read(Offset(offset), 1)[0].base_offset == offset
    assert found.offset_at_time(NOON) == (0, NOON)
    assert walks == []
    # What is torn or gone is built again, and gives the same answers.
    disk.overwrite("log/0-1-v1.index", disk.content("log/0-1-v1.index")[:-1])
    rebuilt = open_log(disk, config)
    for offset in range(90):
        assert rebuilt.read(Offset(offset), 1)[0].base_offset == offset
    assert walks == ["log/0-1-v1.log"]


def test_an_index_that_was_stored_before_a_cut_is_not_used_after_it() -> None:
    config = LogConfig(index_interval=100, recovery_bytes=5 * BATCH_COST)
    for first_removed in range(1, 20):
        disk = FaultDisk()
        log = open_log(disk, config)
        for number in range(20):
            log.append([batch(number)])
            flush(log)
        log.truncate_suffix(Offset(first_removed))
        for number in range(first_removed, 20, 2):
            log.append([batch(number, number + 1, term=1, size=30)])
            flush(log)
        found = open_log(disk.killed(), config)
        found.verify()
        for offset in range(found.dirty + 1):
            held = found.read(Offset(offset), 1)[0]
            assert held.base_offset <= offset <= held.last_offset


def test_many_small_batches_move_the_recovery_point_like_a_few_large_ones() -> None:
    disk = FaultDisk()
    log = open_log(disk, LogConfig(recovery_bytes=10 * BATCH_COST))
    for number in range(35):
        log.append([batch(number, size=1)])
        flush(log)
    disk.killed()
    before = disk.reads
    config = LogConfig(recovery_bytes=10 * BATCH_COST)
    assert open_log(disk, config).dirty == 34
    state = StateFile(disk, "log")
    assert state.load()
    assert 24 <= state.state.point.offset <= 34
    assert disk.reads - before < 10


def test_the_newest_configuration_is_found_without_a_look_into_segments_or_indexes() -> None:
    disk = FaultDisk()
    pool = SegmentPool()
    log = open_log(disk, SMALL)
    log.append([configuration(0)])
    for number in range(1, 100):
        log.append([batch(number)])
    flush(log)
    for name in disk.list("log"):
        if name.endswith(".index"):
            disk.remove(f"log/{name}")
    found = open_log(disk.killed(), SMALL, pool=pool)
    before = disk.reads
    newest = found.last_configuration(Offset(99))
    assert newest is not None
    assert newest.base_offset == 0
    assert disk.reads - before <= len(segments(disk))
    assert pool.opened == 0


def test_a_killed_process_loses_nothing() -> None:
    disk = FaultDisk()
    log = open_log(disk, LAZY)
    for number in range(20):
        log.append([batch(number, term=1 + number // 7)])
    found = open_log(disk.killed(), LAZY)
    assert (found.dirty, found.flushed, found.draw()) == (19, 19, log.draw())
    for outcome in disk.outcomes(random.Random(0), 50):
        assert open_log(outcome, LAZY).dirty == 19


def test_appending_goes_on_in_the_segment_where_it_stopped() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(0)])
    log.close()
    log = open_log(disk)
    log.append([batch(1)])
    flush(log)
    assert segments(disk) == ["log/0-1-v1.log"]
    assert log.read(Offset(0), 10_000)[0].base_offset == 0


def test_leftovers_of_a_crash_are_removed_and_other_files_are_not() -> None:
    disk = FaultDisk()
    written(disk, LAZY)
    disk.killed()
    mess = ["0-1-v1.log.staging", "0-1-v1.index.staging", "log.state.staging", "99-1-v1.index"]
    others = ["vote", "vote.staging", "notes.txt", "x.index", "0-1-v2.log"]
    for name in mess + others:
        disk.open(f"log/{name}", create=True).close()
    open_log(disk, LAZY)
    assert not set(mess) & set(disk.list("log"))
    assert set(others) <= set(disk.list("log"))


def test_a_compacted_last_segment_is_trusted_at_its_new_size() -> None:
    disk = FaultDisk()
    log = open_log(disk)
    log.append([batch(n, pairs=[(b"k", b"%d" % n)]) for n in range(10)])
    flush(log)  # the recovery point is inside the file that compaction will replace
    log.roll()
    compact(log)
    for outcome in disk.outcomes(random.Random(0), 50):
        found = open_log(outcome)
        assert found.dirty == 9
        found.append([batch(10)])
        assert flush(found) == 10
        found.verify()


def test_two_segments_at_one_offset_below_the_recovery_point_are_reported() -> None:
    disk = FaultDisk()
    written(disk, SMALL)
    disk.killed()
    path = segments(disk)[1]
    disk.overwrite(path.replace("-1-v1", "-2-v1"), disk.content(path))
    with pytest.raises(DamagedLog, match="cannot stand beside"):
        open_log(disk, SMALL)


def test_a_log_whose_front_was_cut_opens_without_its_old_segments() -> None:
    disk = FaultDisk()
    log = written(disk, SMALL)
    copies = {path: disk.content(path) for path in segments(disk)}
    log.truncate_prefix(Offset(13), Term(1))
    disk.killed()
    for path, content in copies.items():  # as if no removal had reached the disk
        if not disk.exists(path):
            disk.overwrite(path, content)
    found = open_log(disk, SMALL)
    assert (found.start, found.dirty) == (13, 23)
    assert segments(disk)[0] == "log/12-1-v1.log"
