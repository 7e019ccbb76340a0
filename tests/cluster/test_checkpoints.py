"""Checkpoints: a start begins where the machines stood, and ends as if it had folded everything."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.hands import DIRECTORY, FLUSH, GROUP, Puppet, alone, at, machines, vnode

from tidelog.machines import Balances, Machine
from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.types import Level, ShippingMode
from tidelog.records import NO_OFFSET, Batch, Offset, Record, Term, build_batch
from tidelog.storage import BATCH_COST, CheckpointFile, Log, LogConfig, SnapshotInfo
from tidelog.storage.view import ReadableLog

CHECKPOINT = f"{DIRECTORY}/checkpoint"
# A checkpoint about every fifth batch.
EVERY_FIFTH = LogConfig(segment_bytes=600, recovery_bytes=5 * BATCH_COST)
PAIR = Configuration((vnode(1), vnode(2)))


class Client:
    """An idempotent producer of deposits."""

    def __init__(self, puppet: Puppet) -> None:
        self.puppet = puppet
        self.sequence = 0
        self.token = 0

    def deposit(self, key: bytes, *, flush: bool = True) -> Batch:
        batch = build_batch(
            [Record(0, 0, key, b"%d" % (self.sequence + 1))],
            producer_id=7,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        self.token += 1
        self.puppet.running.produce(self.token, batch, Level.QUORUM)
        self.puppet.hands.do_all(FLUSH)
        self.sequence += 1
        if flush:
            self.puppet.flush()
        return batch


def saved(puppet: Puppet) -> Offset:
    """Where the checkpoint on the disk is."""
    found = CheckpointFile(puppet.disk, CHECKPOINT).load()
    return NO_OFFSET if found is None else found.offset


def everything(puppet: Puppet) -> tuple[bytes, str, str]:
    """All that machines know, and where the log is."""
    replica = puppet.running
    replica.check_invariants()
    return replica.machines.snapshot(), str(replica.machines.translation), str(replica.log)


def without_checkpoint(puppet: Puppet) -> Puppet:
    """The same disk after a loss of power, but for the checkpoint."""
    twin = Puppet(1, initial=puppet.initial, options=puppet.options, log_config=puppet.log_config)
    twin.disk = puppet.disk.durable_copy()
    if twin.disk.exists(CHECKPOINT):
        twin.disk.remove(CHECKPOINT)
    return twin


def test_a_start_goes_on_from_the_checkpoint_and_reads_nothing_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    puppet = alone(log_config=EVERY_FIFTH)
    client = Client(puppet)
    for _ in range(13):
        client.deposit(b"a")
    before = everything(puppet)
    point = saved(puppet)
    assert point == 9
    puppet.lose_power()
    reads: list[Offset] = []
    read: Callable[..., list[Batch]] = ReadableLog.read

    def watched(log: Log, start: Offset, *limits: int, **named: Offset) -> list[Batch]:
        reads.append(start)
        return read(log, start, *limits, **named)

    monkeypatch.setattr(ReadableLog, "read", watched)
    replica = puppet.open()
    assert replica.machines.applied == replica.core.applied == replica.core.committed == point
    replica.start()
    puppet.lead()
    assert min(reads) > point
    assert replica.machines.applied == 14
    client.deposit(b"a")
    assert puppet.balances.account(b"a").updates == 14
    assert before[0] != replica.machines.snapshot()


def test_a_duplicate_is_still_known_after_a_start_from_a_checkpoint() -> None:
    puppet = alone(log_config=EVERY_FIFTH)
    client = Client(puppet)
    for _ in range(4):
        last = client.deposit(b"a")
    assert saved(puppet) == 4
    puppet.lose_power()
    puppet.start()
    puppet.lead()
    puppet.running.produce(99, last, Level.QUORUM)
    assert puppet.hands.outcome(99) == ev.Done(99, at(4))


def test_a_quiet_log_costs_no_checkpoint() -> None:
    puppet = alone(log_config=EVERY_FIFTH)
    client = Client(puppet)
    for _ in range(4):
        client.deposit(b"a")
    written = puppet.disk.operations
    puppet.step(ev.FlushDue())
    assert puppet.disk.operations == written
    assert saved(puppet) == 4


def test_a_log_that_has_become_quiet_is_saved_once_and_then_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    puppet = alone(log_config=LogConfig(recovery_bytes=500 * BATCH_COST))
    client = Client(puppet)
    for _ in range(20):
        client.deposit(b"a")
        assert not puppet.running.rest(), "it is busy"
    assert saved(puppet) == NO_OFFSET
    assert puppet.running.rest()
    puppet.hands.do_all()
    assert saved(puppet) == 20
    operations = puppet.disk.operations
    for _ in range(5):
        assert not puppet.running.rest()
        puppet.hands.do_all()
    assert puppet.disk.operations == operations
    puppet.lose_power()

    def refuse(*_: object) -> list[Batch]:
        pytest.fail("the log was read")

    monkeypatch.setattr(ReadableLog, "read", refuse)
    assert puppet.open().machines.applied == 20


def test_a_log_that_is_quiet_and_small_is_left_alone() -> None:
    puppet = alone(log_config=LogConfig(recovery_bytes=500 * BATCH_COST))
    client = Client(puppet)
    for _ in range(5):
        client.deposit(b"a")
    for _ in range(3):
        assert not puppet.running.rest()
    assert saved(puppet) == NO_OFFSET


def test_a_log_at_rest_whose_end_is_not_flushed_keeps_its_recovery_point() -> None:
    puppet = Puppet(2, initial=PAIR)
    puppet.start()
    puppet.step(append(1, 1, -1, 0, [deposit(offset) for offset in range(4)], committed=3))
    assert puppet.running.log.flushed < puppet.running.log.dirty
    assert puppet.running.log.prepare_point() is None
    puppet.flush()
    job = puppet.running.log.prepare_point()
    assert job is not None
    # A truncation that comes before the job has run makes it void.
    puppet.running.log.truncate_suffix(at(2))
    job()
    puppet.running.log.check_invariants()
    puppet.kill()
    assert puppet.open().log.dirty == 1


def test_a_disk_that_refuses_a_checkpoint_costs_only_time() -> None:
    puppet = alone(log_config=EVERY_FIFTH)
    client = Client(puppet)
    for _ in range(3):
        client.deposit(b"a")
    client.deposit(b"a", flush=False)
    while puppet.hands.waits(FLUSH):
        puppet.hands.do(FLUSH)
    puppet.disk.room = 0
    puppet.hands.do_all()
    assert saved(puppet) == NO_OFFSET
    assert puppet.running.failed is None
    puppet.disk.heal()
    for _ in range(5):
        client.deposit(b"a")
    assert saved(puppet) == 9


@pytest.mark.parametrize("position", [0, 5, 9, 20, 60])
def test_a_damaged_checkpoint_is_made_up_for_by_the_log(position: int) -> None:
    puppet = alone(log_config=EVERY_FIFTH)
    client = Client(puppet)
    for _ in range(7):
        client.deposit(b"a")
    puppet.lose_power()
    puppet.disk.damage(CHECKPOINT, position)
    assert puppet.open().machines.applied == NO_OFFSET
    puppet.running.start()
    puppet.lead()
    assert puppet.balances.account(b"a").updates == 7


def test_a_checkpoint_of_another_release_is_made_up_for_by_the_log() -> None:
    puppet = alone(log_config=EVERY_FIFTH)
    client = Client(puppet)
    for _ in range(7):
        client.deposit(b"a")
    puppet.lose_power()

    def other() -> tuple[Machine, ...]:
        return (*machines(), Renamed())

    puppet.carries = other
    assert puppet.open().machines.applied == NO_OFFSET
    puppet.running.start()
    puppet.lead()
    assert puppet.balances.account(b"a").updates == 7


class Renamed(Balances):
    name = "a machine that came with an update"


def test_a_checkpoint_of_a_log_that_began_anew_is_not_used() -> None:
    puppet = Puppet(2, initial=PAIR, log_config=EVERY_FIFTH)
    puppet.start()
    batches = [deposit(offset) for offset in range(8)]
    puppet.step(append(1, 1, -1, 0, batches, committed=7))
    puppet.flush()
    puppet.step(append(1, 2, 7, 1, [], committed=7))
    puppet.flush()
    assert saved(puppet) >= 5
    replica = puppet.running
    replica.snapshots.write(SnapshotInfo(at(19), Term(3), 0, 0, PAIR.encode()), b"")
    replica.log.reset(at(20), Term(3))
    puppet.lose_power()
    replica = puppet.open()
    assert replica.machines.applied == NO_OFFSET
    assert replica.machines.translation.start == 20


def test_what_is_not_committed_is_in_no_checkpoint() -> None:
    puppet = Puppet(2, initial=PAIR, log_config=EVERY_FIFTH)
    puppet.start()
    puppet.step(append(1, 1, -1, 0, [deposit(offset) for offset in range(20)], committed=6))
    puppet.flush()
    puppet.step(append(1, 2, 19, 1, [], committed=6))
    assert saved(puppet) <= 6
    puppet.lose_power()
    puppet.start()
    # Another leader, to whom all past offset 6 is unknown.
    puppet.step(append(2, 1, 6, 1, [deposit(7, term=2)], committed=7))
    puppet.flush()
    puppet.step(append(2, 2, 7, 2, [], committed=7))
    assert puppet.running.machines.applied == 7
    assert puppet.balances.account(b"key").updates == 8


def deposit(offset: int, term: int = 1) -> Batch:
    return build_batch([Record(0, 0, b"key", b"1")]).stamp(at(offset), Term(term))


def append(
    term: int, seq: int, prev: int, prev_term: int, batches: list[Batch], committed: int
) -> msg.AppendRequest:
    """What n1 sends to n2 when it leads in a term."""
    return msg.AppendRequest(
        GROUP,
        vnode(1),
        vnode(2),
        Term(term),
        seq,
        at(prev),
        Term(prev_term),
        tuple(batches),
        at(committed),
        at(committed),
        NO_OFFSET,
        True,
    )


ACTIONS = st.lists(
    st.sampled_from(
        ["deposit", "deposit", "deposit", "deposit", "dirty", "compact", "retain", "crash", "kill"]
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    actions=ACTIONS,
    shipping=st.sampled_from(list(ShippingMode)),
    interval=st.integers(1, 8),
    keys=st.integers(1, 3),
)
def test_a_start_with_a_checkpoint_ends_where_a_start_without_one_does(
    actions: list[str], shipping: ShippingMode, interval: int, keys: int
) -> None:
    config = LogConfig(segment_bytes=400, recovery_bytes=interval * BATCH_COST)
    puppet = alone(log_config=config, options=Options(shipping=shipping))
    client = Client(puppet)
    for number, action in enumerate([*actions, "crash"]):
        key = b"%d" % (number % keys)
        match action:
            case "deposit":
                client.deposit(key)
            case "dirty":
                client.deposit(key, flush=False)
            case "compact":
                puppet.step(ev.Compact(1000 + number))
                puppet.flush()
            case "retain":
                log = puppet.running.log
                puppet.running.truncate_prefix(Offset((log.start + log.dirty) // 2))
            case "kill" | "crash":
                if action == "kill":
                    puppet.flush()
                    puppet.kill()
                else:
                    puppet.lose_power()
                twin = without_checkpoint(puppet)
                for each in (puppet, twin):
                    each.start()
                    each.lead()
                assert everything(puppet) == everything(twin)
                client.sequence = next_sequence(puppet)


def next_sequence(puppet: Puppet) -> int:
    """What the producer has to write next: a crash may have taken what was dirty."""
    assert puppet.running._producers is not None
    known = dict(puppet.running._producers)
    return known[7].window[-1].next_sequence if 7 in known else 0
