"""Requests of consumer groups with the fields that tests do not care about filled in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from tests.cluster.nodes import until
from tests.kafka.broker import Broker, broker
from tests.kafka.groups.world import subscription

from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.coordinator import Coordinator
from tidelog.kafka.groups.hashing import GROUPS_TOPIC
from tidelog.kafka.groups.unavailable import Unavailable

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE, LIST, DELETE, DELETE_OFFSETS, BEAT, CONSUMER_DESCRIBE = 15, 16, 42, 47, 68, 69
OK = ErrorCode.none
MINUTE = timedelta(minutes=1)
CONFIG = GroupConfig(initial_rebalance_delay=0)


@contextlib.asynccontextmanager
async def coordinated(*brokers: Broker) -> AsyncIterator[list[Coordinator]]:
    """Let nodes coordinate groups."""
    coordinators = [Coordinator(node.node, CONFIG) for node in brokers]
    for node, coordinator in zip(brokers, coordinators, strict=True):
        node.table.add_all(coordinator.handlers)
        await coordinator.start()
    try:
        yield coordinators
    finally:
        for coordinator in coordinators:
            await coordinator.stop()


@contextlib.asynccontextmanager
async def one(data: Path) -> AsyncIterator[Broker]:
    """Run a node that coordinates all groups, with a topic t of two partitions."""
    async with broker(data) as running, coordinated(running) as [coordinator]:
        await running.create("t", 2)
        assert (await find(running, "g")).error_code is OK
        await until(lambda: loaded(coordinator), "the groups to be loaded")
        yield running


def loaded(coordinator: Coordinator) -> bool:
    """Tell whether a node serves all groups there may be."""
    topic = coordinator.node.state.topics.get(GROUPS_TOPIC)
    try:
        return topic is not None and len(list(coordinator.shards())) == len(topic.partitions)
    except Unavailable:
        return False


def served(broker: Broker, api: int) -> range:
    found = broker.table.get(api)
    assert found is not None
    return range(found.min_version, found.max_version + 1)


async def find(broker: Broker, group: str, version: int = 6, key_type: int = 0) -> Any:
    answer = await broker.ask(FIND, version, key=group, key_type=key_type, coordinator_keys=[group])
    return answer.coordinators[0] if version >= 4 else answer


async def join(
    broker: Broker,
    group: str,
    version: int = 9,
    member_id: str = "",
    instance: str | None = None,
    protocol_type: str = "consumer",
) -> Any:
    """Join, and once more if an id is given out first."""
    fields = {
        "group_id": group,
        "session_timeout": MINUTE,
        "rebalance_timeout": MINUTE,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocols": [{"name": "range", "metadata": subscription("t")}],
        "reason": None,
    }
    answer = await broker.ask(JOIN, version, member_id=member_id, **fields)
    if answer.error_code is ErrorCode.member_id_required:
        assert version >= 4
        answer = await broker.ask(JOIN, version, member_id=answer.member_id, **fields)
    return answer


async def sync(broker: Broker, group: str, joined: Any, version: int = 5, **fields: Any) -> Any:
    said = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "assignments": [{"member_id": joined.member_id, "assignment": b"work"}],
    }
    return await broker.ask(SYNC, version, **(said | fields))


async def commit(broker: Broker, group: str, version: int = 10, **fields: Any) -> list[ErrorCode]:
    """Commit offset 7 of t/0 and 8 of a topic that is not there."""
    said: dict[str, Any] = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": [
            broker.topic_fields(
                name,
                partitions=[
                    {
                        "partition_index": 0,
                        "committed_offset": offset,
                        "committed_leader_epoch": 2,
                        "committed_metadata": None if offset == 8 else "note",
                    }
                ],
            )
            for name, offset in (("t", 7), ("none", 8))
        ],
    }
    answer = await broker.ask(COMMIT, version, **(said | fields))
    return [topic.partitions[0].error_code for topic in answer.topics]


async def fetch(
    broker: Broker, group: str, version: int = 10, *, all_topics: bool = False, **fields: Any
) -> Any:
    """Fetch offsets of t and of a topic that is not there, or all; return the group's answer."""
    topics = (
        None
        if all_topics
        else [broker.topic_fields(name, partition_indexes=[0, 1]) for name in ("t", "none")]
    )
    asked = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1} | fields
    answer = await broker.ask(FETCH, version, groups=[asked], require_stable=True, **asked)
    return answer.groups[0] if version >= 8 else answer


async def beat(broker: Broker, group: str, member: str, epoch: int, **fields: Any) -> Any:
    said: dict[str, Any] = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": MINUTE if epoch == 0 else timedelta(milliseconds=-1),
        "subscribed_topic_names": ["t"] if epoch == 0 else None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [] if epoch == 0 else None,
    }
    return await broker.ask(BEAT, fields.pop("version", 1), **(said | fields))


async def coordinator_of(nodes: list[Broker], group: str) -> Broker:
    """Find the node that coordinates a group and has loaded it."""
    async with asyncio.timeout(20):
        while True:
            for node in nodes:
                found = await find(node, group)
                if found.error_code is OK:
                    leader = next((one for one in nodes if one.node.id == found.node_id), None)
                    if leader is None:
                        continue
                    if (await fetch(leader, group, all_topics=True)).error_code is OK:
                        return leader
            await asyncio.sleep(0.02)
