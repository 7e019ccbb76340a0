"""A replica whose snapshot is damaged: what takes its place, and when it is lost after all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop
from tests.cluster.hands import DIRECTORY, FLUSH, GROUP, Puppet, alone, vnode
from tests.cluster.nodes import Nodes, cluster, until
from tests.cluster.test_rot import Trio, deposit

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.core import Options
from tidelog.raft.types import Level, Role, ShippingMode
from tidelog.records import NO_OFFSET, Offset
from tidelog.storage import DamagedLog, LogConfig

SNAPSHOTS = f"{DIRECTORY}/snapshots"
SMALL = LogConfig(segment_bytes=400)


def write(puppet: Puppet, *amounts: int) -> None:
    for amount in amounts:
        puppet.running.produce(amount, deposit(amount), Level.QUORUM)
        puppet.hands.do_all(FLUSH)
        puppet.flush()


def damage_header(puppet: Puppet) -> None:
    """Flip a bit of the newest snapshot's header."""
    newest = max(
        (name for name in puppet.disk.list(SNAPSHOTS) if name.endswith(".snapshot")),
        key=lambda name: int(name.partition("-")[0]),
    )
    puppet.disk.damage(f"{SNAPSHOTS}/{newest}", 20)


def drop_checkpoint(puppet: Puppet) -> None:
    puppet.disk.remove(f"{DIRECTORY}/checkpoint")


def balance(puppet: Puppet) -> int:
    return puppet.balances.account(b"account").balance


class TestAlone:
    def test_an_older_snapshot_takes_its_place(self) -> None:
        puppet = alone(log_config=SMALL)
        write(puppet, 1, 2, 3)
        puppet.step(ev.Compact(77))
        older = puppet.running.core.snapshot
        write(puppet, 4, 5)
        puppet.running.step(ev.Compact(78))
        puppet.hands.do("snapshot")
        puppet.lose_power()  # before anything may be compacted up to the newer one
        damage_header(puppet)
        drop_checkpoint(puppet)
        replica = puppet.start()
        assert older is not None
        assert replica.core.snapshot == older
        assert [each.path for each in replica.snapshots.set_aside]
        puppet.lead()
        assert balance(puppet) == 15

    def test_the_log_takes_its_place_where_it_misses_nothing(self) -> None:
        puppet = alone(log_config=SMALL)
        write(puppet, 1, 2, 3)
        puppet.running.step(ev.Compact(77))
        puppet.hands.do("snapshot")
        puppet.lose_power()
        damage_header(puppet)
        if puppet.disk.exists(f"{DIRECTORY}/checkpoint"):
            drop_checkpoint(puppet)
        replica = puppet.start()
        assert replica.core.snapshot is None
        puppet.lead()
        assert balance(puppet) == 6

    @pytest.mark.parametrize("truncated", [False, True])
    def test_the_checkpoint_becomes_a_snapshot_where_the_log_was_compacted(
        self, truncated: bool
    ) -> None:
        puppet = alone(log_config=SMALL)
        write(puppet, *range(1, 11))
        puppet.step(ev.Compact(77))
        lost = puppet.running.core.snapshot
        assert lost is not None
        if truncated:
            assert puppet.running.truncate_prefix(Offset(lost.offset + 1))
        write(puppet, 100)
        puppet.kill()
        damage_header(puppet)
        replica = puppet.start()
        found = replica.core.snapshot
        assert found is not None
        assert found.offset >= replica.core.hard.compacted >= lost.offset
        assert found.configuration == lost.configuration
        puppet.lead()
        assert balance(puppet) == 155
        puppet.kill()
        puppet.start()
        puppet.lead()
        assert balance(puppet) == 155

    def test_it_is_lost_if_nothing_takes_its_place(self) -> None:
        puppet = alone(log_config=SMALL)
        write(puppet, *range(1, 11))
        puppet.step(ev.Compact(77))
        puppet.kill()
        damage_header(puppet)
        drop_checkpoint(puppet)
        for _ in range(2):  # the second time there is nothing damaged to be seen
            with pytest.raises(DamagedLog, match="no peer to ask"):
                puppet.open()


def compacted(shipping: ShippingMode, *, truncated: bool) -> Trio:
    """Return a trio that is led by its first, and whose logs were compacted, or begin late."""
    trio = Trio()
    for puppet in trio.puppets.values():
        puppet.options = Options(shipping=shipping)
        puppet.running.core.options = puppet.options
    hand_over(trio, 3)
    for amount in range(1, 11):
        trio.write(3, amount)
    trio[3].running.step(ev.Compact(77))
    trio.deliver()
    trio.beat(3)
    for puppet in trio.puppets.values():
        replica = puppet.running
        snapshot = replica.core.snapshot
        assert snapshot is not None
        assert replica.core.hard.compacted == replica.core.collectible == snapshot.offset
        if truncated:
            assert replica.truncate_prefix(Offset(snapshot.offset + 1))
    hand_over(trio, 1)  # who writes the configuration anew: it stands in what is left
    return trio


def hand_over(trio: Trio, number: int) -> None:
    """Let another one lead, and everybody know."""
    for puppet in trio.puppets.values():
        puppet.hands.hears_leader = False
    core = trio[number].running.core
    for _ in range(10):
        if core.role is not Role.LEADER:
            trio[number].running.step(ev.ElectionTimeout())
            trio.deliver()
    assert core.role is Role.LEADER
    trio.beat(number)


def spoil(trio: Trio, number: int) -> None:
    """Start one again whose snapshot is damaged and whose checkpoint is gone."""
    trio[number].kill()
    damage_header(trio[number])
    drop_checkpoint(trio[number])
    trio[number].start()


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("shipping", ShippingMode)
def test_a_peer_has_what_takes_its_place(shipping: ShippingMode, truncated: bool) -> None:
    trio = compacted(shipping, truncated=truncated)
    spoil(trio, 2)
    core = trio[2].running.core
    assert core.tainted
    assert core.readable == NO_OFFSET
    trio.beat(1)
    trio.beat(1)
    assert trio[2].running.lost is None
    assert core.shipping.machines_are_exact()
    assert trio.balance(2) == 55
    hand_over(trio, 2)
    trio.write(2, 100)
    assert trio.balance(2) == 155


def test_a_leader_goes_on_telling_one_that_had_a_snapshot_and_has_none() -> None:
    trio = compacted(ShippingMode.SIDE, truncated=False)
    leader = trio[1].running
    assert leader.core.quiet(vnode(2))
    assert leader.core.quiet(vnode(3))
    spoil(trio, 2)
    for _ in range(3):
        leader.step(ev.BeatDue(vnode(2)))
        for number in (1, 2, 1):
            trio[number].hands.do_all()
            sent, trio[number].hands.sent = trio[number].hands.sent, []
            for message in sent:  # its questions after a snapshot get lost
                if isinstance(message, (msg.AppendRequest, msg.AppendReply)):
                    trio[message.target.id].running.step(message)
    assert leader.core.progress[vnode(2)].match == leader.core.dirty
    assert not leader.core.quiet(vnode(2)), "it asks again with each full heartbeat"
    trio.beat(1)
    trio.beat(1)
    assert leader.core.quiet(vnode(2))


@pytest.mark.parametrize("truncated", [False, True])
def test_a_leader_that_waits_for_it_serves_nobody(truncated: bool) -> None:
    trio = compacted(ShippingMode.SIDE, truncated=truncated)
    trio.cut_off.add(1)
    spoil(trio, 2)
    spoil(trio, 3)
    for _ in range(10):
        trio[2].hands.hears_leader = trio[3].hands.hears_leader = False
        trio[2].running.step(ev.ElectionTimeout())
        trio.deliver()
    core = trio[2].running.core
    assert core.role is Role.LEADER, "it stands if nobody else does"
    trio.beat(2)
    assert core.confirmed
    assert not core.ready
    assert core.readable == NO_OFFSET
    trio.cut_off.clear()
    trio.beat(2)
    trio.beat(2)
    assert core.ready
    assert trio.balance(2) == trio.balance(3) == 55


def test_others_may_try_first_to_lead_while_it_waits() -> None:
    trio = compacted(ShippingMode.SIDE, truncated=False)
    trio.cut_off.add(1)
    spoil(trio, 2)
    trio[2].running.step(ev.ElectionTimeout())
    trio.deliver()
    assert trio[2].running.core.role is Role.FOLLOWER


def test_one_that_cannot_tell_who_takes_part_is_lost() -> None:
    trio = compacted(ShippingMode.SIDE, truncated=False)
    replica = trio[2].running
    trio.write(1, 100)
    trio[1].running.step(ev.Compact(78))
    trio.deliver()
    trio.beat(1)
    assert replica.core.snapshot is not None
    assert replica.truncate_prefix(Offset(replica.core.snapshot.offset + 1))
    assert replica.log.last_configuration(replica.log.dirty) is None
    trio[2].kill()
    damage_header(trio[2])
    drop_checkpoint(trio[2])
    with pytest.raises(DamagedLog, match="who takes part"):
        trio[2].open()


def test_a_chunk_of_a_snapshot_whose_file_is_gone_ends_the_replica() -> None:
    trio = compacted(ShippingMode.SIDE, truncated=False)
    replica = trio[1].running
    snapshot = replica.core.snapshot
    assert snapshot is not None
    trio[1].disk.remove(f"{SNAPSHOTS}/{snapshot.offset}-{snapshot.term}-v1.snapshot")
    term = replica.core.term
    replica.step(msg.SnapshotRequest(GROUP, vnode(2), vnode(1), term, snapshot.offset, 1))
    assert replica.lost is not None
    assert "the file is missing" in replica.lost


COMPACTED = {
    "segment.bytes": "16384",
    "segment.ms": "1000",
    "cleanup.policy": "compact",
    "max.compaction.lag.ms": "1000",
}


async def compacting(nodes: Nodes, data: Path) -> Path:
    """Write until a node has a snapshot; return where its replica is."""
    for number in range(100):
        await nodes.write("t", 0, b"%04d" % number * 500)
    (replica,) = data.glob("topics/t/*")
    await until(lambda: list(replica.glob("snapshots/*.snapshot")), "a snapshot")
    return replica


def damage_headers(replica: Path) -> None:
    for path in replica.glob("snapshots/*.snapshot"):
        content = bytearray(path.read_bytes())
        content[20] ^= 1
        path.write_bytes(content)


def test_the_only_replica_of_a_partition_survives_a_damaged_header(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes.any.controller.create_topic("t", 1, 1, COMPACTED)
            files = await compacting(nodes, tmp_path / "node-1")
            await until((files / "checkpoint").exists, "the checkpoint that is taken with it")
            end = (await nodes.leader("t")).high_watermark
            await nodes.stop(1)
            damage_headers(files)
            await nodes.start(1)
            leader = await nodes.leader("t")
            assert leader.high_watermark == end
            assert "-v1.snapshot is damaged and set aside" in caplog.text
            assert not len(nodes[1].hosting.lost)
            assert nodes[1].verifier.describe()["snapshots_set_aside"]
            assert await nodes.write("t", 0, b"after") == end

    uvloop.run(asyncio.wait_for(story(), 120))


def test_a_replica_of_three_takes_from_a_peer_what_it_lacks_and_stays_what_it_is(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.any.controller.create_topic("t", 1, 3, COMPACTED)
            leader = await nodes.leader("t")
            number = leader.core.vnode.id % 3 + 1
            files = await compacting(nodes, tmp_path / f"node-{number}")
            follower = nodes[number].partition("t", 0)
            assert follower is not None
            was = follower.core.vnode
            await until(lambda: follower.core.hard.compacted > 0, "leave to compact")
            await nodes.stop(number)
            damage_headers(files)
            (files / "checkpoint").unlink(missing_ok=True)
            await nodes.start(number)

            def exact() -> bool:
                found = nodes[number].partition("t", 0)
                return (
                    found is not None
                    and found.core.snapshot is not None
                    and found.core.shipping.machines_are_exact()
                    and found.high_watermark == leader.high_watermark
                )

            await until(exact, "the state of a peer")
            again = nodes[number].partition("t", 0)
            assert again is not None
            assert again.core.vnode == was
            assert not len(nodes[number].hosting.lost)

    uvloop.run(asyncio.wait_for(story(), 120))
