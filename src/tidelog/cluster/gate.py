"""Who is heard: what other nodes say is dropped and counted, unless they have a part in this.

Every connection of a member has proven the cluster's secret. A node that was removed knows it too,
and so does one that never joined, so each message, heartbeat, claim and request is judged by who
sends it. A node is heard here if

    1. this node takes part in nothing yet: its state is empty, and its replica of group 0 is not
       open or knows no members;
    2. the state names the node: a member, or a founder that is still to come. After a start, the
       state is empty until group 0 has a leader; until then the seeds of this node are heard;
    3. a member whose state is newer than ours named it (`meet`): the leader that let this node in,
       or one that this node asked because it did not know a sender (`_ask`);
    4. this node's replica of group 0 has it in its configuration, as a voter or a learner; or
    5. for a message: the replica it is meant for has it in its configuration, or follows it. For a
       heartbeat or the answer to one: a replica here follows it, or a heartbeat to it is under way.

Why this keeps out no node that the cluster needs. A node that was away, or cut off, while members
were added knows none of them. The first message of one is dropped, but it makes this node ask those
it does know, and the next one is heard (3); after a start, it asks to be let in as well, and the
answer names all members. So it can catch up with group 0 from any of them, and then it knows them
itself (2). Nothing is lost by that first drop: Raft repeats what matters, and an answer could not
have been sent anyway, since this node did not know where to. The other way round, a newcomer's
messages may reach a node that has not heard of its admission yet; those who let it in have, and the
rest ask as well. Rules 4 and 5 are for a node whose state is empty, or stands still because its
replica of group 0 is lost: the other groups go on, and name their members themselves.

What a heard node says is still judged by Raft (`raft.admission`), and what it claims to lead, here.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidelog.cluster import strictjson
from tidelog.cluster.calls import Call, Members, Peer, stranger
from tidelog.cluster.leaders import Claim
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.raft.admission import Objection, is_absurd
from tidelog.raft.messages import Message
from tidelog.raft.types import GroupId, NodeId
from tidelog.rpc import Complaints

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

# How many others a stranger makes this node ask who the members are, and how often at most.
ASKED: Final = 3
ASK_AGAIN_S: Final = 1.0
ASK_TIMEOUT_S: Final = 1.0


class Gate:
    def __init__(self, node: "Node") -> None:
        self._node = node
        # Nodes that a member named, and its state then. Empty once the state here is as new.
        self._met: frozenset[NodeId] = frozenset()
        self._met_at = 0
        self._asking: asyncio.Task[None] | None = None
        self._may_ask_at = 0.0
        self._complaints = Complaints(log)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    # --- Who takes part -------------------------------------------------------------------------

    @property
    def met(self) -> frozenset[NodeId]:
        """Nodes that count as members though the state here does not name them yet."""
        if self._met and self._node.state.version >= self._met_at:
            self._met = frozenset()
        return self._met

    def meet(self, version: int, peers: Iterable[Peer]) -> None:
        """A member whose state has this version says who the members are."""
        if version > max(self._met_at, self._node.state.version):
            self._met = frozenset(peer.id for peer in peers)
            self._met_at = version

    def hears(self, sender: NodeId) -> bool:
        """Whether a node takes part in this cluster, as far as can be known here."""
        node, state = self._node, self._node.state
        return (
            sender in state.members
            or sender == node.id
            or sender in state.seeds
            or sender in self.met
            or self._is_in(sender, CONTROLLER_GROUP)
            or (not state.cluster_id and any(seed.id == sender for seed in node.config.seeds))
            or self.is_newcomer()
        )

    def is_newcomer(self) -> bool:
        """Whether this node takes part in nothing yet."""
        if self._node.state.cluster_id:
            return False
        hosted = self._node.groups.get(CONTROLLER_GROUP)
        return hosted is None or not hosted.replica.core.configuration.members

    def _is_in(self, sender: NodeId, group: GroupId) -> bool:
        """Whether this node's replica of a group has that node in its configuration."""
        hosted = self._node.groups.get(group)
        return hosted is not None and any(
            member.id == sender for member in hosted.replica.core.configuration.members
        )

    def _follows(self, sender: NodeId, group: GroupId) -> bool:
        hosted = self._node.groups.get(group)
        leader = None if hosted is None else hosted.replica.core.leader
        return leader is not None and leader.id == sender

    # --- What comes -----------------------------------------------------------------------------

    def admits_message(self, sender: NodeId, message: Message) -> bool:
        group = message.group
        if self.hears(sender) or self._is_in(sender, group) or self._follows(sender, group):
            return True
        self.count(Objection.SOURCE)
        self._turn_away(sender)
        return False

    def admits_beat(self, sender: NodeId) -> bool:
        if self.hears(sender) or self._node.groups.beats.follows(sender):
            return True
        self._node.network.stats.refused_beats += 1
        self._turn_away(sender)
        return False

    def admits_beat_reply(self, sender: NodeId) -> bool:
        if self.hears(sender) or self._node.groups.beats.awaits(sender):
            return True
        self._node.network.stats.refused_beats += 1
        return False

    def check_call(self, sender: NodeId) -> None:
        """Raise `ClusterError` unless the sender may ask what members ask each other."""
        if not self.hears(sender):
            self._node.network.stats.refused_calls += 1
            self._turn_away(sender)
            raise stranger(sender)

    def believes(self, sender: NodeId, claim: Claim) -> bool:
        """Whether a node can lead what it says it leads."""
        hosts = self.hears(sender) and self._hosts(sender, claim.group)
        if hosts and not self._is_absurd(claim):
            return True
        self._node.network.stats.refused_claims += 1
        return False

    def _hosts(self, sender: NodeId, group: GroupId) -> bool:
        """Whether a node that is heard has a replica of this group."""
        if group == CONTROLLER_GROUP:
            return True  # every member has one
        partition = self._node.state.partition(group)
        known = () if partition is None else partition.known
        return any(replica.id == sender for replica in known) or self._is_in(sender, group)

    def _is_absurd(self, claim: Claim) -> bool:
        """Whether the term is beyond what the last leader's, or our own replica's, can have become.

        A node that knows neither believes any term that there is.
        """
        hosted = self._node.groups.get(claim.group)
        told = self._node.leaders.leadership(claim.group)
        ours = 0 if hosted is None else hosted.replica.core.term
        theirs = 0 if told is None else told.term
        return is_absurd(claim.term, max(ours, theirs) or claim.term)

    def count(self, why: Objection) -> None:
        """A Raft message was dropped."""
        stats = self._node.network.stats
        match why:
            case Objection.SOURCE:
                stats.refused_sources += 1
            case Objection.TERM:
                stats.refused_terms += 1
            case Objection.CONTRADICTION:
                stats.refused_contradictions += 1

    # --- Strangers ------------------------------------------------------------------------------

    def _turn_away(self, sender: NodeId) -> None:
        """A stranger was not heard: see whether it became a member without this node knowing."""
        now = self._node.loop.time()
        if now >= self._may_ask_at and (self._asking is None or self._asking.done()):
            self._may_ask_at = now + ASK_AGAIN_S
            self._asking = self._node.loop.create_task(self._ask_about(sender))

    async def _ask_about(self, sender: NodeId) -> None:
        known = [peer for peer in self._node.peers() if self.hears(peer)]
        chosen = random.sample(known, min(ASKED, len(known)))
        await asyncio.gather(*map(self._ask, chosen))
        if not self.hears(sender):
            self._complaints.warn(
                sender,
                self._node.loop.time(),
                f"node {sender} is not a member of this cluster, so what it says is dropped: stop"
                " it, or empty its data directory to let it join as a new node",
            )

    async def _ask(self, peer: NodeId) -> None:
        """Ask a member who the members are."""
        try:
            answer = await self._node.network.call(peer, Call.MEMBERS, b"", ASK_TIMEOUT_S)
            told = strictjson.read(Members, answer)
        except (OSError, strictjson.NotThis) as error:
            log.debug("node %d did not say who the members are: %s", peer, error)
            return
        self._node.meet(told.version, told.peers)
