"""What a node does about the room on its disk, and on those of its peers: see `room.py`.

It asks the file system every half second, more often while the disk fills up, and at once when it
took nothing of an append; off the event loop. Nodes tell each other at which level they are,
because a follower with little room looks like any other to a leader. From both each replica here is
told what to do:

- A leader whose disk is low, or took nothing of an append, hands over to a voter with room, and is
  reluctant to lead again while there is one.
- It refuses clients' writes if it has no room itself, or if so many voters have none that no
  majority would take a write. Readers are served as before.
- A follower whose disk is full refuses clients' writes.

Nothing of this is remembered: when there is room again, all of it ends with the next look.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.cluster import strictjson
from tidelog.cluster.calls import Call, RoomLeft
from tidelog.cluster.groups import Hosted
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.cluster.reserve import Reserve
from tidelog.cluster.room import Level, Room, Sample
from tidelog.raft import events as ev
from tidelog.raft import quorum
from tidelog.raft.types import GroupId, NodeId, Vnode

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
FILLING_S: Final = 0.05  # while the disk fills up, and between two looks in any case
# What a node was told holds for so long; a node that is not roomy says so every second.
TELL_S: Final = 1.0
BELIEVE_S: Final = 5.0
CALL_TIMEOUT_S: Final = 1.0
# A disk that took nothing of an append may do so again, although the file system says that there
# is room: a quota, say. Leaders that were refused stay away for so long.
REFUSED_S: Final = 10.0
HANDOVER_S: Final = 2.0
# After an attempt to hand over, however it ended, so that a group never changes leaders in a loop.
AGAIN_S: Final = 5.0
MOVES_AT_ONCE: Final = 32
MAX_LISTED: Final = 1000  # partitions in a status
BATCH: Final = 500  # replicas that are looked at before others get the loop


class Space:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._room = Room(node.config.disk_low_bytes, node.config.disk_full_bytes)
        self._reserve = Reserve(node.config.data)
        self._held = 0
        self._told: dict[NodeId, tuple[Level, float]] = {}  # until when it holds
        self._refused: dict[GroupId, float] = {}  # until when
        self._tried: dict[GroupId, float] = {}  # when handing over may be tried again
        self._closed = False  # some replica here was told to refuse or to be reluctant
        self._again = asyncio.Event()  # a disk refused: look now
        self._last_told = 0.0
        self._complaint = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving: set[GroupId] = set()  # that are being handed over
        self.refused_writes = 0  # of clients, because there is no room
        self.refused_appends = 0  # of which the disk took nothing
        self.handovers = 0

    async def start(self) -> None:
        """Look once, so that replicas are opened with what room there is, and then go on."""
        await self._look()
        self._spawn(self._run())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # --- What others see ------------------------------------------------------------------------

    @property
    def level(self) -> Level:
        return self._room.level

    def has_room(self, node: NodeId) -> bool:
        return self._level_of(node) is Level.ROOMY

    def is_fit(self, node: NodeId) -> bool:
        """Whether a node should lead what it can: it is there, and has room."""
        return self._node.presence.is_alive(node) and self.has_room(node)

    def is_reluctant(self, group: GroupId) -> bool:
        """Whether a replica here had better not lead, and another one could."""
        hosted = self._node.groups.get(group)
        return hosted is not None and self._should_not_lead(hosted) and self._has_heir(hosted)

    def describe(self) -> dict[str, object]:
        limits = self._room.thresholds
        hosted = tuple(self._node.groups)
        return {
            "level": self.level.name.lower(),
            "room_bytes": self._room.room,
            "low_bytes": limits.low,
            "full_bytes": limits.full,
            "reserve_bytes": self._held,
            "refusing": self._refusing()[:MAX_LISTED],
            "refused_writes": self.refused_writes,
            "refused_appends": self.refused_appends,
            "spared_appends": sum(each.replica.core.receiver.spared for each in hosted),
            "handovers": self.handovers,
        }

    def _refusing(self) -> list[str]:
        """Return the partitions that are led here and take no writes of clients."""
        return [
            f"{each.topic}/{each.index}"
            for each in self._node.partitions()
            if each.is_leader and not each.replica.takes_writes
        ]

    def take(self, sender: NodeId, payload: bytes) -> None:
        """Another node says how much room it has; raises `strictjson.NotThis`."""
        before = self._level_of(sender)
        told = strictjson.read(RoomLeft, payload).level
        self._told[sender] = (told, self._node.loop.time() + BELIEVE_S)
        if told is not before:
            self._again.set()

    def admit(self, hosted: Hosted) -> None:
        """A replica was opened: watch it, and tell it what to do."""
        hosted.replica.on_refused = lambda error: self._on_refused(hosted, error)
        hosted.replica.on_no_room = self._count_refused
        self._settle(hosted)

    # --- The disk -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(FILLING_S if self._room.is_filling else LOOK_S):
                    await self._again.wait()
            except TimeoutError:
                pass
            self._again.clear()
            before = self.level
            try:
                await self._look()
            except Exception:
                log.exception("looking after the room on the disk failed")
            if self.level is not before:
                self._report()
            self._tell(changed=self.level is not before)
            await self._settle_all()
            await asyncio.sleep(FILLING_S)

    async def _look(self) -> None:
        """Ask the file system, and take the reserve or let go of it."""
        complaint = ""
        try:
            wanted = await self._measure()
            if bool(wanted) != bool(self._held):
                await self._elsewhere(lambda: self._reserve.settle(wanted))
                await self._measure()
        except OSError as error:
            complaint = str(error)
            if complaint != self._complaint:
                log.warning("the room on the disk cannot be told: %s", complaint)
        self._complaint = complaint

    async def _measure(self) -> int:
        """Take in what the file system says; return how large the reserve should be."""
        found: list[tuple[Sample, int]] = []
        data, reserve = self._node.config.data, self._reserve
        await self._elsewhere(lambda: found.append((Sample.of(data), reserve.held())))
        sample, self._held = found[0]
        return self._room.look(sample, self._held)

    async def _elsewhere(self, job: Callable[[], None]) -> None:
        """Do what may block, in a thread; raises what it raised."""
        done: asyncio.Future[OSError | None] = self._node.loop.create_future()
        self._node.executor.submit(
            "room", job, lambda error: None if done.done() else done.set_result(error)
        )
        error = await done
        if error is not None:
            raise error

    def _report(self) -> None:
        left = f"{self._room.room >> 10} KiB of room left"
        data = self._node.config.data
        match self.level:
            case Level.ROOMY:
                log.warning("the disk of %s has room again: it takes part as before", data)
            case Level.LOW:
                log.warning(
                    "the disk of %s is low, with %s: other nodes lead, and what must be led here"
                    " takes no writes. Delete topics or records, shorten retention, or add space",
                    *(data, left),
                )
            case Level.FULL:
                log.warning(
                    "the disk of %s is full, with %s: replicas here take no writes of clients and"
                    " fall behind. Delete topics or records, shorten retention, or add space",
                    *(data, left),
                )

    def _on_refused(self, hosted: Hosted, error: OSError) -> None:
        self.refused_appends += 1
        now = self._node.loop.time()
        if self._refused.get(hosted.group, 0.0) < now:
            log.warning("the disk refused to take a write: %s", error)
        self._refused[hosted.group] = now + REFUSED_S
        self._again.set()

    def _count_refused(self) -> None:
        self.refused_writes += 1

    # --- Peers ----------------------------------------------------------------------------------

    def _level_of(self, node: NodeId) -> Level:
        if node == self._node.id:
            return self.level
        told = self._told.get(node)
        return told[0] if told is not None and told[1] > self._node.loop.time() else Level.ROOMY

    def _tell(self, *, changed: bool) -> None:
        now = self._node.loop.time()
        if changed or (self.level is not Level.ROOMY and now - self._last_told >= TELL_S):
            self._last_told = now
            payload = strictjson.write(RoomLeft(self.level))
            for peer in self._node.peers():
                self._spawn(self._tell_one(peer, payload))

    async def _tell_one(self, peer: NodeId, payload: bytes) -> None:
        try:
            await self._node.network.call(peer, Call.ROOM, payload, CALL_TIMEOUT_S)
        except OSError as error:  # it hears it again, or comes to believe that there is room
            log.debug("node %s was not told how much room is left here: %s", peer, error)

    # --- Replicas -------------------------------------------------------------------------------

    async def _settle_all(self) -> None:
        now = self._node.loop.time()
        self._told = {node: each for node, each in self._told.items() if each[1] > now}
        self._refused = {group: until for group, until in self._refused.items() if until > now}
        self._tried = {group: until for group, until in self._tried.items() if until > now}
        short = self.level is not Level.ROOMY or bool(self._refused)
        short = short or any(level is not Level.ROOMY for level, _ in self._told.values())
        if not short and not self._closed:
            return
        for number, hosted in enumerate(tuple(self._node.groups)):
            self._settle(hosted)
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
        self._closed = short

    def _settle(self, hosted: Hosted) -> None:
        """Tell a replica what to do with the room that is left."""
        node, replica = self._node, hosted.replica
        if node.groups.get(hosted.group) is not hosted:
            return  # it was closed meanwhile
        ours = self._is_ours(hosted.group)
        replica.core.receiver.sparing = not ours and self.level is Level.FULL
        replica.takes_writes = ours or self._can_write(hosted)
        node.settle_reluctance(hosted.group)
        if replica.core.leading is not None and self._should_not_lead(hosted):
            self._hand_over(hosted)

    def _is_ours(self, group: GroupId) -> bool:
        """Whether a group holds what the cluster writes itself, and has the reserve for."""
        if group == CONTROLLER_GROUP:
            return True
        place = self._node.state.partition_of(group)
        topic = None if place is None else self._node.state.topics.get(place[0])
        return topic is not None and topic.internal

    def _can_write(self, hosted: Hosted) -> bool:
        """Whether this node, and a majority of the voters, have room for clients' writes."""
        if self.level is not Level.ROOMY:
            return False
        configuration = hosted.replica.core.configuration
        if all(self.has_room(voter.id) for voter in configuration.voters):
            return True  # whether a majority is there is for Raft to say
        return quorum.agreed(configuration.halves, lambda voter: self.is_fit(voter.id))

    def _should_not_lead(self, hosted: Hosted) -> bool:
        return self.level is not Level.ROOMY or hosted.group in self._refused

    def _has_heir(self, hosted: Hosted) -> bool:
        core = hosted.replica.core
        return any(
            voter != core.vnode and self.is_fit(voter.id) for voter in core.configuration.voters
        )

    def _hand_over(self, hosted: Hosted) -> None:
        heir = hosted.heir(self.is_fit)
        group = hosted.group
        if heir is None or group in self._tried or len(self._moving) >= MOVES_AT_ONCE:
            return
        self._tried[group] = self._node.loop.time() + AGAIN_S
        self._moving.add(group)
        self._spawn(self._transfer(hosted, heir))

    async def _transfer(self, hosted: Hosted, heir: Vnode) -> None:
        try:
            outcome = await self._node.groups.transfer(hosted, heir, HANDOVER_S)
        finally:
            self._moving.discard(hosted.group)
        self.handovers += isinstance(outcome, ev.Done)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._node.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
