"""Real nodes with one client, who hands requests in as bytes and reads the answers as bytes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import uvloop
from kio.index import load_response_schema
from kio.serial import entity_reader
from tests.cluster.nodes import Nodes, until
from tests.kafka.desk import build

from tidelog.cluster.model import Address
from tidelog.cluster.node import Node
from tidelog.cluster.partition import Partition
from tidelog.kafka import codec
from tidelog.kafka.apis import default_table
from tidelog.kafka.dispatch import Context, Deferred
from tidelog.records import Batch, Codec, Record, build_batch, parse_batches, read_records
from tidelog.storage import wall_ms

PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH = 0, 1, 2, 22, 23
NEWEST_PRODUCE, NEWEST_FETCH = 13, 18
PATIENCE = timedelta(seconds=20)
NOON = wall_ms() - 60_000  # so that retention has no reason to look at it


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a test on the loop that nodes run on."""
    uvloop.run(story)


def batch(
    *values: bytes,
    producer: tuple[int, int, int] = (-1, -1, -1),
    key: bytes | None = b"k",
    codec: Codec = Codec.NONE,
    time: int = NOON,
) -> Batch:
    """Build a batch as a client does; `producer` is its id, epoch and first sequence."""
    producer_id, producer_epoch, base_sequence = producer
    return build_batch(
        [Record(number, time + number, key, value) for number, value in enumerate(values)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


class Broker:
    """One node, asked directly."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.table = default_table()
        self.context = Context(node, Address("127.0.0.1", 9101), 1, "127.0.0.1", "test")

    # --- Asking ---------------------------------------------------------------------------------

    async def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send a request and return the answer as a client reads it; None if there is none."""
        sent = codec.encode(build(api_key, version, **fields))
        return self.read(api_key, version, await self.hand_in(api_key, version, sent))

    async def hand_in(self, api_key: int, version: int, body: bytes) -> bytes | None:
        """Hand in a request's body and return the body of the answer."""
        api = self.table.get(api_key)
        assert api is not None
        assert api.serves(version)
        if api.raw is None:
            assert api.handler is not None
            request = codec.decode_request(api_key, version, body)
            return codec.encode(await api.handler(self.context, request))
        answer = api.raw(self.context, version, memoryview(bytearray(body)))
        if isinstance(answer, Deferred):
            await answer.ready
            answer = answer.resume()
        if answer is not None and not isinstance(answer, list):
            answer = await answer
        return None if answer is None else b"".join(answer)

    @staticmethod
    def read(api_key: int, version: int, received: bytes | None) -> Any:
        """Read an answer with somebody else's reader, to its last byte."""
        if received is None:
            return None
        answer, size = entity_reader(load_response_schema(api_key, version))(received, 0)
        assert size == len(received)
        return answer

    def at(self, client_id: str) -> Broker:
        """The same node as another client sees it."""
        other = Broker(self.node)
        other.context = replace(self.context, client_id=client_id)
        return other

    # --- Topics ---------------------------------------------------------------------------------

    async def create(self, name: str = "t", partitions: int = 1, **config: str) -> UUID:
        """Create a topic of one replica, wait until it is led, and return its id."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = await self.node.controller.create_topic(name, partitions, 1, settings)
        await until(
            lambda: all(self.leads(name, index) for index in range(partitions)),
            f"{name} to be led",
        )
        return topic.id

    def leads(self, name: str, index: int) -> bool:
        partition = self.node.partition(name, index)
        return partition is not None and partition.is_leader

    def partition(self, name: str = "t", index: int = 0) -> Partition:
        found = self.node.partition(name, index)
        assert found is not None
        return found

    # --- Producing and fetching -----------------------------------------------------------------

    def topic_fields(self, name: str, **fields: Any) -> dict[str, Any]:
        """Name a topic in every way that some version may want."""
        topic = self.node.state.topics.get(name)
        topic_id = UUID(int=7) if topic is None else topic.id
        return {"name": name, "topic": name, "topic_id": topic_id, **fields}

    async def produce(
        self,
        data: Batch | bytes | None,
        *,
        version: int = NEWEST_PRODUCE,
        acks: int = -1,
        topic: str = "t",
        index: int = 0,
        timeout: timedelta = PATIENCE,
        transactional_id: str | None = None,
    ) -> Any:
        """Send one batch and return what the answer says of its partition; None without answer."""
        records = bytes(data.data) if isinstance(data, Batch) else data
        answer = await self.ask(
            PRODUCE,
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout=timeout,
            topic_data=[
                self.topic_fields(topic, partition_data=[{"index": index, "records": records}])
            ],
        )
        return None if answer is None else answer.responses[0].partition_responses[0]

    async def fetch(
        self,
        offset: int = 0,
        *,
        version: int = NEWEST_FETCH,
        topic: str = "t",
        index: int = 0,
        epoch: int = -1,
        last_epoch: int = -1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        max_wait: timedelta = timedelta(0),
        min_bytes: int = 1,
        rack: str = "",
        replica_id: int = -1,
        isolation_level: int = 0,
    ) -> Any:
        """Read from one partition without a session; return what the answer says of it."""
        answer = await self.ask(
            FETCH,
            version,
            replica_id=replica_id,
            replica_state={"replica_id": replica_id, "replica_epoch": -1},
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=0,
            session_epoch=-1,
            topics=[
                self.topic_fields(
                    topic,
                    partitions=[
                        {
                            "partition": index,
                            "current_leader_epoch": epoch,
                            "fetch_offset": offset,
                            "last_fetched_epoch": last_epoch,
                            "log_start_offset": -1,
                            "partition_max_bytes": partition_max_bytes,
                        }
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id=rack,
        )
        return answer.responses[0].partitions[0]


def batches_of(fetched: Any) -> list[Batch]:
    """Return the batches that a partition's answer holds, each checked."""
    batches = list(parse_batches(fetched.records or b""))
    for each in batches:
        each.check_crc()
    return batches


def values_of(fetched: Any) -> list[tuple[int, bytes | None]]:
    """Return offsets and values of the records that a partition's answer holds."""
    return [
        (each.base_offset + record.offset_delta, record.value)
        for each in batches_of(fetched)
        for record in read_records(each)
    ]


@contextlib.asynccontextmanager
async def broker(data: Path) -> AsyncIterator[Broker]:
    """Run one node."""
    async with brokers(data, 1) as running:
        yield running[0]


@contextlib.asynccontextmanager
async def brokers(
    data: Path, count: int = 3, racks: Sequence[str | None] = ()
) -> AsyncIterator[list[Broker]]:
    """Run a cluster of nodes in this process."""
    nodes = RackedNodes(data, count, racks)
    await nodes.start(*range(1, count + 1))
    try:
        yield [Broker(nodes[number]) for number in range(1, count + 1)]
    finally:
        await nodes.stop_all()


class RackedNodes(Nodes):
    """Nodes that may stand in racks."""

    def __init__(self, data: Path, count: int, racks: Sequence[str | None]) -> None:
        super().__init__(data, count)
        self._racks = racks

    def config(self, number: int, *, rack: str | None = None) -> Any:
        rack = self._racks[number - 1] if self._racks else rack
        return super().config(number, rack=rack)


async def leader_and_others(
    running: list[Broker], topic: str = "t", index: int = 0
) -> tuple[Broker, list[Broker]]:
    """Wait until one node leads a partition and the others know; return it and them."""

    def settled() -> bool:
        led = [each for each in running if each.leads(topic, index)]
        known = {each.node.leader_of(topic, index)[0] for each in running}
        return len(led) == 1 and known == {led[0].node.id}

    await until(settled, f"a leader of {topic}/{index} that all know")
    leader = next(each for each in running if each.leads(topic, index))
    return leader, [each for each in running if each is not leader]
