"""Partitions whose majority is gone: what status says of them, and how one replica goes on alone.

A partition without a majority stays unavailable, because nobody can tell what those that are gone
had acknowledged. An operator can, or accepts not to know: then the replica with the most of the log
goes on (`succession.py`). What it lacks is lost for good.

Only replicas of nodes that answer are considered. One of a node that is down may come back and make
a majority, so the answer names it, and whoever decides is asked to look after it first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.cluster import commands as cmd
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import NOTHING_LEFT, PartitionState, TopicState
from tidelog.cluster.succession import has_majority
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.storage import wall_ms

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

MAX_AT_ONCE: Final = 1000  # partitions of one request
ASKED_AT_ONCE: Final = 32

Arguments = Mapping[str, Any]
Answer = dict[str, Any]
Ask = Callable[[NodeId, str, Arguments], Awaitable[Answer | None]]


@dataclass(frozen=True, slots=True)
class Found:
    """A replica that is left."""

    node: NodeId
    revision: int
    last_term: int
    end: int  # last offset of its log


@dataclass(frozen=True, slots=True)
class Bereaved:
    """A partition whose majority is gone."""

    partition: str
    group: GroupId
    found: tuple[Found, ...]
    silent: tuple[NodeId, ...]  # nodes that have a replica, and do not answer
    survivor: Found | None  # None: no replica with any of its records is left


class Majorities:
    def __init__(self, node: "Node", ask: Ask) -> None:
        self._node = node
        self._ask = ask

    # --- Status ---------------------------------------------------------------------------------

    def describe(self, most: int) -> Answer:
        """Return what is to be seen in a status, with so many partitions at most."""
        gone = [
            f"{topic.name}/{each.index}"
            for topic, each in self._gone()
            if not self._goes_on_alone(each)
        ]
        return {
            "majority_gone": gone[:most],
            "recoveries": [
                {**asdict(each), "text": str(each)} for each in self._node.state.recoveries
            ],
        }

    def _gone(self) -> list[tuple[TopicState, PartitionState]]:
        """Partitions that nobody leads, and nobody will with the replicas that are there."""
        node = self._node
        found = []
        for topic, partition in node.state.partitions():
            leader, _ = node.leader_of(topic.name, partition.index)
            # What a replica that was lost said of itself stands until somebody else leads.
            outdated = any(each.id == leader for each in partition.rebuilding)
            if leader is not None and node.is_alive(leader) and not outdated:
                continue
            if not has_majority(partition, self._able(partition)):
                found.append((topic, partition))
        return found

    def _goes_on_alone(self, partition: PartitionState) -> bool:
        """Whether the heir of a partition is there: it needs nobody while the others catch up."""
        heir = self._node.state.heirs.get(partition.group)
        return heir is not None and heir.vnode in self._able(partition)

    def _able(self, partition: PartitionState) -> list[Vnode]:
        """The voters, as far as the state knows them, that are open on nodes that are there."""
        return [each for each in partition.hosts if self._node.is_alive(each.id)]

    # --- Recovering -----------------------------------------------------------------------------

    async def recover(self, arguments: Arguments) -> Answer:
        """Tell what could be gone on with; with `confirm`, do that."""
        chosen = self._choose(arguments.get("partitions"))
        busy = asyncio.Semaphore(ASKED_AT_ONCE)

        async def look(topic: TopicState, partition: PartitionState) -> Bereaved:
            async with busy:
                return await self._look_at(topic, partition)

        bereaved = await asyncio.gather(*(look(*each) for each in chosen))
        done = 0
        if arguments.get("confirm") is True:
            survivors = self._survivors(bereaved, empty=arguments.get("empty") is True)
            if survivors:
                command = cmd.RecoverPartitions(
                    token=cmd.new_token(),
                    node=self._node.id,
                    survivors=survivors,
                    at_ms=wall_ms(),
                )
                await self._node.controller.propose(command)
            done = len(survivors)
        return {"partitions": [asdict(each) for each in bereaved], "recovered": done}

    def _choose(self, names: object) -> list[tuple[TopicState, PartitionState]]:
        gone = self._gone()
        if names is None:
            return gone[:MAX_AT_ONCE]
        if not isinstance(names, list) or not 0 < len(names) <= MAX_AT_ONCE:
            raise ClusterError(
                Problem.UNKNOWN_PARTITION, f"name 1 to {MAX_AT_ONCE} partitions, as orders/0"
            )
        by_name = {f"{topic.name}/{each.index}": (topic, each) for topic, each in gone}
        for name in names:
            if name not in by_name:
                self._refuse(name)
        return [by_name[name] for name in dict.fromkeys(names)]

    def _refuse(self, name: object) -> None:
        topic, _, index = str(name).rpartition("/")
        if not index.isascii() or not index.isdigit():
            raise ClusterError(
                Problem.UNKNOWN_PARTITION, f"{str(name)[:300]!r} names no partition, as orders/0"
            )
        self._node.state.partition_at(topic, int(index))
        raise ClusterError(
            Problem.NOT_CHANGING,
            f"{str(name)[:300]} has a leader, or a majority of its replicas that can elect one:"
            " there is nothing to recover",
        )

    async def _look_at(self, topic: TopicState, partition: PartitionState) -> Bereaved:
        about = {"topic": topic.name, "partition": partition.index}
        nodes = [each.id for each in partition.hosts]
        answers = await asyncio.gather(*(self._ask(each, "replica", about) for each in nodes))
        found = tuple(
            Found(host.id, host.revision, answer["last_term"], answer["dirty"])
            for host, answer in zip(partition.hosts, answers, strict=True)
            if answer is not None and answer.get("revision") == host.revision
        )
        silent = tuple(each for each in nodes if not self._node.is_alive(each))
        best = max(found, key=lambda each: (each.last_term, each.end), default=None)
        if best is not None and best.end < 0:
            best = None
        name = f"{topic.name}/{partition.index}"
        return Bereaved(name, partition.group, found, silent, best)

    def _survivors(self, bereaved: Sequence[Bereaved], *, empty: bool) -> tuple[cmd.Survivor, ...]:
        chosen = []
        for each in bereaved:
            partition = self._node.state.partition_of(each.group)
            if partition is None:
                continue
            if each.survivor is not None:
                node, revision = each.survivor.node, each.survivor.revision
            elif empty:
                node, revision = self._node_for_empty(each), NOTHING_LEFT
            else:
                continue
            chosen.append(cmd.Survivor(each.group, node, revision))
        return tuple(chosen)

    def _node_for_empty(self, bereaved: Bereaved) -> NodeId:
        """One of the partition's nodes that is there, or this one."""
        return next((each.node for each in bereaved.found), self._node.id)
