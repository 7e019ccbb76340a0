"""A node whose partitions of the internal topic do what a test says."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tidelog.cluster.partition import Produced, ProduceFailed
from tidelog.cluster.tailreads import Chunk
from tidelog.kafka.groups.hashing import GROUPS_TOPIC
from tidelog.raft import events as ev
from tidelog.raft.types import Level
from tidelog.records import Batch, Offset, Term

Done = Callable[[Produced | ProduceFailed], None]


class FakePartition:
    """A log in memory. Writes wait for `commit` unless they are committed by themselves."""

    def __init__(self, index: int = 0, *, by_itself: bool = True) -> None:
        self.topic = GROUPS_TOPIC
        self.index = index
        self.closed = False
        self.is_leader = True
        self.epoch = 1
        self.log_start = 0
        self.high_watermark = 0
        self.end = 0
        self.by_itself = by_itself
        self.batches: list[Batch] = []
        self.waiting: list[tuple[int, Done]] = []  # where a write ends, and who wants to know
        self.reads = 0

    def produce(self, batch: Batch, level: Level, timeout: float, done: Done) -> None:
        assert level is Level.QUORUM
        assert timeout > 0
        if not self.is_leader:
            done(ProduceFailed(ev.Refusal.NOT_LEADER))
            return
        self.batches.append(batch.stamp(Offset(self.end), Term(self.epoch)))
        self.end += batch.count
        self.waiting.append((self.end, done))
        if self.by_itself:
            self.commit()

    def commit(self, count: int | None = None) -> None:
        """Commit the oldest writes, by default all."""
        ready = self.waiting[:count]
        del self.waiting[:count]
        for end, done in ready:
            self.high_watermark = end
            done(Produced(end))

    def fail(self, why: ev.Refusal) -> None:
        """Fail the oldest write; what it wrote stays in the log, as after a timeout."""
        _, done = self.waiting.pop(0)
        done(ProduceFailed(why))

    def read(self, offset: int, max_bytes: int) -> Chunk:
        self.reads += 1
        for batch in self.batches:
            if batch.base_offset <= offset <= batch.last_offset < self.high_watermark:
                return Chunk([bytes(batch.data)], batch.size, batch.last_offset + 1)
        return Chunk([], 0, offset)


class FakeNode:
    def __init__(self, *partitions: FakePartition, **topics: int) -> None:
        self.id = 1
        self.hosted = list(partitions)
        self.state = SimpleNamespace(
            topics={}, topics_by_id={}, version=0, members={}, on_change=self._on_change
        )
        self._listeners: list[Callable[[Any], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self.set_topic(GROUPS_TOPIC, max(len(partitions), 1))
        for name, count in topics.items():
            self.set_topic(name, count)

    def set_topic(self, name: str, partitions: int) -> None:
        topic = SimpleNamespace(
            name=name,
            id=UUID(int=self.state.version + 1),
            partitions=tuple(range(partitions)),
            internal=name == GROUPS_TOPIC,
        )
        self.state.topics[name] = topic
        self.state.topics_by_id[topic.id] = topic
        self._changed()

    def delete_topic(self, name: str) -> None:
        del self.state.topics_by_id[self.state.topics.pop(name).id]
        self._changed()

    def _changed(self) -> None:
        self.state.version += 1
        for watcher in self._watchers:
            watcher()

    def _on_change(self, watcher: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def on_leadership(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def partitions(self) -> Iterator[FakePartition]:
        return iter(self.hosted)

    def notify(self, partition: FakePartition) -> None:
        for listener in self._listeners:
            listener(partition)
