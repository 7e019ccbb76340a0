"""Topics that were created a moment ago, perhaps at another node.

Kafka names a leader for every partition from the moment a topic exists, and clients rely on it:
some take the first answer and fail, or never ask again. Here a node may hear of a topic, or of the
leaders of its partitions, a few milliseconds after the client does. A node that is asked too early
therefore waits, but only for what may be on its way: each partition that never had a leader is
waited for once, and so is each name that is not known.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.cluster.model import TopicState
from tidelog.kafka.admin import catch_up
from tidelog.kafka.creation import LEADERS_TIMEOUT, led
from tidelog.kafka.dispatch import Context
from tidelog.kafka.turns import TURN, Turns
from tidelog.raft.types import GroupId

# Names that were not found, and for how long that is remembered: as long as a client that needs a
# missing topic asks for it again and again.
MAX_MISSED: Final = 1000
MISSED_S: Final = 60.0
# Partitions without a first leader that are remembered. Beyond this, those of deleted topics go.
MAX_LEADERLESS: Final = 10_000


class Fresh:
    """What this node has waited for already."""

    def __init__(self) -> None:
        self._missed: OrderedDict[str, float] = OrderedDict()  # name: when it was asked for first
        self._leaderless: dict[GroupId, float] = {}  # group: when it was asked for first

    async def known(self, context: Context, names: Iterable[str]) -> None:
        """Wait a moment for topics that this node may not have heard of yet."""
        now = asyncio.get_running_loop().time()
        while self._missed and next(iter(self._missed.values())) < now - MISSED_S:
            self._missed.popitem(last=False)
        topics = context.node.state.topics
        absent = (each for each in names if each not in topics and each not in self._missed)
        unknown = await Turns().each(absent)
        for name in unknown[:MAX_MISSED]:
            self._missed[name] = now
        await catch_up(context, unknown)
        while len(self._missed) > MAX_MISSED:
            self._missed.popitem(last=False)

    async def led(self, context: Context, topics: Sequence[TopicState]) -> None:
        """Wait a moment for the first leaders of partitions."""
        now = asyncio.get_running_loop().time()
        has_led = context.node.leaders.has_led
        waiting: list[TopicState] = []
        last = 0.0
        turns = Turns()
        for topic in topics:
            await turns.done(1 + len(topic.partitions) // TURN)
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
