"""Who is there, and who leads what: what nodes tell each other all the time.

Every node tells every other what it leads: at once when that changes, and all of it every few
seconds for those who missed something. In between it just says that it is there. A node that was
not heard for `SILENCE_S`, or whose connection broke and cannot be had again, counts as gone; that
directs clients and placement, and lets groups that it led elect somebody else sooner. It decides
nothing: Raft does.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from tidelog.cluster.calls import Call
from tidelog.cluster.leaders import Claim, decode_claims, encode_claims
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.raft.types import GroupId, NodeId

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

HELLO_S: Final = 0.5  # how often a node says that it is there
EVERYTHING_S: Final = 5.0  # how often it says all that it leads
SILENCE_S: Final = 2.5  # five times that it did not say so
RECENT_S: Final = 15.0  # after which nobody asks for a node any more that is gone
CALL_TIMEOUT_S: Final = 1.0
MAX_EARLY: Final = 1 << 14  # claims that wait for the state: more than a topic has partitions
# A connection broke: how long the node may take to answer on a new one.
SECOND_CHANCE_S: Final = 0.25


class Presence:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._heard: dict[NodeId, float] = {}  # of those that are not known to be gone
        self._last_heard: dict[NodeId, float] = {}
        self._claims: dict[GroupId, Claim] = {}  # what this node leads, as it was last told
        # Those of them that not all were in sync with when that was last looked at.
        self._behind: set[GroupId] = set()
        self._news: dict[GroupId, Claim] = {}
        self._telling: set[asyncio.Task[None]] = set()
        # Claims that this node's state is too old to judge, by group and sender: a leader may be
        # quicker to tell than group 0 is.
        self._early: dict[tuple[GroupId, NodeId], Claim] = {}
        self._scheduled = False
        self._last_everything = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        self._tick()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._telling:
            task.cancel()

    # --- Who is there ---------------------------------------------------------------------------

    def is_alive(self, node: NodeId) -> bool:
        if node == self._node.id:
            return True
        heard = self._heard.get(node)
        return heard is not None and self._node.loop.time() - heard < SILENCE_S

    def was_alive(self, node: NodeId) -> bool:
        """Whether a node is there, or was a moment ago."""
        heard = self._last_heard.get(node)
        return node == self._node.id or (
            heard is not None and self._node.loop.time() - heard < RECENT_S
        )

    def heard(self, node: NodeId) -> None:
        self._heard[node] = self._last_heard[node] = self._node.loop.time()

    def connected(self, node: NodeId) -> None:
        """A node can be reached: it may just have started, and know of no leader yet."""
        self.heard(node)
        everything = self._everything()
        if not self._closed and (everything or self._timer is not None):  # else no member yet
            self._spawn(self._tell_one(node, encode_claims(everything)))

    def connection_lost(self, node: NodeId) -> None:
        """The connection to a node broke: find out whether the node is gone with it."""
        if not self._closed:
            self._spawn(self._check(node))

    async def _check(self, node: NodeId) -> None:
        try:
            await self._node.network.call(node, Call.PING, b"", SECOND_CHANCE_S)
        except OSError as error:
            if self._closed:
                return
            log.warning("node %s is gone: %s", node, error)
            self._heard.pop(node, None)
            self._node.groups.suspect(node)
        else:
            self.heard(node)

    # --- Who leads what -------------------------------------------------------------------------

    def lead(self, claim: Claim) -> None:
        """This node leads a group, with these replicas in sync; told at the end of this turn."""
        if self._claims.get(claim.group) == claim:
            return
        self._claims[claim.group] = claim
        self._behind.add(claim.group)
        self._news[claim.group] = claim
        self._node.leaders.claim(self._node.id, claim)
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._node.loop.call_soon(self._tell_news)

    def lead_no_more(self, group: GroupId) -> None:
        self._claims.pop(group, None)
        self._behind.discard(group)
        self._news.pop(group, None)

    def look_again(self, group: GroupId) -> None:
        """A group has other replicas than before: see soon who of them is in sync."""
        if group in self._claims:
            self._behind.add(group)

    def take_claims(self, sender: NodeId, payload: bytes) -> None:
        """Another node says what it leads; raises `CorruptClaims`."""
        self.heard(sender)
        for claim in decode_claims(payload):
            if self._is_early(claim.group) and len(self._early) < MAX_EARLY:
                self._early[claim.group, sender] = claim
            elif self._node.gate.believes(sender, claim):
                self._node.leaders.claim(sender, claim)

    def look_at_early_claims(self) -> None:
        """The state is newer: it may know the groups of claims that came before it did."""
        for place in [place for place in self._early if not self._is_early(place[0])]:
            claim = self._early.pop(place)
            if self._node.gate.believes(place[1], claim):
                self._node.leaders.claim(place[1], claim)

    def _is_early(self, group: GroupId) -> bool:
        state = self._node.state
        if group == CONTROLLER_GROUP:
            return self._node.gate.is_newcomer()
        return not state.cluster_id or group >= state.next_group

    def _tell_news(self) -> None:
        self._scheduled = False
        news, self._news = self._news, {}
        if news:
            self._tell(encode_claims(news.values()))

    def _tick(self) -> None:
        loop = self._node.loop
        self._timer = loop.call_later(HELLO_S, self._tick)
        now = loop.time()
        if now - self._last_everything >= EVERYTHING_S:
            self._last_everything = now
            self._tell(encode_claims(self._everything()))
        else:
            self._tell(encode_claims(self._catching_up()))

    def _catching_up(self) -> list[Claim]:
        """What this node leads and not everybody was in sync with, where that has changed."""
        changed = []
        for group in tuple(self._behind):
            claim = self._claims[group]
            now = self._renew(claim)
            if now != claim:
                changed.append(now)
        return changed

    def _everything(self) -> list[Claim]:
        """All that this node leads, with who is in sync now."""
        return [self._renew(claim) for claim in tuple(self._claims.values())]

    def _renew(self, claim: Claim) -> Claim:
        """See who is in sync with a group now."""
        partition = self._node.hosted_partition(claim.group)
        if partition is None:
            return claim
        now = claim._replace(in_sync=partition.in_sync())
        if len(now.in_sync) == len(partition.core.configuration.voters):
            self._behind.discard(claim.group)
        else:
            self._behind.add(claim.group)
        self._claims[claim.group] = now
        self._node.leaders.claim(self._node.id, now)
        return now

    def _tell(self, payload: bytes) -> None:
        for peer in self._node.peers():
            self._spawn(self._tell_one(peer, payload))

    async def _tell_one(self, peer: NodeId, payload: bytes) -> None:
        try:
            await self._node.network.call(peer, Call.CLAIMS, payload, CALL_TIMEOUT_S)
        except OSError:
            return  # it hears everything again soon, if it is there
        self.heard(peer)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._node.loop.create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
