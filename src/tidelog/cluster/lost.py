"""Replicas of this node that were lost: what they promised or held cannot be trusted any more.

A lost replica takes no further part. The node asks the controller for a successor: the same place
in the partition under a new revision, which begins empty, learns from the others and then takes the
old one's seat through an ordinary reassignment. Until that is over the old files stay where they
are. Nothing is lost if this node dies on the way: what is missing is found missing at the next
start, and the state tells which successors exist already.

Where the rest of a partition is no majority, its successor waits: the partition stays unavailable,
and `tidelog node recover` is the way on.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster import commands as cmd
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import PartitionState
from tidelog.raft.types import GroupId, Vnode

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

# Replicas of one node that are rebuilt at a time. Each is a change of configuration and a copy of a
# log, and the rest of the cluster has its work to do as well.
AT_ONCE: Final = 64
LOOK_S: Final = 0.25  # how soon room is looked for again
ASK_S: Final = 5.0
# Pauses between attempts while the controller cannot be had.
PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Lost:
    vnode: Vnode
    why: str


class LostReplicas:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._lost: dict[GroupId, Lost] = {}
        self._task: asyncio.Task[None] | None = None
        self.total = 0  # since this process started

    def __iter__(self) -> Iterator[tuple[GroupId, Lost]]:
        return iter(tuple(self._lost.items()))

    def __len__(self) -> int:
        return len(self._lost)

    def why(self, group: GroupId, vnode: Vnode) -> str | None:
        """Why this very replica is lost; None if it is not."""
        found = self._lost.get(group)
        return found.why if found is not None and found.vnode == vnode else None

    def add(self, group: GroupId, vnode: Vnode, why: str) -> None:
        if self.why(group, vnode) is not None:
            return
        self._lost[group] = Lost(vnode, why)
        self.total += 1
        place = self._node.state.partition_of(group)
        name = f"group {group}" if place is None else f"{place[0]}/{place[1]}"
        log.error("the replica of %s on this node is lost and will be rebuilt: %s", name, why)
        if self._task is None or self._task.done():
            self._task = self._node.loop.create_task(self._replace())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- Asking for successors ------------------------------------------------------------------

    async def _replace(self) -> None:
        failures = 0
        while self._lost:
            self._forget()
            batch = self._next()
            pause = LOOK_S
            if batch:
                command = cmd.ReplaceReplicas(
                    token=cmd.new_token(), node=self._node.id, lost=tuple(batch)
                )
                try:
                    await self._node.controller.propose(command, ASK_S)
                    failures = 0
                except ClusterError as error:
                    if error.problem is not Problem.NOT_CHANGING:
                        pause = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
                        failures += 1
                        log.info("%d lost replicas wait: %s", len(self._lost), error)
            await asyncio.sleep(pause)

    def _forget(self) -> None:
        """Drop those that the cluster no longer counts on: their groups, or the state, moved on."""
        for group, lost in self:
            partition = self._node.state.partition(group)
            if partition is None or lost.vnode not in partition.known:
                del self._lost[group]

    def _next(self) -> list[cmd.LostReplica]:
        """Those to ask a successor for now."""
        state, me = self._node.state, self._node.id
        rebuilding = sum(
            any(replica.id == me for replica in partition.rebuilding)
            for group in state.moving
            if (partition := state.partition(group)) is not None
        )
        waiting = [
            cmd.LostReplica(group, lost.vnode.revision)
            for group, lost in self
            if (partition := state.partition(group)) is not None and _is_wanted(partition, lost)
        ]
        return waiting[: max(0, AT_ONCE - rebuilding)]


def _is_wanted(partition: PartitionState, lost: Lost) -> bool:
    """Whether the partition is to keep this replica: one that moves away needs no successor."""
    return lost.vnode in (partition.target or partition.replicas)
