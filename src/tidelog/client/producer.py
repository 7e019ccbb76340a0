"""Writes records: collects them to batches, sends these in order, and tries again without doubles.

Theory of operation. Each partition has a *line*: a queue of records and a task that takes as many
of them as make a batch, sends it, and waits for the answer before it takes the next. One batch in
flight a partition keeps the order whatever fails, and while it travels the next one fills, so a
slow cluster gets large batches by itself.

Idempotence. A batch carries the producer's id and epoch and the sequence number of its first
record. A batch that is sent again because its answer was lost carries the same numbers, and the
cluster answers a double with the offset it had the first time. When a batch is given up and
nobody knows whether it was written, its line takes a new producer id and counts from 0 again: what
follows is never refused because of what came before.

Bounds: `MAX_BUFFERED` bytes of records wait or are in flight; `send` waits when there are more.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import LOST, Cluster
from tidelog.client.errors import PASSING, ClientError, Refused, check
from tidelog.client.messages import Api, Build, Maker
from tidelog.client.model import TopicPartition
from tidelog.client.partitioner import partition_of
from tidelog.client.retry import Backoff, Deadline
from tidelog.records import NO_PRODUCER, Batch, Codec, Record, build_batch

MAX_BUFFERED: Final = 32 * 1024 * 1024
# Bytes of keys, values and headers in a batch. Kafka's default limit is a little more than 1 MiB.
BATCH_BYTES: Final = 512 * 1024
# Bytes of records without a key that go to one partition before the next one's turn: enough for a
# batch that is worth sending.
STICKY_BYTES: Final = 16 * 1024
# What a record takes beside its key and value; a guess is enough for a bound.
RECORD_OVERHEAD: Final = 32
# Seconds a record may wait and be retried in, as in Kafka's own producer.
DELIVERY_SECONDS: Final = 120.0
# Seconds the cluster may take to replicate a batch.
REPLICATION: Final = timedelta(seconds=10)
ALL: Final = -1
UNKNOWN_OFFSET: Final = -1  # written, but the cluster no longer knows where, or was not asked
_MAX_SEQUENCE: Final = 2**31

Headers = tuple[tuple[str, bytes | None], ...]

# A batch that cannot be placed after those before it: its producer's numbers are worn out.
_LOST_COUNT: Final = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
    }
)


@dataclass(frozen=True, slots=True)
class Written:
    """Where a record is."""

    partition: TopicPartition
    offset: int  # UNKNOWN_OFFSET with acks=0


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    size: int
    done: asyncio.Future[Written]


class Producer:
    """Writes records to topics; an async context manager that writes out what waits."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ALL,
        codec: Codec = Codec.NONE,
        linger: float = 0.0,
        idempotent: bool | None = None,
        max_buffered: int = MAX_BUFFERED,
        delivery_seconds: float = DELIVERY_SECONDS,
    ) -> None:
        self.cluster = cluster
        self.acks = acks
        self.codec = codec
        self.linger = linger  # seconds a line waits for more records before it sends
        # Doubles can be told apart only where the cluster waits for a quorum.
        self.idempotent = acks == ALL if idempotent is None else idempotent
        if self.idempotent and acks != ALL:
            raise ClientError("An idempotent producer needs acks=all.")
        self.delivery_seconds = delivery_seconds
        self._lines: dict[TopicPartition, _Line] = {}
        self._buffered = 0  # bytes; at most _max_buffered, or one record that is larger
        self._max_buffered = max_buffered
        self._room = asyncio.Condition()
        # Where records of a topic without a key go, and how many bytes more until the next one.
        self._sticky: dict[str, tuple[int, int]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        await self.close(flush=kind is None)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[Written]:
        """Queue a record, waiting while the buffer is full; the future tells where it is."""
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(data or b"") for name, data in headers)
        if partition is None:
            partition = await self._choose(topic, key, size)
        async with self._room:
            await self._room.wait_for(
                lambda: not self._buffered or self._buffered + size <= self._max_buffered
            )
            self._buffered += size
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        done: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        where = TopicPartition(topic, partition)
        line = self._lines.get(where)
        if line is None:
            line = self._lines[where] = _Line(self, where)
        line.put(_Waiting(key, value, headers, timestamp, size, done))
        return done

    async def write(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> Written:
        """Write one record and wait until the cluster has it."""
        return await (await self.send(topic, value, key, headers, partition=partition))

    async def flush(self) -> None:
        """Wait until every record that was queued is written or given up."""
        await asyncio.gather(*(line.idle() for line in self._lines.values()))

    async def close(self, *, flush: bool = True) -> None:
        """Stop, after writing out what waits unless told not to."""
        try:
            if flush:
                await self.flush()
        finally:
            lines = list(self._lines.values())
            self._lines.clear()
            await asyncio.gather(*(line.stop() for line in lines))

    async def new_identity(self, deadline: Deadline) -> tuple[int, int]:
        """Return a producer id and epoch that nobody else has."""

        async def attempt() -> Any:
            answer = await self.cluster.ask_any(
                Api.INIT_PRODUCER_ID,
                lambda make: make(
                    "InitProducerIdRequest",
                    transactional_id=None,
                    transaction_timeout=timedelta(minutes=1),
                    producer_id=NO_PRODUCER,
                    producer_epoch=NO_PRODUCER,
                    enable2_pc=False,
                    keep_prepared_txn=False,
                ),
                deadline,
            )
            check(answer.error_code, "a producer id")
            return answer

        answer = await self.cluster.persist(attempt, deadline)
        return answer.producer_id, answer.producer_epoch

    async def released(self, size: int) -> None:
        """Give back room in the buffer."""
        async with self._room:
            self._buffered -= size
            self._room.notify_all()

    async def _choose(self, topic: str, key: bytes | None, size: int) -> int:
        info = await self.cluster.topic(topic)
        total = len(info.partitions)
        if key is not None:
            return partition_of(key, total)
        chosen, left = self._sticky.get(topic, (random.randrange(total), STICKY_BYTES))
        if left <= 0:
            chosen, left = (chosen + 1) % total, STICKY_BYTES
        self._sticky[topic] = (chosen, left - size)
        return chosen


class _Line:
    """The queue of one partition, and the task that empties it in order."""

    def __init__(self, producer: Producer, partition: TopicPartition) -> None:
        self._producer = producer
        self._partition = partition
        self._queue: deque[_Waiting] = deque()  # bounded by the producer's buffer
        self._identity: tuple[int, int] | None = None
        self._sequence = 0  # of the next record; 0 <= _sequence < 2**31
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._run(), name=f"produce {partition}")

    def put(self, record: _Waiting) -> None:
        self._queue.append(record)
        self._idle.clear()
        self._wake.set()

    async def idle(self) -> None:
        await self._idle.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for record in self._queue:
            record.done.cancel()
        self._queue.clear()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if self._producer.linger:
                await asyncio.sleep(self._producer.linger)
            while self._queue:
                records = self._take()
                try:
                    await self._deliver(records)
                finally:
                    await self._producer.released(sum(record.size for record in records))
            self._wake.clear()
            self._idle.set()

    def _take(self) -> list[_Waiting]:
        records = [self._queue.popleft()]
        size = records[0].size
        while self._queue and size + self._queue[0].size <= BATCH_BYTES:
            records.append(self._queue.popleft())
            size += records[-1].size
        return records

    async def _deliver(self, records: Sequence[_Waiting]) -> None:
        """Write some records as one batch, or as smaller ones if it is too large; never raises."""
        try:
            base = await self._write(records)
        except Refused as error:
            if error.code is ErrorCode.message_too_large and len(records) > 1:
                half = len(records) // 2
                await self._deliver(records[:half])
                await self._deliver(records[half:])
                return
            self._give_up(records, error)
        except ClientError as error:
            self._give_up(records, error)
        except ValueError as error:  # no batch can be made of these records
            self._give_up(records, ClientError(f"These records make no batch: {error}."))
        except asyncio.CancelledError:
            for record in records:
                record.done.cancel()
            raise
        else:
            for index, record in enumerate(records):
                if not record.done.done():
                    offset = UNKNOWN_OFFSET if base == UNKNOWN_OFFSET else base + index
                    record.done.set_result(Written(self._partition, offset))

    def _give_up(self, records: Sequence[_Waiting], error: ClientError) -> None:
        # A refusal that does not pass says that nothing was written, so the count goes on.
        if not isinstance(error, Refused) or error.code in PASSING:
            self._identity = None
        for record in records:
            if not record.done.done():
                record.done.set_exception(error)
                record.done.exception()  # whoever does not ask has chosen not to know

    async def _write(self, records: Sequence[_Waiting]) -> int:
        producer = self._producer
        deadline = Deadline(producer.delivery_seconds)
        if producer.idempotent and self._identity is None:
            self._identity = await producer.new_identity(deadline)
            self._sequence = 0
        batch = self._batch(records)
        if producer.acks == 0:
            await self._send_unanswered(batch, deadline)
            return UNKNOWN_OFFSET
        base = await self._send(batch, deadline)
        self._sequence = (self._sequence + len(records)) % _MAX_SEQUENCE
        return base

    def _batch(self, records: Sequence[_Waiting]) -> Batch:
        producer_id, epoch = self._identity or (NO_PRODUCER, NO_PRODUCER)
        return build_batch(
            [
                Record(index, record.timestamp, record.key, record.value, record.headers)
                for index, record in enumerate(records)
            ],
            codec=self._producer.codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=NO_PRODUCER if self._identity is None else self._sequence,
        )

    async def _send(self, batch: Batch, deadline: Deadline) -> int:
        answer = await self._producer.cluster.ask_leader(
            self._partition,
            Api.PRODUCE,
            lambda _: self._request(batch),
            deadline,
            self._judge,
            lane="produce",
        )
        return int(answer.responses[0].partition_responses[0].base_offset)

    async def _send_unanswered(self, batch: Batch, deadline: Deadline) -> None:
        cluster, backoff = self._producer.cluster, Backoff()
        while True:
            node, _ = await cluster.leader(self._partition, deadline)
            try:
                connection = await cluster.connect(node.host, node.port, deadline, lane="produce")
                await connection.send_only(Api.PRODUCE, self._request(batch), deadline)
            except LOST as error:
                cluster.forget(self._partition.topic)
                await backoff.wait(deadline, error)
            else:
                return

    def _judge(self, answer: Any) -> None:
        result = answer.responses[0].partition_responses[0]
        code = result.error_code
        # A double of a batch so old that the cluster forgot where it is: written all the same.
        if code is ErrorCode.duplicate_sequence_number:
            return
        if code in _LOST_COUNT:
            raise ClientError(
                f"Partition {self._partition} lost count of this producer's batches "
                f"({code.name.replace('_', ' ')}); whether the last one was written is unknown."
            )
        message = None if code in PASSING else getattr(result, "error_message", None)
        check(code, f"partition {self._partition}", message)

    def _request(self, batch: Batch) -> Build:
        def build(make: Maker) -> Any:
            return make(
                "ProduceRequest",
                transactional_id=None,
                acks=self._producer.acks,
                timeout=REPLICATION,
                topic_data=(
                    make(
                        "TopicProduceData",
                        name=self._partition.topic,
                        topic_id=self._producer.cluster.topic_id(self._partition.topic),
                        partition_data=(
                            make(
                                "PartitionProduceData",
                                index=self._partition.index,
                                records=bytes(batch.data),
                            ),
                        ),
                    ),
                ),
            )

        return build
