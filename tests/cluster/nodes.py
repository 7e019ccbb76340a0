"""Real nodes on real disks and loopback sockets, all on the event loop of one test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tidelog.cluster.config import Listener, NodeConfig, Seed
from tidelog.cluster.jointoken import JoinToken
from tidelog.cluster.model import Address
from tidelog.cluster.node import Node
from tidelog.cluster.partition import Partition, Produced, ProduceFailed
from tidelog.raft.events import Refusal
from tidelog.raft.types import Level
from tidelog.records import Record, build_batch
from tidelog.rpc import Secret

HOST = "127.0.0.1"
TOKEN = JoinToken(Secret(bytes(range(32)))).encode()  # of every cluster of the tests
PATIENCE = 60.0
# Nothing was written, and somebody else will take it.
AGAIN = (Refusal.TRANSFERRING, Refusal.NOT_LEADER, Refusal.NOT_READY)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


async def until(holds: Callable[[], object], what: str = "it") -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {PATIENCE} s") from None


class Nodes:
    """A cluster of nodes in this process."""

    def __init__(self, data: Path, count: int) -> None:
        self._data = data
        ports = free_ports(count)
        self._seeds = tuple(
            Seed(id=number + 1, host=HOST, port=port) for number, port in enumerate(ports)
        )
        self.running: dict[int, Node] = {}

    def config(self, number: int, *, rack: str | None = None) -> NodeConfig:
        port = next((seed.port for seed in self._seeds if seed.id == number), 0)
        return NodeConfig(
            id=number,
            data=self._data / f"node-{number}",
            rack=rack,
            rpc=Listener(port=port),
            seeds=self._seeds,
            token=TOKEN,
            housekeeping_s=0.2,
        )

    async def start(self, *numbers: int) -> None:
        """Start nodes; they must be able to join, so a majority must be among them or running."""
        nodes = {number: Node(self.config(number)) for number in numbers}
        self.running |= nodes
        await asyncio.gather(
            *(node.start(Address(HOST, 20_000 + number)) for number, node in nodes.items())
        )

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            await self.running.pop(number).stop()

    async def stop_all(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.running.values()))
        self.running.clear()

    def __getitem__(self, number: int) -> Node:
        return self.running[number]

    @property
    def any(self) -> Node:
        return next(iter(self.running.values()))

    async def leader(self, topic: str, index: int = 0) -> Partition:
        """Wait for the leader of a partition, and return it."""
        found: list[Partition] = []

        def look() -> bool:
            for node in self.running.values():
                partition = node.partition(topic, index)
                if partition is not None and partition.is_leader:
                    found.append(partition)
            return bool(found)

        await until(look, f"a leader of {topic}/{index}")
        return found[0]

    async def write(self, topic: str, index: int, *values: bytes, key: bytes | None = None) -> int:
        """Write as a client does: to the next leader if this one is about to go."""
        while True:
            result = await attempt(await self.leader(topic, index), *values, key=key)
            if isinstance(result, Produced):
                return result.offset
            assert result.why in AGAIN, result
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def cluster(data: Path, count: int = 3) -> AsyncIterator[Nodes]:
    nodes = Nodes(data, count)
    await nodes.start(*range(1, count + 1))
    try:
        yield nodes
    finally:
        await nodes.stop_all()


async def write(partition: Partition, *values: bytes, level: Level = Level.QUORUM) -> int:
    """Write records as one batch; return the offset of the first."""
    result = await attempt(partition, *values, level=level)
    assert isinstance(result, Produced), result
    return result.offset


async def attempt(
    partition: Partition,
    *values: bytes,
    level: Level = Level.QUORUM,
    key: bytes | None = None,
) -> Produced | ProduceFailed:
    """Write records as one batch, and return what came of it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Produced | ProduceFailed] = loop.create_future()
    batch = build_batch(
        [
            Record(offset_delta=number, timestamp=1000 + number, key=key, value=value, headers=())
            for number, value in enumerate(values)
        ]
    )
    partition.produce(batch, level, 5.0, done.set_result)
    return await done
