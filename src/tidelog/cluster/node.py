"""One node: all its rooms put together, from an empty directory to a member of a cluster.

    network    what other nodes say comes in here (`rpc.Handler`)
    groups     the replicas, group 0 among them, and their timers
    state      what group 0 says about the cluster
    hosting    makes the replicas on this node those that the state wants
    gate       who is heard, and who is a stranger
    presence   who is there and who leads what
    steward    what the leader of group 0 does for all
    controller changes to the cluster, from anybody

A start: open group 0, find whoever leads it, tell it where this node is, wait until the state says
so too. Only then do clients get to see this node, with metadata as new as its own membership.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import IO, Final

from tidelog.cluster import strictjson
from tidelog.cluster.calls import (
    MAY_CALL,
    Application,
    Call,
    Handover,
    Members,
    Peer,
    encode_result,
    forbidden,
    refusal_of,
    refusal_text,
    stranger,
)
from tidelog.cluster.catchup import CatchUp
from tidelog.cluster.commands import CorruptCommand
from tidelog.cluster.commands import decode as decode_command
from tidelog.cluster.comparing import Comparer
from tidelog.cluster.config import NodeConfig
from tidelog.cluster.controller import Controller, wait_for
from tidelog.cluster.directory import Taken, take
from tidelog.cluster.errors import ClusterError, Problem, StartFailed
from tidelog.cluster.executor import Executor
from tidelog.cluster.gate import Gate
from tidelog.cluster.groups import Groups, Hosted
from tidelog.cluster.groupzero import GroupZero
from tidelog.cluster.hosting import Hosting
from tidelog.cluster.identity import controller_directory, load_identity
from tidelog.cluster.joining import Joining
from tidelog.cluster.jointoken import (
    InvalidToken,
    Kept,
    SecretTrouble,
    keep_secret,
    read_secret,
    settle_secret,
)
from tidelog.cluster.leaders import Claim, CorruptClaims, LeaderTable
from tidelog.cluster.legacy import Legacy
from tidelog.cluster.marks import Marks
from tidelog.cluster.model import CONTROLLER_GROUP, Address, MemberStatus
from tidelog.cluster.operations import Operations, Payload
from tidelog.cluster.partition import Partition
from tidelog.cluster.presence import Presence
from tidelog.cluster.release import RELEASE
from tidelog.cluster.space import Space
from tidelog.cluster.state import ClusterState
from tidelog.cluster.steward import Steward, peers_of
from tidelog.cluster.verifying import Verifier
from tidelog.raft import events as ev
from tidelog.raft.beats import BeatOptions, Beats
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.messages import Message
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import NO_OFFSET
from tidelog.rpc import Lane, Limits, Network, RpcError, Unreachable
from tidelog.storage import (
    OPEN_MARKS,
    BatchCache,
    DamagedLog,
    FileBudget,
    LogConfig,
    RealDisk,
    raise_file_limit,
    remove_staging,
)

log = logging.getLogger(__name__)

JOIN_ATTEMPT_S: Final = 2.0
LOOK_AGAIN_S: Final = 0.02  # whether leaders are known by now
# A node that leaves in peace hands over what it leads, as long as that does not take for ever.
GOODBYE_S: Final = 3.0
FLUSH_MS: Final = 100
# The first founder stands at once and goes on asking while the others start.
STAND_AGAIN_S: Final = (0.02,) * 5 + (0.05,) * 40


def file_budget() -> FileBudget:
    """Raise the limit of this process as far as allowed, and divide it."""
    try:
        return FileBudget.of(raise_file_limit())
    except ValueError as error:
        raise StartFailed(str(error)) from error


class Node:
    def __init__(self, config: NodeConfig, *, limits: Limits | None = None) -> None:
        self.config = config
        self.id = NodeId(config.id)
        self.founders = founders_of(config)
        self.loop: asyncio.AbstractEventLoop
        self.state = ClusterState()
        self.leaders = LeaderTable()
        self.controller = Controller(self)
        self.gate = Gate(self)
        self.catch_up = CatchUp(self)
        self.presence = Presence(self)
        self.hosting = Hosting(self)
        self.steward = Steward(self)
        self.verifier = Verifier(self)
        self.comparer = Comparer(self)
        self.space = Space(self)
        self.operations = Operations(self)
        self.joining = Joining(self)
        self.group_zero = GroupZero(self)
        self.marks = Marks()
        self.network: Network
        self.groups: Groups
        self.executor: Executor
        self.may_lead = True
        self.files = file_budget()
        self._limits = limits or Limits()
        self._rpc: Address  # where others reach this node
        self._kafka: Address  # and clients
        self._kept: Kept  # the cluster's secret, and which cluster that is
        self._lock: IO[bytes] | None = None
        self._known_peers: dict[NodeId, Address] = {}
        self._entered = False  # this node knows who it is, and what it has
        self._led_the_cluster = False
        self._recoveries = 0  # of the cluster that were told of in the log
        self._told = NO_OFFSET  # how far the members of group 0 were told that it is committed

    # --- What others see of it -------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.hosting.get(topic, index)

    def partitions(self) -> Iterator[Partition]:
        return iter(self.hosting)

    def hosted_partition(self, group: GroupId) -> Partition | None:
        return self.hosting.by_group(group)

    def on_leadership(self, listener: Callable[[Partition], None]) -> Callable[[], None]:
        """Call this when a partition here begins or ceases to lead, or is closed."""
        return self.hosting.on_leadership(listener)

    async def know_leaders(self, patience: float) -> None:
        """Return when it is known who leads each partition, or after so many seconds.

        The others say what they lead as soon as they hear of this node.
        """
        end = self.loop.time() + patience
        while self.loop.time() < end and any(
            self.leader_of(topic.name, partition.index)[0] is None
            for topic, partition in self.state.partitions()
        ):
            await asyncio.sleep(LOOK_AGAIN_S)

    def is_alive(self, node_id: int) -> bool:
        return self.presence.is_alive(NodeId(node_id))

    def was_alive(self, node_id: int) -> bool:
        return self.presence.was_alive(NodeId(node_id))

    def leader_of(self, topic: str, index: int) -> tuple[NodeId | None, int]:
        """Who leads a partition, and in which epoch, as far as this node knows."""
        group = self.state.group_of(topic, index)
        found = None if group is None else self.leaders.leadership(group)
        if found is None:
            return None, -1
        hosted = self.hosting.get(topic, index)
        if hosted is not None and hosted.core.term > found.term:
            return None, found.term  # that leader is deposed; the next one will say so itself
        if found.node == self.id and (hosted is None or not hosted.is_leader):
            return None, found.term  # it was this node, which has lost its majority since
        return found.node, found.term

    def peers(self) -> Iterator[NodeId]:
        return iter(tuple(self._known_peers))

    async def operate(self, payload: Payload) -> bytes:
        """Do what an operator asks for; JSON both ways, errors included."""
        return await self.operations.operate(payload)

    # --- Start and stop --------------------------------------------------------------------------

    async def start(self, kafka: Address) -> None:
        """Take part in the cluster; returns when this node is a member that others know.

        `kafka` is where clients will reach this node.
        """
        self.loop = asyncio.get_running_loop()
        try:
            self._take_directory()
            self._learn_secret()
        except StartFailed:
            self._release_directory()
            raise
        OPEN_MARKS.limit(self.files.marks)
        config = self.config
        peers = min(self._limits.inbound_connections, self.files.peers)
        limits = replace(self._limits, inbound_connections=peers)
        secret = self._kept.secret
        self.network = Network(self.id, config.cluster, secret, self, limits=limits)
        self.network.identify(self._kept.cluster_id)
        self.operations.gauges["rpc_stats"] = lambda: dataclasses.asdict(self.network.stats)
        self.operations.gauges["disk"] = self.space.describe
        self.executor = Executor(self.loop)
        beats = Beats(
            self.id,
            BeatOptions(
                interval_ms=config.heartbeat_ms, election_timeout_ms=config.election_timeout_ms
            ),
            random.Random(),
        )
        disk = RealDisk(config.data)
        cache = BatchCache(config.cache_bytes)
        self.groups = Groups(self.loop, self.network, self.executor, beats, disk, cache, self.files)
        self.groups.on_dropped = self.gate.count
        try:
            await self._enter(kafka)
        except BaseException:
            await self._end()
            raise

    async def _enter(self, kafka: Address) -> None:
        config = self.config
        remove_staging(self.groups.disk, "")
        await self.space.start()
        self.joining.remember(knows_of_a_cluster=bool(self._kept.cluster_id))
        self.marks.load(self.groups.disk)
        self._entered = True
        port = await self.network.listen(config.rpc.host, config.rpc.port)
        self._rpc = Address(config.rpc.public_host, config.rpc.public_port(port))
        self._kafka = kafka
        for seed in config.seeds:
            self._set_peer(NodeId(seed.id), Address(seed.host, seed.port))
        self.state.on_change(self._state_changed)
        await self.joining.settle(self.application())
        self._note_cluster()
        await self._open_group_0(self.application())
        self.steward.start()
        await self._join(self.application())
        self.hosting.delete_leftovers()
        self.hosting.start()
        self.presence.start()
        self.verifier.start()
        self.comparer.start()

    def application(self) -> Application:
        """How this node asks to be let in: who and where it is."""
        return self.joining.application(self._rpc, self._kafka, RELEASE)

    async def stop(self) -> None:
        """Hand over what this node leads, flush, and end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._say_goodbye()
        await self._end()

    async def _end(self) -> None:
        self.group_zero.close()
        self.marks.note(self.groups)
        self.steward.close()
        self.verifier.close()
        self.comparer.close()
        self.operations.checks.close()
        self.space.close()
        self.presence.close()
        self.gate.close()
        self.hosting.close()
        self.groups.close_all()
        await self.network.close()
        await asyncio.to_thread(self.executor.close)
        await asyncio.to_thread(self._save_marks)
        self._release_directory()

    def _save_marks(self) -> None:
        if not self._entered:
            return  # what is on the disk was not looked at
        try:
            self.marks.save(self.groups.disk, self.joining.registry)
        except OSError as error:
            log.warning("how far the replicas are could not be noted: %s", error)

    def _release_directory(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_directory(self) -> None:
        """Make sure that this is our directory, and that nobody else uses it."""
        data = self.config.data
        try:
            self._lock = take(data)
        except Taken as error:
            raise StartFailed(f"another node uses {data}: stop {error} first") from error
        except OSError as error:
            raise StartFailed(f"{data} cannot be used for data: {error.strerror}") from error
        identity = load_identity(data)
        if identity is not None and identity.id != self.id:
            raise StartFailed(
                f"{data} holds the data of node {identity.id}, and this is node {self.id}:"
                " use another directory"
            )

    def _learn_secret(self) -> None:
        """Find the secret that this node's connections prove, and members to ask."""
        config = self.config
        try:
            # The file of a token may go once this node has started with it.
            spent = config.token_file is not None and not config.token_file.exists()
            token = None if spent and read_secret(config.data) else config.join_token()
            self._kept = settle_secret(config.data, token, alone=self.founders == (self.id,))
            self.config = config.with_seeds(token.seeds if token else self._kept.seeds)
        except (InvalidToken, SecretTrouble) as error:
            raise StartFailed(str(error)) from error
        self.founders = founders_of(self.config)

    def _note_cluster(self) -> None:
        """This node founded a cluster or was let in: hold every connection to that from now on."""
        cluster_id = self.joining.identity.cluster_id
        if not cluster_id or cluster_id == self._kept.cluster_id:
            return
        self._kept = replace(self._kept, cluster_id=cluster_id)
        self.network.identify(cluster_id)
        data, kept = self.config.data, self._kept
        self.executor.submit("open", lambda: keep_secret(data, kept), _complain_of_secret)

    # --- Group 0 ---------------------------------------------------------------------------------

    async def _open_group_0(self, application: Application) -> None:
        """Open the replica of group 0; one that is lost gets a successor first."""
        registry = self.joining.registry
        while True:
            revision = self.joining.identity.revision
            assert revision is not None
            known = registry.hosts(CONTROLLER_GROUP, revision)
            why = registry.why_lost(CONTROLLER_GROUP, revision)
            if why is None:
                try:
                    hosted = self.load_group_0(revision, known=known)
                    break
                except DamagedLog as error:
                    why = str(error)
            log.error("the controller replica of this node is lost and will be rebuilt: %s", why)
            lost = replace(application, revision=revision, lost=True)
            admission = await self.joining.apply(lost, None)
            assert admission is not None
            self.joining.become(admission)
        if not known:
            registry.add([(CONTROLLER_GROUP, revision)])
        self.admit_group_0(hosted)
        if self.founders[0] == self.id and revision == 0:
            self.groups.stand(hosted, STAND_AGAIN_S)

    def admit_group_0(self, hosted: Hosted) -> None:
        vnode = hosted.replica.core.vnode
        hosted.replica.on_stopped = _complain_of_release
        self.groups.admit(hosted)
        hosted.on_touched = lambda: self._group_0_touched(hosted)
        hosted.replica.core.voter.electable = self.may_lead
        self.space.admit(hosted)
        hosted.replica.on_failed = lambda why: self.hosting.healing.add(
            CONTROLLER_GROUP, vnode, why, hosted
        )
        hosted.replica.on_lost = lambda why: self.group_zero.lose(hosted, why)

    @property
    def stuck(self) -> str | None:
        """Why this node cannot follow what becomes of the cluster; None while it can."""
        hosted = self.groups.get(CONTROLLER_GROUP)
        return None if hosted is None else hosted.replica.stopped

    def check_follows(self) -> None:
        """Raise `StartFailed` if this node will never know what the cluster is like by now."""
        if self.stuck is not None:
            raise StartFailed(self.stuck)

    def leads_the_cluster_no_more(self) -> None:
        self._led_the_cluster = False
        self.presence.lead_no_more(CONTROLLER_GROUP)

    def is_reluctant(self, group: GroupId) -> bool:
        """Whether a replica here lets all others try to lead first."""
        return self.hosting.healing.is_reluctant(group) or self.space.is_reluctant(group)

    def settle_reluctance(self, group: GroupId) -> None:
        hosted = self.groups.get(group)
        if hosted is not None:
            hosted.replica.core.voter.reluctant = self.is_reluctant(group)

    def load_group_0(
        self,
        revision: int,
        *,
        known: bool,
        state: ClusterState | None = None,
        legacy: Legacy | None = None,
    ) -> Hosted:
        births = self.joining.identity.births
        voters = tuple(Vnode(node, 0) for node in self.founders if str(node) in births)
        founds = revision == 0 and len(voters) == len(births)
        return self.groups.load(
            CONTROLLER_GROUP,
            controller_directory(revision),
            vnode=Vnode(self.id, revision),
            initial=Configuration(voters) if founds else None,
            options=Options(),
            log_config=LogConfig(),
            flush_ms=FLUSH_MS,
            machines=lambda: [self.state if state is None else state],
            known=known,
            legacy=legacy or self.marks.get(CONTROLLER_GROUP, revision),
        )

    def _group_0_touched(self, hosted: Hosted) -> None:
        self.group_zero.catch_up(hosted)
        core = hosted.replica.core
        if core.leading is not None and core.committed > self._told:
            # Whoever changes the cluster on one node wants to see that on the next one, so the
            # others hear of a commit at once and not with the next heartbeat.
            self._told = core.committed
            for peer in tuple(core.progress):
                hosted.step(ev.BeatDue(peer))
        if core.ready == self._led_the_cluster:
            return
        self._led_the_cluster = core.ready
        if core.ready:
            log.info("node %d leads the cluster, in term %d", self.id, core.term)
            self.presence.lead(Claim(CONTROLLER_GROUP, core.term, (self.id,)))
        else:
            self.presence.lead_no_more(CONTROLLER_GROUP)

    async def _join(self, application: Application) -> None:
        """Tell the cluster where this node is, and wait until its own state is as new as that.

        A node that was away must not tell clients what it knew before it went.
        """
        admission = await self.joining.apply(application, None)
        assert admission is not None
        # It may have been granted another meanwhile, for a replica that was found damaged.
        if admission.revision not in (application.revision, self.joining.identity.revision):
            raise StartFailed(
                f"{self.config.data} belongs to a former self of node {self.id}, which was replaced"
                " since: empty it, and the node joins as a new one"
            )
        while True:
            try:
                await wait_for(
                    self.state.on_change,
                    lambda: self.state.version >= admission.version,
                    JOIN_ATTEMPT_S,
                )
                return
            except ClusterError:
                self.check_follows()
                log.info(
                    "catching up with the cluster: at version %d of %d",
                    self.state.version,
                    admission.version,
                )

    def controller_id(self) -> NodeId | None:
        """Who leads group 0: by word of its leader, or as this node's own replica knows."""
        hosted = self.groups.get(CONTROLLER_GROUP)
        if hosted is not None:
            core = hosted.replica.core
            if core.leading is not None:
                return self.id if core.ready else None
            if core.leader is not None:
                return core.leader.id
        told = self.leaders.get(CONTROLLER_GROUP)
        return None if told == self.id else told  # this node knows that it is not

    # --- The cluster changes ---------------------------------------------------------------------

    def _state_changed(self) -> None:
        if len(self.state.recoveries) > self._recoveries:
            log.warning("%s", self.state.recoveries[-1])
        self._recoveries = len(self.state.recoveries)
        for member in self.state.members.values():
            if member.id != self.id:
                self._set_peer(member.id, member.rpc)
        expected = self.state.members.keys() | self.state.seeds.keys() | self.gate.met
        for node in self._known_peers.keys() - expected:
            if self.state.cluster_id:
                del self._known_peers[node]
                self.network.remove_peer(node)
        me = self.state.members.get(self.id)
        may_lead = me is None or me.status is MemberStatus.ACTIVE
        if may_lead != self.may_lead:
            self.may_lead = may_lead
            for hosted in self.groups:
                hosted.replica.core.voter.electable = may_lead
        self.presence.look_at_early_claims()

    def meet(self, version: int, peers: Iterable[Peer]) -> None:
        """Learn from a member, whose state has this version, who the others are and where."""
        if version < self.state.version:
            return
        self.gate.meet(version, peers)
        for peer in peers:
            self._set_peer(peer.id, peer.rpc)

    def _set_peer(self, node: NodeId, address: Address) -> None:
        if node != self.id and self._known_peers.get(node) != address:
            self._known_peers[node] = address
            self.network.set_peer(node, address.host, address.port)

    # --- Leaving ---------------------------------------------------------------------------------

    async def _say_goodbye(self) -> None:
        """Hand over everything that this node leads to somebody who is up to date."""
        heirs = (
            (hosted, hosted.heir(self.space.is_fit) or hosted.heir(self.presence.is_alive))
            for hosted in self.groups
        )
        await asyncio.gather(
            *(
                self.groups.transfer(hosted, heir, GOODBYE_S)
                for hosted, heir in heirs
                if heir is not None
            )
        )

    # --- rpc.Handler -----------------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: Message) -> None:
        if self.gate.admits_message(sender, message):
            self.presence.heard(sender)
            self.groups.receive(message)

    def on_beat(self, sender: NodeId, body: bytes) -> bytes | None:
        if not self.gate.admits_beat(sender):
            return None
        self.presence.heard(sender)
        return self.groups.receive_beat(sender, body)

    def on_beat_reply(self, sender: NodeId, body: bytes) -> None:
        if self.gate.admits_beat_reply(sender):
            self.presence.heard(sender)
            self.groups.receive_beat_reply(sender, body)

    def on_peer_connected(self, node_id: NodeId) -> None:
        self.presence.connected(node_id)

    def on_peer_lost(self, node_id: NodeId) -> None:
        self.presence.connection_lost(node_id)

    async def on_call(self, sender: NodeId, lane: Lane, method: int, payload: bytes) -> bytes:
        if method not in MAY_CALL[lane]:
            self.network.stats.refused_calls += 1
            raise RpcError(refusal_text(forbidden(lane, method)))
        try:
            match method:
                case Call.PING:
                    return b""
                case Call.WHO:
                    return self.joining.on_who(payload)
                case Call.JOIN:
                    return await self.on_join(payload)
                case Call.PROPOSE:
                    self._check_membership(sender)
                    command = decode_command(payload)
                    return encode_result(await self.controller.carry_out(command, JOIN_ATTEMPT_S))
                case Call.CLAIMS:
                    self.gate.check_call(sender)
                    self.presence.take_claims(sender, payload)
                    return b""
                case Call.ROOM:
                    self.gate.check_call(sender)
                    self.space.take(sender, payload)
                    return b""
                case Call.TRANSFER:
                    self.gate.check_call(sender)
                    return await self._on_transfer(payload)
                case Call.OPERATE:
                    self.gate.check_call(sender)
                    return await self.operations.answer(payload)
                case Call.MEMBERS:
                    self.gate.check_call(sender)
                    return strictjson.write(Members(self.state.version, peers_of(self.state)))
        except ClusterError as error:
            raise RpcError(refusal_text(error)) from error
        except (CorruptCommand, CorruptClaims, strictjson.NotThis) as error:
            raise RpcError(str(error)) from error
        raise RpcError(f"there is no call {method} in this release: upgrade this node")

    def _check_membership(self, sender: NodeId) -> None:
        """Refuse a node that knows the secret and was removed, or has not joined yet."""
        if sender not in self.state.members and self.controller_id() == self.id:
            self.network.stats.refused_calls += 1
            raise stranger(sender)

    async def ask(self, node: NodeId, call: Call, payload: bytes, timeout: float) -> bytes:
        """Call a node, which may be this one; raises `ClusterError`."""
        try:
            if node == self.id:
                return await self.on_call(self.id, Lane.CONTROL, call, payload)
            return await self.network.call(node, call, payload, timeout)
        except RpcError as error:
            raise refusal_of(str(error)) from error
        except OSError as error:
            raise ClusterError(Problem.UNAVAILABLE, str(error)) from error

    async def on_join(self, payload: bytes) -> bytes:
        """Let a node in, or ask the leader of group 0 to."""
        application = strictjson.read(Application, payload)
        leader = self.controller_id()
        if leader == self.id:
            return strictjson.write(await self.steward.admit(application))
        if leader is None or leader == application.id:
            raise ClusterError(Problem.NOT_CONTROLLER, "nobody leads the cluster yet")
        try:
            return await self.network.call(leader, Call.JOIN, payload, JOIN_ATTEMPT_S)
        except Unreachable as error:
            raise ClusterError(Problem.UNAVAILABLE, str(error)) from error

    async def _on_transfer(self, payload: bytes) -> bytes:
        handover = strictjson.read(Handover, payload)
        hosted = self.groups.get(GroupId(handover.group))
        if hosted is None or hosted.replica.core.leading is None:
            raise ClusterError(Problem.NOT_CONTROLLER, "this node does not lead that group")
        outcome = await self.groups.transfer(hosted, handover.target, GOODBYE_S)
        if isinstance(outcome, ev.Refused):
            raise ClusterError(Problem.UNAVAILABLE, f"not handed over: {outcome.why.value}")
        return b""


def founders_of(config: NodeConfig) -> tuple[NodeId, ...]:
    return tuple(NodeId(seed.id) for seed in config.seeds) or (NodeId(config.id),)


def _complain_of_release(why: str) -> None:
    log.error("this node does not follow the cluster's changes from now on: %s", why)


def _complain_of_secret(error: OSError | None) -> None:
    if error is not None:
        log.warning("the id of the cluster could not be kept beside its secret: %s", error)
