"""One shard with a log that is a list, topics in a dictionary, and a clock that tests turn."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.classic_types import Join, JoinAnswer, Leaving, Sync, SyncAnswer
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.consumer_types import Beat, BeatAnswer
from tidelog.kafka.groups.loading import Loading
from tidelog.kafka.groups.outbox import Record
from tidelog.kafka.groups.records import Assigned
from tidelog.kafka.groups.shard import Shard
from tidelog.kafka.groups.shard_types import Commit, CommittedOffset, Fetch, LeaveAnswer
from tidelog.kafka.groups.topics import Topic
from tidelog.kafka.groups.wire import Writer

GROUP = "orders"
SESSION = 10_000
REBALANCE = 60_000
OK = ErrorCode.none


class Topics:
    """Topics that a test creates and deletes."""

    def __init__(self, **sizes: int) -> None:
        self.version = 0
        self._topics: dict[str, Topic] = {}
        self._ids = count(1)
        for name, partitions in sizes.items():
            self.set(name, partitions)

    def set(self, name: str, partitions: int) -> Topic:
        """Create a topic, or give it more partitions."""
        known = self._topics.get(name)
        topic_id = UUID(int=next(self._ids)) if known is None else known.id
        self._topics[name] = Topic(name, topic_id, partitions)
        self.version += 1
        return self._topics[name]

    def delete(self, name: str) -> None:
        del self._topics[name]
        self.version += 1

    def topics(self) -> Iterable[Topic]:
        return self._topics.values()

    def by_name(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((one for one in self._topics.values() if one.id == topic_id), None)

    def all_of(self, *names: str) -> Assigned:
        """Return all partitions of these topics."""
        return frozenset(
            (self._topics[name].id, index)
            for name in names
            for index in range(self._topics[name].partitions)
        )


def subscription(*topics: str) -> bytes:
    """Return the metadata that a classic consumer sends, as far as brokers look into it."""
    out = Writer()
    out.int16(1)
    out.int32(len(topics))
    for topic in topics:
        out.string(topic)
    out.blob(b"")
    return out.finish()


def a_join(member_id: str = "", **fields: Any) -> Join:
    request = Join(
        member_id,
        None,
        "client",
        "/here",
        REBALANCE,
        SESSION,
        "consumer",
        (("range", subscription("t")),),
    )
    return replace(request, **fields)


class World:
    def __init__(
        self, config: GroupConfig | None = None, topics: Topics | None = None, now: int = 1_000_000
    ) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay=0)
        self.topics = topics or Topics(t=4)
        self.now = now
        self.log: list[Record] = []
        self.answers: dict[object, object] = {}
        self._tickets = count(1)
        self._ids = count(1)
        self.shard = self._new_shard()
        self.shard.activate(self.now)

    def _new_shard(self) -> Shard:
        return Shard(config=self.config, topics=self.topics, new_id=lambda: f"id{next(self._ids)}")

    def settle(self) -> None:
        """Commit what was written, deliver what was answered, and see that all is in order."""
        step = self.shard.take()
        self.log.extend(step.records)
        for ticket, answer in step.answers:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = answer
        self.shard.check_invariants()

    def run(self, milliseconds: int) -> None:
        """Let time pass, from deadline to deadline."""
        end = self.now + milliseconds
        while (due := self.shard.timers.next()) is not None and due <= end:
            self.now = max(self.now, due)
            self.shard.timers.run(self.now)
            self.settle()
        self.now = end

    def compacted(self) -> list[Record]:
        """Return the log with the last word on each key, and without what is gone."""
        last = {key: place for place, (key, _) in enumerate(self.log)}
        return [
            (key, value)
            for place, (key, value) in enumerate(self.log)
            if last[key] == place and value is not None
        ]

    def loaded(self, log: list[Record] | None = None) -> Shard:
        """Return a shard that has read the log."""
        loading = Loading()
        for key, value in self.log if log is None else log:
            loading.take(key, value)
        assert loading.corrupt == 0
        shard = self._new_shard()
        shard.load(loading)
        return shard

    def fail_over(self) -> None:
        """Go on with a shard that knows only the log."""
        self.shard = self.loaded()
        self.shard.activate(self.now)
        self.settle()

    # --- The classic protocol -------------------------------------------------------------------

    def join(self, request: Join, group: str = GROUP) -> int:
        """Send a join and return its ticket; the answer may come later."""
        ticket = next(self._tickets)
        self.shard.join(group, request, ticket, self.now)
        self.settle()
        return ticket

    def joined(self, ticket: int) -> JoinAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinAnswer)
        return answer

    def sync(
        self,
        answer: JoinAnswer,
        assignments: tuple[tuple[str, bytes], ...] = (),
        group: str = GROUP,
        **fields: Any,
    ) -> int:
        """Send the sync that follows a join, and return its ticket."""
        ticket = next(self._tickets)
        request = Sync(answer.member_id, None, answer.generation, None, None, assignments)
        request = replace(request, **fields)
        self.shard.sync(group, request, ticket, self.now)
        self.settle()
        return ticket

    def synced(self, ticket: int) -> SyncAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(
        self, member_id: str, generation: int, instance: str | None = None, group: str = GROUP
    ) -> ErrorCode:
        error = self.shard.heartbeat(group, member_id, instance, generation, self.now)
        self.settle()
        return error

    def leave(self, *leaving: Leaving, group: str = GROUP) -> LeaveAnswer:
        answer = self.shard.leave(group, leaving, self.now)
        self.settle()
        return answer

    def stable(self, *requests: Join, group: str = GROUP) -> list[JoinAnswer]:
        """Let these members form a generation; the first divides: each gets its own id as work."""
        tickets = [self.join(request, group) for request in requests]
        # Whoever came first has joined alone, and joins again with the others.
        for place, ticket in enumerate(tickets):
            if ticket in self.answers:
                known = self.joined(ticket)
                assert known.error is OK
                again = replace(requests[place], member_id=known.member_id)
                tickets[place] = self.join(again, group)
        return self.divide(tickets, group)

    def divide(self, tickets: list[int], group: str = GROUP) -> list[JoinAnswer]:
        """Sync all whose joins are answered; return their answers, the leader's first."""
        answers = sorted(
            (self.joined(ticket) for ticket in tickets), key=lambda one: one.leader != one.member_id
        )
        work = tuple((one.member_id, one.member_id.encode()) for one in answers)
        for answer in answers:
            leads = answer.leader == answer.member_id
            ticket = self.sync(answer, work if leads else (), group)
            assert self.synced(ticket).assignment == answer.member_id.encode()
        return answers

    # --- The new protocol -----------------------------------------------------------------------

    def beat(self, member_id: str, epoch: int, group: str = GROUP, **fields: Any) -> BeatAnswer:
        beat = replace(Beat(member_id, epoch, "client", "/here"), **fields)
        answer = self.shard.beat(group, beat, self.now)
        self.settle()
        return answer

    def enter(self, member_id: str, *topics: str, group: str = GROUP, **fields: Any) -> BeatAnswer:
        """Send the first heartbeat of a member."""
        said: dict[str, Any] = {
            "topics": topics,
            "rebalance_timeout": REBALANCE,
            "owned": frozenset(),
        }
        return self.beat(member_id, 0, group, **(said | fields))

    # --- Offsets --------------------------------------------------------------------------------

    def commit(
        self,
        *offsets: CommittedOffset,
        member_id: str = "",
        epoch: int = -1,
        group: str = GROUP,
        **fields: Any,
    ) -> tuple[ErrorCode, ...]:
        commit = replace(Commit(member_id, None, epoch, 9, offsets), **fields)
        errors = self.shard.commit(group, commit, self.now)
        self.settle()
        return errors

    def committed(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        answer = self.shard.fetch(group, Fetch(None, -1, None))
        assert answer.error is OK
        return {
            (topic, index): value.offset
            for topic, index, value in answer.offsets
            if value is not None
        }
