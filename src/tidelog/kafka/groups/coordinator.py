"""The asyncio driver of consumer groups: loads them from the log, writes, answers.

A node coordinates the groups of each partition of the internal topic that it leads. When it begins
to lead one, it reads that partition from its start; until then clients are told to come back. When
it ceases to lead, or a write fails, the groups in memory are dropped and everybody who waits is
told to look for the coordinator again. A node that still leads then reads the log once more, up to
its end as it was: a write whose outcome is unknown must be known before anybody is served.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from tidelog.cluster.model import TopicState
from tidelog.cluster.partition import Partition
from tidelog.kafka.dispatch import Handler
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.hashing import GROUPS_TOPIC, partition_for
from tidelog.kafka.groups.loading import Loading
from tidelog.kafka.groups.outbox import Step, Ticket
from tidelog.kafka.groups.shard import Shard
from tidelog.kafka.groups.topics import Topic
from tidelog.kafka.groups.unavailable import Unavailable
from tidelog.kafka.groups.writing import Answer, Journal
from tidelog.raft import events as ev
from tidelog.records import CorruptBatch, parse_batches, read_records
from tidelog.storage import DamagedLog

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

# What is read of the log before others get a turn: about a thousand offsets, some milliseconds.
LOAD_BYTES: Final = 64 * 1024
# How often a reader looks again whether a write of ours is committed by now.
LOAD_WAIT_S: Final = 0.02
# How long after a failure the log is read again.
RELOAD_AFTER_S: Final = 0.5
# How long changes of topics are gathered before deleted ones are looked for.
TOPICS_SETTLE_S: Final = 0.1

_A = TypeVar("_A")


class Keeper:
    """The groups of one partition for as long as this node leads it."""

    def __init__(self, coordinator: "Coordinator", partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.epoch
        self.is_ready = False
        self.shard = coordinator.new_shard()
        self._coordinator = coordinator
        self._loop = coordinator.loop
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self.journal = Journal(
            partition,
            coordinator.config,
            now=coordinator.now,
            soon=self._loop.call_soon,
            deliver=_deliver,
            failed=self._write_failed,
        )

    @property
    def leads(self) -> bool:
        partition = self.partition
        return not partition.closed and partition.is_leader and partition.epoch == self.epoch

    async def load(self) -> None:
        """Read the log, then begin to serve."""
        partition = self.partition
        started = self._loop.time()
        loading = Loading()
        position, goal = partition.log_start, partition.end
        while position < goal:
            try:
                chunk = partition.read(position, LOAD_BYTES)
            except DamagedLog:
                return  # the replica is lost, and the next leader loads what this one could not
            if chunk.next_offset == position:
                await asyncio.sleep(LOAD_WAIT_S)  # what is left is not committed yet
                continue
            _take(loading, b"".join(chunk.parts))
            position = chunk.next_offset
            await asyncio.sleep(0)
        self.shard.load(loading)
        self.shard.activate(self._coordinator.now())
        self.is_ready = True
        self.stepped(self.shard.take())
        if loading.corrupt:
            log.warning(
                "%s/%d: %d of %d records are not readable and were passed over",
                *(partition.topic, partition.index, loading.corrupt, loading.records),
            )
        log.log(
            logging.INFO if loading.records else logging.DEBUG,
            "%s/%d: coordinates %d groups from %d records, read in %.3f s",
            *(partition.topic, partition.index, len(self.shard.groups), loading.records),
            self._loop.time() - started,
        )

    def stepped(self, step: Step) -> None:
        """Write and answer what a step left behind, and wake up for the next deadline."""
        self.journal.add(step)
        due = self.shard.timers.next()
        if due is not None and (self._timer is None or due < self._timer_due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            delay = max(due - self._coordinator.now(), 0) / 1000
            self._timer = self._loop.call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        try:
            self.shard.timers.run(self._coordinator.now())
        except Exception:
            log.exception("%s/%d: a deadline failed", self.partition.topic, self.partition.index)
            self._coordinator.reload(self)
            return
        self.stepped(self.shard.take())

    def _write_failed(self, why: ev.Refusal) -> None:
        log.warning(
            "%s/%d: a write of groups failed (%s): reading them again",
            *(self.partition.topic, self.partition.index, why.value),
        )
        self._coordinator.reload(self)

    def close(self, error: ErrorCode) -> None:
        """Drop the groups and tell everybody who waits."""
        self.is_ready = False
        if self._timer is not None:
            self._timer.cancel()
        for ticket, _ in self.journal.close():
            _deliver((ticket, Unavailable(error)))
        self.shard.close(error)
        for answer in self.shard.take().answers:
            _deliver(answer)


class Coordinator:
    def __init__(self, node: "Node", config: GroupConfig | None = None) -> None:
        self.node = node
        self.config = config or GroupConfig()
        self.loop: asyncio.AbstractEventLoop
        self._clock = 0
        self._keepers: dict[int, Keeper] = {}
        self._tasks: dict[Keeper, asyncio.Task[None]] = {}
        self._topics: dict[str, UUID] = {}
        self._topics_timer: asyncio.TimerHandle | None = None
        self._unsubscribe: list[Callable[[], None]] = []

    @property
    def handlers(self) -> Mapping[int, tuple[int, int, Handler]]:
        """What the coordinator serves, for `Table.add_all`."""
        from tidelog.kafka.groups.handlers import handlers

        return handlers(self)

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        # Commits carry the time of day, and deadlines must not move when somebody sets the clock.
        self._clock = time.time_ns() // 1_000_000 - int(self.loop.time() * 1000)
        self._topics = self._topic_ids()
        self._unsubscribe = [
            self.node.on_leadership(self._leadership),
            self.node.state.on_change(self._state_changed),
        ]
        for partition in tuple(self.node.partitions()):
            self._leadership(partition)

    async def stop(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        if self._topics_timer is not None:
            self._topics_timer.cancel()
        tasks = tuple(self._tasks.values())
        for keeper in tuple(self._keepers.values()):
            self._drop(keeper, ErrorCode.not_coordinator)
        await asyncio.gather(*tasks, return_exceptions=True)

    def now(self) -> int:
        """Return milliseconds since 1970 on a clock that only runs forward."""
        return self._clock + int(self.loop.time() * 1000)

    @staticmethod
    def new_id() -> str:
        return str(uuid4())

    def new_shard(self) -> Shard:
        return Shard(config=self.config, topics=ClusterTopics(self.node), new_id=self.new_id)

    # --- Asking -----------------------------------------------------------------------------------

    async def ask(self, group: str, action: Callable[[Shard, int], _A]) -> _A:
        """Take a step that has its answer at once; return when it may be told."""

        def step(shard: Shard, ticket: Ticket, now: int) -> None:
            shard.answer(ticket, action(shard, now))

        return cast(_A, await self.wait(group, step))

    async def wait(self, group: str, action: Callable[[Shard, Ticket, int], None]) -> Any:
        """Take a step whose answer may come with a later one; raises `Unavailable`."""
        keeper = self._keeper_of(group)
        ticket: asyncio.Future[object] = self.loop.create_future()
        try:
            action(keeper.shard, ticket, self.now())
        except Exception:
            self.reload(keeper)  # it may have stopped halfway
            raise
        keeper.stepped(keeper.shard.take())
        answer = await ticket
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    def shards(self) -> Iterator[Shard]:
        """Yield all shards of this node; raises `Unavailable` while one is being loaded."""
        for keeper in self._keepers.values():
            if not keeper.is_ready:
                raise Unavailable(ErrorCode.coordinator_load_in_progress)
            yield keeper.shard

    def _keeper_of(self, group: str) -> Keeper:
        if len(group) > self.config.max_name_bytes:
            raise Unavailable(ErrorCode.invalid_group_id)
        topic = self.node.state.topics.get(GROUPS_TOPIC)
        if topic is None:
            raise Unavailable(ErrorCode.not_coordinator)
        keeper = self._keepers.get(partition_for(group, len(topic.partitions)))
        if keeper is None or not keeper.leads:
            raise Unavailable(ErrorCode.not_coordinator)
        if not keeper.is_ready or keeper.journal.is_full:
            raise Unavailable(ErrorCode.coordinator_load_in_progress)
        return keeper

    # --- Leadership -------------------------------------------------------------------------------

    def _leadership(self, partition: Partition) -> None:
        if partition.topic != GROUPS_TOPIC:
            return
        keeper = self._keepers.get(partition.index)
        if keeper is not None:
            if keeper.leads:
                return  # or it is an older replica of this partition that was closed
            self._drop(keeper, ErrorCode.not_coordinator)
        if partition.is_leader and not partition.closed:
            self._begin(partition, after=0)

    def reload(self, keeper: Keeper) -> None:
        """Forget what is in memory and read the log again, if this node still leads."""
        if self._keepers.get(keeper.partition.index) is not keeper:
            return
        self._drop(keeper, ErrorCode.coordinator_not_available)
        if keeper.leads:
            self._begin(keeper.partition, after=RELOAD_AFTER_S)

    def _begin(self, partition: Partition, after: float) -> None:
        keeper = Keeper(self, partition)
        self._keepers[partition.index] = keeper
        task = self.loop.create_task(self._load(keeper, after))
        self._tasks[keeper] = task
        task.add_done_callback(lambda _: self._tasks.pop(keeper, None))

    async def _load(self, keeper: Keeper, after: float) -> None:
        await asyncio.sleep(after)
        try:
            await keeper.load()
        except Exception:
            partition = keeper.partition
            log.exception("%s/%d: cannot be loaded", partition.topic, partition.index)
            self.loop.call_later(RELOAD_AFTER_S, self.reload, keeper)

    def _drop(self, keeper: Keeper, error: ErrorCode) -> None:
        del self._keepers[keeper.partition.index]
        task = self._tasks.pop(keeper, None)
        if task is not None:
            task.cancel()
        keeper.close(error)

    # --- Topics -----------------------------------------------------------------------------------

    def _topic_ids(self) -> dict[str, UUID]:
        return {name: topic.id for name, topic in self.node.state.topics.items()}

    def _state_changed(self) -> None:
        # A topic may be gone again before the changes are gathered: remember that it was there.
        topics = self.node.state.topics
        for name in topics.keys() - self._topics.keys():
            self._topics[name] = topics[name].id
        if self._topics_timer is None:
            self._topics_timer = self.loop.call_later(TOPICS_SETTLE_S, self._compare_topics)

    def _compare_topics(self) -> None:
        self._topics_timer = None
        before, self._topics = self._topics, self._topic_ids()
        gone = [name for name, id in before.items() if self._topics.get(name) != id]
        if not gone:
            return
        for keeper in tuple(self._keepers.values()):
            if keeper.is_ready and keeper.leads:
                keeper.shard.forget_topics(gone)
                keeper.stepped(keeper.shard.take())


class ClusterTopics:
    """The topics of the cluster as groups want to see them."""

    def __init__(self, node: "Node") -> None:
        self._state = node.state

    @property
    def version(self) -> int:
        return self._state.version

    def topics(self) -> Iterator[Topic]:
        return map(_topic, self._state.topics.values())

    def by_name(self, name: str) -> Topic | None:
        found = self._state.topics.get(name)
        return None if found is None else _topic(found)

    def by_id(self, topic_id: UUID) -> Topic | None:
        found = self._state.topics_by_id.get(topic_id)
        return None if found is None else _topic(found)


def _topic(state: TopicState) -> Topic:
    return Topic(state.name, state.id, len(state.partitions))


def _deliver(answer: Answer) -> None:
    ticket, content = answer
    assert isinstance(ticket, asyncio.Future)
    if not ticket.done():  # its client may be gone
        ticket.set_result(content)


def _take(loading: Loading, data: bytes) -> None:
    for batch in parse_batches(data):
        if batch.is_control:
            continue
        try:
            for record in read_records(batch):
                loading.take(record.key, record.value)
        except CorruptBatch as error:
            loading.corrupt += batch.count
            log.warning("groups: %s", error)
