"""The API of our own command line: over a socket on a live node, and walked with hostile bodies."""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kafka.admin
import pytest
from tests.cluster.nodes import until
from tests.kafka.broker import Broker, brokers, run
from tests.kafka.desk import Desk
from tests.kafka.live import Live, live
from tests.system.messages import OPERATIONS as NAMES

from tidelog.cluster import operations
from tidelog.cluster.model import MemberStatus
from tidelog.cluster.operations import MAX_QUESTION_BYTES, TURN
from tidelog.kafka.codec import OPERATIONS
from tidelog.raft.types import NodeId


def send(cluster: Live, body: bytes, correlation_id: int = 7) -> Any:
    """Send one request to the first node and return what it answers."""
    client_id = b"tidelog"
    header = struct.pack(">hhih", OPERATIONS, 0, correlation_id, len(client_id)) + client_id
    request = struct.pack(">i", len(header) + len(body)) + header + body
    where = cluster.addresses[1]
    with socket.create_connection((where.host, where.port), timeout=20) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            size, told = struct.unpack(">ii", stream.read(8))
            assert told == correlation_id
            return json.loads(stream.read(size - 4))


def test_operators_ask_a_live_node_and_clients_of_kafka_are_not_told(tmp_path: Path) -> None:
    with live(tmp_path, 1) as cluster:
        answer = send(cluster, b'{"operation": "status", "arguments": {}}')
        assert answer.keys() == {"result"}
        for nonsense in (b"", b"\xff\x00", b"[]", b'{"operation": 5}', b'{"operation": "dance"}'):
            assert send(cluster, nonsense).keys() == {"error"}
        client = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            assert OPERATIONS not in client.api_versions()
        finally:
            client.close()


# --- Every operation, on nodes that are there and on others ---------------------------------------

# None of these is the id of a node of a cluster of three.
ABSENT = (0, 4, 99, -1, 2**31, 2**64, 10**4000)
NOT_A_NUMBER: tuple[object, ...] = ("1", "", 1.0, 1e300, True, None, [], [1], {}, {"id": 1})


MANY = 2_000  # partitions


def question(operation: object, **arguments: object) -> bytes:
    return json.dumps({"operation": operation, "arguments": arguments}).encode()


async def answer(node: Broker, body: bytes) -> dict[str, Any]:
    """Hand in a question; an answer has a result, or a problem and a sentence."""
    received = await node.hand_in(OPERATIONS, 0, body)
    assert received is not None
    told: dict[str, Any] = json.loads(received)
    if "error" in told:
        assert told.keys() == {"error"}
        assert told["error"].keys() == {"problem", "message"}
        assert len(told["error"]["message"]) > 10
    else:
        assert told.keys() == {"result"}
    return told


def statuses(node: Broker) -> list[MemberStatus]:
    return [member.status for member in node.node.state.members.values()]


def test_operations_on_nodes_that_are_not_there_change_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 3) as running:
            version = running[0].node.state.version
            for node in running:
                for operation in ("drain", "undrain", "decommission"):
                    for absent in ABSENT:
                        told = await answer(node, question(operation, node=absent))
                        assert told["error"]["problem"] == "unknown node", (operation, absent)
                        assert "nodes are 1, 2, 3" in told["error"]["message"]
                    for wrong in NOT_A_NUMBER:
                        told = await answer(node, question(operation, node=wrong))
                        assert told["error"]["message"] == "name the id of a node"
                    told = await answer(node, question(operation))
                    assert told["error"]["message"] == "name the id of a node"
                assert statuses(node) == [MemberStatus.ACTIVE] * 3
                assert node.node.state.version == version

    run(story())


def test_each_node_can_be_drained_and_decommissioned_by_asking_any(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 3) as running:
            for asked, node in ((0, 2), (1, 2), (2, 3)):
                told = await answer(running[asked], question("drain", node=node))
                assert told["result"]["status"] == "draining"
                told = await answer(running[asked], question("undrain", node=node))
                assert told["result"]["status"] == "active"
            await running[0].node.controller.create_topic("wide", 1, 3, {})
            told = await answer(running[1], question("decommission", node=3))
            assert told["error"]["problem"] == "invalid replication factor"
            await running[0].node.controller.delete_topic("wide")
            told = await answer(running[0], question("decommission", node=3))
            assert told["result"]["status"] in {"leaving", "gone"}
            await until(lambda: NodeId(3) not in running[0].node.state.members, "its departure")
            told = await answer(running[0], question("decommission", node=3))
            assert told["result"]["status"] == "gone"

    run(story())


def hostile() -> Iterator[bytes]:
    """Yield what is no question, or none that anybody should ask."""
    yield from (b"", b"\x00", b"\xff\xfe", b"{", b"[]", b"null", b"7", b"NaN", b'"status"')
    yield from (b"[" * 30_000, b'{"a":' * 10_000, b"[" * 30_000 + b"]" * 30_000, b"9" * 60_000)
    yield json.dumps({"operation": "status"})[:-1].encode()
    names: tuple[object, ...] = (
        None,
        5,
        [],
        {},
        "",
        "dance",
        "node",
        "replica",
        "version",
        "\ud800",
        "x" * 60_000,
    )
    for name in names:
        yield question(name)
    for operation in NAMES:
        wrong: tuple[object, ...] = (None, [], "node", 1)
        for arguments in wrong:
            yield json.dumps({"operation": operation, "arguments": arguments}).encode()
    for topic in (None, 5, "", "\ud800", "no such topic", "x" * 60_000, ["t"]):
        for index in (0, -1, 10**4000, 0.0, True, None, "0"):
            yield question("log", topic=topic, partition=index)
    indexes: tuple[object, ...] = (-1, 7, 2**31, 10**4000, False, None, "0", [0])
    for place in indexes:
        yield question("log", topic="t", partition=place)
    yield question("status").ljust(MAX_QUESTION_BYTES + 1)
    yield question("drain", node=1, more="x" * MAX_QUESTION_BYTES)


def test_hostile_questions_are_refused_with_a_sentence_and_change_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 1) as [node]:
            await node.create("t")
            version = node.node.state.version
            for body in hostile():
                told = await answer(node, body)
                assert told.keys() == {"error"}, body[:100]
            assert node.node.state.version == version
            assert (await answer(node, question("status")))["result"]["topics"] == 1

    run(story())


def test_a_question_that_is_too_large_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def loads(text: bytes) -> object:
        read.append(text)
        return json.loads(text)

    monkeypatch.setattr(operations, "json", SimpleNamespace(loads=loads, dumps=json.dumps))
    desk = Desk(tmp_path)
    allowed = question("features").ljust(MAX_QUESTION_BYTES)
    asyncio.run(desk.node.operate(memoryview(allowed)))
    assert read == [allowed]
    told = json.loads(asyncio.run(desk.node.operate(memoryview(allowed + b" "))))
    assert f"at most {MAX_QUESTION_BYTES} bytes" in told["error"]["message"]
    assert read == [allowed]


@pytest.mark.parametrize("operation", [question("status"), question("undrain", node=1)])
def test_a_question_about_all_partitions_gives_the_loop_turns(
    tmp_path: Path, operation: bytes
) -> None:
    desk = Desk(tmp_path)
    desk.create("t", MANY)
    passes = 0

    async def story() -> dict[str, Any]:
        nonlocal passes
        asked = asyncio.create_task(desk.node.operate(operation))
        while not asked.done():
            passes += 1
            await asyncio.sleep(0)
        told: dict[str, Any] = json.loads(await asked)
        return told

    assert "result" in asyncio.run(story())
    assert passes > MANY // TURN
