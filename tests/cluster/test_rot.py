"""What rots on one replica stays there: it is not sent, not taken, not compacted, not folded."""

from __future__ import annotations

import contextlib
from typing import NoReturn

import pytest
from tests.cluster.hands import DIRECTORY, Puppet, at, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration
from tidelog.raft.types import Level, Role
from tidelog.records import NO_OFFSET, Batch, CorruptBatch, Offset, Record, Term, build_batch
from tidelog.storage import BatchCache, DamagedLog, Log, LogConfig

TRIO = Configuration((vnode(1), vnode(2), vnode(3)))
LOG = f"{DIRECTORY}/log"
# Segments of a few batches; a point at once, so that a start reads nothing of what is closed.
SMALL = LogConfig(segment_bytes=400, recovery_bytes=1)


def deposit(amount: int, key: bytes = b"account") -> Batch:
    return build_batch([Record(0, 0, key, b"%d" % amount)])


class Trio:
    """Three processes and the wires between them."""

    def __init__(self, cache: BatchCache | None = None) -> None:
        self.puppets = {
            number: Puppet(number, initial=TRIO, log_config=SMALL, cache=cache)
            for number in (1, 2, 3)
        }
        self.cut_off: set[int] = set()
        self.appends: list[msg.AppendRequest] = []  # all that were sent
        self._token = 0
        for puppet in self.puppets.values():
            puppet.start()

    def __getitem__(self, number: int) -> Puppet:
        return self.puppets[number]

    def deliver(self) -> None:
        """Do what everybody asks for until all are silent."""
        busy = True
        while busy:
            busy = False
            for number, puppet in self.puppets.items():
                puppet.hands.do_all()
                sent, puppet.hands.sent = puppet.hands.sent, []
                for message in sent:
                    busy = True
                    if isinstance(message, msg.AppendRequest):
                        self.appends.append(message)
                    if not self.cut_off & {number, message.target.id}:
                        self[message.target.id].running.step(message)

    def elect(self, number: int) -> None:
        for puppet in self.puppets.values():
            puppet.hands.hears_leader = False
        for _ in range(2):
            self[number].running.step(ev.ElectionTimeout())
            self.deliver()
        assert self[number].running.core.role is Role.LEADER

    def beat(self, number: int) -> None:
        """Do what a few heartbeats do: what got lost is noticed and sent again."""
        for peer in TRIO.voters * 3:
            self[number].running.step(ev.BeatDue(peer))
            self.deliver()

    def write(self, number: int, amount: int) -> None:
        self._token += 1
        self[number].running.produce(self._token, deposit(amount), Level.QUORUM)
        self.deliver()
        assert self[number].hands.is_done(self._token)

    def restart(self, number: int) -> None:
        self[number].kill()
        self[number].start()

    def balance(self, number: int) -> int:
        return self[number].balances.account(b"account").balance


def behind() -> Trio:
    """Return a trio whose first leads, and whose third has nothing of what the others have."""
    trio = Trio()
    trio.elect(1)
    trio.cut_off.add(3)
    for amount in range(1, 11):
        trio.write(1, amount)
    trio[1].hands.do_all()
    return trio


def rot(trio: Trio, number: int, name: str = "0-1-v1.log", position: int = -2) -> None:
    """Flip a bit of a file of one process."""
    path = f"{LOG}/{name}"
    size = trio[number].disk.open(path).size()
    trio[number].disk.damage(path, position % size)


def test_a_leader_sends_no_rotten_batch_and_is_lost() -> None:
    trio = behind()
    rot(trio, 1)
    told: list[str] = []
    trio[1].running.on_lost = told.append
    trio.cut_off.clear()
    trio.beat(1)
    lost = trio[1].running
    assert lost.lost is not None
    assert "0-1-v1.log is damaged at position" in lost.lost
    assert told == [lost.lost]
    assert lost.core.role is Role.FOLLOWER
    trio.beat(1)
    for append in trio.appends:
        for batch in append.batches:
            batch.check_crc()
    # It takes no further part.
    lost.step(ev.ElectionTimeout())
    lost.produce(99, deposit(1), Level.QUORUM)
    trio[1].hands.do_all()
    assert trio[1].hands.refusal(99) is not None
    assert not [each for each in trio[1].hands.sent if not isinstance(each, msg.TimeoutNow)]
    # The others go on from good copies.
    trio.cut_off.add(1)
    if trio[2].running.core.role is not Role.LEADER:
        trio.elect(2)
    trio.beat(2)
    trio.write(2, 100)
    trio.beat(2)
    assert trio.balance(2) == trio.balance(3) == 155


def test_a_follower_takes_no_batch_without_its_checksum() -> None:
    trio = behind()
    follower = trio[2]
    dirty = follower.running.log.dirty
    spoiled = bytearray(deposit(5).stamp(at(dirty + 1), Term(1)).data)
    spoiled[-1] ^= 1
    request = msg.AppendRequest(
        follower.running.core.group,
        vnode(1),
        vnode(2),
        Term(1),
        1_000,
        dirty,
        Term(1),
        (Batch.parse(spoiled),),
        NO_OFFSET,
        NO_OFFSET,
        NO_OFFSET,
        True,
    )
    follower.running.step(request)
    (reply,) = follower.hands.sent
    assert isinstance(reply, msg.AppendReply)
    assert reply.status is msg.Status.DAMAGED
    assert follower.running.log.dirty == dirty


def test_what_rots_in_memory_is_read_from_the_disk_again() -> None:
    trio = Trio(cache=BatchCache())
    trio.elect(1)
    trio.cut_off.add(3)
    trio.write(1, 7)
    cached = trio[1].running.log.read(at(1), 1)[0]
    assert not cached.data.readonly
    cached.data[-2] ^= 1
    with pytest.raises(CorruptBatch):
        cached.check_crc()
    trio.cut_off.clear()
    trio.beat(1)  # the third refuses what it is sent
    trio.beat(1)
    assert trio[1].running.lost is None
    assert trio.balance(3) == 7


def test_a_leader_whose_memory_and_disk_are_wrong_is_lost() -> None:
    trio = Trio(cache=BatchCache())
    trio.elect(1)
    trio.cut_off.add(3)
    trio.write(1, 7)
    trio[1].running.log.read(at(1), 1)[0].data[-2] ^= 1
    rot(trio, 1)
    trio.cut_off.clear()
    trio.beat(1)
    trio.beat(1)
    assert trio[1].running.lost is not None
    assert trio.balance(3) == 0


def test_rot_that_compaction_meets_ends_the_replica() -> None:
    trio = behind()
    replica = trio[1].running
    rot(trio, 1)
    before = trio[1].disk.open(f"{LOG}/0-1-v1.log").read(0, 10_000)
    replica.step(ev.Compact(77))
    trio.deliver()
    assert replica.lost is not None
    assert trio[1].disk.open(f"{LOG}/0-1-v1.log").read(0, 10_000) == before


def test_machines_fold_no_rotten_batch() -> None:
    trio = behind()
    trio[2].kill()
    trio[2].disk.remove(f"{DIRECTORY}/checkpoint")
    rot(trio, 2)
    with pytest.raises(DamagedLog):
        trio[2].open()


def test_a_rotten_snapshot_is_not_shipped() -> None:
    trio = behind()
    leader = trio[1].running
    leader.step(ev.Compact(77))
    trio.deliver()
    snapshot = leader.core.snapshot
    assert snapshot is not None
    name = f"{snapshot.offset}-{snapshot.term}-v1.snapshot"
    path = f"{DIRECTORY}/snapshots/{name}"
    trio[1].disk.damage(path, trio[1].disk.open(path).size() - 1)
    asked = msg.SnapshotRequest(leader.core.group, vnode(2), vnode(1), Term(1), snapshot.offset, 0)
    leader.step(asked)
    with contextlib.suppress(KeyError):
        trio[1].hands.do_all()
    assert not [each for each in trio[1].hands.sent if isinstance(each, msg.SnapshotChunk)]
    assert leader.lost is not None


def test_a_sound_snapshot_is_checked_once_and_shipped() -> None:
    trio = behind()
    leader = trio[1].running
    leader.step(ev.Compact(77))
    trio.deliver()
    snapshot = leader.core.snapshot
    assert snapshot is not None
    asked = msg.SnapshotRequest(leader.core.group, vnode(2), vnode(1), Term(1), snapshot.offset, 0)
    for _ in range(2):
        leader.step(asked)
        trio[1].hands.do_all()
    first, second = (each for each in trio[1].hands.sent if isinstance(each, msg.SnapshotChunk))
    assert first == second
    assert first.data


def test_a_replica_whose_directory_is_gone_can_be_closed() -> None:
    trio = behind()
    leader = trio[1].running
    leader.produce(99, deposit(1), Level.LEADER)  # dirty, so that closing has something to flush
    trio[1].disk.lose_directory(LOG)
    leader.close()
    leader.close()


def test_damage_that_a_checkpoint_or_a_snapshot_meets_ends_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both say who takes part, and may have to read that from a segment that rots."""
    for save in ("_save_checkpoint", "_take_snapshot"):
        trio = behind()
        leader = trio[1].running

        def rotten(_: object, log: Log = leader.log) -> NoReturn:
            damage = DamagedLog("0-1-v1.log", 0, Offset(0), "the CRC does not fit")
            log.on_damage(damage)
            raise damage

        monkeypatch.setattr(leader.core, "configuration_at", rotten)
        getattr(leader, save)()
        assert leader.lost is not None
        assert "the CRC does not fit" in leader.lost
