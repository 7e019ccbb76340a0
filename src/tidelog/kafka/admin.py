"""What requests that change the cluster have in common: outcomes, deadlines, a bound on the work.

A request names many things (topics, partitions, resources). Each is tried on its own and gets its
own code and sentence; a refusal of one says nothing of the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.cluster.errors import ClusterError
from tidelog.cluster.model import TopicState
from tidelog.kafka.codec import Malformed
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused, code_of
from tidelog.kafka.groups.hashing import GROUPS_TOPIC
from tidelog.kafka.turns import TURN, Turns

# Things of one request that are worked on at the same time. Each waits for a majority once, so that
# this many share a flush, and one request does not keep everybody else from the controller.
MAX_PARALLEL: Final = 32
# Topics, partitions or resources that one request may name: half of what a cluster can have.
MAX_NAMED: Final = 100_000
# Partitions that are only put on a list cost a tenth of others.
_CHEAP: Final = 10
# Characters of a sentence to a client; names in it are the client's, and may be long.
MAX_MESSAGE: Final = 1000
# For requests that bring no timeout.
DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
# No request holds its connection longer, whatever it asks for.
MAX_TIMEOUT: Final = timedelta(minutes=5)
# How long a node may be behind the controller before a topic that it does not know does not exist.
# Nodes hear of changes with the next heartbeat, 50 ms later by default. A node that is not behind
# does not wait, since the controller says so.
CATCH_UP_S: Final = 0.5
# Topics that are waited for. It is looked for all of them again with every change.
MAX_CAUGHT_UP: Final = 1000

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one thing that a request asks for."""

    code: ErrorCode
    message: str | None  # None if there is nothing to complain about

    @staticmethod
    def of(error: ClusterError | Refused) -> "Outcome":
        code = code_of(error) if isinstance(error, ClusterError) else error.code
        return Outcome(code, None if error.message is None else error.message[:MAX_MESSAGE])


DONE: Final = Outcome(ErrorCode.none, None)


async def tried(work: Awaitable[Answer]) -> tuple[Answer | None, Outcome]:
    """Return the answer, or None and why there is none."""
    try:
        return await work, DONE
    except (ClusterError, Refused) as error:
        return None, Outcome.of(error)


class Deadline:
    """The time that a request has for all that it asks for.

    Kafka's clients send 0 or less to say that they do not want to wait until all nodes have heard
    of a change. Nobody waits for that here, so they get the time that a change itself takes.
    """

    __slots__ = ("_clock", "_end")

    def __init__(self, timeout: timedelta) -> None:
        allowed = min(timeout, MAX_TIMEOUT) if timeout > timedelta(0) else DEFAULT_TIMEOUT
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + allowed.total_seconds()

    def left(self) -> float:
        """Return the seconds that are left; raises `Refused` if there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise Refused(
                ErrorCode.request_timed_out,
                "the request's time was up before its turn came: ask for less, or allow more time",
            )
        return left

    def share(self, most: float) -> float:
        """Return the seconds that waiting for a nicety may take: half of what is left at most."""
        return max(0.0, min(most, (self._end - self._clock()) / 2))


async def for_each(
    items: Sequence[Item],
    work: Callable[[Item], Awaitable[Answer]],
    *,
    parallel: int = MAX_PARALLEL,
    cost: int = 1,
) -> list[Answer]:
    """Work on all items, a bounded number at a time; the answers come in the order of the items.

    `cost` is how much work one of them is, as `Turns` count it, if it does not have to wait.
    """
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(items))
    turns = Turns()

    async def worker() -> None:
        for position, item in waiting:
            answers[position] = await work(item)
            await turns.done(cost)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(len(items), parallel)):
            workers.create_task(worker())
    return [answers[position] for position in range(len(items))]


def bounded(named: Sequence[Item]) -> Sequence[Item]:
    """Return what a request names; raises `Malformed` if that is more than a request may."""
    if len(named) > MAX_NAMED:
        raise _too_many()
    return named


async def bounded_parts(
    topics: Iterable[Any], name: str = "name", parts: str = "partitions"
) -> list[tuple[str, Any]]:
    """Return the partitions that a request names, each with its topic; raises `Malformed`."""
    turns = Turns()
    found: list[tuple[str, Any]] = []
    for topic in topics:
        named = getattr(topic, parts)
        if len(found) + len(named) > MAX_NAMED:
            raise _too_many()
        topic_name = getattr(topic, name)
        found += [(topic_name, part) for part in named]
        await turns.done(1 + len(named) // _CHEAP)
    return found


def _too_many() -> Malformed:
    return Malformed(f"more than {MAX_NAMED} topics, partitions or resources in one request")


async def once(items: Iterable[Item], key: Callable[[Item], Key]) -> tuple[list[Item], set[Key]]:
    """Return the last of the items of each key, and the keys that more than one has."""
    turns = Turns()
    found: dict[Key, Item] = {}
    twice: set[Key] = set()
    for item in items:
        its = key(item)
        if its in found:
            twice.add(its)
        found[its] = item
        await turns.done()
    return list(found.values()), twice


async def by_topic(
    parts: Sequence[tuple[str, Item]], answer: Callable[[str, tuple[Item, ...]], Answer]
) -> tuple[Answer, ...]:
    """Group the answers for partitions by their topics again, in the order of the topics."""
    turns = Turns()
    topics: dict[str, list[Item]] = {}
    for start in range(0, len(parts), TURN):
        for name, part in parts[start : start + TURN]:
            topics.setdefault(name, []).append(part)
        await turns.done(TURN // _CHEAP)
    return await turns.map(lambda found: answer(found[0], tuple(found[1])), topics.items())


async def distinct(keys: Sequence[Key]) -> list[Key]:
    """Return each of the keys once."""
    turns = Turns()
    found: dict[Key, None] = {}
    for start in range(0, len(keys), TURN):
        found.update(dict.fromkeys(keys[start : start + TURN]))
        await turns.done(TURN // _CHEAP)
    return list(found)


async def catch_up(context: Context, names: Iterable[str | None]) -> None:
    """Wait a moment for topics that this node has not heard of yet, if others may have.

    A client may create a topic at one node and change it at the next at once: Kafka hands every
    change to its controller, which knows. Here a node decides by what it knows itself, and one
    that does not lead group 0 may be a heartbeat behind.
    """
    topics = context.node.state.topics
    unknown = await Turns().pick(lambda name: name and name not in topics, names)
    if unknown:
        waited_for = unknown[:MAX_CAUGHT_UP]
        await context.node.catch_up.wait(
            lambda: all(name in context.node.state.topics for name in waited_for), CATCH_UP_S
        )


def is_internal(name: str, topic: TopicState | None) -> bool:
    """Tell whether a topic is the nodes' own, not to be changed by clients."""
    return name == GROUPS_TOPIC or (topic is not None and topic.internal)


def refuse_internal(name: str, topic: TopicState | None, what: str) -> None:
    if is_internal(name, topic):
        raise Refused(
            ErrorCode.invalid_topic_exception,
            f"topic {name} is internal: nodes see to it themselves, and it cannot be {what}",
        )
