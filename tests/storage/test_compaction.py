"""Compaction: what stays, what goes, and how rounds and interruptions fit together."""

import random
from dataclasses import replace

import pytest
from tests.storage.batches import (
    NOON,
    Pair,
    batch,
    compact,
    configuration,
    flush,
    internal,
    open_log,
    read_all,
    records_of,
    spans,
)
from tests.storage.faultdisk import FaultDisk

from tidelog.records import (
    HEADER_SIZE,
    Batch,
    BatchType,
    Codec,
    MarkerType,
    Offset,
    Term,
    transaction_marker,
)
from tidelog.records.batch import seal
from tidelog.storage import AbortedTransaction, BatchCache, DamagedLog, Log, LogConfig

DAY = 24 * 3_600_000
BIG = LogConfig(segment_bytes=100_000)


def closed(
    segments: list[list[Batch]], config: LogConfig = BIG, disk: FaultDisk | None = None
) -> Log:
    """Return a log with these segments, all closed and flushed."""
    log = open_log(disk or FaultDisk(), config)
    for batches in segments:
        log.append(batches)
        log.roll()
    flush(log)
    return log


def keyed(base: int, *pairs: Pair, term: int = 1, producer: int = -1, open_: bool = False) -> Batch:
    """Build client data with keys."""
    sequence = -1 if producer < 0 else base
    return batch(
        base, term=term, pairs=pairs, producer=producer, sequence=sequence, transactional=open_
    )


def marker(offset: int, producer: int, kind: MarkerType = MarkerType.COMMIT) -> Batch:
    """Build the end of a transaction."""
    built = transaction_marker(
        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOON
    )
    return built.stamp(Offset(offset), Term(1))


A, B = (b"a", b"1"), (b"b", b"1")


# --- Keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_of_each_key_the_newest_record_survives(codec: Codec) -> None:
    pairs: list[Pair] = [(b"k%d" % (n % 3), b"%d" % n) for n in range(30)]
    log = closed([[batch(n, pairs=pairs[n : n + 5], codec=codec)] for n in range(0, 30, 5)])
    assert compact(log) == 1
    assert records_of(read_all(log)) == {27: pairs[27], 28: pairs[28], 29: pairs[29]}
    log.verify()
    log.check_invariants()


def test_records_without_a_key_stay() -> None:
    log = closed([[keyed(0, (None, b"x"), A)], [keyed(2, (None, b"y"), A)]])
    compact(log)
    assert sorted(records_of(read_all(log))) == [0, 2, 3]


def test_a_batch_that_loses_nothing_stays_byte_for_byte() -> None:
    log = closed([[keyed(0, A)], [keyed(1, B)]])
    before = [bytes(each.data) for each in read_all(log)]
    job = log.prepare_compaction(log.dirty, now=NOON)
    assert job is not None
    job.run()
    assert log.finish_compaction(job).segments == 0
    assert [bytes(each.data) for each in read_all(log)] == before


def test_only_whole_closed_segments_below_the_bound_are_touched() -> None:
    log = closed([[keyed(n, A), keyed(n + 1, A)] for n in range(0, 10, 2)])
    log.append([keyed(10, A)])
    flush(log)
    compact(log, upto=6)  # the segment [6,7] ends above it
    assert log.draw().startswith(
        "t1 <--gap 0..0-->[1,1]<--gap 2..2-->[3,3]<--gap 4..4-->[5,5][6,6][7,7]"
    )
    compact(log, upto=10)
    assert sorted(records_of(read_all(log))) == [9, 10]


def test_a_segment_with_a_young_record_and_all_after_it_wait() -> None:
    config = replace(BIG, min_compaction_lag_ms=1000)
    log = open_log(FaultDisk(), config)
    for offset, age in ((0, 3000), (1, 2000), (2, 500), (3, 2000), (4, 0)):
        log.append([batch(offset, pairs=[A], time=NOON - age)])
        log.roll()
    flush(log)
    compact(log)
    assert sorted(records_of(read_all(log))) == [1, 2, 3, 4]
    compact(log, now=NOON + 499)
    assert sorted(records_of(read_all(log))) == [1, 2, 3, 4]
    compact(log, now=NOON + 500)
    assert sorted(records_of(read_all(log))) == [3, 4]


def test_what_is_not_flushed_is_not_touched() -> None:
    log = open_log(FaultDisk(), BIG)
    log.append([keyed(0, A), keyed(1, A)])
    log.roll()
    assert log.prepare_compaction(Offset(1), now=NOON) is None


def test_the_last_offset_of_every_segment_survives() -> None:
    log = closed([[keyed(0, A, A, A)], [keyed(3, A, A, term=2)], [keyed(5, A, term=3)]])
    terms = [log.term_of(Offset(each)) for each in range(6)]
    compact(log)
    assert spans(read_all(log)) == [(2, 2, 1), (4, 4, 2), (5, 5, 3)]
    assert [each.type for each in read_all(log)] == [
        BatchType.PLACEHOLDER,
        BatchType.PLACEHOLDER,
        BatchType.DATA,
    ]
    assert [log.term_of(Offset(each)) for each in range(6)] == terms


def test_a_placeholder_goes_when_it_is_not_last_any_more() -> None:
    log = open_log(FaultDisk(), BIG)
    log.append(
        [internal(BatchType.PLACEHOLDER, 0), keyed(1, A), internal(BatchType.PLACEHOLDER, 2)]
    )
    log.roll()
    flush(log)
    compact(log)
    assert spans(read_all(log)) == [(1, 1, 1), (2, 2, 1)]


def test_a_round_that_would_change_nothing_is_not_prepared() -> None:
    log = closed([[keyed(0, A)], [keyed(1, A)]])
    assert compact(log) == 1
    assert log.prepare_compaction(log.dirty, now=NOON) is None


@pytest.mark.parametrize("keys", [1, 2, 7])
def test_memory_is_bounded_and_rounds_add_up_to_the_same(keys: int) -> None:
    rng = random.Random(keys)
    pairs: list[list[Pair]] = [
        [(b"%d" % rng.randrange(40), b"%d" % n)] * rng.randint(1, 3) for n in range(60)
    ]

    def build(config: LogConfig) -> Log:
        log = open_log(FaultDisk(), config)
        for each in pairs:
            log.append([batch(log.dirty + 1, pairs=each)])
        log.roll()
        flush(log)
        return log

    whole = build(LogConfig(segment_bytes=500))
    assert compact(whole) == 1
    # Three quarters of the budget are for keys, of about 200 bytes each.
    small = build(LogConfig(segment_bytes=500, key_map_bytes=keys * 270))
    assert compact(small) > 40 // keys
    assert records_of(read_all(small)) == records_of(read_all(whole))


# --- Tombstones and markers ----------------------------------------------------------------------


def test_a_tombstone_lives_for_its_retention_and_then_goes() -> None:
    config = LogConfig(segment_bytes=100_000, delete_retention_ms=DAY)
    log = closed([[keyed(0, A)], [keyed(1, (b"a", None))], [keyed(2, B)]], config)
    compact(log, now=NOON)
    assert sorted(records_of(read_all(log))) == [1, 2]
    assert compact(log, now=NOON + DAY - 1) == 0
    assert compact(log, now=NOON + DAY) == 1
    assert sorted(records_of(read_all(log))) == [2]


def test_the_retention_of_a_tombstone_survives_a_restart() -> None:
    disk = FaultDisk()
    log = closed([[keyed(0, A)], [keyed(1, (b"a", None))]], BIG, disk)
    compact(log, now=NOON)
    log.close()
    log = open_log(disk, BIG)
    compact(log, now=NOON + DAY // 2)
    assert sorted(records_of(read_all(log))) == [1]
    compact(log, now=NOON + DAY)
    assert records_of(read_all(log)) == {}


def test_a_tombstone_that_another_replica_saw_expire_waits_for_a_round_here() -> None:
    leader = closed([[keyed(0, A)], [keyed(1, (b"a", None))]])
    compact(leader, now=NOON)
    expiring = read_all(leader)[-1]
    assert expiring.has_delete_horizon
    log = closed([[keyed(0, A)], [expiring]])
    job = log.prepare_compaction(log.dirty, now=NOON + 2 * DAY)
    assert job is not None
    job.run()
    log.finish_compaction(job)
    assert sorted(records_of(read_all(log))) == [1], "the value went, its tombstone did not yet"
    compact(log, now=NOON + 2 * DAY)
    assert records_of(read_all(log)) == {}


def test_a_tombstone_replaced_by_a_value_goes_at_once() -> None:
    log = closed([[keyed(0, A)], [keyed(1, (b"a", None))], [keyed(2, A)]])
    compact(log)
    assert sorted(records_of(read_all(log))) == [2]


def test_a_marker_lives_as_long_as_data_of_its_transaction_and_a_retention_more() -> None:
    log = closed([[keyed(0, A, open_=True, producer=7)], [marker(1, 7)], [keyed(2, B)]])
    compact(log, now=NOON)
    compact(log, now=NOON + 9 * DAY)
    assert spans(read_all(log)) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]
    log.append([keyed(3, A)])
    log.roll()
    flush(log)
    compact(log, now=NOON + 10 * DAY)  # the data goes: from here on the marker waits
    kinds = {int(each.base_offset): (each.is_control, each.count) for each in read_all(log)}
    assert kinds[0] == (False, 0)  # the producer's last batch: a header without records
    assert kinds[1] == (True, 1)
    compact(log, now=NOON + 11 * DAY - 1)
    assert read_all(log)[1].count == 1
    compact(log, now=NOON + 11 * DAY)
    assert read_all(log)[1].type is BatchType.PLACEHOLDER


def test_uncommitted_data_replaces_nothing() -> None:
    segments = [
        [keyed(0, A)],
        [keyed(1, A, open_=True, producer=7)],  # aborted below
        [keyed(2, A, open_=True, producer=8)],  # still open
        [marker(3, 7, MarkerType.ABORT)],
    ]
    log = closed(segments)
    compact(log)
    assert sorted(records_of(read_all(log))) == [0, 1, 2]


def test_committed_data_replaces_and_is_replaced() -> None:
    segments = [
        [keyed(0, A)],
        [keyed(1, A, open_=True, producer=7), marker(2, 7)],
        [keyed(3, B, open_=True, producer=7), marker(4, 7)],
        [keyed(5, B)],
    ]
    log = closed(segments)
    compact(log)
    assert sorted(records_of(read_all(log))) == [1, 5]


def test_aborted_data_goes_when_the_caller_names_it() -> None:
    segments = [
        [keyed(0, A, open_=True, producer=7), keyed(1, B, open_=True, producer=8)],
        [marker(2, 7, MarkerType.ABORT), marker(3, 8, MarkerType.ABORT)],
    ]
    log = closed(segments)
    compact(log, aborted=[AbortedTransaction(7, Offset(0), Offset(2))])
    assert sorted(records_of(read_all(log))) == [1]


def test_committed_data_is_safe_from_a_wrong_list_of_aborted_transactions() -> None:
    log = closed([[keyed(0, A, open_=True, producer=7)], [marker(1, 7)]])
    compact(log, aborted=[AbortedTransaction(7, Offset(0), Offset(1))])
    assert sorted(records_of(read_all(log))) == [0]


# --- Producers and batches of ours ---------------------------------------------------------------


def test_the_last_batch_of_a_producer_keeps_its_header() -> None:
    segments = [
        [keyed(0, A, producer=5), keyed(1, A, producer=5), keyed(2, A, B, producer=6)],
        [keyed(4, A), keyed(5, B)],
    ]
    log = closed(segments)
    compact(log)
    found = {int(each.base_offset): each for each in read_all(log)}
    assert sorted(found) == [1, 2, 4, 5]
    assert (found[1].count, found[1].producer_id, found[1].base_sequence) == (0, 5, 1)
    assert (found[2].count, found[2].last_offset, found[2].base_sequence) == (0, 3, 2)
    log.append([keyed(6, A, producer=5), keyed(7, B, producer=6)])
    log.roll()
    flush(log)
    compact(log)
    assert sorted(each.base_offset for each in read_all(log)) == [3, 5, 6, 7]


def test_the_header_that_an_older_release_left_with_a_codec_loses_it() -> None:
    old = keyed(0, A, producer=5)
    left = seal(
        bytearray(HEADER_SIZE),
        attributes=old.attributes | Codec.GZIP,
        last_offset_delta=0,
        base_timestamp=NOON,
        max_timestamp=NOON,
        count=0,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
    ).stamp(Offset(0), Term(1))
    log = closed([[left, keyed(1, A)], [keyed(2, A)]])
    compact(log)
    first = read_all(log)[0]
    assert (first.base_offset, first.count, first.producer_id) == (0, 0, 5)
    assert not first.is_compressed


def test_all_batches_of_ours_keep_their_offsets_and_only_the_newest_snapshot_its_content() -> None:
    log = open_log(FaultDisk(), BIG)
    log.append(
        [configuration(0), internal(BatchType.SNAPSHOT, 1), internal(BatchType.CHANGELOG, 2)]
    )
    log.append([internal(BatchType.SNAPSHOT, 3), keyed(4, A), configuration(5)])
    log.append([internal(BatchType.SNAPSHOT, 6), keyed(7, A)])
    log.roll()
    log.append([internal(BatchType.SNAPSHOT, 8)])
    flush(log)
    compact(log)
    # Client offsets are counted past the batches of ours: if one vanished here and not on another
    # replica, the two would number the same record differently.
    found_batches = read_all(log)
    assert [each.base_offset for each in found_batches] == list(range(9))
    kinds = [each.type for each in found_batches]
    assert [at for at, kind in enumerate(kinds) if kind is BatchType.SNAPSHOT] == [1, 3, 6, 8]
    assert [found_batches[at].count for at in (1, 3, 6, 8)] == [0, 0, 1, 1]
    assert (kinds[0], kinds[2], kinds[5]) == (
        BatchType.CONFIGURATION,
        BatchType.CHANGELOG,
        BatchType.CONFIGURATION,
    )
    assert kinds[4] is BatchType.PLACEHOLDER  # its segment ends there
    assert compact(log) == 0, "an emptied snapshot is not emptied again"
    found = log.last_configuration(Offset(99))
    assert found is not None
    assert found.base_offset == 5


# --- Rounds, races, failures ---------------------------------------------------------------------


def test_a_round_is_dropped_if_the_suffix_was_cut_meanwhile() -> None:
    disk = FaultDisk()
    log = closed([[keyed(0, A)], [keyed(1, A)]], disk=disk)
    job = log.prepare_compaction(log.dirty, now=NOON)
    assert job is not None
    job.run()
    log.truncate_suffix(Offset(1))  # takes away the record for which the first was to go
    assert log.finish_compaction(job).segments == 0
    assert sorted(records_of(read_all(log))) == [0]
    assert not [name for name in disk.list("log") if name.endswith(".staging")]


def test_a_round_goes_on_without_segments_that_left_at_the_front() -> None:
    log = closed([[keyed(n, A), keyed(n + 1, A)] for n in range(0, 8, 2)])
    job = log.prepare_compaction(log.dirty, now=NOON)
    assert job is not None
    job.run()
    log.truncate_prefix(Offset(4), Term(1))
    assert log.finish_compaction(job).segments == 2
    assert log.draw() == "t1 <--gap 4..4-->[5,5]<--gap 6..6-->[7,7]"
    log.verify()


def test_a_round_that_loses_its_files_before_it_runs_is_void() -> None:
    log = closed([[keyed(0, A), keyed(1, A)], [keyed(2, A)]])
    job = log.prepare_compaction(log.dirty, now=NOON)
    assert job is not None
    log.truncate_prefix(Offset(2), Term(1))
    job.run()
    log.finish_compaction(job)
    assert log.draw() == "t1 [2,2]"
    log.verify()


def test_a_round_on_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk = FaultDisk()
    log = closed([[keyed(0, A), keyed(1, A)], [keyed(2, A)]], disk=disk)
    before = log.draw()
    for room in range(0, 400, 20):
        job = log.prepare_compaction(log.dirty, now=NOON)
        assert job is not None
        disk.room = room
        try:
            job.run()
        except OSError:
            disk.room = None
            log.finish_compaction(job)
            assert log.draw() == before
            assert not [name for name in disk.list("log") if name.endswith(".log.staging")]
        disk.room = None
    assert compact(log) == 1
    assert sorted(records_of(read_all(log))) == [2]


def test_records_that_cannot_be_read_stop_a_round_and_are_reported() -> None:
    disk = FaultDisk()
    log = closed([[keyed(0, A), keyed(1, A)], [keyed(2, A)]], disk=disk)
    path = "log/0-1-v1.log"
    content = bytearray(disk.content(path))
    content[61] = 0x7F  # the length of the first record
    disk.overwrite(path, bytes(content))
    job = log.prepare_compaction(log.dirty, now=NOON)
    assert job is not None
    with pytest.raises(DamagedLog, match=r"0-1-v1\.log"):
        job.run()
    assert log.finish_compaction(job).segments == 0


def test_the_cache_does_not_bring_back_what_was_compacted() -> None:
    log = open_log(FaultDisk(), BIG, cache=BatchCache())
    log.append([keyed(0, A)])
    log.roll()
    log.append([keyed(1, A)])
    log.roll()
    log.append([keyed(2, A)])
    flush(log)
    compact(log)
    assert sorted(records_of(read_all(log))) == [1, 2]


def test_a_compacted_log_is_smaller_and_its_result_says_by_how_much() -> None:
    log = closed([[keyed(n, (b"key", b"x" * 500))] for n in range(10)])
    job = log.prepare_compaction(log.dirty, now=NOON)
    assert job is not None
    before = sum(each.bytes for each in log.describe().segments)
    job.run()
    result = log.finish_compaction(job)
    after = sum(each.bytes for each in log.describe().segments)
    assert (result.segments, result.cleaned, result.due) == (9, 9, None)
    assert result.bytes_before - result.bytes_after == before - after
    assert after < before / 5
