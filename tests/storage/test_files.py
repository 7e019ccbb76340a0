"""Small files: the vote, sealed content, snapshots; whole or not there."""

import contextlib
import random

import pytest
from crc32c import crc32c
from tests.storage.faultdisk import FaultDisk

from tidelog.records import Offset, Term
from tidelog.sim.disk import SimDisk
from tidelog.storage import (
    Checkpoint,
    CheckpointFile,
    DamagedLog,
    LocalError,
    SnapshotFiles,
    SnapshotInfo,
    StorageError,
    Vote,
    VoteFile,
    remove_staging,
)

VOTE = Vote(Term(7), 2, 11, Offset(40))


def test_there_is_no_vote_before_the_first() -> None:
    assert VoteFile(FaultDisk(), "vote").load() is None


def test_a_vote_is_read_back() -> None:
    disk = FaultDisk()
    VoteFile(disk, "vote").save(VOTE)
    assert VoteFile(disk, "vote").load() == VOTE
    assert disk.open_files == 0


def test_a_vote_that_was_saved_survives_any_crash_and_a_crash_while_saving_leaves_old_or_new() -> (
    None
):
    disk = FaultDisk()
    file = VoteFile(disk, "vote")
    file.save(VOTE)
    later = Vote(Term(8), -1, 0, Offset(40))
    rng = random.Random(0)
    looked: set[Vote | None] = set()

    def look() -> None:
        looked.update(VoteFile(each, "vote").load() for each in disk.outcomes(rng, 200))

    disk.watch = look
    file.save(later)
    assert looked == {VOTE, later}
    looked.clear()
    look()
    assert looked == {later}


CHECKPOINT = Checkpoint(Offset(40), Term(7), b"state", b"metadata")


def test_a_checkpoint_is_the_old_or_the_new_one_after_any_crash() -> None:
    disk = FaultDisk()
    file = CheckpointFile(disk, "checkpoint")
    assert file.load() is None
    file.save(CHECKPOINT)
    later = Checkpoint(Offset(50), Term(8), b"another state", b"")
    rng = random.Random(0)
    looked: set[Checkpoint | None] = set()

    def look() -> None:
        looked.update(CheckpointFile(each, "checkpoint").load() for each in disk.outcomes(rng, 200))

    disk.watch = look
    file.save(later)
    assert looked == {CHECKPOINT, later}
    looked.clear()
    look()
    assert looked == {later}
    assert disk.open_files == 0


@pytest.mark.parametrize("content", [b"", b"TLC1", b"TLC1\0\0\0\0", b"TLV1" + bytes(40)])
def test_a_checkpoint_that_is_damaged_counts_as_none(content: bytes) -> None:
    disk = FaultDisk()
    with contextlib.closing(disk.open("checkpoint", create=True)) as file:
        file.append([content])
    checkpoints = CheckpointFile(disk, "checkpoint")
    assert checkpoints.load() is None
    checkpoints.save(CHECKPOINT)
    assert checkpoints.load() == CHECKPOINT


class Killed(Exception):
    """The process ends here."""


def kill_after(disk: FaultDisk, changes: int) -> None:
    """Let the disk take so many changes more, and no other."""
    left = iter(range(changes))

    def count() -> None:
        if next(left, None) is None:
            raise Killed

    disk.watch = count


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("changes", range(7))
def test_a_vote_that_a_killed_process_left_is_durable_once_it_was_read(
    changes: int, goes_on: bool
) -> None:
    disk = FaultDisk()
    file = VoteFile(disk, "vote")
    file.save(VOTE)
    kill_after(disk, changes)
    with contextlib.suppress(Killed):  # by an append, or beside the old file
        (file if goes_on else VoteFile(disk, "vote")).save(Vote(Term(8), -1, 0, Offset(40)))
    found = VoteFile(disk.killed(), "vote").load()
    for each in disk.outcomes(random.Random(0), 50):
        assert VoteFile(each, "vote").load() == found


def test_a_save_that_failed_may_be_tried_again() -> None:
    disk = FaultDisk()
    file = VoteFile(disk, "vote")
    file.save(VOTE)
    later = Vote(Term(8), -1, 0, Offset(40))
    for fault in range(2):
        disk.failing_syncs = 1
        if fault:  # the file has to be written anew now
            disk.failing_syncs, disk.room = 0, 3
        with pytest.raises(OSError, match=r"sync|full"):
            file.save(later)
        assert VoteFile(disk, "vote").load() in {VOTE, later}
        disk.room = None
    file.save(later)
    for each in disk.outcomes(random.Random(0), 100):
        assert VoteFile(each, "vote").load() == later


def test_a_file_of_votes_keeps_its_size_and_asks_a_full_disk_for_nothing() -> None:
    disk = FaultDisk()
    file = VoteFile(disk, "vote")
    file.save(Vote(Term(1), 1, 0, Offset(0)))
    size = len(disk.content("vote"))
    disk.room = 0
    for term in range(2, 200):
        file.save(Vote(Term(term), 1, 0, Offset(0)))
        assert len(disk.content("vote")) == size
    found = VoteFile(disk, "vote")
    assert found.load() == Vote(Term(199), 1, 0, Offset(0))
    found.save(Vote(Term(200), 1, 0, Offset(0)))
    assert VoteFile(disk, "vote").load() == Vote(Term(200), 1, 0, Offset(0))


def test_a_vote_file_that_was_cut_is_a_forgotten_vote_wherever_it_was_cut() -> None:
    disk = FaultDisk()
    file = VoteFile(disk, "vote")
    file.save(VOTE)
    file.save(Vote(Term(8), -1, 0, Offset(40)))
    whole = disk.content("vote")
    for content in (*(whole[:size] for size in range(len(whole))), whole + b"x"):
        disk.overwrite("vote", content)
        with pytest.raises(DamagedLog, match=r"and a vote has 1024"):
            VoteFile(disk, "vote").load()


def test_a_copy_of_a_vote_that_rots_leaves_the_other() -> None:
    disk = FaultDisk()
    file = VoteFile(disk, "vote")
    file.save(VOTE)
    later = Vote(Term(8), -1, 0, Offset(40))
    file.save(later)
    whole = disk.content("vote")
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 1
        disk.overwrite("vote", bytes(content))
        found = VoteFile(disk, "vote")
        assert found.load() == later
        found.save(Vote(Term(9), 1, 0, Offset(40)))
        assert VoteFile(disk, "vote").load() == Vote(Term(9), 1, 0, Offset(40))


def test_a_vote_of_which_no_copy_is_whole_is_reported() -> None:
    disk = FaultDisk()
    VoteFile(disk, "vote").save(VOTE)
    whole = disk.content("vote")
    half = len(whole) // 2
    for position in range(half):
        content = bytearray(whole)
        content[position] ^= 1
        content[half + position] ^= 1
        disk.overwrite("vote", bytes(content))
        with pytest.raises(DamagedLog, match="neither copy"):
            VoteFile(disk, "vote").load()


# --- Snapshots -----------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [1, 30])
def test_a_small_file_that_a_full_disk_refuses_leaves_the_old_one_and_takes_no_room(
    room: int,
) -> None:
    disk = FaultDisk()
    file = CheckpointFile(disk, "checkpoint")
    file.save(Checkpoint(Offset(1), Term(1), b"old", b""))
    disk.room = room
    with pytest.raises(OSError, match="full"):
        file.save(Checkpoint(Offset(2), Term(1), b"new" * 100, b""))
    assert disk.list("") == ["checkpoint"]
    assert file.load() == Checkpoint(Offset(1), Term(1), b"old", b"")


def test_what_a_crash_left_half_written_is_swept() -> None:
    disk = FaultDisk()
    for name in ("vote", "vote.staging", "checkpoint.staging", "other"):
        disk.open(name, create=True).close()
    remove_staging(disk, "")
    assert disk.list("") == ["other", "vote"]


def info_of(content: bytes, offset: int = 99, term: int = 3) -> SnapshotInfo:
    return SnapshotInfo(Offset(offset), Term(term), len(content), crc32c(content), b"metadata")


def store(files: SnapshotFiles, content: bytes, offset: int = 99, term: int = 3) -> SnapshotInfo:
    info = info_of(content, offset, term)
    writer = files.create(info)
    for at in range(0, len(content), 10):
        assert writer.position == at
        writer.write(content[at : at + 10])
    writer.commit()
    return info


CONTENT = bytes(range(256)) * 2


def test_a_snapshot_is_read_back_whole_and_in_pieces() -> None:
    disk = FaultDisk()
    info = store(SnapshotFiles(disk, "snapshots"), CONTENT)
    files = SnapshotFiles(disk, "snapshots")
    assert files.latest() == files.find(Offset(99)) == info
    assert files.find(Offset(98)) is None
    assert files.load(info) == CONTENT
    pieces = [files.read(info, at, 100) for at in range(0, len(CONTENT), 100)]
    assert b"".join(pieces) == CONTENT
    assert files.read(info, len(CONTENT), 100) == b""
    with pytest.raises(LocalError, match="outside"):
        files.read(info, len(CONTENT) + 1, 1)
    assert disk.open_files == 0


def test_an_empty_snapshot_is_a_snapshot() -> None:
    files = SnapshotFiles(FaultDisk(), "snapshots")
    info = store(files, b"")
    assert files.load(info) == b""


def test_a_snapshot_is_visible_only_when_it_is_whole_at_any_crash() -> None:
    disk = FaultDisk()
    old = store(SnapshotFiles(disk, "snapshots"), b"old", offset=50)
    rng = random.Random(2)
    seen = set()

    def look() -> None:
        for each in disk.outcomes(rng, 60):
            files = SnapshotFiles(each, "snapshots")
            latest = files.latest()
            assert latest is not None
            seen.add(latest.offset)
            assert files.load(latest) == (b"old" if latest == old else CONTENT)
            assert not [name for name in each.list("snapshots") if "partial" in name]

    disk.watch = look
    files = SnapshotFiles(disk, "snapshots")
    store(files, CONTENT, offset=60)
    assert seen == {50, 60}
    seen.clear()
    look()
    assert seen == {60}


@pytest.mark.parametrize("changes", range(7))
def test_a_snapshot_that_a_killed_process_left_is_durable_once_it_was_seen(changes: int) -> None:
    disk = FaultDisk()
    files = SnapshotFiles(disk, "snapshots")
    kill_after(disk, changes)
    with contextlib.suppress(Killed):
        store(files, CONTENT)
    found = SnapshotFiles(disk.killed(), "snapshots").latest()
    for each in disk.outcomes(random.Random(0), 50):
        assert SnapshotFiles(each, "snapshots").latest() == found


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"?"])
def test_a_snapshot_that_is_not_what_was_announced_is_refused(content: bytes) -> None:
    disk = FaultDisk()
    files = SnapshotFiles(disk, "snapshots")
    writer = files.create(info_of(CONTENT))
    writer.write(content)
    with pytest.raises(StorageError, match="Fetch it again"):
        writer.commit()
    assert files.latest() is None
    assert disk.list("snapshots") == []


def test_more_bytes_than_announced_are_refused() -> None:
    writer = SnapshotFiles(FaultDisk(), "snapshots").create(info_of(b"abc"))
    with pytest.raises(LocalError, match="4 bytes for a snapshot of 3"):
        writer.write(b"abcd")


def test_a_sync_that_fails_gives_the_snapshot_up() -> None:
    disk = FaultDisk()
    files = SnapshotFiles(disk, "snapshots")
    writer = files.create(info_of(b"abc"))
    writer.write(b"abc")
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="sync failed"):
        writer.commit()
    with pytest.raises(StorageError, match="given up"):
        writer.commit()
    assert files.latest() is None
    store(files, b"abc")
    for each in disk.outcomes(random.Random(0), 50):
        assert SnapshotFiles(each, "snapshots").latest() == info_of(b"abc")


def test_a_second_writer_of_a_snapshot_replaces_the_first() -> None:
    files = SnapshotFiles(FaultDisk(), "snapshots")
    first = files.create(info_of(CONTENT))
    first.write(CONTENT[:100])
    info = store(files, CONTENT)
    with pytest.raises(StorageError, match="given up"):
        first.write(CONTENT[100:])
    first.abort()
    assert files.load(info) == CONTENT


def test_old_snapshots_are_removed_and_the_newest_term_wins() -> None:
    disk = FaultDisk()
    files = SnapshotFiles(disk, "snapshots")
    for offset, term in ((10, 1), (20, 1), (20, 4), (30, 4)):
        store(files, b"%d" % term, offset, term)
    found = files.find(Offset(20))
    assert found is not None
    assert found.term == 4
    assert files.latest(Offset(29)) == found
    assert files.latest(Offset(9)) is None
    files.remove_before(Offset(20))
    assert len(disk.list("snapshots")) == 3
    files.remove_before(Offset(30), but=found)
    assert len(disk.list("snapshots")) == 2
    with pytest.raises(StorageError, match="removed or replaced"):
        files.load(info_of(b"1", 10, 1))


def spoiled(whole: bytes, position: int) -> bytes:
    content = bytearray(whole)
    content[position] ^= 1
    return bytes(content)


HEADER = 40 + len(b"metadata")  # of a snapshot file


def test_a_snapshot_with_a_damaged_header_is_set_aside_and_reported() -> None:
    disk = FaultDisk()
    files = SnapshotFiles(disk, "snapshots")
    older = store(files, CONTENT, 98)
    store(files, CONTENT)
    path = "snapshots/99-3-v1.snapshot"
    whole = disk.content(path)
    flipped = [spoiled(whole, position) for position in range(HEADER)]
    for damaged in (*flipped, *(whole[:end] for end in (0, 20, 45, len(whole) - 1))):
        disk.overwrite(path, damaged)
        found = SnapshotFiles(disk, "snapshots")
        assert found.latest() == older
        assert [each.path for each in found.set_aside] == [path]
        assert disk.list("snapshots") == ["98-3-v1.snapshot", "99-3-v1.snapshot.damaged"]
        assert disk.content(path + ".damaged") == damaged
        assert not SnapshotFiles(disk, "snapshots").set_aside, "it is reported once"


def test_what_was_set_aside_goes_when_something_whole_takes_its_place() -> None:
    disk = FaultDisk()
    store(SnapshotFiles(disk, "snapshots"), CONTENT)
    path = "snapshots/99-3-v1.snapshot"
    disk.overwrite(path, spoiled(disk.content(path), 9))
    SnapshotFiles(disk, "snapshots")
    files = SnapshotFiles(disk, "snapshots")
    store(files, CONTENT, 120)
    files.remove_before(Offset(120))
    assert disk.list("snapshots") == ["120-3-v1.snapshot"]


def test_a_damaged_content_is_reported_by_whoever_reads_it() -> None:
    disk = FaultDisk()
    info = store(SnapshotFiles(disk, "snapshots"), CONTENT)
    path = "snapshots/99-3-v1.snapshot"
    whole = disk.content(path)
    for position in (HEADER, 200, len(whole) - 1):
        disk.overwrite(path, spoiled(whole, position))
        files = SnapshotFiles(disk, "snapshots")
        for read in (files.load, files.check):
            with pytest.raises(DamagedLog, match="99-3-v1"):
                read(info)


def test_a_snapshot_whose_file_is_gone_is_damage_and_one_that_was_removed_is_not() -> None:
    disk = FaultDisk()
    files = SnapshotFiles(disk, "snapshots")
    older, newer = store(files, CONTENT, 98), store(files, CONTENT)
    before = files.names()
    files.remove_before(newer.offset)
    with pytest.raises(StorageError, match="removed or replaced"):
        files.check(older)
    assert files.missing(disk.list("snapshots"), before) is None
    disk.delete("snapshots/99-3-v1.snapshot")
    for read in (files.load, files.check, lambda info: files.read(info, 0, 1)):
        with pytest.raises(DamagedLog, match="the file is missing"):
            read(newer)
    damage = files.missing(disk.list("snapshots"), before)
    assert damage is not None
    assert damage.offset == newer.offset


def test_the_vote_of_another_replica_is_reported() -> None:
    disk = FaultDisk()
    VoteFile(disk, "vote", "group 5 n1").save(VOTE)
    assert VoteFile(disk, "vote", "group 5 n1").load() == VOTE
    assert VoteFile(disk, "vote").load() == VOTE
    for other in ("group 6 n1", "group 5 n1r2", "group 5 n2"):
        with pytest.raises(DamagedLog, match=f"it is the vote of group 5 n1, and this is {other}"):
            VoteFile(disk, "vote", other).load()


def test_a_vote_that_names_no_owner_is_anybody_s_and_soon_has_one() -> None:
    disk = FaultDisk()
    VoteFile(disk, "vote").save(VOTE)  # as releases before this one did
    file = VoteFile(disk, "vote", "group 5 n1")
    assert file.load() == VOTE
    file.save(Vote(Term(8), 1, 0, Offset(40)))
    with pytest.raises(DamagedLog, match="this is group 6 n1"):
        VoteFile(disk, "vote", "group 6 n1").load()


def test_a_vote_whose_sync_failed_is_written_anew_before_it_is_believed() -> None:
    disk = SimDisk(random.Random(1))
    file = VoteFile(disk, "vote")
    file.save(VOTE)
    disk.failing_syncs = 1.0
    newer = Vote(Term(VOTE.term + 1), 2, 0, VOTE.compacted)
    with pytest.raises(OSError, match="sync"):
        file.save(newer)
    disk.failing_syncs = 0.0
    found = VoteFile(disk, "vote").load()
    assert found in (VOTE, newer)
    assert VoteFile(disk.durable_copy(), "vote").load() == found
