"""Topics that come into being because somebody asked about them."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import TopicState
from tidelog.kafka.dispatch import Context
from tidelog.kafka.groups.hashing import GROUPS_TOPIC

log = logging.getLogger(__name__)

# How long a client that only asked for metadata is kept waiting for a new topic.
CREATION_TIMEOUT: Final = 5.0
# How long it waits for the first leaders of new topics, and how often it looks.
LEADERS_TIMEOUT: Final = 2.0
LEADERS_WAIT_S: Final = 0.01
# Partitions that are looked at before others get a turn on the loop.
TURN: Final = 1000
GROUPS_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
# Enough to spread the groups over the nodes of a small cluster. The number cannot change later,
# since it decides where each group lives.
GROUPS_PARTITIONS: Final = 16


async def ensure_topic(context: Context, name: str) -> TopicState:
    """Return the topic, created with the defaults if it is new; raises `ClusterError`."""
    controller = context.node.controller
    if name == GROUPS_TOPIC:
        return await ensure_groups_topic(context)
    try:
        await controller.create_topic(name, -1, -1, {})
        log.info("created topic %s for %s", name, context.client_host)
    except ClusterError as error:
        if error.problem is not Problem.TOPIC_EXISTS:
            raise
    return await known_here(context, name)


async def ensure_groups_topic(context: Context) -> TopicState:
    """Return the internal topic of consumer groups, created if need be; raises `ClusterError`."""
    node = context.node
    topic = node.state.topics.get(GROUPS_TOPIC)
    if topic is not None:
        return topic
    try:
        await node.controller.create_topic(
            GROUPS_TOPIC, GROUPS_PARTITIONS, -1, GROUPS_CONFIG, internal=True
        )
        log.info("created the internal topic %s", GROUPS_TOPIC)
    except ClusterError as error:
        if error.problem is not Problem.TOPIC_EXISTS:
            raise
    return await known_here(context, GROUPS_TOPIC)


async def known_here(context: Context, name: str) -> TopicState:
    """Wait until this node has heard of a topic that the controller has."""
    state = context.node.state
    changed = asyncio.Event()
    stop = state.on_change(changed.set)
    try:
        async with asyncio.timeout(CREATION_TIMEOUT):
            while (topic := state.topics.get(name)) is None:
                changed.clear()
                await changed.wait()
            return topic
    except TimeoutError:
        raise ClusterError(
            Problem.TIMEOUT, f"topic {name} exists, but this node has not heard of it yet"
        ) from None
    finally:
        stop()


async def led(
    context: Context, topics: Sequence[TopicState], timeout: float = LEADERS_TIMEOUT
) -> None:
    """Wait a moment until each partition of these new topics has its first leader.

    A topic of Kafka has leaders from the moment it exists, and there are clients that ask again
    only after minutes, or never, if they see a partition without one.
    """
    has_led = context.node.leaders.has_led
    groups = (partition.group for topic in topics for partition in topic.partitions)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            for number, group in enumerate(groups, start=1):
                while not has_led(group):
                    await asyncio.sleep(LEADERS_WAIT_S)
                if number % TURN == 0:
                    await asyncio.sleep(0)
