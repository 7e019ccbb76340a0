"""What operators ask of a cluster: its health, the log of a replica, draining and removing nodes.

Questions and answers are JSON, so that the command line, scripts and people can use them:

    {"operation": "status", "arguments": {}}      {"result": {...}}
    {"operation": "log", ...}                     {"error": {"problem": ..., "message": ...}}

Any node answers. What only another node knows is asked of that node.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tidelog.cluster import commands as cmd
from tidelog.cluster.calls import Call
from tidelog.cluster.checks import Checks
from tidelog.cluster.diskspace import DiskSpace
from tidelog.cluster.errors import ClusterError, Problem, reason_of
from tidelog.cluster.majorities import Majorities
from tidelog.cluster.model import (
    CONTROLLER_GROUP,
    Member,
    MemberStatus,
    PartitionState,
    TopicState,
)
from tidelog.cluster.partition import Partition
from tidelog.raft.types import GroupId, NodeId

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

NODE_TIMEOUT_S: Final = 2.0
# Bytes of a question. Reading it holds up the event loop, and no question needs as much.
MAX_QUESTION_BYTES: Final = 64 * 1024
# Partitions that are looked at before others get a turn on the event loop.
TURN: Final = 100
MAX_LISTED: Final = 1000  # partitions of one kind in a status
MAX_GAPS: Final = 64  # of one replica, the newest
MAX_SEGMENTS: Final = 256

Arguments = Mapping[str, Any]
Answer = dict[str, Any]
Payload = bytes | memoryview


class Operations:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._disk = DiskSpace(node.config.data)
        self.majorities = Majorities(node, self.ask)
        self.checks = Checks(node, self.ask)
        self._turns = asyncio.Lock()
        # What fronts report about themselves in a status, by name.
        self.gauges: dict[str, Callable[[], Answer]] = {"comparison": node.comparer.describe}
        # What operators may ask of any node, and what nodes ask each other about themselves.
        self._public: dict[str, Callable[[Arguments], Awaitable[Answer]]] = {
            "status": self._status,
            "log": self._log,
            "drain": self._drain,
            "undrain": self._undrain,
            "decommission": self._decommission,
            "features": self._features,
            "recover": self.majorities.recover,
            "verify": self.checks.verify,
        }
        self._local: dict[str, Callable[[Arguments], Awaitable[Answer]]] = {
            "node": self._describe_node,
            "replica": self._describe_replica,
            "check": self.checks.check,
            "marks": node.comparer.digests.marks,
            "digest": node.comparer.digests.digest,
            "wrong": node.comparer.wrong,
            "version": self._version,
        }

    async def operate(self, payload: Payload) -> bytes:
        """Answer an operator; whatever is wrong is part of the answer."""
        try:
            name, arguments = _parse(payload)
            operation = self._public.get(name)
            if operation is None:
                raise ClusterError(
                    Problem.INVALID_NAME,
                    f"there is no operation {name[:60]!r}; there are {', '.join(self._public)}",
                )
            return _dump({"result": await operation(arguments)})
        except ClusterError as error:
            return _dump({"error": {"problem": error.problem.value, "message": error.message}})

    async def answer(self, payload: bytes) -> bytes:
        """Answer another node; raises `ClusterError`."""
        name, arguments = _parse(payload)
        operation = self._local.get(name)
        if operation is None:
            raise ClusterError(Problem.INVALID_NAME, f"there is no operation {name[:60]!r}")
        return _dump(await operation(arguments))

    async def ask(self, node: NodeId, name: str, arguments: Arguments) -> Answer | None:
        """Ask a node about itself; None if it does not answer."""
        payload = _dump({"operation": name, "arguments": arguments})
        try:
            answer = await self._node.ask(node, Call.OPERATE, payload, NODE_TIMEOUT_S)
            found = json.loads(answer)
        except (ClusterError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    # --- Status ---------------------------------------------------------------------------------

    async def _status(self, _arguments: Arguments) -> Answer:
        node, state = self._node, self._node.state
        members = sorted(state.members.values(), key=lambda member: member.id)
        found = await asyncio.gather(*(self.ask(each.id, "node", {}) for each in members))
        leaderless: list[str] = []
        behind: list[str] = []
        moving: list[str] = []
        rebuilding: dict[NodeId, list[str]] = {}
        async for topic, partition in self._every_partition():
            name = f"{topic.name}/{partition.index}"
            leadership = node.leaders.leadership(partition.group)
            leader, _epoch = node.leader_of(topic.name, partition.index)
            if leader is None or not node.is_alive(leader):
                leaderless.append(name)
            alive = [each.id for each in partition.replicas if node.is_alive(each.id)]
            in_sync = set(leadership.in_sync) if leadership is not None else set()
            if len(alive) < len(partition.replicas) or not in_sync >= set(alive):
                behind.append(name)
            if partition.moves:
                moving.append(name)
            for replica in partition.rebuilding:
                rebuilding.setdefault(replica.id, []).append(name)
        return {
            "cluster_id": state.cluster_id,
            "controller": _leads_the_cluster(members, found),
            "version": state.version,
            "features": dict(state.features),
            "nodes": [
                {
                    "id": member.id,
                    "rack": member.rack,
                    "rpc": str(member.rpc),
                    "kafka": str(member.kafka),
                    "status": member.status.value,
                    "alive": answer is not None,
                    "replicas": state.replica_counts.get(member.id, 0),
                    "rebuilding": rebuilding.get(member.id, [])[:MAX_LISTED],
                    **(answer or {}),
                }
                for member, answer in zip(members, found, strict=True)
            ],
            # They count for majorities of the controller, and no member is there in their place.
            "absent_founders": sorted(state.seeds),
            "topics": len(state.topics),
            "partitions": state.partition_count,
            "leaderless": leaderless[:MAX_LISTED],
            **self.majorities.describe(MAX_LISTED),
            "under_replicated": behind[:MAX_LISTED],
            "moving": moving[:MAX_LISTED],
        }

    async def _describe_node(self, _: Arguments) -> Answer:
        node = self._node
        partitions = list(node.partitions())
        disk = await self._describe_disk()
        failed = {
            f"{each.topic}/{each.index}": each.failed
            for each in partitions
            if each.failed is not None
        }
        for group, each in node.hosting.healing:
            place = node.state.partition_of(group)
            if place is not None:
                failed[f"{place[0]}/{place[1]}"] = each.why
        lost = {
            f"{place[0]}/{place[1]}": why
            for group, why in self._lost()
            if (place := node.state.partition_of(group)) is not None
        }
        return {
            "pid": os.getpid(),
            "leaders": node.hosting.led,
            "data_bytes": sum(each.size for each in partitions),
            **disk,
            "controller_replica": self._describe_group_0(),
            "failed_partitions": failed,
            "replicas_failed": node.hosting.healing.total,
            "lost_partitions": lost,
            "replicas_lost": node.hosting.lost.total,
            "verification": node.verifier.describe(),
            **{name: gauge() for name, gauge in self.gauges.items()},
        }

    async def _describe_disk(self) -> Answer:
        try:
            room = await self._disk.look()
        except OSError as error:
            return {"disk_error": reason_of(error)}
        return {"disk_free_bytes": room.free_bytes, "disk_total_bytes": room.total_bytes}

    def _describe_group_0(self) -> Answer:
        """How this node's replica of the controller's log is."""
        hosted = self._node.groups.get(CONTROLLER_GROUP)
        failed = self._node.hosting.healing.get(CONTROLLER_GROUP)
        lost = self._node.group_zero.why_lost
        if hosted is None:
            closed = "it is not open" if failed is None else failed.why
            return {
                "ready": False,
                "seated": False,
                "failed": None if lost else closed,
                "lost": lost,
                "stopped": None,
            }
        replica = hosted.replica
        core = replica.core
        seats = core.configuration
        return {
            "role": core.role.value,
            "term": core.term,
            "ready": core.ready,
            # A node without a seat is no help to the majority that the cluster needs.
            "seated": seats.is_voter(core.vnode) and not seats.is_joint,
            "failed": replica.failed,
            "lost": replica.lost or lost,
            "stopped": replica.stopped,
        }

    def _lost(self) -> Iterator[tuple[GroupId, str]]:
        return ((group, each.why) for group, each in self._node.hosting.lost)

    async def _every_partition(self) -> AsyncIterator[tuple[TopicState, PartitionState]]:
        """All partitions as they are now, with turns for others on the event loop.

        Those who ask at the same time queue up, so that all of them together take one turn in each
        iteration of the loop.
        """
        # Topics may come and go between two turns.
        partitions = (
            (topic, partition)
            for topic in tuple(self._node.state.topics.values())
            for partition in topic.partitions
        )
        while turn := tuple(islice(partitions, TURN)):
            for each in turn:
                yield each
            async with self._turns:
                await asyncio.sleep(0)

    async def _version(self, _: Arguments) -> Answer:
        """How far the state of the cluster has got here, and whether that is all there is."""
        node = self._node
        leads = node.leaders.get(CONTROLLER_GROUP) == node.id
        return {"version": node.state.version, "leads": leads}

    # --- Log ------------------------------------------------------------------------------------

    async def _log(self, arguments: Arguments) -> Answer:
        state = self._node.state
        topic, index = _topic_and_index(arguments)
        partition = state.partition_at(topic, index)
        nodes = [each.id for each in partition.hosts]
        found = await asyncio.gather(
            *(self.ask(each, "replica", {"topic": topic, "partition": index}) for each in nodes)
        )
        return {
            "topic": topic,
            "partition": index,
            "group": partition.group,
            "replicas": [
                {"node": node, "alive": answer is not None, **(answer or {})}
                for node, answer in zip(nodes, found, strict=True)
            ],
        }

    async def _describe_replica(self, arguments: Arguments) -> Answer:
        topic, index = _topic_and_index(arguments)
        partition = self._node.partition(topic, index)
        if partition is None:
            raise ClusterError(
                Problem.UNKNOWN_PARTITION, f"this node has no replica of {topic}/{index}"
            )
        return describe_replica(partition)

    # --- Nodes ----------------------------------------------------------------------------------

    async def _drain(self, arguments: Arguments) -> Answer:
        return await self._set_status(_node_id(arguments), MemberStatus.DRAINING)

    async def _undrain(self, arguments: Arguments) -> Answer:
        return await self._set_status(_node_id(arguments), MemberStatus.ACTIVE)

    async def _decommission(self, arguments: Arguments) -> Answer:
        node = _node_id(arguments)
        state = self._node.state
        if node in state.seeds:
            # It was to found the cluster and never came.
            await self._node.controller.propose(cmd.RemoveMember(token=cmd.new_token(), id=node))
        if node not in state.members and node in state.removed:
            return {"node": node, "status": "gone", "replicas_left": 0, "leaders_left": 0}
        return await self._set_status(node, MemberStatus.LEAVING)

    async def _set_status(self, node: NodeId, status: MemberStatus) -> Answer:
        """Set it, unless it is so already, and tell how far that has got."""
        state = self._node.state
        if state.member(node).status is not status:
            await self._node.controller.set_member_status(node, status)
        member = state.members.get(node)
        leads = 0
        async for _, partition in self._every_partition():
            leads += self._node.leaders.get(partition.group) == node
        return {
            "node": node,
            "status": "gone" if member is None else member.status.value,
            "replicas_left": state.replica_counts.get(node, 0),
            "leaders_left": leads,
        }

    async def _features(self, _: Arguments) -> Answer:
        return dict(self._node.state.features)


def _leads_the_cluster(
    members: Sequence[Member], answers: Sequence[Answer | None]
) -> NodeId | None:
    """Who leads group 0 by its own word, which nodes that have just lost touch may not know.

    A leader that was cut off says so too until it notices; the newer term is the true one.
    """
    claims = [
        (replica["term"], member.id)
        for member, answer in zip(members, answers, strict=True)
        if answer is not None
        and (replica := answer.get("controller_replica")) is not None
        and replica.get("ready")
    ]
    return max(claims)[1] if claims else None


def describe_replica(partition: Partition) -> Answer:
    """All that a drawing of a replica needs; log offsets but for the three that clients see."""
    core, log = partition.core, partition.replica.log
    snapshot = core.snapshot
    segments = log.describe(MAX_SEGMENTS, core.hard.compacted).segments
    gaps = [list(gap) for segment in segments for gap in segment.gaps]
    return {
        "revision": core.vnode.revision,
        "last_term": log.last_term,
        "role": core.role.value,
        "term": core.term,
        "leader": None if core.leader is None else core.leader.id,
        "start": log.start,
        "dirty": log.dirty,
        "flushed": log.flushed,
        "committed": core.committed,
        "visible": core.visible,
        "applied": core.applied,
        "readable": core.readable,
        "collectible": core.collectible,
        "compacted": core.hard.compacted,
        "snapshot": None
        if snapshot is None
        else {"offset": snapshot.offset, "size": snapshot.size},
        "failed": partition.failed,
        "log_start": partition.log_start,
        "high_watermark": partition.high_watermark,
        "end": partition.end,
        "bytes": partition.size,
        "segments": [
            {"base": each.base, "last": each.last, "term": each.term, "bytes": each.bytes}
            for each in segments
        ],
        "gaps": gaps[-MAX_GAPS:],
    }


def _parse(payload: Payload) -> tuple[str, Arguments]:
    if len(payload) > MAX_QUESTION_BYTES:
        raise ClusterError(
            Problem.INVALID_NAME,
            f"an operation of {len(payload)} bytes is too large: at most {MAX_QUESTION_BYTES} bytes"
            " of JSON are taken",
        )
    try:
        question = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise ClusterError(Problem.INVALID_NAME, f"an operation is JSON: {error}") from error
    name = question.get("operation") if isinstance(question, dict) else None
    arguments = question.get("arguments", {}) if isinstance(question, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ClusterError(
            Problem.INVALID_NAME, 'an operation is {"operation": NAME, "arguments": {...}}'
        )
    return name, arguments


def _dump(answer: object) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _topic_and_index(arguments: Arguments) -> tuple[str, int]:
    topic, index = arguments.get("topic"), arguments.get("partition")
    if not isinstance(topic, str) or type(index) is not int:
        raise ClusterError(Problem.UNKNOWN_PARTITION, "name a topic and the number of a partition")
    return topic, index


def _node_id(arguments: Arguments) -> NodeId:
    node = arguments.get("node")
    if type(node) is not int:
        raise ClusterError(Problem.UNKNOWN_NODE, "name the id of a node")
    return NodeId(node)
