"""One replica by hand: what it does with its disk and its machines, and in which order."""

import pytest
from tests.cluster.hands import DIRECTORY, FLUSH, GROUP, Puppet, alone, at, vnode

from tidelog.cluster import replica as replica_module
from tidelog.cluster.legacy import Legacy
from tidelog.cluster.replica import EARLIER_BATCH_MS
from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.types import Level
from tidelog.records import NO_OFFSET, Batch, Record, Term, build_batch
from tidelog.storage import DamagedLog

PAIR = Configuration((vnode(1), vnode(2)))


def deposit(amount: int, key: bytes = b"account") -> Batch:
    """A client's batch: one record that the balances understand."""
    return build_batch([Record(0, 0, key, b"%d" % amount)])


def follower() -> Puppet:
    """A replica that another one leads."""
    puppet = Puppet(2, initial=PAIR)
    puppet.start()
    return puppet


def append(term: int, seq: int, prev: tuple[int, int], *batches: Batch) -> msg.AppendRequest:
    """What n1 sends to n2 when it leads in a term."""
    return msg.AppendRequest(
        GROUP,
        vnode(1),
        vnode(2),
        Term(term),
        seq,
        at(prev[0]),
        Term(prev[1]),
        batches,
        NO_OFFSET,
        NO_OFFSET,
        NO_OFFSET,
        True,
    )


def test_a_replica_whose_disk_failed_within_a_step_says_nothing_of_that_step() -> None:
    puppet = follower()
    puppet.step(append(1, 1, (-1, 0), deposit(1).stamp(at(0), Term(1))))
    puppet.flush()
    puppet.step(append(2, 1, (-1, 0)))
    said = len(puppet.hands.sent)
    assert said
    puppet.disk.failing_syncs = 1.0
    puppet.running.step(append(2, 2, (-1, 0), deposit(2).stamp(at(0), Term(2))))
    assert puppet.running.failed is not None
    assert len(puppet.hands.sent) == said


def test_a_term_and_the_vote_in_it_are_one_write() -> None:
    puppet = follower()
    request = msg.VoteRequest(
        GROUP, vnode(1), vnode(2), Term(4), msg.Ballot.VOTE, NO_OFFSET, Term(0)
    )
    puppet.running.step(request)
    assert puppet.hands.sent == []
    assert len(puppet.hands.lanes["vote"]) == 1
    puppet.hands.do("vote")
    assert not puppet.hands.waits("vote")
    (reply,) = puppet.hands.sent
    assert isinstance(reply, msg.VoteReply)
    assert reply.granted
    puppet.lose_power()
    puppet.start()
    assert puppet.running.core.hard.voted_for == vnode(1)


def numbered(sequence: int, producer: int = 7, epoch: int = 0) -> Batch:
    """A batch of two records of an idempotent producer."""
    records = [Record(0, 0, b"account", b"1"), Record(1, 0, b"account", b"1")]
    return build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def large(sequence: int) -> Batch:
    """A batch of forty records of the same producer."""
    records = [Record(delta, 0, b"account", b"1" * 20) for delta in range(40)]
    return build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)


def offered(puppet: Puppet, token: int, batch: Batch) -> ev.Refusal | None:
    """Offer a batch to a leader, and return why it was refused."""
    puppet.running.produce(token, batch, Level.QUORUM)
    puppet.flush()
    outcome = puppet.hands.outcome(token)
    return outcome.why if isinstance(outcome, ev.Refused) else None


def lead_again(puppet: Puppet) -> None:
    puppet.kill()
    puppet.start()
    puppet.lead()


def test_a_new_leader_lets_nobody_overtake_the_first_batch_of_its_producer() -> None:
    puppet = alone()
    assert offered(puppet, 1, numbered(0, producer=6)) is None
    lead_again(puppet)
    # The client sent 0 to the leader before, which has not answered yet, and 2 to this one.
    assert offered(puppet, 2, numbered(2)) is ev.Refusal.EARLY
    assert offered(puppet, 3, numbered(0)) is None
    assert offered(puppet, 4, numbered(2)) is None
    assert offered(puppet, 5, numbered(2, producer=6)) is None, "one that is known goes on"


def test_nobody_overtakes_a_first_batch_that_was_refused_for_want_of_room() -> None:
    puppet = alone(options=Options(max_uncommitted_bytes=1_000))
    puppet.hands.time += EARLIER_BATCH_MS
    replica = puppet.running
    replica.produce(1, numbered(0, producer=6), Level.QUORUM)
    replica.produce(2, large(0), Level.QUORUM)
    replica.produce(3, numbered(40), Level.QUORUM)
    assert puppet.hands.refusal(2) is ev.Refusal.BUSY, "there is too much in flight"
    assert puppet.hands.refusal(3) is ev.Refusal.EARLY, "it would fit"
    puppet.flush()
    assert offered(puppet, 4, large(0)) is None
    assert offered(puppet, 5, numbered(40)) is None


def test_a_gap_after_a_change_of_leader_is_filled_before_it_is_called_one() -> None:
    puppet = alone()
    assert offered(puppet, 1, numbered(0)) is None
    lead_again(puppet)
    # The leader before refused 2, and the client had sent 4 by then.
    assert offered(puppet, 2, numbered(4)) is ev.Refusal.EARLY
    assert offered(puppet, 3, numbered(2)) is None
    assert offered(puppet, 4, numbered(4)) is None


def test_a_gap_that_a_refused_batch_left_is_filled_before_it_is_called_one() -> None:
    puppet = alone(options=Options(max_uncommitted_bytes=1_000))
    assert offered(puppet, 1, numbered(0)) is None
    puppet.hands.time += EARLIER_BATCH_MS
    assert offered(puppet, 2, numbered(42)) is ev.Refusal.OUT_OF_ORDER, "none was refused"
    replica = puppet.running
    replica.produce(3, numbered(0, producer=6), Level.QUORUM)
    replica.produce(4, large(2), Level.QUORUM)
    replica.produce(5, numbered(42), Level.QUORUM)
    assert puppet.hands.refusal(4) is ev.Refusal.BUSY, "there is too much in flight"
    assert puppet.hands.refusal(5) is ev.Refusal.EARLY
    puppet.flush()
    assert offered(puppet, 6, large(2)) is None
    assert offered(puppet, 7, numbered(42)) is None


def test_the_first_batch_of_a_new_epoch_is_not_overtaken_either() -> None:
    puppet = alone()
    assert offered(puppet, 1, numbered(0)) is None
    assert offered(puppet, 2, numbered(2, epoch=1)) is ev.Refusal.EARLY
    assert offered(puppet, 3, numbered(0, epoch=1)) is None
    assert offered(puppet, 4, numbered(2, epoch=1)) is None


def test_a_gap_that_stays_is_called_one_in_the_end() -> None:
    puppet = alone()
    assert offered(puppet, 1, numbered(0)) is None
    puppet.hands.time += EARLIER_BATCH_MS - 1
    assert offered(puppet, 2, numbered(4)) is ev.Refusal.EARLY
    puppet.hands.time += 1
    assert offered(puppet, 3, numbered(4)) is ev.Refusal.OUT_OF_ORDER
    assert offered(puppet, 4, numbered(4, epoch=1)) is ev.Refusal.OUT_OF_ORDER


def test_what_is_no_gap_is_out_of_order_at_once() -> None:
    puppet = alone()
    for sequence in range(0, 14, 2):
        assert offered(puppet, 1 + sequence, numbered(sequence)) is None
    assert offered(puppet, 20, numbered(0)) is ev.Refusal.OUT_OF_ORDER, "it was written long ago"
    assert offered(puppet, 21, numbered(11)) is ev.Refusal.OUT_OF_ORDER, "one half was written"


def test_a_producer_that_was_forgotten_goes_on_at_any_number() -> None:
    puppet = alone()
    assert offered(puppet, 1, numbered(40)) is ev.Refusal.EARLY
    puppet.hands.time += EARLIER_BATCH_MS - 1
    assert offered(puppet, 2, numbered(40)) is ev.Refusal.EARLY, "to be refused again is no reason"
    puppet.hands.time += 1
    puppet.running.step(ev.CancelChange(3))
    assert puppet.hands.refusal(3) is ev.Refusal.NOT_CHANGING, "which is no batch either"
    assert offered(puppet, 4, numbered(40)) is None


def test_an_acknowledgement_does_not_wait_for_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    puppet = alone()
    answered: list[bool] = []
    balances = puppet.balances
    fold = balances.apply

    def noting(batch: Batch) -> None:
        answered.append(puppet.hands.is_done(1))
        fold(batch)

    monkeypatch.setattr(balances, "apply", noting)
    puppet.running.produce(1, deposit(5), Level.QUORUM)
    puppet.flush()
    assert answered == [True]


def test_nothing_is_compacted_before_the_machines_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "APPLY_BYTES", 1)
    puppet = alone()
    replica = puppet.running
    for token in range(1, 6):
        replica.step(ev.Propose(token, (deposit(token),), Level.QUORUM))
    puppet.hands.do(FLUSH)
    while puppet.hands.waits(FLUSH):
        puppet.hands.do(FLUSH)
    assert puppet.hands.waits("apply"), "the machines are behind"
    behind = replica.machines.applied
    assert behind < replica.log.dirty
    # A snapshot of the leader may say so before this replica has caught up.
    replica.core.shipping.collectible = replica.log.dirty
    replica.log.roll()
    replica.compact_now()
    assert not replica.truncate_prefix(at(replica.log.dirty))
    puppet.hands.do_all()
    (account,) = puppet.balances.accounts().values()
    assert (account.balance, account.updates) == (15, 5)


def _write_and_collect(puppet: Puppet, token: int) -> None:
    """Write one record, let a snapshot cover it, and close its segment, as each round does."""
    replica = puppet.running
    replica.step(ev.Propose(token, (deposit(token),), Level.QUORUM))
    puppet.hands.do_all()
    replica.core.shipping.collectible = replica.log.dirty
    replica.log.roll()
    replica.compact_now()


def test_a_replica_that_compacts_for_ever_keeps_few_files() -> None:
    puppet = alone()
    replica = puppet.running
    most = 0
    for token in range(1, 101):
        _write_and_collect(puppet, token)
        puppet.hands.do_all()
        most = max(most, replica.log.segments)
    names = puppet.disk.list(f"{DIRECTORY}/log")
    assert most <= 8
    assert len([name for name in names if name.endswith(".log")]) == replica.log.segments
    (account,) = puppet.balances.accounts().values()
    assert account.balance == sum(range(1, 101))
    dirty = replica.log.dirty
    puppet.lose_power()
    replica = puppet.start()
    assert (replica.log.dirty, replica.log.segments <= 8) == (dirty, True)
    replica.log.verify()


def test_a_merge_and_its_sweep_are_jobs_of_the_lane_of_compaction_one_at_a_time() -> None:
    puppet = alone()
    replica = puppet.running
    for token in range(1, 6):
        _write_and_collect(puppet, token)
        assert not puppet.hands.do("compact")
        if puppet.hands.waits("compact"):
            break
    segments = replica.log.segments
    replica.compact_now()
    assert len(puppet.hands.lanes["compact"]) == 1, "one job at a time"
    assert not puppet.hands.do("compact")
    assert replica.log.segments < segments
    assert len(puppet.hands.lanes["compact"]) == 1, "what it left over waits for a sync"
    assert not puppet.hands.do("compact")
    assert not puppet.hands.waits("compact")


def test_a_merge_that_the_disk_refuses_leaves_the_replica_at_work() -> None:
    puppet = alone()
    replica = puppet.running
    for token in range(1, 6):
        _write_and_collect(puppet, token)
        assert not puppet.hands.do("compact")
        if puppet.hands.waits("compact"):
            break
    segments = replica.log.segments
    puppet.disk.failing_syncs = 1.0
    assert puppet.hands.do("compact") is not None
    assert not puppet.hands.waits("compact"), "it is not tried again at once"
    puppet.disk.failing_syncs = 0.0
    assert replica.failed is None
    assert replica.log.segments == segments
    replica.compact_now()
    puppet.hands.do_all()
    assert replica.log.segments < segments


def failed(puppet: Puppet) -> Legacy:
    """Let the disk of a puppet fail a sync, close the replica, and return what it leaves."""
    replica = puppet.running
    puppet.disk.failing_syncs = 1.0
    replica.produce(99, deposit(1), Level.QUORUM)
    puppet.flush()
    puppet.disk.failing_syncs = 0.0
    assert replica.failed is not None
    assert puppet.hands.refusal(99) is ev.Refusal.UNKNOWN
    legacy = replica.legacy(machines=True)
    replica.close()
    return legacy


def test_a_replica_that_failed_goes_on_once_its_disk_works() -> None:
    puppet = alone()
    assert offered(puppet, 1, deposit(5)) is None
    legacy = failed(puppet)
    puppet.start(legacy)
    (account,) = puppet.balances.accounts().values()
    assert account.balance == 5, "its machines stand where they stood, without a fold"
    puppet.lead()
    assert offered(puppet, 2, deposit(7)) is None
    puppet.lose_power()
    puppet.start()
    puppet.lead()
    (account,) = puppet.balances.accounts().values()
    assert account.balance in (12, 13), "what was acknowledged, and perhaps what was in doubt"


def test_a_replica_that_failed_always_says_why() -> None:
    puppet = alone()
    told: list[str] = []
    puppet.running.on_failed = told.append
    puppet.running._fail(OSError())
    assert told == [puppet.running.failed] == ["OSError"]


def test_a_replica_that_finds_less_than_it_had_flushed_is_not_opened_again() -> None:
    puppet = alone()
    assert offered(puppet, 1, deposit(5)) is None
    legacy = failed(puppet)
    for name in puppet.disk.list(f"{DIRECTORY}/log"):
        puppet.disk.remove(f"{DIRECTORY}/log/{name}")
    with pytest.raises(DamagedLog, match="was flushed up to"):
        puppet.open(legacy=legacy)


def test_a_replica_that_finds_an_older_vote_than_it_had_saved_is_not_opened_again() -> None:
    puppet = alone()
    assert offered(puppet, 1, deposit(5)) is None
    legacy = failed(puppet)
    puppet.disk.remove(f"{DIRECTORY}/vote")
    with pytest.raises(DamagedLog, match="was saved"):
        puppet.open(legacy=legacy)
