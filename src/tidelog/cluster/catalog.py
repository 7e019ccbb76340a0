"""The topics of a cluster and where their replicas are, indexed by all that is asked for.

`ClusterState` changes it, command by command; everybody else only looks things up.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from uuid import UUID

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import PartitionState, TopicState
from tidelog.cluster.strictjson import NotThis
from tidelog.raft.types import GroupId, NodeId


class Catalog:
    def __init__(self) -> None:
        self._topics: dict[str, TopicState] = {}
        # Invariant: what follows can be worked out from the topics; `check_indexes` does so.
        self._by_id: dict[UUID, TopicState] = {}
        self._places: dict[GroupId, tuple[str, int]] = {}
        # Replicas a node has or is about to have, and partitions that prefer it as leader.
        self._replica_counts: Counter[NodeId] = Counter()
        self._leader_counts: Counter[NodeId] = Counter()
        self._moving: set[GroupId] = set()  # those with a target

    # --- Looking up -----------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicState]:
        return self._topics

    @property
    def topics_by_id(self) -> Mapping[UUID, TopicState]:
        return self._by_id

    @property
    def replica_counts(self) -> Mapping[NodeId, int]:
        return self._replica_counts

    @property
    def leader_counts(self) -> Mapping[NodeId, int]:
        return self._leader_counts

    @property
    def moving(self) -> Set[GroupId]:
        """The groups of partitions that should be elsewhere."""
        return self._moving

    @property
    def partition_count(self) -> int:
        return len(self._places)

    def group_of(self, name: str, index: int) -> GroupId | None:
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index].group

    def partition_of(self, group: GroupId) -> tuple[str, int] | None:
        """The topic and index of the partition that this group replicates."""
        return self._places.get(group)

    def partition(self, group: GroupId) -> PartitionState | None:
        place = self._places.get(group)
        return None if place is None else self._topics[place[0]].partitions[place[1]]

    def partitions(self) -> Iterator[tuple[TopicState, PartitionState]]:
        """All partitions, by topic and index in order."""
        for name in sorted(self._topics):
            topic = self._topics[name]
            for partition in topic.partitions:
                yield topic, partition

    def topic(self, name: str) -> TopicState:
        """The topic of that name; raises `ClusterError`."""
        topic = self._topics.get(name)
        if topic is None:
            raise ClusterError(Problem.UNKNOWN_TOPIC, f"there is no topic {name[:260]!r}")
        return topic

    def partition_at(self, name: str, index: int) -> PartitionState:
        """The partition at that place; raises `ClusterError`."""
        partitions = self.topic(name).partitions
        if not 0 <= index < len(partitions):
            raise ClusterError(
                Problem.UNKNOWN_PARTITION,
                f"topic {name!r} has partitions 0 to {len(partitions) - 1}, not {index}",
            )
        return partitions[index]

    # --- Changing -------------------------------------------------------------------------------

    def _replace(self, topic: TopicState) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic

    def _replace_partition(self, name: str, partition: PartitionState) -> None:
        topic = self._topics[name]
        index = partition.index
        self._discount(topic.partitions[index])
        partitions = (*topic.partitions[:index], partition, *topic.partitions[index + 1 :])
        self._replace(replace(topic, partitions=partitions))
        self._count(name, partition)

    def _count(self, name: str, partition: PartitionState) -> None:
        self._places[partition.group] = (name, partition.index)
        self._replica_counts.update(replica.id for replica in partition.hosts)
        self._leader_counts[(partition.target or partition.replicas)[0].id] += 1
        if partition.target is not None:
            self._moving.add(partition.group)

    def _discount(self, partition: PartitionState) -> None:
        del self._places[partition.group]
        self._replica_counts.subtract(replica.id for replica in partition.hosts)
        self._leader_counts[(partition.target or partition.replicas)[0].id] -= 1
        self._moving.discard(partition.group)

    def check_indexes(self) -> None:
        hosts: Counter[NodeId] = Counter()
        leaders: Counter[NodeId] = Counter()
        moving = {each.group for _, each in self.partitions() if each.target is not None}
        count = 0
        for topic, partition in self.partitions():
            check_partition(partition)
            assert self._places[partition.group] == (topic.name, partition.index), partition
            hosts.update(replica.id for replica in partition.hosts)
            leaders[(partition.target or partition.replicas)[0].id] += 1
            count += 1
        assert len(self._places) == count, self._places
        assert +self._replica_counts == hosts, self._replica_counts
        assert +self._leader_counts == leaders, self._leader_counts
        assert self._moving == moving, self._moving
        assert len(self._by_id) == len(self._topics), self._by_id
        assert all(self._topics[topic.name] is topic for topic in self._by_id.values())


def check_partition(partition: PartitionState) -> None:
    """Raise `NotThis` unless the replicas of a partition are different nodes, and at least one."""
    for nodes in (partition.replicas, partition.target):
        if nodes is not None and (not nodes or len({node.id for node in nodes}) != len(nodes)):
            raise NotThis(f"the replicas of {partition} are none, or not different")
