"""Producers whose identity says which piece of work they carry out, so that it is done once.

A piece of work is *task* t of *batch* b of *query* q: a Spark task that writes its part of an
epoch. Whoever carries it out, now or after a crash, writes with the same producer id and epoch:

    producer id     a hash of query and task, in the half of all ids that no cluster hands out
    producer epoch  the number of the batch, modulo 2^15; every 2^15 batches there is a new id

A cluster remembers the epoch and the last sequence number of every producer of a partition. From
that follows, before anything is written (`standings`):

    nothing known, or an older batch     nobody has begun this work: write
    this batch                           somebody has: look for what is there, and write the rest
    a later batch                        the work is done, and this is a leftover: `Superseded`

What an earlier attempt wrote is found in the log itself, by producer id and epoch in the headers of
its batches, from the end backwards (`written_batches`). An attempt that is still writing while
another one carries out the same work runs into the sequence numbers: one of the two is refused.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import LOST, Cluster
from tidelog.client.errors import PASSING, ClientError, Refused, TimedOut
from tidelog.client.fetcher import Fetcher
from tidelog.client.messages import Api, Build, Maker
from tidelog.client.model import Node, TopicPartition
from tidelog.client.offsets import bounds
from tidelog.client.retry import Backoff, Deadline
from tidelog.records import Batch

_EPOCHS: Final = 2**15
_UPPER_HALF: Final = 2**62
_POLL_SECONDS: Final = 30.0


class Superseded(ClientError):
    """A later batch of the same query has been written."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: a producer id and an epoch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What a partition knows of a producer."""

    epoch: int
    last_sequence: int  # -1 if it wrote nothing in this epoch


def identity_of(query: str, batch: int, task: int) -> Identity:
    """Return the identity of a piece of work."""
    name = f"{query}/{task}/{batch // _EPOCHS}".encode()
    digest = hashlib.blake2b(name, digest_size=8).digest()
    return Identity(_UPPER_HALF | int.from_bytes(digest) % _UPPER_HALF, batch % _EPOCHS)


async def standings(
    cluster: Cluster, partitions: Iterable[TopicPartition], identity: Identity
) -> dict[TopicPartition, Standing]:
    """Return where the work was begun; raises `Superseded`, or `Unsupported` by an old cluster."""
    wanted = list(partitions)
    deadline, backoff = cluster.deadline(), Backoff()
    found: dict[TopicPartition, Standing | None] = {}
    while len(found) < len(wanted):
        left = [partition for partition in wanted if partition not in found]
        failure = await _round(cluster, left, identity.producer_id, deadline, found)
        if failure is not None:
            await backoff.wait(deadline, failure)
    begun = {}
    for partition, standing in found.items():
        if standing is None or standing.epoch < identity.epoch:
            continue
        if standing.epoch > identity.epoch:
            raise Superseded(
                f"Partition {partition} holds a later batch of this query than the one that is to "
                "be written. If another run of the query is active, stop this one; if the query "
                "was set back on purpose, give it a new checkpoint location."
            )
        begun[partition] = standing
    return begun


async def written_batches(
    cluster: Cluster, begun: Mapping[TopicPartition, Standing], identity: Identity
) -> list[Batch]:
    """Return what was written of the work, as far as the log still has it."""
    found: list[Batch] = []
    limits = await bounds(cluster, begun)
    for partition, standing in begun.items():
        first, end = limits[partition]
        count = standing.last_sequence + 1
        window = 2 * count
        while True:
            start = max(first, end - window)
            batches = await _scan(cluster, partition, start, end, identity)
            if start == first or sum(batch.count for batch in batches) >= count:
                break
            window *= 4
        found += batches
    return found


async def _scan(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, identity: Identity
) -> list[Batch]:
    found: list[Batch] = []
    if start >= end:
        return found
    fetcher = Fetcher(cluster, {partition: start}, ends={partition: end})
    try:
        while fetcher.positions[partition] < end:
            part = await fetcher.next(_POLL_SECONDS)
            if part is None:
                raise TimedOut(f"Partition {partition} gives no records to look for doubles in.")
            # A copy, so that one batch does not hold the whole answer that it came in.
            found += [
                Batch.parse(bytes(batch.data))
                for batch in part.batches
                if (batch.producer_id, batch.producer_epoch)
                == (identity.producer_id, identity.epoch)
            ]
    finally:
        await fetcher.close()
    return found


async def _round(
    cluster: Cluster,
    partitions: list[TopicPartition],
    producer_id: int,
    deadline: Deadline,
    found: dict[TopicPartition, Standing | None],
) -> ClientError | None:
    """Ask every leader once; return why something is still open."""
    by_leader: defaultdict[Node, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        node, _ = await cluster.leader(partition, deadline)
        by_leader[node].append(partition)
    failure: ClientError | None = None
    for node, asked in by_leader.items():
        try:
            answer = await cluster.ask(node, Api.DESCRIBE_PRODUCERS, _request(asked), deadline)
        except LOST as error:
            failure = error
            for partition in asked:
                cluster.forget(partition.topic)
            continue
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                if each.error_code is ErrorCode.none:
                    found[partition] = _standing(each.active_producers, producer_id)
                    continue
                failure = Refused(each.error_code, f"partition {partition}", each.error_message)
                if each.error_code not in PASSING:
                    raise failure
                cluster.forget(partition.topic)
    return failure


def _standing(producers: Iterable[Any], producer_id: int) -> Standing | None:
    for each in producers:
        if each.producer_id == producer_id:
            return Standing(each.producer_epoch, each.last_sequence)
    return None


def _request(partitions: list[TopicPartition]) -> Build:
    def build(make: Maker) -> Any:
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic].append(partition.index)
        return make(
            "DescribeProducersRequest",
            topics=tuple(
                make("TopicRequest", name=name, partition_indexes=tuple(indexes))
                for name, indexes in by_topic.items()
            ),
        )

    return build
