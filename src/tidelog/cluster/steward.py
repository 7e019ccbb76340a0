"""What the leader of group 0 does for the cluster, besides writing commands down.

It founds the cluster, lets nodes into group 0 and out of it, empties nodes that are leaving, keeps
leadership where it belongs, and keeps group 0's own log short. All of it is looked at again and
again: whoever leads next finds everything in the state and goes on.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidelog.cluster import commands as cmd
from tidelog.cluster.calls import Admission, Application, Call, Handover, Peer
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import CONTROLLER_GROUP, Member, MemberStatus
from tidelog.cluster.placement import balance_leaders, plan_reassign
from tidelog.cluster.release import FEATURES
from tidelog.cluster.state import ClusterState
from tidelog.cluster.strictjson import write
from tidelog.raft import events as ev
from tidelog.raft.types import NodeId, Vnode
from tidelog.records import Offset

if TYPE_CHECKING:
    from tidelog.cluster.groups import Hosted
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
# Leadership is evened out rarely, since every move is a short pause for somebody, but a node that
# is draining is emptied at once.
BALANCE_S: Final = 30.0
MOVES_AT_ONCE: Final = 16
LEADER_MOVES_AT_ONCE: Final = 32
HANDOVER_S: Final = 5.0
# A member of group 0 that does not answer keeps nobody waiting longer than this.
CHANGE_S: Final = 30.0
# Commands in the log of group 0 before a snapshot takes their place.
MAX_COMMANDS: Final = 2000


def peers_of(state: ClusterState) -> tuple[Peer, ...]:
    """The members of a cluster, and where they are."""
    return tuple(Peer(each.id, each.rpc) for each in state.members.values())


class Steward:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._state = node.state
        self._task: asyncio.Task[None] | None = None
        self._balanced_at = 0.0
        self._compacting = False

    def start(self) -> None:
        self._task = self._node.loop.create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except (ClusterError, OSError) as error:
                log.info("controller round failed, retrying in 0.5 s: %s", error)
            except Exception:
                log.exception("unexpected error in a controller round")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        hosted = self._node.groups.get(CONTROLLER_GROUP)
        if hosted is None:
            return
        self._shorten(hosted)
        if not hosted.replica.core.ready:
            return
        if not self._state.cluster_id:
            await self.found()
        await self._enable_features()
        await self._seat_members(hosted)
        await self._empty_leaving()
        await self._balance(hosted)

    # --- Founding and joining --------------------------------------------------------------------

    async def found(self) -> None:
        """Make group 0 a cluster."""
        identity = self._node.joining.identity
        founders = [node for node in self._node.founders if str(node) in identity.births]
        await self._node.controller.propose(
            cmd.CreateCluster(
                token=cmd.new_token(),
                cluster_id=identity.cluster_id,
                seeds=tuple(founders),
                births=tuple(identity.births[str(node)] for node in founders),
            )
        )

    async def admit(self, application: Application) -> Admission:
        """Let a node in, or note where it is now; on the leader of group 0."""
        state, propose = self._state, self._node.controller.propose
        if not state.cluster_id:
            await self.found()
        if application.cluster_id not in ("", state.cluster_id):
            raise ClusterError(
                Problem.UNKNOWN_NODE,
                f"node {application.id} belongs to cluster {application.cluster_id}, and its seeds"
                f" lead to cluster {state.cluster_id}: correct the seeds, or give it an empty data"
                " directory",
            )
        member = await self._place_of(application)
        if member is None:
            try:
                await propose(
                    cmd.AddMember(
                        token=cmd.new_token(),
                        id=application.id,
                        rack=application.rack,
                        rpc=application.rpc,
                        kafka=application.kafka,
                        version=application.version,
                        birth=application.birth,
                    )
                )
            except ClusterError as error:
                if error.problem is not Problem.NODE_EXISTS:
                    raise
                # Another request of this node was faster, or another process with its id.
                raise ClusterError(Problem.BUSY, error.message) from error
        elif (member.rack, member.rpc, member.kafka, member.version) != (
            application.rack,
            application.rpc,
            application.kafka,
            application.version,
        ):
            await propose(
                cmd.UpdateMember(
                    token=cmd.new_token(),
                    id=application.id,
                    rack=application.rack,
                    rpc=application.rpc,
                    kafka=application.kafka,
                    version=application.version,
                )
            )
        if member is not None and member.status is MemberStatus.DRAINING:
            # It was drained to be restarted, and here it is again.
            await self._node.controller.set_member_status(application.id, MemberStatus.ACTIVE)
        revision = state.member(application.id).revision
        return Admission(revision, state.version, peers_of(state), state.cluster_id)

    async def _place_of(self, application: Application) -> Member | None:
        """The member that a node is, under a new revision if it has to be; None: it is none yet."""
        state = self._state
        self._check_not_removed(application)
        member = state.members.get(application.id)
        if member is None:
            return None
        same = application.birth == member.birth
        if not same or member.rpc != application.rpc:
            await self._refuse_second(member, application)
        if not same and application.revision is not None:
            raise ClusterError(
                Problem.UNKNOWN_NODE,
                f"node {application.id} has been given another data directory since: empty this"
                " one, and the node joins as a new one",
            )
        # One that asks again because it did not hear the answer has been given a revision already.
        if not same or (application.lost and application.revision == member.revision):
            log.info("node %d forgot what it promised: it gets a new revision", application.id)
            await self._node.controller.propose(
                cmd.ReplaceMember(
                    token=cmd.new_token(),
                    id=application.id,
                    revision=member.revision,
                    birth=application.birth,
                )
            )
        return state.member(application.id)

    async def _refuse_second(self, member: Member, application: Application) -> None:
        """Raise if another process has this id, and is alive."""
        node = self._node
        if member.id == node.id:
            another = application.incarnation != node.joining.incarnation
        else:
            another = await node.joining.is_another(member.rpc, member.id, application.incarnation)
        if another:
            raise ClusterError(
                Problem.NODE_EXISTS,
                f"node {member.id} is alive, at {member.rpc}: stop it first, or give this node"
                " another id",
            )

    def _check_not_removed(self, application: Application) -> None:
        """Keep a decommissioned node out: what its directory knows has been handed to others."""
        state, revision = self._state, application.revision
        if revision is None:
            return
        founds = state.seeds.get(application.id) == application.birth
        present = application.id in state.members or founds
        if not present or state.was_removed(application.id, revision):
            raise ClusterError(
                Problem.UNKNOWN_NODE,
                f"node {application.id} was decommissioned from this cluster. To bring it back as"
                " a new member, empty its data directory, then start it",
            )

    async def _enable_features(self) -> None:
        for name, version in FEATURES.items():
            everybody = all(each.version >= version for each in self._state.members.values())
            if self._state.members and everybody and name not in self._state.features:
                await self._node.controller.propose(
                    cmd.EnableFeature(token=cmd.new_token(), name=name, level=1, needs=version)
                )

    async def _seat_members(self, hosted: "Hosted") -> None:
        """Make the voters of group 0 those who belong there: all members, and founders to come.

        A member without a seat gets one when it is there: the others need not wait for it.
        """
        core = hosted.replica.core
        seated = {voter.id for voter in core.configuration.voters}
        seats = [
            member.vnode
            for member in self._state.members.values()
            if member.id in seated or self._node.is_alive(member.id)
        ]
        seats += [Vnode(node, 0) for node in self._state.seeds]
        seats.sort()
        if set(core.configuration.voters) == set(seats) and not core.configuration.learners:
            return
        if len(seats) == 0 or core.configuration.is_joint:
            return
        outcome = await self._node.groups.ask(
            hosted, lambda token: ev.ChangeConfiguration(token, tuple(seats)), CHANGE_S
        )
        if isinstance(outcome, ev.Refused) and outcome.why is ev.Refusal.UNKNOWN:
            await self._node.groups.ask(hosted, ev.CancelChange, CHANGE_S)

    # --- Leaving ---------------------------------------------------------------------------------

    async def _empty_leaving(self) -> None:
        """Move replicas off nodes that are leaving, and let them go when they have none."""
        state = self._state
        leaving = [
            each.id for each in state.members.values() if each.status is MemberStatus.LEAVING
        ]
        if not leaving:
            return
        partitions = [partition for _, partition in state.partitions()]
        moving = sum(partition.moves for partition in partitions)
        staying = [each for each in state.members.values() if each.id not in leaving]
        able = [each for each in staying if self._node.is_alive(each.id)]
        for move in plan_reassign(
            able, partitions, state.replica_counts, leaving, max(0, MOVES_AT_ONCE - moving)
        ):
            place = state.partition_of(move.group)
            if place is not None:
                await self._node.controller.reassign(place[0], place[1], move.replicas)
        for node in leaving:
            if not state.replica_counts.get(node, 0):
                log.info("node %d has no replicas any more and leaves the cluster", node)
                await self._node.controller.propose(
                    cmd.RemoveMember(token=cmd.new_token(), id=node)
                )

    # --- Leaders ---------------------------------------------------------------------------------

    async def _balance(self, hosted: "Hosted") -> None:
        node, state = self._node, self._state
        eligible = {
            each.id
            for each in state.members.values()
            if each.status is MemberStatus.ACTIVE and node.space.is_fit(each.id)
        }
        if node.id not in eligible and await self._hand_over(hosted, eligible):
            return
        now = node.loop.time()
        urgent = any(each.status is not MemberStatus.ACTIVE for each in state.members.values())
        if not urgent and now - self._balanced_at < BALANCE_S:
            return
        if not urgent:
            self._balanced_at = now
        leaders, replicas = {}, {}
        for _, partition in state.partitions():
            leader = node.leaders.get(partition.group)
            if leader is not None and partition.target is None and node.is_alive(leader):
                leaders[partition.group] = leader
                replicas[partition.group] = partition.nodes
        moves = balance_leaders(leaders, replicas, eligible, LEADER_MOVES_AT_ONCE)
        if urgent:
            moves = [move for move in moves if move.source not in eligible]
        for move in moves:
            current = state.partition(move.group)
            target = None if current is None else current.replica_on(move.target)
            if target is not None:
                await self._transfer(move.source, Handover(move.group, target))

    async def _transfer(self, leader: NodeId, handover: Handover) -> None:
        try:
            await self._node.ask(leader, Call.TRANSFER, write(handover), HANDOVER_S)
        except (ClusterError, OSError) as error:
            log.info("group %d keeps its leader for now: %s", handover.group, error)

    async def _hand_over(self, hosted: "Hosted", eligible: Iterable[NodeId]) -> bool:
        """Give group 0 itself to another node, because this one should not lead."""
        voters = hosted.replica.core.configuration.voters
        for target in [each for each in voters if each.id in eligible]:
            outcome = await self._node.groups.transfer(hosted, target, HANDOVER_S)
            if isinstance(outcome, ev.Done):
                return True
        return False

    # --- Group 0's own log -----------------------------------------------------------------------

    def _shorten(self, hosted: "Hosted") -> None:
        """Put a snapshot in the place of old commands, on every replica."""
        replica = hosted.replica
        core = replica.core
        covered = min(core.collectible, core.applied)
        if covered - replica.log.start > MAX_COMMANDS:
            replica.truncate_prefix(Offset(covered + 1))
        if core.ready and core.applied - core.collectible > MAX_COMMANDS and not self._compacting:
            self._compacting = True
            token = self._node.groups.expect(CHANGE_S, self._compacted)
            hosted.step(ev.Compact(token))

    def _compacted(self, outcome: ev.Accepted | ev.Done | ev.Refused) -> None:
        if not isinstance(outcome, ev.Accepted):
            self._compacting = False
