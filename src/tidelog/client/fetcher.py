"""Reads partitions from given offsets: an async iterator of what came, in order in each partition.

Theory of operation. Each node that leads some of the partitions has at most one fetch request on
its way (in a lane of its own, since it waits there for data) and at most one answer that was not
handed out whole. A new request leaves as soon as the last part of the answer before it is handed
out, so the network works while the caller does. Memory is bounded by that: two answers of
`max_bytes` a node.

Following the leader. A request names the epoch of the leader it believes in. A node that knows
better says so, the metadata is asked again, and the partition goes on where it stood. The epoch of
the last batch that was read travels along; if the leader's log has none of that epoch at that
offset, records that were read are gone, the leader says where the logs part, and reading goes on
from there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from struct import Struct
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import LOST, Cluster
from tidelog.client.errors import PASSING, Refused, Unsupported
from tidelog.client.messages import Api, Build, Maker
from tidelog.client.model import Node, TopicPartition
from tidelog.client.offsets import CONSUMER, EARLIEST, LATEST, list_offsets
from tidelog.client.retry import FIRST_WAIT, LONGEST_WAIT, Deadline
from tidelog.records import Batch, OldFormat, Record, TimestampType, read_marker, read_records
from tidelog.records.types import MarkerType

# Bytes of an answer, and of one partition in it. A batch that is larger comes whole all the same.
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_PARTITION_BYTES: Final = 4 * 1024 * 1024
# How long a node may wait for data before it answers with nothing.
MAX_WAIT: Final = 0.5
# Seconds after which a request is given up, beyond the wait that it asked for.
PATIENCE: Final = 10.0
_NO_EPOCH: Final = -1
_NO_SESSION: Final = -1
_PREFIX: Final = Struct(">qi")  # base offset and length


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """One record, and where it was."""

    partition: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one partition had to give: whole batches, the first perhaps from before `position`."""

    partition: TopicPartition
    position: int  # the offset that was asked for: records before it are not ours
    batches: tuple[Batch, ...]  # of clients' data; control batches are left out
    next: int  # the offset to go on from
    high_watermark: int  # the offset that the next committed record gets

    def records(self) -> Iterator[FetchedRecord]:
        """Yield the records one by one, from `position` on."""
        for batch in self.batches:
            stamped = batch.timestamp_type is TimestampType.LOG_APPEND
            for record in read_records(batch):
                offset = batch.base_offset + record.offset_delta
                if offset >= self.position:
                    time = batch.max_timestamp if stamped else record.timestamp
                    yield _place(self.partition, offset, time, record)


def _place(partition: TopicPartition, offset: int, time: int, record: Record) -> FetchedRecord:
    return FetchedRecord(partition, offset, time, record.key, record.value, record.headers)


@dataclass(slots=True)
class _Position:
    offset: int  # of the next record to fetch
    epoch: int  # of the last batch that was read; -1 before the first
    # Seconds to wait before the next attempt, and the moment it ends (loop time).
    pause: float = 0.0
    resume_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
    node: Node
    task: asyncio.Task[Any]
    positions: Mapping[TopicPartition, int]  # as they were when the request left
    names: Mapping[Any, str]  # topic id to name


class Fetcher:
    """Reads partitions from given offsets, for ever; `positions` tells how far it handed out."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None = None,
        reset: int | None = None,
        committed: bool = False,
        max_bytes: int = MAX_BYTES,
        max_partition_bytes: int = MAX_PARTITION_BYTES,
        max_wait: float = MAX_WAIT,
    ) -> None:
        """Read from these offsets, for ever or up to `ends`: nothing from there on is asked for.

        `reset` is where to go on when an offset is out of range: `EARLIEST`, `LATEST`, or None to
        raise. `committed` leaves out what transactions have not committed.
        """
        self.positions: dict[TopicPartition, int] = dict(positions)  # what the caller has seen
        self._cluster = cluster
        self._ends = ends or {}
        self._reset = reset
        self._committed = committed
        self._max_bytes = max_bytes
        self._max_partition_bytes = max_partition_bytes
        self._max_wait = max_wait
        self._fetched = {
            partition: _Position(offset, _NO_EPOCH) for partition, offset in positions.items()
        }
        self._ready: deque[tuple[int, Fetched]] = deque()  # node, part: one answer a node
        self._asked: dict[int, _Asked] = {}  # by node

    async def close(self) -> None:
        """Drop what is on its way."""
        tasks = [asked.task for asked in self._asked.values()]
        self._asked.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop(self, partition: TopicPartition) -> None:
        """Fetch no more of a partition; what is on its way is still handed out."""
        self._fetched.pop(partition, None)

    async def __aiter__(self) -> AsyncIterator[Fetched]:
        while True:
            part = await self.next()
            if part is not None:
                yield part

    async def next(self, timeout: float | None = None) -> Fetched | None:
        """Return what came next; None when `timeout` seconds have brought nothing."""
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        while not self._ready:
            await self._start()
            left = None if end is None else end - loop.time()
            if left is not None and left <= 0:
                return None
            await self._wait(left)
        node_id, part = self._ready.popleft()
        self.positions[part.partition] = part.next
        if not any(other == node_id for other, _ in self._ready):
            await self._start(only=node_id)
        return part

    # --- Requests ---------------------------------------------------------------------------------

    async def _start(self, only: int | None = None) -> None:
        """Send a request to every node that has none and whose answers are handed out."""
        busy = {node_id for node_id, _ in self._ready} | self._asked.keys()
        now = asyncio.get_running_loop().time()
        wanted: defaultdict[Node, dict[TopicPartition, int]] = defaultdict(dict)
        epochs: dict[TopicPartition, int] = {}
        asked_again: set[str] = set()
        for partition, position in self._fetched.items():
            if position.resume_at > now:
                continue
            found = self._cluster.known_leader(partition)
            if found is None and partition.topic not in asked_again:
                asked_again.add(partition.topic)
                await self._cluster.topic(partition.topic, fresh=True)
                found = self._cluster.known_leader(partition)
            if found is None:
                self._pause([partition])
                continue
            node, info = found
            if node.id not in busy and only in (None, node.id):
                wanted[node][partition] = position.offset
                epochs[partition] = info.epoch
        for node, positions in wanted.items():
            names = {self._cluster.topic_id(p.topic): p.topic for p in positions}
            request = self._request(positions, epochs)
            task = asyncio.create_task(self._ask(node, request), name=f"fetch from {node.id}")
            self._asked[node.id] = _Asked(node, task, positions, names)

    async def _ask(self, node: Node, request: Build) -> Any:
        patience = self._max_wait + PATIENCE
        return await self._cluster.ask(
            node, Api.FETCH, request, Deadline(patience), lane="fetch", patience=patience
        )

    def _request(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> Build:
        def build(make: Maker) -> Any:
            by_topic: defaultdict[str, list[Any]] = defaultdict(list)
            for partition, offset in positions.items():
                by_topic[partition.topic].append(
                    make(
                        "FetchPartition",
                        partition=partition.index,
                        current_leader_epoch=epochs[partition],
                        fetch_offset=offset,
                        last_fetched_epoch=self._fetched[partition].epoch,
                        log_start_offset=-1,
                        partition_max_bytes=self._max_partition_bytes,
                    )
                )
            return make(
                "FetchRequest",
                replica_id=CONSUMER,
                max_wait=timedelta(seconds=self._max_wait),
                min_bytes=1,
                max_bytes=self._max_bytes,
                isolation_level=int(self._committed),
                session_id=0,
                session_epoch=_NO_SESSION,
                topics=tuple(
                    make(
                        "FetchTopic",
                        topic=name,
                        topic_id=self._cluster.topic_id(name),
                        partitions=tuple(partitions),
                    )
                    for name, partitions in by_topic.items()
                ),
                forgotten_topics_data=(),
                rack_id="",
            )

        return build

    # --- Answers ----------------------------------------------------------------------------------

    async def _wait(self, timeout: float | None) -> None:
        """Wait for an answer, or until a partition's pause is over."""
        now = asyncio.get_running_loop().time()
        pauses = [p.resume_at - now for p in self._fetched.values() if p.resume_at > now]
        limit = min([*pauses, *([] if timeout is None else [timeout])], default=None)
        if not self._asked:
            await asyncio.sleep(LONGEST_WAIT if limit is None else limit)
            return
        tasks = {asked.task: node_id for node_id, asked in self._asked.items()}
        done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            asked = self._asked.pop(tasks[task])
            error = task.exception()
            if isinstance(error, LOST):
                self._stale(asked.positions)
            elif error is not None:
                raise error
            else:
                await self._take(asked, task.result())

    async def _take(self, asked: _Asked, answer: Any) -> None:
        code = getattr(answer, "error_code", ErrorCode.none)
        if code is not ErrorCode.none:
            if code not in PASSING:
                raise Refused(code, f"a fetch from {asked.node.address}")
            self._stale(asked.positions)
            return
        for topic in answer.responses:
            name = asked.names[topic.topic_id] if hasattr(topic, "topic_id") else topic.topic
            for each in topic.partitions:
                partition = TopicPartition(name, each.partition_index)
                position = self._fetched.get(partition)
                if position is None or position.offset != asked.positions.get(partition):
                    continue  # dropped since, or moved
                if each.error_code is ErrorCode.none:
                    self._take_partition(asked.node.id, partition, position, each)
                elif each.error_code is ErrorCode.offset_out_of_range:
                    await self._take_reset(partition, position)
                elif each.error_code in PASSING:
                    self._stale([partition])
                else:
                    raise Refused(each.error_code, f"partition {partition}")

    def _take_partition(
        self, node_id: int, partition: TopicPartition, position: _Position, answer: Any
    ) -> None:
        position.pause = 0.0
        diverging = getattr(answer, "diverging_epoch", None)
        if diverging is not None and diverging.end_offset >= 0:
            position.offset = min(position.offset, diverging.end_offset)
            position.epoch = diverging.epoch
            return
        batches = list(whole_batches(answer.records or b"", partition))
        if not batches:
            return
        asked_for = position.offset
        position.offset = max(asked_for, batches[-1].last_offset + 1)
        position.epoch = batches[-1].term
        kept = [batch for batch in batches if batch.last_offset >= asked_for]
        if self._committed:
            kept = without_aborted(kept, answer.aborted_transactions or ())
        data = tuple(batch for batch in kept if not batch.is_control)
        part = Fetched(partition, asked_for, data, position.offset, answer.high_watermark)
        self._ready.append((node_id, part))
        if position.offset >= self._ends.get(partition, position.offset + 1):
            self.drop(partition)

    async def _take_reset(self, partition: TopicPartition, position: _Position) -> None:
        if self._reset is None:
            raise Refused(
                ErrorCode.offset_out_of_range,
                f"partition {partition}",
                f"Partition {partition} has no offset {position.offset}: it was removed, or is not "
                "written yet.",
            )
        found = await list_offsets(self._cluster, {partition: self._reset})
        position.offset, position.epoch = found[partition], _NO_EPOCH

    def _stale(self, partitions: Mapping[TopicPartition, int] | Sequence[TopicPartition]) -> None:
        """Look again who leads these partitions, after a pause that grows."""
        for partition in partitions:
            self._cluster.forget(partition.topic)
        self._pause(partitions)

    def _pause(self, partitions: Iterable[TopicPartition]) -> None:
        now = asyncio.get_running_loop().time()
        for partition in partitions:
            position = self._fetched.get(partition)
            if position is not None:
                position.pause = min(max(position.pause * 2, FIRST_WAIT), LONGEST_WAIT)
                position.resume_at = now + position.pause


def whole_batches(data: bytes, partition: TopicPartition) -> Iterator[Batch]:
    """View the batches of an answer; the last may be cut short, and comes again then."""
    position = 0
    while position + _PREFIX.size <= len(data):
        _, length = _PREFIX.unpack_from(data, position)
        if length >= 0 and position + _PREFIX.size + length > len(data):
            return
        try:
            batch = Batch.parse(data, position)
            batch.check_crc(position)
        except OldFormat:
            raise Unsupported(
                f"Partition {partition} holds records in the format from before Kafka 0.11, which "
                "this client does not read."
            ) from None
        yield batch
        position += batch.size


def without_aborted(batches: Sequence[Batch], aborted: Sequence[Any]) -> list[Batch]:
    """Leave out the batches of transactions that the answer lists as aborted."""
    starts = deque(sorted((each.first_offset, each.producer_id) for each in aborted))
    open_now: set[int] = set()
    kept: list[Batch] = []
    for batch in batches:
        while starts and starts[0][0] <= batch.last_offset:
            open_now.add(starts.popleft()[1])
        if batch.is_control:
            if batch.producer_id in open_now and read_marker(batch).type is MarkerType.ABORT:
                open_now.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in open_now:
            continue
        kept.append(batch)
    return kept


async def positions_at(
    cluster: Cluster, partitions: Sequence[TopicPartition], time: int
) -> dict[TopicPartition, int]:
    """Return where to begin: `EARLIEST`, `LATEST`, or a time; the end if no record is later."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, time))
    late = [partition for partition, offset in found.items() if offset < 0]
    if late:
        found.update(await list_offsets(cluster, dict.fromkeys(late, LATEST)))
    return found


__all__ = [
    "EARLIEST",
    "LATEST",
    "Fetched",
    "FetchedRecord",
    "Fetcher",
    "positions_at",
    "whole_batches",
    "without_aborted",
]
