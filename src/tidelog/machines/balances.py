"""Accounts: the machine that shows what compaction does to a fold (seed 3).

Every record is a deposit (or, negative, a withdrawal) for the account that is its key; a record
without a value closes the account. Sums depend on all records of a key and compaction keeps one,
so a fold over a compacted log gives other balances. It counts the updates too: a batch applied
twice is seen even if its amounts cancel out.
"""

from typing import Final, NamedTuple

from tidelog.machines.encoding import MAX_OFFSET, Reader, Writer
from tidelog.machines.machine import NO_OBJECTION
from tidelog.records import Batch, BatchType, CorruptBatch, Offset, read_records

_VERSION: Final = 1
_MAX_DIGITS: Final = 18  # so that every amount fits in 64 bits
# 2^63 updates of 64 bits each.
_MAX_BALANCE: Final = 2**126


class Account(NamedTuple):
    balance: int = 0
    updates: int = 0


_NOTHING: Final = Account()


class Balances:
    name = "balances"

    def __init__(self) -> None:
        self._accounts: dict[bytes, Account] = {}
        # Records without a key or amount, and batches whose records cannot be read: skipped, on
        # all replicas alike.
        self.unreadable = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def account(self, key: bytes) -> Account:
        return self._accounts.get(key, _NOTHING)

    def accounts(self) -> dict[bytes, Account]:
        """All accounts, by key in order."""
        return {key: self._accounts[key] for key in sorted(self._accounts)}

    def apply(self, batch: Batch) -> None:
        if batch.type is not BatchType.DATA or batch.is_control:
            return
        try:
            records = list(read_records(batch))
        except CorruptBatch:
            self.unreadable += 1
            return
        for record in records:
            if record.key is None:
                self.unreadable += 1
            elif record.value is None:
                self._accounts.pop(record.key, None)
            elif (amount := _amount(record.value)) is None:
                self.unreadable += 1
            else:
                balance, updates = self.account(record.key)
                self._accounts[record.key] = Account(balance + amount, updates + 1)

    def collectible(self) -> Offset:
        return NO_OBJECTION

    def snapshot(self) -> bytes:
        writer = Writer(_VERSION)
        writer.number(self.unreadable)
        writer.number(len(self._accounts))
        for key, account in self.accounts().items():
            writer.blob(key)
            writer.signed(account.balance)
            writer.number(account.updates)
        return writer.finish()

    def restore(self, state: bytes) -> None:
        accounts: dict[bytes, Account] = {}
        unreadable = 0
        if state:
            reader = Reader(state, self.name, _VERSION)
            unreadable = reader.number(MAX_OFFSET)
            previous: bytes | None = None
            for _ in range(reader.number(len(state))):
                key = reader.blob()
                if previous is not None and key <= previous:
                    raise reader.corrupt(f"account {key!r} is not in its place")
                accounts[key] = Account(reader.signed(_MAX_BALANCE), reader.number(MAX_OFFSET))
                previous = key
            reader.finish()
        self._accounts = accounts
        self.unreadable = unreadable

    def __str__(self) -> str:
        total = sum(account.balance for account in self._accounts.values())
        return f"accounts={len(self._accounts)} total={total} unreadable={self.unreadable}"


def _amount(value: bytes) -> int | None:
    """Read a decimal integer with an optional sign; None if it is none."""
    digits = value[1:] if value[:1] in (b"+", b"-") else value
    if not 0 < len(digits) <= _MAX_DIGITS or not digits.isdigit():
        return None
    return int(value)
