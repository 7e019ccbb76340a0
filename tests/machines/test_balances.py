from hypothesis import given
from hypothesis import strategies as st
from tests.machines.batches import data, internal

from tidelog.machines import Account, Balances, CorruptSnapshot
from tidelog.records import Batch, read_records

# Deposits and withdrawals of three accounts, as in seed 3.
HISTORY = [(b"a", 1), (b"b", 3), (b"a", 2), (b"c", 4), (b"b", -2)]


def log(history: list[tuple[bytes, int]]) -> list[Batch]:
    return [data(offset, [(key, b"%d" % amount)]) for offset, (key, amount) in enumerate(history)]


def compact(batches: list[Batch]) -> list[Batch]:
    """Keep the last batch of each key, where it is."""
    newest = {next(read_records(batch)).key: batch.base_offset for batch in batches}
    return [batch for batch in batches if batch.base_offset in newest.values()]


def fold(batches: list[Batch], start: Balances | None = None) -> Balances:
    balances = start or Balances()
    for batch in batches:
        balances.apply(batch)
    return balances


def sums(balances: Balances) -> list[int]:
    return [account.balance for account in balances.accounts().values()]


def test_a_fold_over_the_compacted_log_differs_and_a_snapshot_with_its_tail_does_not() -> None:
    batches = log(HISTORY)
    full = fold(batches)
    assert sums(full) == [3, 1, 4]
    assert full.account(b"a") == Account(balance=3, updates=2)

    compacted = compact(batches)
    assert len(compacted) == 3
    assert sums(fold(compacted)) == [2, -2, 4]

    for taken in range(len(batches) + 1):
        restored = Balances()
        restored.restore(fold(batches[:taken]).snapshot())
        assert fold(batches[taken:], restored).snapshot() == full.snapshot()


def test_a_batch_applied_twice_is_seen_even_if_its_amounts_cancel_out() -> None:
    batch = data(0, [(b"a", b"5"), (b"a", b"-5")])
    once, twice = fold([batch]), fold([batch, batch])
    assert sums(once) == sums(twice) == [0]
    assert once.snapshot() != twice.snapshot()


def test_what_is_no_deposit_is_counted_and_skipped() -> None:
    bad = [None, b"", b"-", b"+-1", b"1.5", b" 1", b"9" * 19, "²".encode()]
    balances = fold([data(0, [(b"a", b"+7")]), data(1, [(None, b"1")])])
    for value in bad[1:]:
        balances.apply(data(2, [(b"a", value)]))
    assert balances.account(b"a") == Account(7, 1)
    assert balances.unreadable == len(bad)
    assert str(balances) == "accounts=1 total=7 unreadable=8"


def test_a_record_without_a_value_closes_the_account() -> None:
    balances = fold([data(0, [(b"a", b"7"), (b"a", None)])])
    assert len(balances) == 0
    assert balances.unreadable == 0


def test_internal_batches_and_markers_are_no_deposits() -> None:
    before = Balances().snapshot()
    assert fold([internal(0), data(1, control=True)]).snapshot() == before


def test_records_that_cannot_be_read_are_skipped_whole() -> None:
    raw = bytearray(data(0, [(b"a", b"7"), (b"b", b"8")]).data)
    raw[-3] = 0x7E  # the length of the last value
    balances = fold([Batch.parse(raw)])
    assert len(balances) == 0
    assert balances.unreadable == 1


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(-(10**17), 10**17)), max_size=20))
def test_the_order_of_accounts_leaves_no_trace_in_a_snapshot(
    history: list[tuple[bytes, int]],
) -> None:
    forward, backward = fold(log(history)), fold(log(history[::-1]))
    assert forward.snapshot() == backward.snapshot()
    restored = Balances()
    restored.restore(forward.snapshot())
    assert restored.accounts() == forward.accounts()


@given(st.binary(max_size=60))
def test_hostile_bytes_are_refused_or_are_a_state_written_in_no_other_way(raw: bytes) -> None:
    balances = fold(log(HISTORY))
    before = balances.snapshot()
    try:
        balances.restore(b"\x01" + raw)
    except CorruptSnapshot:
        assert balances.snapshot() == before
        return
    assert balances.snapshot() == b"\x01" + raw
