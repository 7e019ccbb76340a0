from collections.abc import Callable
from struct import pack

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.machines.batches import data, internal

from tidelog.machines import (
    NO_OBJECTION,
    Balances,
    CorruptSnapshot,
    Machine,
    Machines,
    Producers,
    Translation,
)
from tidelog.machines.encoding import Reader, Writer
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset, Term, ghost

KEYS = [b"a", b"b", b"c"]


def partition(*machines: Machine) -> Machines:
    return Machines(machines or (Producers(), Balances()), Translation())


def history(length: int) -> list[Batch]:
    """A configuration first, then deposits of one idempotent producer, every fifth internal."""
    batches = [internal(0)]
    sequence = 0
    for offset in range(1, length):
        if offset % 5 == 0:
            batches.append(internal(offset, BatchType.SNAPSHOT))
            continue
        record = (KEYS[offset % 3], b"%d" % offset)
        batches.append(data(offset, [record], producer=1, epoch=0, sequence=sequence))
        sequence += 1
    return batches


def feed(machines: Machines, batches: list[Batch]) -> Machines:
    for batch in batches:
        machines.appended(batch)
    machines.apply(batches)
    machines.check_invariants()
    return machines


def test_a_snapshot_and_the_tail_equal_the_whole_history_at_every_offset() -> None:
    batches = history(23)
    whole = feed(partition(), batches).snapshot()
    for taken in range(len(batches) + 1):
        source = feed(partition(), batches[:taken])
        target = partition()
        target.restore(source.snapshot(), source.applied)
        assert target.snapshot() == source.snapshot()
        assert feed(target, batches[taken:]).snapshot() == whole


def test_a_replica_that_folded_holes_is_corrected_by_the_snapshot() -> None:
    batches = history(20)
    leader = feed(partition(), batches)
    compacted = [
        batch for batch in batches if batch.type is not BatchType.DATA or batch.base_offset >= 17
    ]
    follower = feed(partition(), compacted)
    assert follower.snapshot() != leader.snapshot()
    follower.restore(leader.snapshot(), leader.applied)
    assert follower.snapshot() == leader.snapshot()


def test_a_snapshot_does_not_depend_on_what_is_appended_beyond_applied() -> None:
    batches = history(12)
    machines = feed(partition(), batches[:7])
    before = machines.snapshot()
    for batch in batches[7:]:
        machines.appended(batch)
    assert machines.snapshot() == before
    machines.truncated(Offset(7))
    machines.appended(internal(7))
    assert machines.snapshot() == before


def test_a_rewind_keeps_the_map_of_the_log_above_the_snapshot() -> None:
    batches = history(12)
    machines = feed(partition(), batches)
    early = feed(partition(), batches[:4])
    machines.restore(early.snapshot(), early.applied)
    assert machines.applied == 3
    assert machines.translation.to_client(Offset(11)) == 8
    machines.apply(batches[4:])
    assert machines.snapshot() == feed(partition(), batches).snapshot()


def test_an_installed_snapshot_goes_with_an_emptied_log() -> None:
    batches = history(12)
    source = feed(partition(), batches[:9])
    target = feed(partition(), history(4))
    target.log_reset(Offset(9))
    target.restore(source.snapshot(), source.applied)
    feed(target, batches[9:])
    assert target.snapshot() == feed(partition(), batches).snapshot()
    assert target.translation.start == 9


def test_machines_may_stand_ahead_of_a_log_whose_end_is_replaced() -> None:
    batches = history(12)
    source = feed(partition(), batches[:9])
    target = partition()
    for batch in history(3) + [internal(3), internal(4)]:  # another leader's, never committed
        target.appended(batch)
    target.restore(source.snapshot(), source.applied)
    target.truncated(Offset(3))
    for batch in batches[3:9]:
        target.appended(batch)
    feed(target, batches[9:])
    assert target.snapshot() == feed(partition(), batches).snapshot()


def test_retention_changes_no_snapshot() -> None:
    batches = history(12)
    kept, trimmed = feed(partition(), batches), feed(partition(), batches)
    trimmed.prefix_truncated(Offset(8))
    trimmed.check_invariants()
    assert trimmed.snapshot() == kept.snapshot()


def test_batches_are_applied_once_in_order_over_gaps_and_never_as_ghosts() -> None:
    machines = partition()
    machines.apply([internal(0), data(4)])
    assert machines.applied == 4
    with pytest.raises(ValueError, match="cannot be applied after offset 4"):
        machines.apply([data(4)])
    with pytest.raises(ValueError, match=r"ghost .* cannot be applied"):
        machines.apply([ghost(Offset(5), Offset(6), Term(1))])


def test_reset_starts_the_fold_over_and_leaves_the_log_alone() -> None:
    batches = history(9)
    machines = feed(partition(), batches)
    whole = machines.snapshot()
    machines.reset()
    assert machines.applied == NO_OFFSET
    assert machines.snapshot() == partition().snapshot()
    machines.apply(batches)
    assert machines.snapshot() == whole


class Cautious(Balances):
    """Objects to compaction beyond offset 5."""

    name = "cautious"

    def collectible(self) -> Offset:
        return Offset(5)


class Forgetful(Balances):
    """Refuses every state but the initial one and its own."""

    name = "forgetful"

    def restore(self, state: bytes) -> None:
        if state not in (b"", Balances().snapshot()):
            raise CorruptSnapshot("the forgetful machine knows nothing of this")
        super().restore(state)


def test_the_most_cautious_machine_bounds_compaction() -> None:
    assert partition().collectible() == NO_OBJECTION
    assert partition(Balances(), Cautious()).collectible() == 5


def test_names_of_machines_differ() -> None:
    with pytest.raises(ValueError, match="must differ"):
        partition(Balances(), Balances())


def test_a_snapshot_that_one_machine_refuses_changes_none() -> None:
    source = feed(partition(Balances(), Forgetful()), history(9))
    target = partition(Balances(), Forgetful())
    before = target.snapshot()
    with pytest.raises(CorruptSnapshot, match="the forgetful machine knows nothing"):
        target.restore(source.snapshot(), source.applied)
    assert target.snapshot() == before
    assert target.applied == NO_OFFSET


def test_a_snapshot_of_another_log_changes_no_machine() -> None:
    source = feed(partition(), history(9))
    target = feed(partition(), [internal(0), internal(1), internal(2), data(3), data(8)])
    before = target.snapshot()
    with pytest.raises(CorruptSnapshot, match="not of the same history"):
        target.restore(source.snapshot(), source.applied)
    assert target.snapshot() == before


def sealed(body: bytes, magic: bytes = b"TLMS", version: int = 1) -> bytes:
    return pack(">4sHI", magic, version, crc32c(body)) + body


def envelope(offset: int, states: list[tuple[bytes, bytes]]) -> bytes:
    writer = Writer(1)
    writer.number(offset + 1)
    writer.number(len(states))
    for name, state in states:
        writer.blob(name)
        writer.blob(state)
    return sealed(writer.finish())


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"TLMS", "4 bytes are too few"),
        (sealed(b"", magic=b"SMLT"), "no snapshot of machines"),
        (sealed(b"", version=9), "version 9 and this node reads version 1"),
        (envelope(8, [])[:-1] + b"\x07", "its checksum is wrong"),
        (envelope(7, []), "taken at offset 7, not at 8"),
        (envelope(8, [(b"translation", b""), (b"spells", b"")]), "not in its place"),
        (envelope(8, [(b"spells", b""), (b"translation", b"")]), "has state for spells"),
        (envelope(8, [(b"balances", b""), (b"translation", b"")]), "no state for producers"),
        (sealed(b"\x01\x09\x41"), "is 65, beyond 64"),
        (sealed(b"\x01\x09\x01\x7fx"), "is 127, beyond 2"),
    ],
)
def test_a_damaged_snapshot_is_refused_with_a_sentence_and_changes_nothing(
    damaged: bytes, reason: str
) -> None:
    machines = feed(partition(), history(4))
    before = machines.snapshot()
    with pytest.raises(CorruptSnapshot, match=reason):
        machines.restore(damaged, Offset(8))
    assert machines.snapshot() == before


@given(st.data())
def test_no_flipped_byte_or_cut_is_restored(steps: st.DataObject) -> None:
    source = feed(partition(), history(9))
    raw = bytearray(source.snapshot())
    position = steps.draw(st.integers(0, len(raw) - 1))
    if steps.draw(st.booleans()):
        raw[position] ^= steps.draw(st.integers(1, 255))
    else:
        del raw[position:]
    with pytest.raises(CorruptSnapshot):
        partition().restore(bytes(raw), source.applied)


# --- Numbers ------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**126), 2**126)), st.binary(max_size=300))
def test_numbers_and_blobs_are_read_as_they_were_written(numbers: list[int], blob: bytes) -> None:
    writer = Writer(3)
    for number in numbers:
        writer.signed(number)
        writer.number(abs(number))
    writer.blob(blob)
    reader = Reader(writer.finish(), "a test", 3)
    for number in numbers:
        assert reader.signed(2**126) == number
        assert reader.number(2**126) == abs(number)
    assert reader.blob() == blob
    reader.finish()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x80\x00", "not in its shortest form"),
        (b"\x80", "does not end"),
        (b"\xff" * 30, "does not end"),
        (b"\xff\x01", "is 255, beyond 200"),
    ],
)
def test_a_number_has_one_spelling_and_a_limit(raw: bytes, reason: str) -> None:
    reader = Reader(b"\x01" + raw, "a test", 1)
    with pytest.raises(CorruptSnapshot, match=f"the state of a test .* {reason}"):
        reader.number(200)


def test_a_negative_number_is_the_writers_mistake() -> None:
    with pytest.raises(ValueError, match="write it with `signed`"):
        Writer(1).number(-1)


@given(st.integers(1, 23), st.integers(0, 23), st.data())
def test_machines_of_a_checkpoint_go_on_as_if_they_had_folded_everything(
    taken: int, more: int, given_: st.DataObject
) -> None:
    batches = history(23)
    source = feed(partition(), batches[:taken])
    start = Offset(given_.draw(st.integers(0, source.applied + 1)))
    source.prefix_truncated(Offset(given_.draw(st.integers(0, start))))
    for batch in batches[taken : taken + more]:
        source.appended(batch)  # not committed: no part of the checkpoint
    state = source.checkpoint()
    target = Machines((Producers(), Balances()), Translation(start))
    target.resume(state, source.applied, start)
    target.check_invariants()
    assert target.applied == source.applied
    assert target.translation.start == start
    assert feed(target, batches[taken:]).snapshot() == feed(partition(), batches).snapshot()
    whole = feed(partition(), batches)
    whole.prefix_truncated(start)
    assert str(target.translation) == str(whole.translation)


@pytest.mark.parametrize(
    ("spoil", "offset", "start"),
    [
        (lambda state: state[:3], 11, 0),
        (lambda state: state[:-1], 11, 0),
        (lambda state: b"\0\0\0\1" + state[4:], 11, 0),
        (lambda state: state, 10, 0),
        (lambda state: state, 11, 13),
        (lambda state: state, 11, 2),
    ],
    ids=["too short", "no end", "map cut", "other offset", "log begins past", "log begins before"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(
    spoil: Callable[[bytes], bytes], offset: int, start: int
) -> None:
    source = feed(partition(), history(12))
    source.prefix_truncated(Offset(3))
    target = partition()
    before = target.snapshot(), str(target)
    with pytest.raises(CorruptSnapshot):
        target.resume(spoil(source.checkpoint()), Offset(offset), Offset(start))
    assert (target.snapshot(), str(target)) == before
