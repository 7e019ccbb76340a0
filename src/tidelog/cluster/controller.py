"""Changing the cluster: commands to group 0, from whatever node somebody happens to talk to.

A change is decided where it is asked for (names checked, replicas placed), sent to whoever leads
group 0, and done when this node itself has carried it out: whoever asked then reads what they
wrote. A command has a token, so sending it again after a timeout or a change of leader is safe.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tidelog.cluster import commands as cmd
from tidelog.cluster.calls import Call, Handover, decode_result, refusal_of
from tidelog.cluster.configs import ClusterConfig, check_cluster_config, check_topic_config
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import (
    CONTROLLER_GROUP,
    Member,
    MemberStatus,
    PartitionState,
    TopicState,
)
from tidelog.cluster.placement import place
from tidelog.cluster.state import Result
from tidelog.cluster.strictjson import NotThis, write
from tidelog.raft import events as ev
from tidelog.raft.types import Level, NodeId, Vnode
from tidelog.records import BatchType, internal_batch
from tidelog.rpc import RpcError

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

TIMEOUT: Final = 30.0
# How long one attempt may take before the next goes to whoever leads then, and the pause between.
ATTEMPT: Final = 2.0
PAUSE: Final = 0.03
# Seconds without anybody who leads the cluster before whoever asks is sent elsewhere. An election
# takes less than one.
ALONE: Final = 5.0
# Replicas of a partition when nobody says how many and the nodes allow it.
USUAL_REPLICAS: Final = 3


class Controller:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._state = node.state

    # --- Topics ---------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        *,
        assignment: Sequence[Sequence[NodeId]] | None = None,
        internal: bool = False,
        validate_only: bool = False,
        timeout: float = TIMEOUT,
    ) -> TopicState:
        """Create a topic; -1 stands for the cluster's default."""
        state = self._state
        state.check_new_topic(name)
        check_topic_config(config)
        if assignment is None:
            count = self._default_partitions() if partitions == -1 else partitions
            state.check_count(0, count)
            replicas = self._place(count, replication_factor)
        else:
            state.check_count(0, len(assignment))
            replicas = tuple(tuple(nodes) for nodes in assignment)
            for nodes in replicas:
                state.check_assignment(nodes)
        command = cmd.CreateTopic(
            token=cmd.new_token(),
            name=name,
            id=uuid4(),
            replicas=replicas,
            config=dict(config),
            internal=internal,
        )
        if validate_only:
            planned = tuple(
                PartitionState(index, CONTROLLER_GROUP, tuple(map(self._vnode, nodes)), None)
                for index, nodes in enumerate(replicas)
            )
            return TopicState(name, command.id, planned, config, internal)
        await self.propose(command, timeout)
        return state.topic(name)

    async def delete_topic(self, name: str, *, timeout: float = TIMEOUT) -> None:
        topic = self._state.topic(name)
        await self.propose(cmd.DeleteTopic(token=cmd.new_token(), name=name, id=topic.id), timeout)

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Sequence[Sequence[NodeId]] | None = None,
        validate_only: bool = False,
        timeout: float = TIMEOUT,
    ) -> TopicState:
        """Let a topic grow to `total` partitions; `assignment` places the new ones."""
        state = self._state
        topic = state.topic(name)
        present = len(topic.partitions)
        state.check_count(present, total - present)
        if assignment is None:
            replicas = self._place(total - present, topic.replication_factor)
        else:
            replicas = tuple(tuple(nodes) for nodes in assignment)
            if len(replicas) != total - present:
                raise ClusterError(
                    Problem.INVALID_ASSIGNMENT,
                    f"{len(replicas)} assignments for {total - present} new partitions",
                )
            for nodes in replicas:
                state.check_assignment(nodes)
        if validate_only:
            return topic
        await self.propose(
            cmd.AddPartitions(
                token=cmd.new_token(), name=name, id=topic.id, first=present, replicas=replicas
            ),
            timeout,
        )
        return state.topic(name)

    def _default_partitions(self) -> int:
        return ClusterConfig.from_strings(self._state.config).num_partitions

    def _place(self, partitions: int, replication_factor: int) -> tuple[tuple[NodeId, ...], ...]:
        """Choose nodes for new partitions: those with room, or that are up, if they are enough."""
        able = [
            member
            for member in self._state.members.values()
            if member.status is not MemberStatus.LEAVING and not member.awaited
        ]
        if replication_factor == -1:
            replication_factor = self._default_replicas(len(able))
        if not 1 <= replication_factor <= len(able):
            raise ClusterError(
                Problem.INVALID_REPLICATION,
                f"{replication_factor} replicas: the cluster has {len(able)} nodes, and each holds"
                " at most one replica of a partition",
            )
        alive = [member for member in able if self._node.is_alive(member.id)]
        roomy = [member for member in alive if self._node.space.has_room(member.id)]
        chosen: Sequence[Member] = next(
            (some for some in (roomy, alive) if len(some) >= replication_factor), able
        )
        return place(
            chosen,
            self._state.replica_counts,
            self._state.leader_counts,
            partitions,
            replication_factor,
        )

    def _default_replicas(self, nodes: int) -> int:
        configured = ClusterConfig.from_strings(self._state.config).default_replication_factor
        if configured is not None:
            return configured
        return USUAL_REPLICAS if nodes >= USUAL_REPLICAS else 1

    def _vnode(self, node: NodeId) -> Vnode:
        return self._state.member(node).vnode

    # --- Settings -------------------------------------------------------------------------------

    async def set_topic_config(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        """Change settings of a topic; None takes one back to its default."""
        self._state.topic(name)
        check_topic_config({key: value for key, value in changes.items() if value is not None})
        if not validate_only:
            await self.propose(
                cmd.SetTopicConfig(token=cmd.new_token(), name=name, changes=dict(changes)), timeout
            )

    async def set_cluster_config(
        self,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        check_cluster_config({key: value for key, value in changes.items() if value is not None})
        if not validate_only:
            await self.propose(
                cmd.SetClusterConfig(token=cmd.new_token(), changes=dict(changes)), timeout
            )

    # --- Replicas and leaders -------------------------------------------------------------------

    async def reassign(
        self, name: str, index: int, replicas: Sequence[NodeId], *, timeout: float = TIMEOUT
    ) -> None:
        """Begin to move a partition; it goes on by itself."""
        self._state.partition_at(name, index)
        self._state.check_assignment(tuple(replicas))
        await self.propose(
            cmd.Reassign(token=cmd.new_token(), name=name, index=index, replicas=tuple(replicas)),
            timeout,
        )

    async def cancel_reassign(self, name: str, index: int, *, timeout: float = TIMEOUT) -> None:
        self._state.partition_at(name, index)
        await self.propose(
            cmd.CancelReassign(token=cmd.new_token(), name=name, index=index), timeout
        )

    async def elect_leader(self, name: str, index: int, *, timeout: float = TIMEOUT) -> None:
        """Give leadership of a partition to its preferred replica, the first."""
        partition = self._state.partition_at(name, index)
        preferred = partition.replicas[0]
        leader, _ = self._node.leader_of(name, index)
        if leader == preferred.id:
            raise ClusterError(Problem.NOT_CHANGING, f"node {leader} leads {name}/{index} already")
        if leader is None or not self._node.is_alive(preferred.id):
            raise ClusterError(
                Problem.UNAVAILABLE,
                f"{name}/{index} cannot be handed to node {preferred.id} now: there is no leader,"
                " or that node is down",
            )
        payload = write(Handover(partition.group, preferred))
        await self._node.ask(leader, Call.TRANSFER, payload, timeout)

    # --- Members and numbers --------------------------------------------------------------------

    async def set_member_status(
        self, node: NodeId, status: MemberStatus, *, timeout: float = TIMEOUT
    ) -> None:
        self._state.member(node)
        if status is MemberStatus.LEAVING:
            self._state.check_may_leave(node)
        await self.propose(
            cmd.SetMemberStatus(token=cmd.new_token(), id=node, status=status), timeout
        )

    async def allocate_producer_ids(self, count: int, *, timeout: float = TIMEOUT) -> int:
        """The first of `count` producer ids that nobody else gets."""
        first = await self.propose(
            cmd.AllocateProducerIds(token=cmd.new_token(), count=count), timeout
        )
        assert first is not None
        return first

    # --- Group 0 --------------------------------------------------------------------------------

    async def propose(self, command: cmd.Command, timeout: float = TIMEOUT) -> int | None:
        """Have a command carried out; return its result once this node has carried it out too."""
        if self._node.stuck is not None:
            raise ClusterError(
                Problem.UNAVAILABLE,
                f"this node does not follow the cluster's changes, so it makes none:"
                f" {self._node.stuck}. Ask another node meanwhile",
            )
        payload = cmd.encode(command)
        if len(payload) > cmd.MAX_COMMAND_BYTES:
            raise ClusterError(
                Problem.INVALID_PARTITIONS, "this is too much for one change: do it in parts"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        result: Result | None = None
        alone_since: float | None = loop.time()
        while result is None:
            left = deadline - loop.time()
            if self._node.controller_id() is not None:
                alone_since = None  # somebody may have taken it, so only its outcome counts
            elif alone_since is not None and loop.time() - alone_since > ALONE:
                raise ClusterError(
                    Problem.NOT_CONTROLLER,
                    f"no controller leader has been known here for {ALONE:g} s: the request was"
                    " not sent. Retry on another node",
                )
            if left <= 0:
                raise ClusterError(
                    Problem.TIMEOUT,
                    f"no majority of the nodes carried it out within {timeout:g} s; it may still"
                    " happen",
                )
            result = await self._attempt(command, payload, min(left, ATTEMPT))
        await self._known_here(command, deadline - loop.time())
        return result.get()

    async def _attempt(self, command: cmd.Command, payload: bytes, timeout: float) -> Result | None:
        """Try once; None if another leader or another time may help."""
        node = self._node
        leader = node.controller_id()
        try:
            if leader == node.id:
                return await self.carry_out(command, timeout)
            if leader is not None:
                return decode_result(
                    await node.network.call(leader, Call.PROPOSE, payload, timeout)
                )
        except RpcError as error:
            problem = refusal_of(str(error))
            if problem.problem not in (Problem.NOT_CONTROLLER, Problem.TIMEOUT):
                raise problem from error
        except (OSError, NotThis) as error:
            log.debug("a command was not carried out, trying again: %s", error)
        except ClusterError as error:
            if error.problem not in (Problem.NOT_CONTROLLER, Problem.TIMEOUT):
                raise
        await asyncio.sleep(PAUSE)
        return self._state.results.get(command.token)

    async def carry_out(self, command: cmd.Command, timeout: float) -> Result:
        """On the leader of group 0: write a command and wait for what comes of it."""
        done = self._state.results.get(command.token)
        if done is not None:
            return done
        loop = asyncio.get_running_loop()
        committed: asyncio.Future[None] = loop.create_future()

        def resolve(outcome: ev.Accepted | ev.Done | ev.Refused) -> None:
            if committed.done() or isinstance(outcome, ev.Accepted):
                return
            if isinstance(outcome, ev.Done):
                committed.set_result(None)
            else:
                committed.set_exception(_refusal(outcome.why))

        groups = self._node.groups
        hosted = groups.get(CONTROLLER_GROUP)
        if hosted is None or not hosted.replica.core.ready:
            raise ClusterError(Problem.NOT_CONTROLLER, "this node does not lead the cluster")
        self._state.check_decodable(command)
        batch = internal_batch(BatchType.CHANGELOG, cmd.encode(command))
        token = groups.expect(timeout, resolve)
        hosted.step(ev.Propose(token, (batch,), Level.QUORUM))
        await committed
        await self._known_here(command, timeout)
        return self._state.results[command.token]

    async def _known_here(self, command: cmd.Command, timeout: float) -> None:
        """Wait until this node has carried a command out."""
        await wait_for(self._state.on_change, lambda: command.token in self._state.results, timeout)


def _refusal(why: ev.Refusal) -> ClusterError:
    if why is ev.Refusal.STORAGE:
        return ClusterError(Problem.STORAGE, "the disk of the node that leads the cluster refuses")
    if why is ev.Refusal.UNKNOWN:
        return ClusterError(Problem.TIMEOUT, "no majority of the nodes answered in time")
    return ClusterError(Problem.NOT_CONTROLLER, f"this node does not lead the cluster: {why.value}")


async def wait_for(
    subscribe: Callable[[Callable[[], None]], Callable[[], None]],
    holds: Callable[[], bool],
    timeout: float,
) -> None:
    """Wait until something holds, looking whenever there is news; raises `ClusterError`."""
    if holds():
        return
    news = asyncio.Event()
    stop = subscribe(news.set)
    try:
        async with asyncio.timeout(max(0.0, timeout)):
            while not holds():
                news.clear()
                await news.wait()
    except TimeoutError:
        raise ClusterError(
            Problem.TIMEOUT, "this node has not heard of it in time; it may still happen"
        ) from None
    finally:
        stop()
