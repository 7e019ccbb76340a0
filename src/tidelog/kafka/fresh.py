"""Topics that were created a moment ago, perhaps at another node.

Kafka names a leader for every partition from the moment a topic exists, and clients rely on it:
some take the first answer and fail, or never ask again. Here a node may hear of a topic, or of the
leaders of its partitions, a few milliseconds after the client does. A node that is asked too early
therefore waits, but only for what may be on its way: for a name that is not known as long as this
node is behind the controller, and once for each partition that never had a leader.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from tidelog.cluster.model import TopicState
from tidelog.kafka.creation import LEADERS_TIMEOUT, led
from tidelog.kafka.dispatch import Context
from tidelog.kafka.turns import TURN, Turns
from tidelog.raft.types import GroupId

# Partitions without a first leader that are remembered. Beyond this, those of deleted topics go.
MAX_LEADERLESS: Final = 10_000


class Fresh:
    """What this node has waited for already."""

    def __init__(self) -> None:
        self._leaderless: dict[GroupId, float] = {}  # group: when it was asked for first

    async def led(self, context: Context, topics: Iterable[object]) -> None:
        """Wait a moment for the first leaders of partitions, of what is a topic among these."""
        now = asyncio.get_running_loop().time()
        has_led = context.node.leaders.has_led
        waiting: list[TopicState] = []
        last = 0.0
        turns = Turns()
        for topic in topics:
            await turns.done()
            if not isinstance(topic, TopicState):
                continue
            await turns.done(len(topic.partitions) // TURN)
            new = [each.group for each in topic.partitions if not has_led(each.group)]
            asked = [self._leaderless.setdefault(group, now) for group in new]
            if asked and max(asked) > now - LEADERS_TIMEOUT:
                waiting.append(topic)
                last = max(last, *asked)
        if waiting:
            await led(context, waiting, last + LEADERS_TIMEOUT - now)
        self._forget(context)

    def _forget(self, context: Context) -> None:
        """Drop what has a leader by now or, where that is too much, does not exist any longer."""
        has_led, partition = context.node.leaders.has_led, context.node.state.partition
        full = len(self._leaderless) > MAX_LEADERLESS
        self._leaderless = {
            group: asked
            for group, asked in self._leaderless.items()
            if not has_led(group) and not (full and partition(group) is None)
        }
