"""Writes Arrow columns to topics, for plain code such as a Spark task: in order, no doubles.

    with ArrowWriter(blocking) as writer:
        writer.write("orders", records)      # columns value, and perhaps key, headers, timestamp

Theory of operation. The caller's thread chooses a partition for every row, gathers the rows of each
partition and builds record batches from the columns, without a Python object for a record. Batches
wait in a line for each partition; the client's thread sends them, one in flight a partition, and
tries again with the same sequence numbers until the cluster has them or the delivery time is over.
While the batches travel the caller builds the next ones.

The first error ends the writer: everything after it would be out of order. `write` or `flush` raise
it, and what was written of the rest is unknown.

With an identity (`tidelog.client.identity`) the writer resumes the work of whoever had the same
one: rows that are in the topic already are left out, each as often as it is there. The rows may
come in another order than they did the first time.

Bounds: `max_buffered` bytes of batches wait or are in flight; `write` waits when there are more.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from kio.schema.errors import ErrorCode

from tidelog.client.arrowplace import Ints, partitions_of
from tidelog.client.blocking import Blocking
from tidelog.client.errors import ClientError, Refused, Unsupported
from tidelog.client.identity import Identity, Standing, standings, written_batches
from tidelog.client.messages import Api, Build, Maker
from tidelog.client.model import TopicPartition
from tidelog.client.producer import ALL, DELIVERY_SECONDS, MAX_BUFFERED, Producer
from tidelog.client.retry import Deadline
from tidelog.records import NO_PRODUCER, Batch, Codec
from tidelog.records.arrow import MAX_BATCH_BYTES, from_arrow, to_arrow

# Seconds the cluster may take to replicate a batch.
REPLICATION: Final = timedelta(seconds=10)
_MAX_SEQUENCE: Final = 2**31
# What a row is recognised by when work is resumed: enough that two rows never look the same.
_DIGEST_BYTES: Final = 16
# A sequence that a batch cannot have: somebody else carries out the same work, or has.
_CONTESTED: Final = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
    }
)


class ArrowWriter:
    """Writes rows of Arrow columns; a context manager that writes out what waits."""

    def __init__(
        self,
        blocking: Blocking,
        *,
        acks: int = ALL,
        codec: Codec = Codec.NONE,
        identity: Identity | None = None,
        first: int = 0,
        batch_bytes: int = MAX_BATCH_BYTES,
        max_buffered: int = MAX_BUFFERED,
        delivery_seconds: float = DELIVERY_SECONDS,
    ) -> None:
        """Write with these settings; rows without a key begin with partition number `first`."""
        if identity is not None and acks != ALL:
            raise ClientError("A writer with an identity needs acks=all.")
        self.acks = acks
        self.delivery_seconds = delivery_seconds
        self.rows = 0  # that were written by this writer
        self.resumed = 0  # that were left out, since they are in their topics already
        self._blocking = blocking
        self._codec = codec
        self._identity = identity
        self._resumes = identity is not None
        self._turn = first
        self._batch_bytes = batch_bytes
        self._max_buffered = max_buffered
        self._counts: dict[str, int] = {}  # topic to its partitions
        self._sequences: dict[TopicPartition, int] = {}  # of the next record; 0 unless said here
        self._found: dict[str, Counter[bytes]] = {}  # topic to rows that are there already
        # From here on, only the client's thread looks at these.
        self._lines: dict[TopicPartition, _Line] = {}
        self._buffered = 0  # bytes; at most _max_buffered, or one batch that is larger
        self._room = asyncio.Condition()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def write(
        self, topic: str, records: pa.RecordBatch, partitions: pa.Array | None = None
    ) -> None:
        """Queue rows, waiting while the buffer is full; `partitions` says where they go.

        A row whose partition is null goes where its key says.
        """
        count = self._open(topic)
        found = self._found.get(topic)
        if found:
            mask = _missing(records, found)
            self.resumed += records.num_rows - mask.true_count
            records = records.filter(mask)
            partitions = None if partitions is None else partitions.filter(mask)
        if not records.num_rows:
            return
        chosen = self._choose(topic, records, partitions, count)
        producer_id, epoch = NO_PRODUCER, NO_PRODUCER
        if self._identity is not None:
            producer_id, epoch = self._identity.producer_id, self._identity.epoch
        built: list[tuple[TopicPartition, list[Batch]]] = []
        for index, rows in _split(records, chosen):
            where = TopicPartition(topic, index)
            sequence = self._sequences.get(where, 0)
            batches = from_arrow(
                rows,
                codec=self._codec,
                max_batch_bytes=self._batch_bytes,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=NO_PRODUCER if self._identity is None else sequence,
            )
            self._sequences[where] = (sequence + rows.num_rows) % _MAX_SEQUENCE
            built.append((where, batches))
        self._blocking.run(self._put(built))
        self.rows += records.num_rows

    def flush(self) -> None:
        """Wait until everything is written; raises if something could not be."""
        self._blocking.run(self._finish())

    def close(self) -> None:
        """Stop, whatever still waits."""
        if not self._blocking.closed:
            self._blocking.run(self._stop())

    # --- On the caller's thread -------------------------------------------------------------------

    def _open(self, topic: str) -> int:
        """Return how many partitions a topic has; on its first use, find out what is there."""
        count = self._counts.get(topic)
        if count is None:
            info = self._blocking.run(self._blocking.cluster.topic(topic, fresh=True))
            count = self._counts[topic] = len(info.partitions)
            if self._resumes:
                self._resume(topic, count)
            if self._identity is None and self.acks == ALL:
                self._identity = self._blocking.run(self._new_identity())
        return count

    def _resume(self, topic: str, count: int) -> None:
        assert self._identity is not None
        cluster = self._blocking.cluster
        partitions = [TopicPartition(topic, index) for index in range(count)]
        try:
            begun = self._blocking.run(standings(cluster, partitions, self._identity))
        except Unsupported:
            # A cluster that cannot tell who wrote what: a producer like any other, then.
            self._identity, self._resumes = None, False
            return
        written = {where: each for where, each in begun.items() if each.last_sequence >= 0}
        if written:
            self._found[topic] = self._look(written)
            for where, each in written.items():
                self._sequences[where] = (each.last_sequence + 1) % _MAX_SEQUENCE

    def _look(self, written: dict[TopicPartition, Standing]) -> Counter[bytes]:
        assert self._identity is not None
        batches = self._blocking.run(
            written_batches(self._blocking.cluster, written, self._identity)
        )
        found: Counter[bytes] = Counter()
        for batch in batches:
            found.update(_digests(to_arrow([batch], columns=("key", "value", "headers"))))
        return found

    async def _new_identity(self) -> Identity:
        producer = Producer(self._blocking.cluster)
        return Identity(*await producer.new_identity(Deadline(self.delivery_seconds)))

    def _choose(
        self, topic: str, records: pa.RecordBatch, partitions: pa.Array | None, count: int
    ) -> Ints:
        keys = None
        if "key" in records.schema.names:
            keys = records.column("key")
            if not pa.types.is_string(keys.type):
                keys = keys.cast(pa.binary())
        if partitions is None or partitions.null_count:
            chosen = partitions_of(keys, records.num_rows, count, self._turn)
            self._turn = (self._turn + 1) % count
            if partitions is None:
                return chosen
            given = partitions.is_valid().to_numpy(zero_copy_only=False)
            wanted = partitions.fill_null(0).to_numpy()
            chosen = np.where(given, wanted, chosen)
        else:
            chosen = partitions.to_numpy()
        low, high = int(chosen.min()), int(chosen.max())
        if low < 0 or high >= count:
            raise ClientError(
                f"Column `partition` names partition {low if low < 0 else high}, and topic {topic} "
                f"has {count}, counted from 0."
            )
        return chosen

    # --- On the client's thread -------------------------------------------------------------------

    async def _put(self, built: list[tuple[TopicPartition, list[Batch]]]) -> None:
        for where, batches in built:
            line = self._lines.get(where)
            if line is None:
                line = self._lines[where] = _Line(self, where)
            for batch in batches:
                await self._wait_for_room(batch.size)
                line.put(batch)

    async def _wait_for_room(self, size: int) -> None:
        async with self._room:
            await self._room.wait_for(
                lambda: (
                    self._failure is not None
                    or not self._buffered
                    or self._buffered + size <= self._max_buffered
                )
            )
            self._buffered += size
        self._check()

    async def _finish(self) -> None:
        async with self._room:
            await self._room.wait_for(lambda: self._failure is not None or not self._buffered)
        self._check()

    async def _stop(self) -> None:
        lines = list(self._lines.values())
        self._lines.clear()
        await asyncio.gather(*(line.stop() for line in lines))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def released(self, size: int, failure: BaseException | None) -> None:
        """A batch is written, or given up."""
        async with self._room:
            self._buffered -= size
            self._failure = self._failure or failure
            self._room.notify_all()

    async def send(self, where: TopicPartition, batch: Batch) -> None:
        """Send one batch until the cluster has it."""
        cluster = self._blocking.cluster

        def build(make: Maker) -> Any:
            return make(
                "ProduceRequest",
                transactional_id=None,
                acks=self.acks,
                timeout=REPLICATION,
                topic_data=(
                    make(
                        "TopicProduceData",
                        name=where.topic,
                        topic_id=cluster.topic_id(where.topic),
                        partition_data=(
                            make(
                                "PartitionProduceData", index=where.index, records=bytes(batch.data)
                            ),
                        ),
                    ),
                ),
            )

        def request(_: object) -> Build:
            return build

        deadline = Deadline(self.delivery_seconds)
        if not self.acks:
            node, _ = await cluster.leader(where, deadline)
            connection = await cluster.connect(node.host, node.port, deadline, lane="produce")
            await connection.send_only(Api.PRODUCE, build, deadline)
            return
        await cluster.ask_leader(
            where,
            Api.PRODUCE,
            request,
            deadline,
            lambda answer: _judge(answer, where),
            lane="produce",
        )


class _Line:
    """The batches of one partition, and the task that sends them in order."""

    def __init__(self, writer: ArrowWriter, where: TopicPartition) -> None:
        self._writer = writer
        self._where = where
        self._queue: deque[Batch] = deque()  # bounded by the writer's buffer
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"write {where}")

    def put(self, batch: Batch) -> None:
        self._queue.append(batch)
        self._wake.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = self._queue.popleft()
                failure: BaseException | None = None
                try:
                    await self._writer.send(self._where, batch)
                except Exception as error:  # noqa: BLE001  # raised where the caller is
                    failure = error
                await self._writer.released(batch.size, failure)
                if failure is not None:
                    return


def _judge(answer: Any, where: TopicPartition) -> None:
    result = answer.responses[0].partition_responses[0]
    code = result.error_code
    # A double of a batch so old that the cluster forgot where it is: written all the same.
    if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
        return
    if code in _CONTESTED:
        raise ClientError(
            f"Partition {where} takes no batch with these numbers ({code.name.replace('_', ' ')}): "
            "another attempt at the same work is writing, or has written. Try again."
        )
    if code is ErrorCode.message_too_large:
        raise Refused(
            code,
            f"partition {where}",
            f"A batch is larger than topic {where.topic} takes: lower `kafka.max.request.size`, or "
            "raise the topic's `max.message.bytes`.",
        )
    raise Refused(code, f"partition {where}", getattr(result, "error_message", None))


def _split(records: pa.RecordBatch, chosen: Ints) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of every partition, in the order they had."""
    first = int(chosen[0])
    if (chosen == first).all():
        yield first, records
        return
    # numpy sorts numbers of 16 bits in linear time.
    narrow = chosen.astype(np.uint16) if chosen.max() < 2**16 else chosen
    order = np.argsort(narrow, kind="stable")
    gathered = records.take(pa.array(order))
    indexes, starts = np.unique(chosen[order], return_index=True)
    ends = [*starts[1:], len(chosen)]
    for index, start, end in zip(indexes, starts, ends, strict=True):
        yield int(index), gathered.slice(int(start), int(end) - int(start))


def _missing(records: pa.RecordBatch, found: Counter[bytes]) -> pa.BooleanArray:
    """Tell which rows are not among those found, and count those that are as used up."""
    mask = []
    for digest in _digests(records):
        known = found.get(digest, 0)
        if known:
            found[digest] = known - 1
        mask.append(not known)
    return pa.array(mask, pa.bool_())


def _digests(records: pa.RecordBatch) -> Iterator[bytes]:
    """Yield what each row is recognised by: its key, value and headers."""
    names = records.schema.names
    columns = [
        records.column(name).to_pylist() if name in names else [None] * records.num_rows
        for name in ("key", "value", "headers")
    ]
    for key, value, headers in zip(*columns, strict=True):
        pairs = [(each["key"], each["value"]) for each in headers or ()]
        row = repr((_bytes(key), _bytes(value), pairs)).encode()
        yield hashlib.blake2b(row, digest_size=_DIGEST_BYTES).digest()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
