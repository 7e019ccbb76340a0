"""What every node knows of the cluster: the machine of group 0.

It folds commands (`commands.py`) into members, topics (`catalog.py`) and settings. Rules:
1. A command is carried out whole or not at all, and what came of it is remembered under its token,
   so that whoever proposed it learns that, and so that proposing it again does nothing.
2. Whoever proposes has checked the command already. It is checked again here, because another one
   may have come first; here only against the state and against bounds that never change, since
   replicas of different releases must come to the same end. Which settings exist and what values
   they may have is therefore the proposer's business (`configs.py`).
3. A committed command that this release cannot decode is not skipped, because other releases carry
   it out: the state stays as it is before that command, and `CannotApply` says what is needed.
4. A node that is removed and added again, and a replica that is, gets a new revision: its disk is
   another one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from tidelog.cluster import commands as cmd
from tidelog.cluster import strictjson
from tidelog.cluster.catalog import check_partition
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.estate import Estate
from tidelog.cluster.model import (
    CONTROLLER_GROUP,
    GROUP_MARGIN,
    MAX_MEMBERS,
    MAX_NODE_ID,
    MAX_OPTIONS,
    MAX_PARTITIONS,
    MAX_RECOVERIES,
    MAX_TOTAL_PARTITIONS,
    NOTHING_LEFT,
    PRODUCER_ID_MARGIN,
    REVISION_MARGIN,
    Address,
    Founder,
    Heir,
    Member,
    MemberStatus,
    PartitionState,
    Recovery,
    TopicState,
    check_address,
    check_topic_name,
)
from tidelog.cluster.release import NeedsRelease
from tidelog.cluster.succession import inherit, succeed
from tidelog.machines import NO_OBJECTION, CannotApply, CorruptSnapshot
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import Batch, BatchType, CorruptBatch, Offset, internal_payload

__all__ = [
    "CONTROLLER_GROUP",
    "MAX_RESULTS",
    "Address",
    "ClusterState",
    "Member",
    "MemberStatus",
    "PartitionState",
    "Result",
    "TopicState",
]

# Outcomes that are remembered. A proposer waits seconds for its own; 10,000 commands take longer.
MAX_RESULTS: Final = 10_000
MAX_MESSAGE: Final = 1000  # characters of a remembered error
MAX_NAMED: Final = 50  # nodes in an error
MAX_PRODUCER_IDS: Final = 1_000_000  # in one allocation
MAX_VALUE: Final = 1000  # characters of a setting
_LAST_REVISION: Final = 2**31 - 1  # a revision has 32 bits in Raft's messages
_LAST_PRODUCER_ID: Final = 2**63 - 1
_FORMAT: Final = 2
_OPTION_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a command: a number (see the command) or None, or why it was refused."""

    value: int | None
    problem: Problem | None = None
    message: str = ""

    def get(self) -> int | None:
        """Return the value, or raise the `ClusterError`."""
        if self.problem is not None:
            raise ClusterError(self.problem, self.message)
        return self.value


@dataclass(frozen=True, slots=True)
class _Remembered:
    token: UUID
    result: Result


@dataclass(frozen=True, slots=True)
class _Snapshot:
    format: int
    cluster_id: str
    seeds: tuple[Founder, ...]
    members: tuple[Member, ...]
    removed: tuple[Vnode, ...]
    topics: tuple[TopicState, ...]
    config: Mapping[str, str]
    features: Mapping[str, int]
    needed_version: int
    version: int
    next_group: int
    next_revision: int
    next_producer_id: int
    results: tuple[_Remembered, ...]
    heirs: tuple[Heir, ...]
    recoveries: tuple[Recovery, ...]


class ClusterState(Estate):
    name = "cluster"

    def __init__(self) -> None:
        super().__init__()
        self.cluster_id = ""  # "" until the first command
        # Founders that have not joined yet: they may still claim revision 0.
        self.seeds: Mapping[NodeId, str] = {}  # with their births
        self.config: Mapping[str, str] = {}  # cluster-wide settings that were changed
        self.features: Mapping[str, int] = {}
        self.needed_version = 0  # a member of an older version lacks a feature that is enabled
        self.version = 0  # commands carried out or refused
        self.next_group = CONTROLLER_GROUP + 1
        self.next_revision = 1  # 0 belongs to the founders
        self.next_producer_id = 0
        # The last revision of nodes that were decommissioned, oldest first: a directory of that
        # revision or an older one never takes part again.
        self.removed: dict[NodeId, int] = {}
        self._members: dict[NodeId, Member] = {}
        self._results: dict[UUID, Result] = {}  # oldest first
        self._listeners: list[Callable[[], None]] = []

    # --- Looking up -----------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[NodeId, Member]:
        return self._members

    @property
    def results(self) -> Mapping[UUID, Result]:
        return self._results

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call this after each command and each restore; the answer takes it back."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- machines.Machine -----------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        if batch.type is not BatchType.CHANGELOG:
            return
        command = _command_of(batch)
        if command.token in self._results:
            return
        try:
            result = Result(self._carry_out(command))
        except ClusterError as error:
            result = Result(None, error.problem, error.message[:MAX_MESSAGE])
        if len(self._results) == MAX_RESULTS:
            del self._results[next(iter(self._results))]
        self._results[command.token] = result
        self.version += 1
        self._notify()

    def collectible(self) -> Offset:
        return NO_OBJECTION

    def snapshot(self) -> bytes:
        return strictjson.write(
            _Snapshot(
                _FORMAT,
                self.cluster_id,
                tuple(Founder(node, self.seeds[node]) for node in sorted(self.seeds)),
                tuple(self._members[node] for node in sorted(self._members)),
                tuple(Vnode(*item) for item in self.removed.items()),
                tuple(self._topics[name] for name in sorted(self._topics)),
                self.config,
                self.features,
                self.needed_version,
                self.version,
                self.next_group,
                self.next_revision,
                self.next_producer_id,
                tuple(_Remembered(*item) for item in self._results.items()),
                tuple(self.heirs[group] for group in sorted(self.heirs)),
                self.recoveries,
            )
        )

    def restore(self, state: bytes) -> None:
        fresh = ClusterState()
        if state:
            try:
                fresh._load(strictjson.read_format(_Snapshot, state, _FORMAT))
            except strictjson.OtherFormat as error:
                raise _of_another_release(error) from error
            except (strictjson.NotThis, ClusterError) as error:
                raise CorruptSnapshot(f"the state of the cluster is damaged: {error}") from error
            if fresh.snapshot() != state:
                raise CorruptSnapshot("the state of the cluster is not written as it should be")
        listeners = self._listeners
        vars(self).update(vars(fresh))
        self._listeners = listeners
        self._notify()

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    # --- Carrying out ---------------------------------------------------------------------------

    def _carry_out(self, command: cmd.Command) -> int | None:
        if not self.cluster_id and not isinstance(command, cmd.CreateCluster):
            raise ClusterError(Problem.UNAVAILABLE, "the cluster is not founded yet; try again")
        match command:
            case cmd.CreateCluster():
                self._create_cluster(command)
            case cmd.CreateTopic():
                self._create_topic(command)
            case cmd.DeleteTopic():
                self._delete_topic(command)
            case cmd.AddPartitions():
                self._add_partitions(command)
            case cmd.SetTopicConfig():
                topic = self.topic(command.name)
                self._replace(replace(topic, config=_changed(topic.config, command.changes)))
            case cmd.SetClusterConfig():
                self.config = _changed(self.config, command.changes)
            case cmd.AddMember():
                return self._add_member(command)
            case cmd.UpdateMember():
                self._update_member(command)
            case cmd.ReplaceMember():
                return self._replace_member(command)
            case cmd.SetMemberStatus():
                self._set_member_status(command)
            case cmd.RemoveMember():
                self._remove_member(command.id)
            case cmd.Reassign():
                self._reassign(command)
            case cmd.CancelReassign():
                self._cancel_reassign(command)
            case cmd.FinishReassign():
                self._finish_reassign(command)
            case cmd.ReplaceReplicas():
                return self._replace_replicas(command)
            case cmd.RecoverCluster():
                return self._recover_cluster(command)
            case cmd.RecoverPartitions():
                return self._recover_partitions(command)
            case cmd.AllocateProducerIds():
                return self._allocate_producer_ids(command.count)
            case cmd.EnableFeature():
                self._enable_feature(command)
        return None

    def _create_cluster(self, command: cmd.CreateCluster) -> None:
        if self.cluster_id:
            return  # two leaders may both have thought that they are the first
        if not 0 < len(command.cluster_id) <= MAX_VALUE or len(command.seeds) > MAX_MEMBERS:
            raise ClusterError(Problem.INVALID_NAME, "a cluster needs an id")
        for node in command.seeds:
            _check_node_id(node)
        births = command.births or ("",) * len(command.seeds)
        if len(births) != len(command.seeds) or max(map(len, births), default=0) > MAX_VALUE:
            raise ClusterError(Problem.INVALID_NAME, "each founder has one birth")
        self.cluster_id = command.cluster_id
        self.seeds = dict(zip(command.seeds, births, strict=True))

    # --- Topics ---------------------------------------------------------------------------------

    def check_new_topic(self, name: str) -> None:
        """Raise unless a topic of that name can be created."""
        check_topic_name(name)
        if name in self._topics:
            raise ClusterError(Problem.TOPIC_EXISTS, f"topic {name!r} exists already")

    def check_count(self, present: int, new: int) -> None:
        """Raise unless a topic of `present` partitions may get `new` more."""
        if new < 1 or present + new > MAX_PARTITIONS:
            raise ClusterError(
                Problem.INVALID_PARTITIONS,
                f"{present + new} partitions: a topic has 1 to {MAX_PARTITIONS}, and their number"
                " can only grow",
            )
        if len(self._places) + new > MAX_TOTAL_PARTITIONS:
            raise ClusterError(
                Problem.INVALID_PARTITIONS,
                f"{new} more partitions are too many: a cluster has at most"
                f" {MAX_TOTAL_PARTITIONS} and this one has {len(self._places)}",
            )

    def check_assignment(self, nodes: tuple[NodeId, ...]) -> None:
        """Raise unless a partition can have its replicas on these nodes."""
        if not nodes or len(set(nodes)) != len(nodes):
            raise ClusterError(
                Problem.INVALID_ASSIGNMENT,
                f"replicas on nodes {list(nodes)[:20]}: name at least one node, and none twice",
            )
        for node in nodes:
            member = self._members.get(node)
            if member is None or member.status is MemberStatus.LEAVING:
                what = "is not a member" if member is None else "is leaving the cluster"
                raise ClusterError(
                    Problem.INVALID_ASSIGNMENT, f"node {node} can hold no new replica: it {what}"
                )

    def _create_topic(self, command: cmd.CreateTopic) -> None:
        self.check_new_topic(command.name)
        if command.id in self._by_id:
            raise ClusterError(Problem.TOPIC_EXISTS, f"a topic has the id {command.id} already")
        self.check_count(0, len(command.replicas))
        for nodes in command.replicas:
            self.check_assignment(nodes)
        if len({len(nodes) for nodes in command.replicas}) > 1:
            raise ClusterError(
                Problem.INVALID_ASSIGNMENT, "all partitions of a topic have equally many replicas"
            )
        config = _changed({}, command.config)
        partitions = self._new_partitions(0, command.replicas)
        topic = TopicState(command.name, command.id, partitions, config, command.internal)
        self._replace(topic)
        for partition in partitions:
            self._count(topic.name, partition)

    def _delete_topic(self, command: cmd.DeleteTopic) -> None:
        topic = self.topic(command.name)
        if topic.id != command.id:
            raise ClusterError(
                Problem.UNKNOWN_TOPIC, f"topic {topic.name!r} was created anew meanwhile"
            )
        del self._topics[topic.name]
        del self._by_id[topic.id]
        for partition in topic.partitions:
            self._discount(partition)
            self.heirs.pop(partition.group, None)

    def _add_partitions(self, command: cmd.AddPartitions) -> None:
        topic = self.topic(command.name)
        present = len(topic.partitions)
        if topic.id != command.id or present != command.first:
            raise ClusterError(
                Problem.INVALID_PARTITIONS,
                f"topic {topic.name!r} was changed meanwhile and has {present} partitions now",
            )
        self.check_count(present, len(command.replicas))
        for nodes in command.replicas:
            self.check_assignment(nodes)
        partitions = self._new_partitions(present, command.replicas)
        self._replace(replace(topic, partitions=topic.partitions + partitions))
        for partition in partitions:
            self._count(topic.name, partition)

    def _new_partitions(
        self, first: int, replicas: tuple[tuple[NodeId, ...], ...]
    ) -> tuple[PartitionState, ...]:
        revision = self._take_revision()
        group = self.next_group
        self.next_group += len(replicas)
        return tuple(
            PartitionState(
                first + index,
                GroupId(group + index),
                tuple(Vnode(node, revision) for node in nodes),
                None,
            )
            for index, nodes in enumerate(replicas)
        )

    # --- Reassignment ---------------------------------------------------------------------------

    def _reassign(self, command: cmd.Reassign) -> None:
        partition = self.partition_at(command.name, command.index)
        self.check_assignment(command.replicas)
        goal = partition.target or partition.replicas
        if command.replicas == tuple(replica.id for replica in goal):
            return
        if partition.moves:
            raise ClusterError(
                Problem.BUSY,
                f"partition {command.name}/{command.index} is being moved: wait, or cancel that",
            )
        known = {replica.id: replica for replica in goal}
        newcomers = [node for node in command.replicas if node not in known]
        if not newcomers and len(command.replicas) == len(known):
            # Only the order of preference changes, and nothing has to be moved for that. What is
            # rebuilt goes on: the lost and the new replica of a node share its place.
            target = partition.target
            ordered = replace(
                partition,
                replicas=_in_order(command.replicas, partition.replicas),
                target=None if target is None else _in_order(command.replicas, target),
            )
            self._replace_partition(command.name, ordered)
            return
        revision = self._take_revision() if newcomers else 0
        target = tuple(known.get(node) or Vnode(node, revision) for node in command.replicas)
        self._aim(command.name, partition, target)

    def _cancel_reassign(self, command: cmd.CancelReassign) -> None:
        partition = self.partition_at(command.name, command.index)
        if partition.target is None or not partition.moves:
            raise ClusterError(
                Problem.NOT_CHANGING,
                f"partition {command.name}/{command.index} is not being moved",
            )
        # The group may have got to the target already. Turning round keeps every host of a replica
        # until the group itself says where it is. Those that were lost meanwhile stay lost.
        rebuilt = {replica.id: replica for replica in partition.rebuilding}
        home = tuple(rebuilt.get(replica.id, replica) for replica in partition.replicas)
        back = replace(partition, replicas=partition.target, founders=partition.founding)
        self._replace_partition(command.name, replace(back, target=home))

    def _aim(self, name: str, partition: PartitionState, target: tuple[Vnode, ...]) -> None:
        aimed = replace(partition, target=target, founders=partition.founding)
        self._replace_partition(name, aimed)

    def _replace_replicas(self, command: cmd.ReplaceReplicas) -> int:
        found: list[tuple[str, PartitionState, Vnode]] = []
        for lost in dict.fromkeys(command.lost[: cmd.MAX_LOST]):
            partition = self.partition(lost.group)
            vnode = Vnode(command.node, lost.revision)
            # One that a reassignment takes away anyway needs no successor.
            if partition is not None and vnode in (partition.target or partition.replicas):
                found.append((self._places[lost.group][0], partition, vnode))
        if not found:
            raise ClusterError(
                Problem.NOT_CHANGING, "these replicas have been replaced or removed already"
            )
        revision = self._take_revision()
        for name, partition, vnode in found:
            goal = partition.target or partition.replicas
            successor = Vnode(command.node, revision)
            self._aim(name, partition, tuple(successor if each == vnode else each for each in goal))
        return revision

    def _finish_reassign(self, command: cmd.FinishReassign) -> None:
        partition = self.partition(command.group)
        if partition is None:
            raise ClusterError(Problem.UNKNOWN_PARTITION, f"there is no group {command.group}")
        if partition.target != command.target:
            raise ClusterError(
                Problem.NOT_CHANGING, f"group {command.group} is not on its way there any more"
            )
        name, _ = self._places[command.group]
        done = replace(partition, replicas=command.target, target=None, founders=())
        self._replace_partition(name, done)
        self.heirs.pop(command.group, None)

    # --- Going on with what is left --------------------------------------------------------------

    def _recover_cluster(self, command: cmd.RecoverCluster) -> int:
        me = self.member(command.node)
        lost = frozenset(command.lost)
        if command.node in lost or not lost <= self._members.keys():
            raise ClusterError(
                Problem.UNKNOWN_NODE,
                "the nodes that are given up are members, and not the one that goes on",
            )
        if not 0 < len(command.cluster_id) <= MAX_VALUE or command.cluster_id == self.cluster_id:
            raise ClusterError(Problem.INVALID_NAME, "a recovered cluster needs an id of its own")
        unseen = self.next_group
        self.next_group += GROUP_MARGIN
        self.next_revision += REVISION_MARGIN
        self.next_producer_id += PRODUCER_ID_MARGIN
        revision = self._take_revision()
        self._members[me.id] = replace(me, revision=revision)
        for node in sorted(lost):
            # Whatever comes back under this id is another directory, and has to be let in anew.
            self._members[node] = replace(self._members[node], revision=revision, birth="")
        self.seeds = {}
        empty_on = command.node if command.empty else None
        found = [
            (topic.name, partition, succeed(partition, lost, revision, empty_on))
            for topic, partition in tuple(self.partitions())
        ]
        heirs = [
            self._pass_on(name, new)
            for name, was, new in found
            if new.heir is not None or new.partition != was
        ]
        before, self.cluster_id = self.cluster_id, command.cluster_id
        self._note_recovery(
            heirs,
            at_ms=command.at_ms,
            node=command.node,
            before=before,
            after=self.cluster_id,
            lost=command.lost,
            end=command.end,
            unseen=unseen,
        )
        return revision

    def _recover_partitions(self, command: cmd.RecoverPartitions) -> int:
        self.member(command.node)
        found: list[tuple[str, PartitionState, cmd.Survivor]] = []
        for each in {each.group: each for each in command.survivors[: cmd.MAX_LOST]}.values():
            partition = self.partition(each.group)
            vnode = Vnode(each.node, each.revision)
            if partition is None or each.node not in self._members:
                continue
            if each.revision == NOTHING_LEFT or vnode in partition.hosts:
                found.append((self._places[each.group][0], partition, each))
        if not found:
            raise ClusterError(
                Problem.NOT_CHANGING,
                "these partitions have been recovered, moved or deleted already",
            )
        revision = self._take_revision()
        heirs = [
            self._pass_on(name, inherit(partition, each.node, each.revision, revision))
            for name, partition, each in found
        ]
        here = self.cluster_id
        self._note_recovery(heirs, at_ms=command.at_ms, node=command.node, before=here, after=here)
        return revision

    # --- Members --------------------------------------------------------------------------------

    def member(self, node: NodeId) -> Member:
        """The member of that id; raises `ClusterError`."""
        member = self._members.get(node)
        if member is None:
            known = ", ".join(map(str, sorted(self._members)[:MAX_NAMED]))
            more = " and others" if len(self._members) > MAX_NAMED else ""
            raise ClusterError(
                Problem.UNKNOWN_NODE,
                f"there is no node {node} in this cluster: its nodes are {known}{more}",
            )
        return member

    def _add_member(self, command: cmd.AddMember) -> int:
        if command.id in self._members:
            raise ClusterError(Problem.NODE_EXISTS, f"node {command.id} is a member already")
        if len(self._members) == MAX_MEMBERS:
            raise ClusterError(
                Problem.UNAVAILABLE, f"a cluster has at most {MAX_MEMBERS} members, as this one has"
            )
        _check_node_id(command.id)
        self._check_member(command)
        # A founder that was emptied before it joined is another node.
        founds = self.seeds.get(command.id) == command.birth
        revision = 0 if founds else self._take_revision()
        self._drop_seed(command.id)
        self._members[command.id] = Member(
            command.id,
            revision,
            command.rack,
            command.rpc,
            command.kafka,
            MemberStatus.ACTIVE,
            command.version,
            command.birth,
        )
        return revision

    def _drop_seed(self, node: NodeId) -> None:
        self.seeds = {each: birth for each, birth in self.seeds.items() if each != node}

    def _replace_member(self, command: cmd.ReplaceMember) -> int:
        member = self.member(command.id)
        if member.revision != command.revision:
            raise ClusterError(
                Problem.NOT_CHANGING, f"node {command.id} has been replaced already: ask again"
            )
        if len(command.birth) > MAX_VALUE:
            raise ClusterError(Problem.INVALID_NAME, "the birth of a node is too long")
        revision = self._take_revision()
        self._members[command.id] = replace(member, revision=revision, birth=command.birth)
        return revision

    def _update_member(self, command: cmd.UpdateMember) -> None:
        member = self.member(command.id)
        self._check_member(command)
        self._members[command.id] = replace(
            member,
            rack=command.rack,
            rpc=command.rpc,
            kafka=command.kafka,
            version=command.version,
        )

    def _check_member(self, command: cmd.AddMember | cmd.UpdateMember) -> None:
        check_address(command.rpc)
        check_address(command.kafka)
        if command.rack is not None and not 0 < len(command.rack) <= MAX_VALUE:
            raise ClusterError(Problem.INVALID_CONFIG, "the name of a rack is empty or too long")
        if isinstance(command, cmd.AddMember) and len(command.birth) > MAX_VALUE:
            raise ClusterError(Problem.INVALID_NAME, "the birth of a node is too long")
        if command.version < self.needed_version:
            raise ClusterError(
                Problem.UNAVAILABLE,
                f"node {command.id} runs version {command.version} and this cluster uses features"
                f" of version {self.needed_version}: upgrade the node",
            )

    def check_may_leave(self, node: NodeId) -> None:
        """Raise unless the other nodes can hold all replicas."""
        staying = sum(
            member.status is not MemberStatus.LEAVING and member.id != node
            for member in self._members.values()
        )
        widths = (len(each.target or each.replicas) for _, each in self.partitions())
        widest = max(widths, default=1)
        if staying < widest:
            raise ClusterError(
                Problem.INVALID_REPLICATION,
                f"node {node} cannot leave: {staying} nodes would remain and a partition has"
                f" {widest} replicas",
            )

    def check_decodable(self, command: cmd.Command) -> None:
        """Raise if a member runs a release that would stop at this command."""
        needs = cmd.needs(command)
        for member in self._members.values():
            if member.version < needs:
                raise ClusterError(
                    Problem.UNAVAILABLE,
                    f"{type(command).__name__} needs release {needs} on all nodes and node"
                    f" {member.id} runs release {member.version}: upgrade it first",
                )

    def _set_member_status(self, command: cmd.SetMemberStatus) -> None:
        member = self.member(command.id)
        if command.status is MemberStatus.LEAVING:
            self.check_may_leave(command.id)
        self._members[command.id] = replace(member, status=command.status)

    def _remove_member(self, node: NodeId) -> None:
        if node in self.seeds:
            self._drop_seed(node)  # a founder that never came
            self._note_removed(node, 0)
            return
        member = self.member(node)
        if member.status is not MemberStatus.LEAVING or self._replica_counts[node]:
            raise ClusterError(
                Problem.BUSY,
                f"node {node} is {member.status.value} and has {self._replica_counts[node]}"
                " replicas: decommission it first",
            )
        del self._members[node]
        self._note_removed(node, member.revision)

    def _note_removed(self, node: NodeId, revision: int) -> None:
        self.removed.pop(node, None)  # the newest are last
        if len(self.removed) == MAX_MEMBERS:
            del self.removed[next(iter(self.removed))]
        self.removed[node] = revision

    def was_removed(self, node: NodeId, revision: int) -> bool:
        """Whether a node was decommissioned when, or after, it had this revision."""
        return revision <= self.removed.get(node, -1)

    # --- Numbers and features -------------------------------------------------------------------

    def _take_revision(self) -> int:
        if self.next_revision > _LAST_REVISION:
            raise ClusterError(Problem.UNAVAILABLE, "this cluster has used up its revisions")
        self.next_revision += 1
        return self.next_revision - 1

    def _allocate_producer_ids(self, count: int) -> int:
        if not 0 < count <= MAX_PRODUCER_IDS or self.next_producer_id > _LAST_PRODUCER_ID - count:
            raise ClusterError(
                Problem.UNAVAILABLE, f"{count} producer ids cannot be had: ask for 1 to a million"
            )
        self.next_producer_id += count
        return self.next_producer_id - count

    def _enable_feature(self, command: cmd.EnableFeature) -> None:
        if _OPTION_NAME.fullmatch(command.name) is None or command.level < 1:
            raise ClusterError(
                Problem.INVALID_NAME, f"{command.name[:60]!r} at {command.level} is no feature"
            )
        if command.name not in self.features and len(self.features) == MAX_OPTIONS:
            raise ClusterError(Problem.UNAVAILABLE, f"there are {MAX_OPTIONS} features already")
        for member in self._members.values():
            if member.version < command.needs:
                raise ClusterError(
                    Problem.UNAVAILABLE,
                    f"{command.name} needs version {command.needs} on all nodes and node"
                    f" {member.id} runs {member.version}: upgrade it first",
                )
        if command.level > self.features.get(command.name, 0):
            self.features = {**self.features, command.name: command.level}
            self.needed_version = max(self.needed_version, command.needs)

    # --- Loading --------------------------------------------------------------------------------

    def _load(self, loaded: _Snapshot) -> None:
        self.cluster_id = loaded.cluster_id
        self.heirs = {heir.group: heir for heir in loaded.heirs}
        self.recoveries = loaded.recoveries
        self.seeds = {founder.id: founder.birth for founder in loaded.seeds}
        self.config = loaded.config
        self.features = loaded.features
        self.needed_version = loaded.needed_version
        self.version = loaded.version
        self.next_group = loaded.next_group
        self.next_revision = loaded.next_revision
        self.next_producer_id = loaded.next_producer_id
        self._members = {member.id: member for member in loaded.members}
        self.removed = {each.id: each.revision for each in loaded.removed}
        for topic in loaded.topics:
            self._replace(topic)
            for partition in topic.partitions:
                check_partition(partition)
                self._count(topic.name, partition)
        self._results = {item.token: item.result for item in loaded.results}
        problem = self._contradiction(sum(len(topic.partitions) for topic in loaded.topics))
        if problem is not None:
            raise strictjson.NotThis(problem)

    def _contradiction(self, partitions: int) -> str | None:
        """What is wrong with this state in itself; None if nothing is."""
        if len(self._places) != partitions or len(self._by_id) != len(self._topics):
            return "an id is used twice"
        if max(self._places, default=0) >= self.next_group or min(self._places, default=1) < 1:
            return "a group has a number that was never given out"
        if len(self.removed) > MAX_MEMBERS:
            return "it remembers more nodes than a cluster may have"
        if not self.heirs.keys() <= self._places.keys() or len(self.recoveries) > MAX_RECOVERIES:
            return "it goes on with partitions that it does not have"
        if len(self._results) > MAX_RESULTS or partitions > MAX_TOTAL_PARTITIONS:
            return "it holds more than a cluster may"
        numbers = (self.version, self.next_producer_id, self.needed_version)
        if min(numbers) < 0 or self.next_revision < 1:
            return "a number is below its first value"
        for topic in self._topics.values():
            if [each.index for each in topic.partitions] != list(range(len(topic.partitions))):
                return f"the partitions of topic {topic.name!r} are not in order"
            if not topic.partitions:
                return f"topic {topic.name!r} has no partitions"
        return None

    def check_invariants(self) -> None:
        self.check_indexes()
        count = sum(len(topic.partitions) for topic in self._topics.values())
        assert self._contradiction(count) is None, self._contradiction(count)
        assert (+self._replica_counts).keys() <= self._members.keys(), self
        assert not self.seeds.keys() & self._members.keys(), self

    def __str__(self) -> str:
        return (
            f"cluster={self.cluster_id or '-'} v{self.version} members={len(self._members)}"
            f" topics={len(self._topics)} partitions={len(self._places)}"
        )


def _command_of(batch: Batch) -> cmd.Command:
    """Return the command of a batch; raises `NeedsRelease`."""
    where = f"offset {batch.base_offset} of the controller's log"
    try:
        return cmd.decode(internal_payload(batch))
    except cmd.CorruptCommand as error:
        raise NeedsRelease(f"at {where}, {error}", error.needs) from error
    except CorruptBatch as error:
        raise NeedsRelease(f"at {where}, there is no command: {error}", None) from error


def _of_another_release(error: strictjson.OtherFormat) -> CannotApply:
    what = "the snapshot of the cluster's state was written by another release"
    if error.is_newer:
        return NeedsRelease(f"{what} ({error})", None)
    return CannotApply(
        f"{what}: {error}. Start this node with that release, or with an empty data directory"
    )


def _check_node_id(node: NodeId) -> None:
    if not 0 <= node <= MAX_NODE_ID:
        raise ClusterError(Problem.UNKNOWN_NODE, f"{node} is no node id: use 0 to {MAX_NODE_ID}")


def _in_order(nodes: Sequence[NodeId], replicas: tuple[Vnode, ...]) -> tuple[Vnode, ...]:
    """The same replicas in the order in which their nodes are named."""
    return tuple(sorted(replicas, key=lambda replica: nodes.index(replica.id)))


def _changed(before: Mapping[str, str], changes: Mapping[str, str | None]) -> Mapping[str, str]:
    """Settings after a change; raises `ClusterError` for what no release could mean."""
    after = dict(before)
    for name in sorted(changes):
        value = changes[name]
        if _OPTION_NAME.fullmatch(name) is None or len(value or "") > MAX_VALUE:
            raise ClusterError(Problem.INVALID_CONFIG, f"{name[:60]!r} cannot be set to that")
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    if len(after) > MAX_OPTIONS:
        raise ClusterError(Problem.INVALID_CONFIG, f"more than {MAX_OPTIONS} settings")
    return after
