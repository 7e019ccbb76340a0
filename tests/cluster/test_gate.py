"""Who is heard by a node: members and those on the way to it, and no stranger with the secret."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.nodes import HOST, TOKEN, Nodes, cluster, until, write
from tests.rpc.ends import Ear

from tidelog.cluster import gate, strictjson
from tidelog.cluster.calls import Call, Handover, Members, Peer, refusal_of
from tidelog.cluster.config import NodeConfig
from tidelog.cluster.errors import Problem
from tidelog.cluster.jointoken import JoinToken, Place
from tidelog.cluster.leaders import Claim, encode_claims
from tidelog.cluster.model import CONTROLLER_GROUP, Address
from tidelog.cluster.node import Node
from tidelog.raft import messages as msg
from tidelog.raft.admission import MAX_LEAP, MAX_TERM
from tidelog.raft.configuration import EMPTY, Configuration
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import NO_OFFSET, Offset, Term
from tidelog.rpc import Lane, Network, RpcError

STRANGER = NodeId(99)
MEMBERS_ONLY = {
    Call.CLAIMS,
    Call.TRANSFER,
    Call.OPERATE,
    Call.MEMBERS,
    Call.PROPOSE,
    Call.ROOM,
}


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await test

    uvloop.run(limited())


@contextlib.asynccontextmanager
async def alone(data: Path) -> AsyncIterator[Node]:
    """A cluster of one node, and one topic."""
    node = Node(NodeConfig(id=1, data=data))
    await node.start(Address(HOST, 20_001))
    try:
        await node.controller.create_topic("t", 1, 1, {})
        await until(lambda: node.leader_of("t", 0)[0] == 1, "a leader")
        yield node
    finally:
        await node.stop()


def term_of(node: Node, group: GroupId) -> int:
    hosted = node.groups.get(group)
    assert hosted is not None
    return hosted.replica.core.term


def target_in(node: Node, group: GroupId) -> Vnode:
    hosted = node.groups.get(group)
    assert hosted is not None
    return hosted.replica.core.vnode


def attack(node: Node, group: GroupId) -> msg.VoteReply:
    """What once ended a group for good."""
    source, target = Vnode(STRANGER, 0), target_in(node, group)
    return msg.VoteReply(group, source, target, Term(MAX_TERM), msg.Ballot.VOTE, granted=False)


def vote_request(node: Node, group: GroupId, source: NodeId, term: int) -> msg.VoteRequest:
    head = (group, Vnode(source, 0), target_in(node, group), Term(term))
    return msg.VoteRequest(*head, msg.Ballot.TRANSFER, Offset(10**6), Term(term - 1))


@contextlib.asynccontextmanager
async def stranger(nodes: Nodes) -> AsyncIterator[Network]:
    """A node that knows the secret and the cluster's id, and is no member."""
    config = nodes.any.config
    secret = JoinToken.decode(TOKEN).secret
    network = Network(STRANGER, config.cluster, secret, Ear())
    network.identify(nodes.any.state.cluster_id)
    for node in nodes.running.values():
        port = next(seed.port for seed in config.seeds if seed.id == node.id)
        network.set_peer(node.id, HOST, port)
    try:
        yield network
    finally:
        await network.close()


# --- The attack -----------------------------------------------------------------------------------


def test_a_stranger_with_the_secret_and_the_last_term_ends_no_cluster(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes, stranger(nodes) as network:
            await nodes[1].controller.create_topic("t", 1, 3, {})
            leader = await nodes.leader("t")
            await nodes.write("t", 0, b"before")
            group = leader.group
            await until(
                lambda: all(node.groups.get(group) for node in nodes.running.values()), "replicas"
            )
            for node in nodes.running.values():
                await network.call(node.id, Call.PING, b"", 5.0)  # the connection is there
                for each in (CONTROLLER_GROUP, group):
                    network.send(node.id, attack(node, each))
                    request = vote_request(node, each, STRANGER, term_of(node, each) + 1)
                    network.send(node.id, request)
                network.send_beat(node.id, b"beat")
            for node in nodes.running.values():
                stats = node.network.stats
                await until(lambda stats=stats: stats.refused_sources >= 4, "what was refused")  # type: ignore[misc]
                await until(lambda stats=stats: stats.refused_beats >= 1, "the beat")  # type: ignore[misc]
                assert term_of(node, group) < 100
                assert term_of(node, CONTROLLER_GROUP) < 100
                assert not node.is_alive(STRANGER)
            # The group can still elect, and serves.
            gone = leader.hosted.replica.core.vnode.id
            await nodes.stop(gone)
            await nodes.write("t", 0, b"after")
            await nodes.any.controller.create_topic("u", 1, 1, {})
            status = json.loads(await nodes.any.operations.operate(b'{"operation": "status"}'))
            shown = [each for each in status["result"]["nodes"] if each["alive"]]
            assert len(shown) == 2
            assert all(each["rpc_stats"]["refused_sources"] >= 4 for each in shown)

    run(story())


def test_a_cluster_without_strangers_turns_nobody_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.start(4)
            await nodes[1].controller.create_topic("t", 4, 3, {})
            await write(await nodes.leader("t"), b"x")
            for node in nodes.running.values():
                stats = node.network.stats
                assert stats.refused_claims == stats.refused_terms == 0, node.id

    run(story())


# --- Rejoining ------------------------------------------------------------------------------------


def controller(nodes: Nodes) -> Node | None:
    """The node that leads group 0 by its own word."""
    return next((node for node in nodes.running.values() if node.controller_id() == node.id), None)


async def led_by(nodes: Nodes, number: int) -> None:
    """Let a node lead group 0."""
    while (leader := controller(nodes)) is not nodes[number]:
        hosted = None if leader is None else leader.groups.get(CONTROLLER_GROUP)
        voters = () if hosted is None else hosted.replica.core.configuration.voters
        target = next((each for each in voters if each.id == number), None)
        if leader is not None and hosted is not None and target is not None:
            await leader.groups.transfer(hosted, target, 5.0)
        await asyncio.sleep(0.02)


def test_a_node_that_was_away_catches_up_from_one_that_came_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.stop(3)
            await nodes.start(4)
            await led_by(nodes, 4)
            await nodes[4].controller.create_topic("t", 1, 3, {})
            await nodes.start(3)
            assert set(nodes[3].state.members) == {1, 2, 3, 4}
            assert "t" in nodes[3].state.topics

    run(story())


def hear_nothing(_sender: NodeId, what: object, *call: object) -> None:
    if call:
        raise RpcError(f"there is nobody to hear {what}")


def test_a_node_that_was_cut_off_asks_who_the_members_are(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            deaf = nodes[3]
            heard = ("on_message", "on_beat", "on_beat_reply", "on_call")
            for name in heard:
                setattr(deaf, name, hear_nothing)
            await nodes.start(4)
            await led_by(nodes, 4)
            await nodes[4].controller.create_topic("t", 1, 3, {})
            assert not deaf.gate.hears(NodeId(4))
            for name in heard:
                delattr(deaf, name)
            await until(lambda: "t" in deaf.state.topics, "what node 4 has to tell")
            assert deaf.gate.hears(NodeId(4))
            assert not deaf.gate.met, "it knows the members itself now"

    run(story())


# --- The rules ------------------------------------------------------------------------------------


def test_those_whom_a_member_named_are_heard_until_the_state_itself_says_who(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with alone(tmp_path) as node:
            newcomer = NodeId(7)
            peers = [Peer(newcomer, Address(HOST, 1))]
            node.meet(node.state.version, peers)
            assert not node.gate.hears(newcomer), "our own state is as new"
            node.meet(node.state.version + 2, peers)
            await node.controller.create_topic("u", 1, 1, {})
            assert node.gate.hears(newcomer)
            assert newcomer in node.peers(), "and its address is kept"
            await node.controller.create_topic("v", 1, 1, {})
            assert not node.gate.hears(newcomer)
            assert newcomer not in node.peers()

    run(story())


def test_only_a_node_that_takes_part_in_nothing_yet_hears_everybody(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as node:
            hosted = node.groups.get(CONTROLLER_GROUP)
            assert hosted is not None
            core = hosted.replica.core
            known, cluster_id = core._configurations, node.state.cluster_id
            assert not node.gate.hears(STRANGER)
            # As on a node that is about to join.
            core._configurations, node.state.cluster_id = [(NO_OFFSET, EMPTY)], ""
            assert node.gate.hears(STRANGER)
            # As while the replica of group 0 is closed because it failed.
            node.state.cluster_id = cluster_id
            assert not node.gate.hears(STRANGER)
            # As after a start: the state is empty, and the log of group 0 says who takes part.
            core._configurations, node.state.cluster_id = known, ""
            assert not node.gate.hears(STRANGER)
            node.config = node.config.with_seeds((Place(STRANGER, HOST, 1),))
            assert node.gate.hears(STRANGER)
            node.state.cluster_id = cluster_id
            assert not node.gate.hears(STRANGER)

    run(story())


def test_a_member_of_one_group_is_heard_by_its_replica_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as node:
            group = node.state.topic("t").partitions[0].group
            hosted = node.groups.get(group)
            assert hosted is not None
            core = hosted.replica.core
            grown = Configuration(core.configuration.voters, (), (Vnode(STRANGER, 5),))
            core._configurations.append((Offset(core.dirty + 1), grown))
            for each, admitted in ((group, True), (CONTROLLER_GROUP, False)):
                request = vote_request(node, each, STRANGER, 2)
                assert node.gate.admits_message(STRANGER, request) is admitted
            assert node.network.stats.refused_sources == 1

    run(story())


def test_a_member_of_group_0_is_heard_before_the_state_names_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as node:
            hosted = node.groups.get(CONTROLLER_GROUP)
            assert hosted is not None
            core = hosted.replica.core
            grown = Configuration(core.configuration.voters, (), (Vnode(STRANGER, 5),))
            core._configurations.append((Offset(core.dirty + 1), grown))
            assert node.gate.hears(STRANGER)

    run(story())


def test_a_stranger_makes_a_node_ask_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[NodeId] = []

    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            node = nodes[1]
            call = node.network.call

            async def note(peer: NodeId, method: int, payload: bytes, timeout: float) -> bytes:
                if method == Call.MEMBERS:
                    asked.append(peer)
                return await call(peer, method, payload, timeout)

            monkeypatch.setattr(gate, "ASK_AGAIN_S", 1000.0)
            monkeypatch.setattr(node.network, "call", note)
            for _ in range(20):
                node.on_message(STRANGER, attack(node, CONTROLLER_GROUP))
                await asyncio.sleep(0)
            await until(lambda: len(asked) == 2, "a question to each of the others")
            assert node.network.stats.refused_sources == 20

    run(story())
    assert sorted(asked) == [2, 3]


def test_what_members_ask_each_other_is_refused_to_strangers(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as node:
            payload = strictjson.write(Handover(0, Vnode(NodeId(1), 0)))
            for call in MEMBERS_ONLY - {Call.PROPOSE}:
                with pytest.raises(RpcError) as refused:
                    await node.on_call(STRANGER, Lane.CONTROL, call, payload)
                assert refusal_of(str(refused.value)).problem is Problem.FORBIDDEN, call
            assert node.network.stats.refused_calls == len(MEMBERS_ONLY) - 1
            answer = await node.on_call(NodeId(1), Lane.CONTROL, Call.MEMBERS, b"")
            told = strictjson.read(Members, answer)
            assert [each.id for each in told.peers] == [1]
            assert told.version == node.state.version

    run(story())


def test_every_call_but_those_of_guests_and_newcomers_is_for_members() -> None:
    assert set(Call) == MEMBERS_ONLY | {Call.PING, Call.WHO, Call.JOIN}


# --- Raft's own drops -----------------------------------------------------------------------------


def test_what_a_replica_drops_is_counted_by_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await until(lambda: controller(nodes), "a controller")
            leader = controller(nodes)
            assert leader is not None
            other = next(node.id for node in nodes.running.values() if node is not leader)
            before = dataclasses.replace(leader.network.stats)
            term = term_of(leader, CONTROLLER_GROUP)
            for far in (MAX_LEAP + 1, MAX_TERM - term):
                request = vote_request(leader, CONTROLLER_GROUP, other, term + far)
                leader.on_message(other, request)
            head = (CONTROLLER_GROUP, Vnode(other, 0), target_in(leader, CONTROLLER_GROUP))
            leader.on_message(other, msg.TimeoutNow(*head, Term(term)))
            former = (CONTROLLER_GROUP, Vnode(other, 77), head[2], Term(term))
            leader.on_message(other, msg.SnapshotStored(*former, Offset(0), installed=False))
            stats = leader.network.stats
            assert stats.refused_terms == before.refused_terms + 2
            assert stats.refused_contradictions == before.refused_contradictions + 1
            assert stats.refused_sources == before.refused_sources + 1
            assert term_of(leader, CONTROLLER_GROUP) == term

    run(story())


# --- Claims ---------------------------------------------------------------------------------------


def test_a_claim_of_one_who_cannot_lead_is_dropped(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes[1].controller.create_topic("t", 1, 1, {}, assignment=[[NodeId(2)]])
            group = nodes[1].state.topic("t").partitions[0].group
            node = nodes[1]
            await until(lambda: node.leader_of("t", 0)[0] == 2, "the leader")
            leads = node.leaders.leadership(group)
            assert leads is not None
            wrong = ((3, leads.term + 1), (2, MAX_TERM), (2, 2**63 - 1))
            for counted, (sender, term) in enumerate(wrong, 1):
                payload = encode_claims([Claim(group, term, (NodeId(sender),))])
                await node.on_call(NodeId(sender), Lane.CONTROL, Call.CLAIMS, payload)
                assert node.network.stats.refused_claims == counted, (sender, term)
            with pytest.raises(RpcError):
                await node.on_call(STRANGER, Lane.CONTROL, Call.CLAIMS, payload)
            assert node.leaders.leadership(group) == leads
            later = encode_claims([Claim(group, leads.term + 1, (NodeId(2),))])
            await node.on_call(NodeId(2), Lane.CONTROL, Call.CLAIMS, later)
            found = node.leaders.leadership(group)
            assert found is not None
            assert found.term == leads.term + 1

    run(story())


def test_a_claim_to_a_group_that_is_not_known_yet_is_judged_when_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            node = nodes[1]
            group = GroupId(node.state.next_group)
            for sender in (3, 2):
                payload = encode_claims([Claim(group, 50 + sender, (NodeId(sender),))])
                await node.on_call(NodeId(sender), Lane.CONTROL, Call.CLAIMS, payload)
            assert node.leaders.leadership(group) is None
            refused = node.network.stats.refused_claims
            await nodes[1].controller.create_topic("t", 1, 1, {}, assignment=[[NodeId(2)]])
            assert node.state.topic("t").partitions[0].group == group
            found = node.leaders.leadership(group)
            assert found is not None
            assert (found.node, found.term) == (2, 52)
            assert node.network.stats.refused_claims == refused + 1

    run(story())
