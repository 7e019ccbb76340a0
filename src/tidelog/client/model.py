"""A cluster as its clients see it: nodes, topics, partitions and who leads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition, by name; printed as `orders/0`."""

    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.index}"


@dataclass(frozen=True, slots=True)
class Node:
    """Where a node is reached."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """The address as `host:port`."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who has a partition, and who leads it."""

    index: int
    leader: int | None  # None while there is none
    epoch: int  # of that leader; -1 where the cluster does not say
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its partitions, in order of their index."""

    name: str
    id: UUID | None  # None where the cluster has no ids
    internal: bool
    partitions: tuple[PartitionInfo, ...]

    @property
    def replication(self) -> int:
        """How many replicas the partitions have; the largest number if they differ."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class Metadata:
    """One answer to "who is who"."""

    cluster_id: str | None
    controller: int | None
    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo]
