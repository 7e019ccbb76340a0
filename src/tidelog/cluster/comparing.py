"""Replicas compare what they hold, and say which copy is wrong.

A copy may be wrong with every checksum right: written anew by a defect, or restored by hand. Only
other copies can tell. So the leader of a partition has all voters digest the same ranges of offsets
(`digests.py`), those that are committed everywhere and that nothing was compacted in:

    all digests are equal       the replicas agree there
    one range differs           it is cut into smaller ones, down to the first batch that differs

Of two copies, nobody can tell which is wrong: that is reported, and an operator decides. Where two
at least agree, and are more than half of all, the others are wrong: they are lost, and rebuilt.
Ranges that compaction may have touched differ rightly, and are not compared.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tidelog.cluster.digests import MAX_RANGES, Digests
from tidelog.cluster.errors import ClusterError
from tidelog.raft.types import GroupId, NodeId, Vnode

if TYPE_CHECKING:
    from tidelog.cluster.node import Node
    from tidelog.cluster.partition import Partition

log = logging.getLogger(__name__)

POLL_S: Final = 0.1
POLL_LATER_S: Final = 1.0
SOON: Final = 20  # questions before the pauses are longer
# Questions to one replica about one order: half a day, in which 8 MiB/s read 345 GB.
MAX_POLLS: Final = 43_200
MISSED: Final = 5  # answers in a row that may fail to come
MAX_WHY: Final = 1000  # characters
REMEMBERED: Final = 50  # differences that status tells

Row = int | None  # the digest of a range; None: no batch begins there


class NotCompared(Exception):
    """These replicas cannot be compared now; the message says why."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where replicas of a partition begin to differ, and whose fault it is."""

    partition: str
    offset: int  # of the first batch that differs
    wrong: tuple[NodeId, ...]  # empty: nobody can tell
    right: tuple[NodeId, ...]

    def __str__(self) -> str:
        where = f"{self.partition} differs from offset {self.offset} of its log on"
        if not self.wrong:
            nodes = ", ".join(map(str, self.right))
            return f"{where} nodes {nodes}: all checksums are right, and no majority agrees"
        wrong, right = (", ".join(map(str, each)) for each in (self.wrong, self.right))
        return (
            f"{where} node{'s' * (len(self.wrong) > 1)} {wrong}: nodes {right} agree on something"
            " else, so that copy is wrong, though its checksums are right"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing one partition."""

    partition: str
    nodes: tuple[NodeId, ...]  # whose replicas were compared
    first: int
    last: int  # below `first`: there is nothing that may be compared
    difference: Difference | None = None
    problem: str | None = None  # why it was not compared


class Comparer:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.digests = Digests(node)
        self._task: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()  # one partition at a time
        self.compared = 0  # partitions, since this process started
        self.differences: deque[Difference] = deque(maxlen=REMEMBERED)

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._node.config.verify_bytes_per_s:
            self._task = self._node.loop.create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.digests.close()

    async def _run(self) -> None:
        """Compare what this node leads, once in the time in which all files are verified."""
        every = self._node.config.verify_every_s
        await asyncio.sleep(every * random.uniform(0.2, 1.0))
        while True:
            for partition in tuple(self._node.partitions()):
                if partition.is_leader and not partition.closed:
                    await self._compare_quietly(partition)
            await asyncio.sleep(every)

    async def _compare_quietly(self, partition: Partition) -> None:
        try:
            await self.compare(partition)
        except Exception:  # the others are compared all the same
            log.exception("%s/%d could not be compared", partition.topic, partition.index)

    def describe(self) -> dict[str, object]:
        """Return what status tells."""
        return {
            "compared": self.compared,
            "differences": [{**asdict(each), "text": str(each)} for each in self.differences],
        }

    # --- Comparing -------------------------------------------------------------------------------

    async def compare(self, partition: Partition) -> Comparison:
        """Compare the voters of a partition that is led here, and act upon what is found."""
        name = f"{partition.topic}/{partition.index}"
        async with self._one:
            try:
                found = await self._compare(name, partition)
            except (NotCompared, ClusterError) as error:
                return Comparison(name, (), 0, -1, problem=str(error))
        self.compared += 1
        if found.difference is None:
            self._forget(name)
        else:
            await self._settle(partition, found.difference)
        return found

    async def _compare(self, name: str, partition: Partition) -> Comparison:
        if not partition.is_leader:
            raise NotCompared("this node does not lead it any longer")
        voters = partition.core.configuration.voters
        answers = await asyncio.gather(
            *(self._ask(each, "marks", partition.group) for each in voters)
        )
        marks = {
            each: answer for each, answer in zip(voters, answers, strict=True) if answer is not None
        }
        nodes = tuple(each.id for each in marks)
        if len(marks) < 2:
            return Comparison(name, nodes, 0, -1, problem="it has one replica that answers")
        first = max(each["first"] for each in marks.values())
        last = min(each["last"] for each in marks.values())
        offset = await self._first_difference(partition.group, tuple(marks), first, last)
        difference = None
        if offset is not None:
            rows = await self._rows(partition.group, tuple(marks), offset, offset, 1)
            first_rows = {each: rows[each].get(0) for each in marks}
            difference = judge(name, offset, first_rows, len(voters))
        return Comparison(name, nodes, first, last, difference)

    async def _first_difference(
        self, group: GroupId, voters: Sequence[Vnode], first: int, last: int
    ) -> int | None:
        """Return the first offset at which not all have the same batch; None: they agree."""
        while first <= last:
            span = -(-(last - first + 1) // MAX_RANGES)
            rows = await self._rows(group, voters, first, last, span)
            ranges = sorted(set(itertools.chain.from_iterable(rows.values())))
            differing = next(
                (n for n in ranges if len({each.get(n) for each in rows.values()}) > 1), None
            )
            if differing is None:
                return None
            first = first + differing * span
            last = min(last, first + span - 1)
            if first == last:
                return first
        return None

    async def _rows(
        self, group: GroupId, voters: Sequence[Vnode], first: int, last: int, span: int
    ) -> dict[Vnode, Mapping[int, int]]:
        """Have every voter digest the same ranges; raises `NotCompared` unless all do."""
        order = {"job": uuid4().hex, "first": first, "last": last, "span": span}
        found = await asyncio.gather(*(self._digest(each, group, order) for each in voters))
        return dict(zip(voters, found, strict=True))

    async def _digest(
        self, voter: Vnode, group: GroupId, order: Mapping[str, object]
    ) -> Mapping[int, int]:
        missed = 0
        for attempt in range(MAX_POLLS):
            answer = await self._ask(voter, "digest", group, **order)
            if answer is None:
                missed += 1
                if missed == MISSED:
                    raise NotCompared(f"node {voter.id} does not answer")
            elif answer.get("done"):
                if "digests" not in answer:
                    raise NotCompared(f"node {voter.id}: {answer.get('problem')}")
                return {int(number): digest for number, digest in answer["digests"].items()}
            else:
                missed = 0
            await asyncio.sleep(POLL_S if attempt < SOON else POLL_LATER_S)
        raise NotCompared(f"node {voter.id} reads for too long")

    async def _ask(
        self, voter: Vnode, operation: str, group: GroupId, **more: object
    ) -> dict[str, Any] | None:
        arguments = {"group": group, "revision": voter.revision, **more}
        return await self._node.operations.ask(voter.id, operation, arguments)

    # --- Acting ----------------------------------------------------------------------------------

    def _forget(self, name: str) -> None:
        """The replicas of a partition are equal again: forget what could not be decided."""
        kept = [each for each in self.differences if each.wrong or each.partition != name]
        self.differences = deque(kept, maxlen=REMEMBERED)

    async def _settle(self, partition: Partition, difference: Difference) -> None:
        """Report a difference, and have the copies rebuilt that are wrong."""
        known = any(each == difference for each in self.differences)
        if not known:
            self.differences.append(difference)
            log.error("%s", difference)
        for voter in partition.core.configuration.voters:
            if voter.id in difference.wrong:
                told = await self._ask(voter, "wrong", partition.group, why=str(difference))
                if told is None:
                    log.warning("node %d did not hear that its copy is wrong", voter.id)

    async def wrong(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The leader of a group has found that the copy here is wrong: it is lost, and rebuilt."""
        hosted = self.digests.find(arguments)
        hosted.replica.lose(str(arguments.get("why"))[:MAX_WHY])
        return {}


def judge(name: str, offset: int, rows: Mapping[Vnode, Row], voters: int) -> Difference:
    """Tell whose batch is wrong, where that is certain: against a majority of all voters."""
    (row, count), *_ = Counter(rows.values()).most_common(1)
    nodes = tuple(each.id for each in rows)
    if count < 2 or 2 * count <= voters:
        return Difference(name, offset, (), nodes)
    right = tuple(each.id for each, its in rows.items() if its == row)
    return Difference(name, offset, tuple(each for each in nodes if each not in right), right)
