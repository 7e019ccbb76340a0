"""Offsets of partitions: the first, the next, and the first at or after a time.

One request goes to each leader, for all of its partitions. A partition whose leader has moved since
is asked about again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import LOST, Cluster
from tidelog.client.errors import PASSING, ClientError, Refused
from tidelog.client.messages import Api, Build, Maker
from tidelog.client.model import Node, TopicPartition
from tidelog.client.retry import Backoff, Deadline

# What to ask for instead of a time.
LATEST: Final = -1
EARLIEST: Final = -2
NO_RECORD: Final = -1  # the answer where no record is as young as the time asked for
CONSUMER: Final = -1  # the replica id of everybody who is no replica


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    committed: bool = False,
    timeout: float = 0,
) -> dict[TopicPartition, int]:
    """Return the first offset at or after a time in ms; EARLIEST and LATEST are times as well.

    `committed` takes LATEST as the end of what no open transaction holds back.
    """
    deadline = cluster.deadline(timeout)
    backoff = Backoff()
    found: dict[TopicPartition, int] = {}
    while True:
        failure = await _round(cluster, times, committed, deadline, found)
        if failure is None:
            return found
        await backoff.wait(deadline, failure)


async def bounds(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, timeout: float = 0
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first and the next offset of each partition."""
    wanted = list(partitions)
    first, end = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(wanted, EARLIEST), timeout=timeout),
        list_offsets(cluster, dict.fromkeys(wanted, LATEST), timeout=timeout),
    )
    return {partition: (first[partition], end[partition]) for partition in wanted}


async def _round(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    committed: bool,
    deadline: Deadline,
    found: dict[TopicPartition, int],
) -> ClientError | None:
    """Ask every leader once about what is not found yet; return why something is still open."""
    by_leader: defaultdict[Node, list[tuple[TopicPartition, int]]] = defaultdict(list)
    for partition in times:
        if partition not in found:
            node, info = await cluster.leader(partition, deadline)
            by_leader[node].append((partition, info.epoch))
    answers = await asyncio.gather(
        *(
            cluster.ask(
                node, Api.LIST_OFFSETS, _request(asked, times, committed, deadline), deadline
            )
            for node, asked in by_leader.items()
        ),
        return_exceptions=True,
    )
    failure: ClientError | None = None
    for asked, answer in zip(by_leader.values(), answers, strict=True):
        if isinstance(answer, LOST):
            failure = answer
            for partition, _ in asked:
                cluster.forget(partition.topic)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            failure = _take(cluster, answer, found) or failure
    return failure


def _take(cluster: Cluster, answer: Any, found: dict[TopicPartition, int]) -> Refused | None:
    failure: Refused | None = None
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if each.error_code is ErrorCode.none:
                found[partition] = each.offset
                continue
            failure = Refused(each.error_code, f"partition {partition}")
            if each.error_code not in PASSING:
                raise failure
            cluster.forget(partition.topic)
    return failure


def _request(
    asked: list[tuple[TopicPartition, int]],
    times: Mapping[TopicPartition, int],
    committed: bool,
    deadline: Deadline,
) -> Build:
    def build(make: Maker) -> Any:
        by_topic: defaultdict[str, list[Any]] = defaultdict(list)
        for partition, epoch in asked:
            by_topic[partition.topic].append(
                make(
                    "ListOffsetsPartition",
                    partition_index=partition.index,
                    current_leader_epoch=epoch,
                    timestamp=times[partition],
                )
            )
        return make(
            "ListOffsetsRequest",
            replica_id=CONSUMER,
            isolation_level=int(committed),
            topics=tuple(
                make("ListOffsetsTopic", name=name, partitions=tuple(partitions))
                for name, partitions in by_topic.items()
            ),
            timeout=timedelta(seconds=deadline.left),
        )

    return build
