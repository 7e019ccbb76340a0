from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machines.batches import data, internal

from tidelog.machines import CorruptSnapshot, Producers, Standing, Verdict
from tidelog.machines.encoding import Writer
from tidelog.records import Batch, Offset

LAST_SEQUENCE = 2**31 - 1
NEW = Verdict(Standing.NEW)
AHEAD = Verdict(Standing.AHEAD)
OUT_OF_ORDER = Verdict(Standing.OUT_OF_ORDER)
FENCED = Verdict(Standing.FENCED)


def duplicate(base: int, last: int) -> Verdict:
    return Verdict(Standing.DUPLICATE, Offset(base), Offset(last))


def write(base: int, sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> Batch:
    """`count` records of a producer at the log offset `base`."""
    records = [(b"key", b"1")] * count
    return data(base, records, producer=producer, epoch=epoch, sequence=sequence)


def marker(base: int, *, producer: int = 7, epoch: int = 0) -> Batch:
    """The end of a transaction."""
    return data(base, producer=producer, epoch=epoch, control=True)


def restarted(producers: Producers) -> Producers:
    """Another replica's machine that got the snapshot of this one."""
    other = Producers()
    other.restore(producers.snapshot())
    other.check_invariants()
    assert other.snapshot() == producers.snapshot()
    return other


def test_a_retry_gets_the_offsets_of_the_original() -> None:
    producers = Producers()
    producers.apply(write(10, 0, 3))
    producers.apply(write(20, 3, 2))
    for machine in (producers, restarted(producers)):
        assert machine.check(write(0, 0, 3)) == duplicate(10, 12)
        assert machine.check(write(0, 3, 2)) == duplicate(20, 21)
        assert machine.check(write(0, 5)) == NEW


def test_the_window_is_five_batches() -> None:
    producers = Producers()
    for number in range(6):
        producers.apply(write(number, number))
    assert producers.check(write(0, 0)) == OUT_OF_ORDER
    assert producers.check(write(0, 1)) == duplicate(1, 1)
    assert producers.check(write(0, 5)) == duplicate(5, 5)


def test_other_cuts_of_the_same_records_are_out_of_order_and_what_leaves_a_gap_is_ahead() -> None:
    producers = Producers()
    producers.apply(write(10, 0, 3))
    assert producers.check(write(0, 4)) == AHEAD
    assert producers.check(write(0, LAST_SEQUENCE)) == OUT_OF_ORDER
    assert producers.check(write(0, 0, 2)) == OUT_OF_ORDER
    assert producers.check(write(0, 2, 2)) == OUT_OF_ORDER


def test_sequences_start_over_after_the_last() -> None:
    producers = Producers()
    producers.apply(write(0, LAST_SEQUENCE - 1))
    assert producers.check(write(0, LAST_SEQUENCE, 3)) == NEW
    producers.apply(write(1, LAST_SEQUENCE, 3))
    for machine in (producers, restarted(producers)):
        assert machine.check(write(0, LAST_SEQUENCE, 3)) == duplicate(1, 3)
        assert machine.check(write(0, 2)) == NEW
        assert machine.check(write(0, 3)) == AHEAD
        assert machine.check(write(0, 0)) == OUT_OF_ORDER


def test_a_new_epoch_fences_the_old_and_starts_at_zero() -> None:
    producers = Producers()
    producers.apply(write(0, 0))
    assert producers.check(write(0, 1, epoch=1)) == AHEAD
    assert producers.check(write(0, 0, epoch=1)) == NEW
    producers.apply(write(1, 0, epoch=1))
    assert producers.check(write(0, 1, epoch=0)) == FENCED
    assert producers.check(write(0, 0, epoch=0)) == FENCED
    assert producers.check(write(0, 0, epoch=1)) == duplicate(1, 1)


def test_a_marker_of_a_new_epoch_fences_too() -> None:
    producers = Producers()
    producers.apply(write(0, 0))
    producers.apply(marker(1))
    assert producers.check(write(0, 0)) == duplicate(0, 0)
    producers.apply(marker(2, epoch=3))
    for machine in (producers, restarted(producers)):
        assert machine.check(write(0, 1)) == FENCED
        assert machine.check(marker(0)) == FENCED
        assert machine.check(marker(0, epoch=3)) == NEW
        assert machine.check(write(0, 1, epoch=3)) == AHEAD
        assert machine.check(write(0, 0, epoch=3)) == NEW


def test_an_unknown_producer_may_begin_anywhere_and_a_plain_batch_always() -> None:
    producers = Producers()
    assert producers.check(write(0, 41)) == NEW
    assert producers.check(data(0)) == NEW
    assert producers.check(internal(0)) == NEW


def test_a_producer_without_sequence_is_out_of_order_and_leaves_no_trace() -> None:
    producers = Producers()
    for bad in (write(0, -1), write(0, 0, epoch=-1)):
        assert producers.check(bad) == OUT_OF_ORDER
        producers.apply(bad)
    assert len(producers) == 0


def test_what_the_leader_accepted_counts_before_it_is_applied() -> None:
    producers = Producers()
    producers.apply(write(0, 0))
    producers.accept(write(5, 1))
    producers.accept(write(6, 2))
    assert producers.check(write(0, 0)) == duplicate(0, 0)
    assert producers.check(write(0, 1)) == duplicate(5, 5)
    assert producers.check(write(0, 3)) == NEW
    producers.apply(write(5, 1))
    assert producers.check(write(0, 2)) == duplicate(6, 6)
    producers.apply(write(6, 2))
    producers.check_invariants()
    assert str(producers) == "producers=1 ahead=0"


def test_what_was_accepted_is_forgotten_with_the_term() -> None:
    producers = Producers()
    producers.apply(write(0, 0))
    producers.accept(write(5, 1))
    producers.accept(write(6, 0, producer=8, epoch=1))
    producers.forget_accepted()
    assert producers.check(write(0, 1)) == NEW
    assert producers.check(write(0, 0, producer=8)) == NEW


def test_what_was_accepted_is_in_no_snapshot() -> None:
    producers = Producers()
    producers.apply(write(0, 0))
    before = producers.snapshot()
    producers.accept(write(1, 1))
    assert producers.snapshot() == before


def test_a_restore_keeps_only_what_was_accepted_beyond_it() -> None:
    ahead, behind = Producers(), Producers()
    for machine in (ahead, behind):
        machine.apply(write(0, 0))
    ahead.apply(write(1, 1))
    behind.accept(write(1, 1))
    behind.restore(ahead.snapshot())
    behind.check_invariants()
    assert str(behind) == "producers=1 ahead=0"


def test_the_producer_that_was_silent_for_longest_is_forgotten_first() -> None:
    producers = Producers(limit=2)
    producers.apply(write(0, 0, producer=1))
    producers.apply(write(1, 0, producer=2))
    producers.apply(write(2, 1, producer=1))
    restored = Producers(limit=2)
    restored.restore(producers.snapshot())
    for machine in (producers, restored):
        machine.apply(write(3, 0, producer=3))
        assert machine.check(write(0, 0, producer=2)) == NEW
        assert machine.check(write(0, 0, producer=1)) == duplicate(0, 0)
    assert restored.snapshot() == producers.snapshot()


# --- Against a naive model ----------------------------------------------------------------------


@dataclass
class Model:
    """Every batch each producer ever wrote, and the rules read off the table in the module."""

    epochs: dict[int, int] = field(default_factory=dict)
    history: dict[int, list[tuple[int, list[int], int]]] = field(default_factory=dict)

    def apply(self, producer: int, epoch: int, numbers: list[int], base: int) -> None:
        self.epochs[producer] = epoch
        self.history.setdefault(producer, []).append((epoch, numbers, base))

    def check(self, producer: int, epoch: int, numbers: list[int]) -> Verdict:
        if producer not in self.epochs:
            return NEW
        if epoch < self.epochs[producer]:
            return FENCED
        if epoch > self.epochs[producer]:
            return NEW if numbers[0] == 0 else AHEAD
        written = [entry for entry in self.history[producer] if entry[0] == epoch]
        for _, old, base in written[-5:]:
            if old == numbers:
                return duplicate(base, base + len(old) - 1)
        missing = (numbers[0] - written[-1][1][-1] - 1) % (LAST_SEQUENCE + 1)
        if not missing:
            return NEW
        return AHEAD if missing <= LAST_SEQUENCE // 2 else OUT_OF_ORDER


@given(st.data())
def test_verdicts_are_those_of_a_model_that_remembers_everything(steps: st.DataObject) -> None:
    producers, model = Producers(), Model()
    pending: list[tuple[Batch, tuple[int, int, list[int], int]]] = []  # accepted, not applied
    settled = Model()  # the model without what is pending
    offset = 0
    # Near the end of the numbers, so that they start over.
    starts = st.sampled_from([0, 1, LAST_SEQUENCE - 1, LAST_SEQUENCE])
    last: dict[int, int] = {}
    for _ in range(steps.draw(st.integers(1, 40))):
        action = steps.draw(st.sampled_from(["write", "write", "write", "apply", "term", "move"]))
        if action == "apply" and pending:
            batch, facts = pending.pop(0)
            producers.apply(batch)
            settled.apply(*facts)
        elif action == "term":
            pending.clear()
            producers.forget_accepted()
            model = Model(dict(settled.epochs), {k: list(v) for k, v in settled.history.items()})
        elif action == "move" and not pending:
            producers = restarted(producers)
        elif action == "write":
            producer = steps.draw(st.integers(0, 2))
            epoch = steps.draw(st.sampled_from([0, 0, 0, 1, 2]))
            at = last.get(producer, 0)
            sequence = steps.draw(starts | st.integers(at - 8, at + 1)) % (LAST_SEQUENCE + 1)
            count = steps.draw(st.integers(1, 2))
            numbers = [(sequence + step) % (LAST_SEQUENCE + 1) for step in range(count)]
            batch = write(offset, sequence, count, producer=producer, epoch=epoch)
            expected = model.check(producer, epoch, numbers)
            assert producers.check(batch) == expected
            if expected == NEW:
                facts = (producer, epoch, numbers, offset)
                producers.accept(batch)
                model.apply(*facts)
                pending.append((batch, facts))
                offset += count
                last[producer] = numbers[-1]
        producers.check_invariants()


# --- Bytes from elsewhere -----------------------------------------------------------------------


def test_the_empty_state_is_the_initial_one() -> None:
    producers = Producers()
    producers.apply(write(0, 0))
    producers.restore(b"")
    assert producers.snapshot() == Producers().snapshot()


def state(*numbers: int, version: int = 1) -> bytes:
    writer = Writer(version)
    for number in numbers:
        writer.number(number)
    return writer.finish()


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (state(version=2), "version 2 and this node reads version 1"),
        (state(1), "does not end"),
        (state(0, 0), "1 bytes are left over"),
        (state(3, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0), "the limit here is 2"),
        (state(1, 7, 2**15, 0, 0), "beyond 32767"),
        (state(1, 7, 0, 9, 6), "beyond 5"),
        (state(1, 7, 0, 9, 1, 2**31, 0, 0), "beyond 2147483647"),
        (state(1, 7, 0, 9, 2, 0, 3, 4, 4, 0, 6), "the batches of producer 7 overlap"),
        (state(1, 7, 0, 9, 1, 0, 0, 10), "wrote after its last batch"),
        (state(2, 7, 0, 9, 0, 0, 0, 9, 0), "two producers wrote the same offset"),
        (state(2, 2**63 - 1, 0, 1, 0, 0, 0, 2, 0), "does not exist"),
    ],
)
def test_a_damaged_state_is_refused_with_a_sentence_and_changes_nothing(
    damaged: bytes, reason: str
) -> None:
    producers = Producers(limit=2)
    producers.apply(write(0, 0))
    before = producers.snapshot()
    with pytest.raises(CorruptSnapshot, match=reason):
        producers.restore(damaged)
    assert producers.snapshot() == before


@given(st.binary(max_size=60))
def test_hostile_bytes_are_refused_or_are_a_state_written_in_no_other_way(raw: bytes) -> None:
    producers = Producers()
    try:
        producers.restore(b"\x01" + raw)
    except CorruptSnapshot:
        assert len(producers) == 0
        return
    producers.check_invariants()
    assert producers.snapshot() == b"\x01" + raw
