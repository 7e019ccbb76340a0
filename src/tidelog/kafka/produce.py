"""Produce: clients' batches into the log.

A batch stays where it arrived, in its request's buffer: it is inspected there (see
`tidelog.kafka.inspection`), stamped there, and goes from there to the file and to the followers.

Everything that has to happen in order happens before the next request of the same client starts,
which is while this one waits for its followers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.cluster.partition import Produced, ProduceFailed
from tidelog.kafka import produceform
from tidelog.kafka.codec import Buffer
from tidelog.kafka.dispatch import Context, Deferred, Disconnect, RawAnswer
from tidelog.kafka.errors import Refused, leader_for
from tidelog.kafka.groups.hashing import GROUPS_TOPIC
from tidelog.kafka.inspection import ALLOWANCE, Allowance, FaultyRecords, Partly, Rules, inspect
from tidelog.kafka.leadership import current_leader, encode_endpoints
from tidelog.kafka.produceform import ManyPartitions, ProduceRequest, TopicToWrite, Written
from tidelog.kafka.turns import Turns
from tidelog.raft.events import Refusal
from tidelog.raft.types import Level
from tidelog.records import Batch, TimestampType
from tidelog.storage import wall_ms

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition

MIN_VERSION: Final = 3
MAX_VERSION: Final = 13
_ALL: Final = -1
# Clients that ask for longer than this have given up themselves before.
MAX_TIMEOUT_S: Final = 300.0
_FIRST_WITH_ZSTD: Final = 7
# Partitions of a request that is read and written at once. Producers send what they have for one
# node, so nearly every request is one.
AT_ONCE: Final = 100
# What an append costs, as `Turns` count it, and how many bytes of it cost one more.
WRITE_COST: Final = 10
_BYTES_A_COST: Final = 16 * 1024
_NONE: Final = ErrorCode.none
_NOT_HERE: Final = ErrorCode.not_leader_or_follower

# What a client is told when the log did not take its batch, or may not have. Where another try can
# help it is a code that clients try again after.
CODES: Final = {
    Refusal.NOT_LEADER: _NOT_HERE,
    Refusal.WRONG_TERM: _NOT_HERE,
    Refusal.TRANSFERRING: _NOT_HERE,
    Refusal.NOT_READY: _NOT_HERE,
    Refusal.TRUNCATED: _NOT_HERE,
    # The followers do not keep up. This is the code for "nothing was written, come again".
    Refusal.BUSY: ErrorCode.not_enough_replicas,
    # Not the code of a gap, for which clients raise their epoch and write everything again that has
    # no answer: this gap fills itself.
    Refusal.EARLY: ErrorCode.not_enough_replicas,
    Refusal.OUT_OF_ORDER: ErrorCode.out_of_order_sequence_number,
    Refusal.FENCED: ErrorCode.invalid_producer_epoch,
    Refusal.STORAGE: ErrorCode.kafka_storage_error,
    Refusal.NO_ROOM: ErrorCode.kafka_storage_error,
    Refusal.UNKNOWN: ErrorCode.request_timed_out,
}


def handle_produce(
    context: Context, version: int, body: memoryview
) -> "asyncio.Future[RawAnswer] | RawAnswer | Deferred":
    """Write what a client sends; raises `Malformed`, or `Disconnect` where nobody can be told."""
    try:
        request = produceform.parse(version, body, AT_ONCE)
    except ManyPartitions:
        return _deferred(context, version, body)
    pending, parts = _open(context, version, request)
    allowance = Allowance(ALLOWANCE)
    try:
        for part in parts:
            part.find(pending, request)
            part.inspect(allowance)
    except Partly:
        return _deferred(context, version, body)
    for part in parts:
        part.write(pending, request)
    return pending.started()


def _open(context: Context, version: int, request: ProduceRequest) -> "tuple[Pending, list[Part]]":
    """Lay out the answer, and return it with what there is to be written."""
    pending = Pending(context, version, request.acks)
    parts: list[Part] = []
    for topic in request.topics:
        name = topic.name if version < produceform.FIRST_WITH_ID else _name_of(context, topic)
        written: list[Written] = []
        pending.topics.append((topic.key, written))
        for index, records in topic.partitions:
            result = Written(index)
            written.append(result)
            if name is None:
                result.error = ErrorCode.unknown_topic_id
            else:
                parts.append(Part(name, result, records))
    return pending, parts


def _deferred(context: Context, version: int, body: memoryview) -> Deferred:
    """Write a request that is much work: read on a thread, and written in turns with others."""
    opened: list[Pending] = []

    async def ready() -> None:
        request = await asyncio.to_thread(produceform.parse, version, body)
        pending, parts = await asyncio.to_thread(_open, context, version, request)
        opened.append(pending)
        turns = Turns()
        for part in parts:
            part.find(pending, request)
            await turns.done()

        def inspect_all() -> None:
            for part in parts:
                part.inspect(None)

        await asyncio.to_thread(inspect_all)
        for part in parts:
            # Who leads is looked up again: it may be another by now.
            part.find(pending, request)
            part.write(pending, request)
            await turns.done(WRITE_COST + part.size // _BYTES_A_COST)

    def resume() -> Awaitable[RawAnswer]:
        return opened[0].started_many()

    return Deferred(ready(), resume)


def _name_of(context: Context, topic: TopicToWrite) -> str | None:
    found = context.node.state.topics_by_id.get(UUID(bytes=topic.key))
    return None if found is None else found.name


class Why(NamedTuple):
    """What a client is told of a batch that was refused.

    A `Refused` that is kept holds the frames it came through, and with them the whole request.
    """

    code: ErrorCode
    message: str | None
    records: tuple[int, ...] = ()  # that are faulty, by their place in the batch

    @classmethod
    def of(cls, refused: Refused) -> "Why":
        faulty = refused.records if isinstance(refused, FaultyRecords) else ()
        return cls(refused.code, refused.message, faulty)


class Part:
    """What a request brings for one partition: where it goes, and what is wrong with it."""

    __slots__ = ("found", "inspected", "records", "result", "rules", "topic")

    def __init__(self, topic: str, result: Written, records: memoryview | None) -> None:
        self.topic = topic
        self.result = result
        self.records = records
        self.found: Partition | Why | None = None
        self.rules: Rules | None = None
        self.inspected: Batch | Why | None = None  # None until it was inspected

    @property
    def why(self) -> Why | None:
        """Why nothing is written; None if the batch may go to the log."""
        for each in (self.found, self.inspected):
            if isinstance(each, Why):
                return each
        # Without either, this node came to lead while other records were inspected.
        return Why(_NOT_HERE, None) if self.found is None or self.inspected is None else None

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return 0 if self.records is None else len(self.records)

    def write(self, pending: "Pending", request: ProduceRequest) -> None:
        """Append the batch, or note why not."""
        why = self.why
        if why is None:
            try:
                _write(pending, request, self)
            except Refused as refused:
                why = Why.of(refused)
        if why is not None:
            self.result.faulty = why.records
            pending.fail(self.topic, self.result, why.code, why.message)

    def find(self, pending: "Pending", request: ProduceRequest) -> None:
        """Look up the partition and what its topic demands."""
        if self.topic == GROUPS_TOPIC:
            self.found = Why(
                ErrorCode.invalid_topic_exception, "only coordinators write to this topic"
            )
            return
        found = leader_for(pending.context, self.topic, self.result.index)
        if isinstance(found, ErrorCode):
            self.found = Why(found, None)
            partition = pending.context.node.partition(self.topic, self.result.index)
            if partition is not None:
                partition.replica.turned_away()
            return
        self.found = found
        if self.rules is None:
            self.rules = Rules.of(
                found.config,
                takes_zstd=pending.version >= _FIRST_WITH_ZSTD,
                transactional=request.transactional,
            )

    def inspect(self, allowance: Allowance | None) -> None:
        """Judge the records; what goes nowhere is not looked at."""
        if self.rules is None:
            return
        try:
            self.inspected = inspect(self.records, self.rules, allowance)
        except Refused as refused:
            self.inspected = Why.of(refused)


class Pending:
    """A request whose batches are on their way."""

    __slots__ = (
        "_answers_elsewhere",
        "_context",
        "_future",
        "_left",
        "_version",
        "acks",
        "topics",
    )

    def __init__(self, context: Context, version: int, acks: int) -> None:
        self._context = context
        self._version = version
        self._future: asyncio.Future[RawAnswer] | None = None
        self._answers_elsewhere = False  # the future only says that all is done
        self._left = 1  # partitions that are not answered yet, and one until all were started
        self.acks = acks
        self.topics: list[tuple[bytes, list[Written]]] = []

    @property
    def context(self) -> Context:
        return self._context

    @property
    def version(self) -> int:
        return self._version

    def expect(
        self, partition: "Partition", result: Written
    ) -> Callable[[Produced | ProduceFailed], None]:
        """Return what is to be called once with the outcome of this partition."""
        self._left += 1

        def done(outcome: Produced | ProduceFailed) -> None:
            if isinstance(outcome, Produced):
                result.offset = outcome.offset
                result.start = partition.log_start
            else:
                result.append_time = -1
                code = CODES.get(outcome.why, ErrorCode.unknown_server_error)
                self.fail(partition.topic, result, code, outcome.why.value)
            self._left -= 1
            if not self._left and self._future is not None and not self._future.done():
                self._future.set_result(None if self._answers_elsewhere else self._answer())

        return done

    def fail(self, topic: str, result: Written, code: ErrorCode, message: str | None) -> None:
        result.error = code
        result.message = message
        if code is _NOT_HERE:
            result.leader = current_leader(self._context, topic, result.index)

    def started(self) -> "asyncio.Future[RawAnswer] | RawAnswer":
        """All batches are in the log or refused: return the answer, or the promise of one."""
        self._left -= 1
        if self.acks == 0:
            self._check_unacknowledged()
            return None
        if not self._left:
            return self._answer()
        self._future = self._context.node.loop.create_future()
        return self._future

    async def started_many(self) -> RawAnswer:
        """Do the same for a request whose answer takes long to write: that is done on a thread."""
        self._left -= 1
        if self.acks == 0:
            self._check_unacknowledged()
            return None
        if self._left:
            self._answers_elsewhere = True
            self._future = self._context.node.loop.create_future()
            await self._future
        return await asyncio.to_thread(self._answer)

    def _check_unacknowledged(self) -> None:
        errors = (each for _, written in self.topics for each in written if each.error != _NONE)
        first = next(errors, None)
        if first is not None:
            # Nobody waits for an answer. A broken connection is the only way to make the client
            # look for the leader elsewhere.
            raise Disconnect(f"an unacknowledged write failed: {first.error.name}")

    def _answer(self) -> list[Buffer]:
        endpoints = b""
        if self._version >= produceform.FIRST_WITH_LEADER:
            leaders = {
                each.leader[0]
                for _, written in self.topics
                for each in written
                if each.leader is not None
            }
            if leaders:
                endpoints = encode_endpoints(self._context, leaders)
        return [produceform.encode(self._version, self.topics, endpoints)]


def _write(pending: Pending, request: ProduceRequest, part: Part) -> None:
    """Append one partition's batch; raises `Refused` before anything is written."""
    partition, batch, result = part.found, part.inspected, part.result
    assert partition is not None
    assert batch is not None
    assert not isinstance(partition, Why)
    assert not isinstance(batch, Why)
    level = _level(pending, partition)
    if partition.config.message_timestamp_type == "LogAppendTime":
        result.append_time = wall_ms()
        batch = batch.set_time(result.append_time, TimestampType.LOG_APPEND)
    timeout = min(max(0.0, request.timeout_ms / 1000), MAX_TIMEOUT_S)
    partition.produce(batch, level, timeout, pending.expect(partition, result))


def _level(pending: Pending, partition: "Partition") -> Level:
    acks, config = pending.acks, partition.config
    if acks == _ALL:
        if config.min_insync_replicas > 1:
            _check_in_sync(pending.context, partition)
        return Level.MEMORY if config.write_caching else Level.QUORUM
    if acks == 1:
        return Level.LEADER
    if acks == 0:
        return Level.NONE
    raise Refused(ErrorCode.invalid_required_acks, f"acks is {acks}; it must be 0, 1 or -1")


def _check_in_sync(context: Context, partition: "Partition") -> None:
    """Refuse what could not be acknowledged anyway, before it is written.

    A follower that is a moment behind counts: the acknowledgement waits for it.
    """
    in_sync = set(partition.in_sync())
    voters = {voter.id for voter in partition.core.configuration.voters}
    there = sum(voter in in_sync or context.node.is_alive(voter) for voter in voters)
    needed = partition.config.min_insync_replicas
    if there < needed:
        partition.replica.turned_away()
        raise Refused(
            ErrorCode.not_enough_replicas,
            f"{there} replicas are in sync and min.insync.replicas asks for {needed}",
        )
