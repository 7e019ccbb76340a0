"""Who may ask a node for what: every call there is, by what the other end has proven."""

import asyncio
from pathlib import Path

import pytest
from tests.cluster.nodes import HOST

from tidelog.cluster import commands as cmd
from tidelog.cluster.calls import MAY_CALL, Call, refusal_of
from tidelog.cluster.config import NodeConfig
from tidelog.cluster.errors import Problem
from tidelog.cluster.model import Address
from tidelog.cluster.node import Node
from tidelog.raft.types import NodeId
from tidelog.rpc import Lane, RpcError

REMOVED = NodeId(9)  # knows the secret, and is not a member
FOR_STRANGERS = {Call.PING}
FOR_NEWCOMERS = {Call.PING, Call.WHO, Call.JOIN}


async def problem_of(node: Node, lane: Lane, call: int, payload: bytes = b"?") -> Problem | None:
    try:
        await node.on_call(REMOVED, lane, call, payload)
    except RpcError as error:
        return refusal_of(str(error)).problem
    return None


def test_a_guest_may_ping_and_a_newcomer_may_ask_and_join_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node(NodeConfig(id=1, data=tmp_path))
        await node.start(Address(HOST, 20_000))
        try:
            refused = 0
            for lane, allowed in ((Lane.GUEST, FOR_STRANGERS), (Lane.NEWCOMER, FOR_NEWCOMERS)):
                for call in set(Call) - allowed:
                    assert await problem_of(node, lane, call) is Problem.FORBIDDEN, (lane, call)
                    refused += 1
                for call in allowed:
                    assert await problem_of(node, lane, call) is not Problem.FORBIDDEN
            assert node.network.stats.refused_calls == refused
        finally:
            await node.stop()

    asyncio.run(main())


def test_every_call_has_its_place() -> None:
    assert MAY_CALL[Lane.GUEST] == FOR_STRANGERS
    assert MAY_CALL[Lane.NEWCOMER] == FOR_NEWCOMERS
    assert MAY_CALL[Lane.CONTROL] == set(Call)
    assert set(MAY_CALL) == set(Lane)


def test_a_node_that_is_not_a_member_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node(NodeConfig(id=1, data=tmp_path))
        await node.start(Address(HOST, 20_000))
        try:
            command = cmd.RemoveMember(token=cmd.new_token(), id=NodeId(1))
            payload = cmd.encode(command)
            found = await problem_of(node, Lane.CONTROL, Call.PROPOSE, payload)
            assert found is Problem.FORBIDDEN
            assert NodeId(1) in node.state.members
        finally:
            await node.stop()

    asyncio.run(main())


@pytest.mark.parametrize("lane", Lane)
def test_a_call_of_a_later_release_asks_for_an_upgrade(tmp_path: Path, lane: Lane) -> None:
    async def main() -> None:
        node = Node(NodeConfig(id=1, data=tmp_path))
        await node.start(Address(HOST, 20_000))
        try:
            with pytest.raises(RpcError, match="no call 999 in this release: upgrade"):
                await node.on_call(REMOVED, lane, 999, b"")
        finally:
            await node.stop()

    asyncio.run(main())
