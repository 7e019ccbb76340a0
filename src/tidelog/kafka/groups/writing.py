"""Steps of a shard on their way: their records to the log, then their answers to whoever waits.

The steps of one iteration of the loop share an append, and so do those that come while as many
appends are under way as may be. A step is written whole or not at all, unless it is larger than an
append may be: then its parts follow each other, and the core writes in an order that makes sense of
a part. Answers leave in the order of the steps, each when all that was written up to it is
committed; with nothing under way, an answer leaves at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.cluster.partition import Partition, Produced, ProduceFailed
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.outbox import Record, Step, Ticket
from tidelog.raft import events as ev
from tidelog.raft.types import Level
from tidelog.records import Batch, build_batch
from tidelog.records import Record as LogRecord

Answer = tuple[Ticket, object]


@dataclass(slots=True, eq=False)
class Append:
    """Records that go to the log together, and the answers that wait for them."""

    records: list[Record] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    size: int = 0
    sent: bool = False
    committed: bool = False


class Journal:
    def __init__(
        self,
        partition: Partition,
        config: GroupConfig,
        *,
        now: Callable[[], int],
        soon: Callable[[Callable[[], None]], object],
        deliver: Callable[[Answer], None],
        failed: Callable[[ev.Refusal], None],
    ) -> None:
        """Write to this partition; `soon` calls back at the end of this iteration of the loop."""
        self._partition = partition
        self._config = config
        self._now = now
        self._soon = soon
        self._deliver = deliver
        self._failed = failed
        self._appends: deque[Append] = deque()  # the oldest first
        self._under_way = 0
        self._steps = 0
        self._bytes = 0
        self._flushing = False
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Tell whether so much waits for the log that nothing should be added."""
        return (
            self._steps >= self._config.max_pending_steps
            or self._bytes >= self._config.max_pending_bytes
        )

    def add(self, step: Step) -> None:
        room = self._room_for(step.size) if step.records else None
        for record in step.records:
            size = len(record[0]) + len(record[1] or b"")
            if room is None or (room.records and room.size + size > self._config.max_append_bytes):
                room = self._new_append()
            room.records.append(record)
            room.size += size
            self._bytes += size
        if not self._appends:
            for answer in step.answers:
                self._deliver(answer)
            return
        self._appends[-1].answers.extend(step.answers)
        self._steps += len(step.answers)
        if not self._flushing and not self._appends[-1].sent:
            self._flushing = True
            self._soon(self._flush)

    def close(self) -> list[Answer]:
        """Write and deliver nothing any more; return the answers that waited."""
        self._closed = True
        waiting = [answer for append in self._appends for answer in append.answers]
        self._appends.clear()
        return waiting

    def _room_for(self, size: int) -> Append:
        last = self._appends[-1] if self._appends else None
        if last is None or last.sent or last.size + size > self._config.max_append_bytes:
            return self._new_append()
        return last

    def _new_append(self) -> Append:
        self._appends.append(Append())
        return self._appends[-1]

    def _flush(self) -> None:
        self._flushing = False
        for append in tuple(self._appends):
            if self._closed or self._under_way >= self._config.max_appends:
                return
            if not append.sent:
                append.sent = True
                self._under_way += 1
                self._send(append)

    def _send(self, append: Append) -> None:
        def done(outcome: Produced | ProduceFailed) -> None:
            self._resolved(append, outcome)

        self._partition.produce(
            _batch(append.records, self._now()),
            Level.QUORUM,
            self._config.write_timeout / 1000,
            done,
        )

    def _resolved(self, append: Append, outcome: Produced | ProduceFailed) -> None:
        if self._closed:
            return
        if isinstance(outcome, ProduceFailed):
            self._failed(outcome.why)
            return
        self._under_way -= 1
        append.committed = True
        while self._appends and self._appends[0].committed:
            first = self._appends.popleft()
            self._bytes -= first.size
            self._steps -= len(first.answers)
            for answer in first.answers:
                self._deliver(answer)
        if self._appends and not self._appends[-1].sent:
            self._flush()


def _batch(records: list[Record], now: int) -> Batch:
    return build_batch(
        [LogRecord(place, now, key, value) for place, (key, value) in enumerate(records)]
    )
