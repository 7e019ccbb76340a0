"""`tidelog log verify`: all files of some replicas are read again now, on every node.

Whoever asks names the check and asks again until all is done; the node that is asked passes the
question on to all. Each node reads its own replicas, one file after the other, then compares the
partitions that it leads with the other copies (`comparing.py`). Damage ends a replica as it does
whenever it is met. A check that nobody asks about is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.cluster.verifying import SNAPSHOT, Piece, pieces
from tidelog.raft.types import GroupId, NodeId
from tidelog.storage import StorageError

if TYPE_CHECKING:
    from tidelog.cluster.groups import Hosted
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

CONTROLLER: Final = "controller"  # the name of group 0's log in a report
MAX_CHECKS: Final = 4  # of one node at a time
FORGOTTEN_S: Final = 60.0
MAX_LISTED: Final = 2000  # replicas of one node in a report; those with damage come first
MAX_DAMAGE: Final = 20  # of one replica
MIN_RATE: Final = 1 << 20
MAX_RATE: Final = 4 << 30

Arguments = Mapping[str, Any]
Answer = dict[str, Any]
Ask = Callable[[NodeId, str, Arguments], Awaitable[Answer | None]]


@dataclass(slots=True)
class Report:
    """What was found in one replica."""

    partition: str
    group: GroupId
    segments: int = 0
    bytes: int = 0
    snapshots: int = 0
    damage: list[dict[str, object]] = field(default_factory=list)


@dataclass(slots=True)
class Check:
    task: asyncio.Task[None] | None
    asked: float
    steps: int = 0  # files and comparisons
    done: int = 0
    reports: list[Report] = field(default_factory=list)
    comparisons: list[Answer] = field(default_factory=list)
    failed: str | None = None  # why it ended early


class Checks:
    """The checks that this node works on."""

    def __init__(self, node: Node, ask: Ask) -> None:
        self._node = node
        self._ask = ask
        self._checks: dict[str, Check] = {}

    def close(self) -> None:
        for check in self._checks.values():
            if check.task is not None:
                check.task.cancel()

    # --- Operations -----------------------------------------------------------------------------

    async def verify(self, arguments: Arguments) -> Answer:
        """Ask every node to begin a check, or how far it is."""
        state = self._node.state
        topic, index = arguments.get("topic"), arguments.get("partition")
        if topic is not None:
            if not isinstance(topic, str) or type(index) is not int:
                raise ClusterError(Problem.UNKNOWN_PARTITION, "name a topic and a partition")
            partition = state.partition_at(topic, index)
            nodes = [each.id for each in partition.hosts]
        else:
            nodes = sorted(state.members)
        _check_name_and_rate(arguments)
        answers = await asyncio.gather(*(self._ask(each, "check", arguments) for each in nodes))
        return {
            "nodes": [
                {"node": node, "answers": answer is not None, **(answer or {})}
                for node, answer in zip(nodes, answers, strict=True)
            ]
        }

    async def check(self, arguments: Arguments) -> Answer:
        """Begin a check of the replicas of this node, or tell how far it is."""
        name, rate = _check_name_and_rate(arguments)
        now = self._node.loop.time()
        check = self._checks.get(name)
        if check is None:
            self._forget(now)
            if len(self._checks) >= MAX_CHECKS:
                raise ClusterError(Problem.BUSY, "this node works on other checks: wait for them")
            check = self._checks[name] = Check(None, now)
            chosen = self._choose(arguments.get("topic"), arguments.get("partition"))
            check.task = self._node.loop.create_task(self._work(check, chosen, rate))
        check.asked = now
        over = check.task is not None and check.task.done()
        answer: Answer = {"over": over, "done": check.done, "steps": check.steps, "failed": None}
        if over:
            reports = sorted(check.reports, key=lambda each: (not each.damage, each.partition))
            answer["replicas"] = [asdict(each) for each in reports[:MAX_LISTED]]
            answer["unlisted"] = max(0, len(reports) - MAX_LISTED)
            answer["failed"] = check.failed
            answer["comparisons"] = check.comparisons[:MAX_LISTED]
        return answer

    def _forget(self, now: float) -> None:
        for name, check in tuple(self._checks.items()):
            if now - check.asked > FORGOTTEN_S:
                if check.task is not None:
                    check.task.cancel()
                del self._checks[name]

    def _choose(self, topic: object, index: object) -> dict[GroupId, str]:
        """The groups to check here, with their names."""
        state = self._node.state
        names = {
            each.group: f"{of.name}/{each.index}"
            for of, each in state.partitions()
            if topic is None or (of.name, each.index) == (topic, index)
        }
        if topic is None:
            names[CONTROLLER_GROUP] = CONTROLLER
        return names

    # --- Working --------------------------------------------------------------------------------

    async def _work(self, check: Check, chosen: Mapping[GroupId, str], rate: int) -> None:
        try:
            await self._run(check, chosen, rate)
        except Exception as error:
            log.exception("a check ended early")
            check.failed = f"{type(error).__name__}: {error}"

    async def _run(self, check: Check, chosen: Mapping[GroupId, str], rate: int) -> None:
        for group, lost in self._node.hosting.lost:
            if group in chosen:
                damage: dict[str, object] = {"file": None, "offset": None, "why": lost.why}
                check.reports.append(Report(chosen[group], group, damage=[damage]))
        hosted = [each for each in self._node.groups if each.group in chosen]
        led = [each for each in self._node.partitions() if each.group in chosen and each.is_leader]
        work = [(each, list(pieces(each))) for each in hosted]
        check.steps = sum(len(found) for _, found in work) + len(led)
        for each, found in work:
            report = Report(chosen[each.group], each.group)
            check.reports.append(report)
            for piece in found:
                await self._piece(piece, each, report, rate)
                check.done += 1
        for partition in led:
            if not partition.closed:
                comparison = await self._node.comparer.compare(partition)
                check.comparisons.append(
                    {
                        **asdict(comparison),
                        "text": None
                        if comparison.difference is None
                        else str(comparison.difference),
                    }
                )
            check.done += 1

    async def _piece(self, piece: Piece, hosted: Hosted, report: Report, rate: int) -> None:
        try:
            if piece.base == SNAPSHOT:
                await self._snapshot(piece, hosted, report)
            else:
                await self._segment(piece, hosted, report, rate)
        except OSError as error:
            _blame(report, None, None, f"it could not be read: {error}")

    async def _segment(self, piece: Piece, hosted: Hosted, report: Report, rate: int) -> None:
        verifier = self._node.verifier
        if verifier.find(piece) is not hosted:
            return
        job = hosted.replica.log.verify_job(self._node.groups.disk, piece.base)
        if job is None:
            return  # it was removed, or replaced by a larger one, which is read in its turn
        with contextlib.closing(job):
            while not job.done:
                await asyncio.sleep(await verifier.step(job) / rate)
        damage = None if verifier.find(piece) is None else hosted.replica.log.confirm(job)
        verifier.ended(piece, job)
        report.bytes += job.bytes
        if damage is not None:
            _blame(report, damage.path, damage.offset, str(damage))
        elif job.damage is None:
            report.segments += 1

    async def _snapshot(self, piece: Piece, hosted: Hosted, report: Report) -> None:
        info = hosted.replica.snapshots.latest()
        if info is None or self._node.verifier.find(piece) is not hosted:
            return
        with contextlib.suppress(StorageError):  # a newer one took its place
            await self._node.verifier.verify_snapshot(piece, hosted)
        if hosted.replica.lost is not None:
            _blame(report, None, info.offset, hosted.replica.lost)
        else:
            report.snapshots += 1
            report.bytes += info.size


def _blame(report: Report, file: str | None, offset: int | None, why: str) -> None:
    if len(report.damage) < MAX_DAMAGE:
        report.damage.append({"file": file, "offset": offset, "why": why})


def _check_name_and_rate(arguments: Arguments) -> tuple[str, int]:
    name, rate = arguments.get("check"), arguments.get("rate")
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise ClusterError(Problem.INVALID_NAME, "a check needs a name")
    if type(rate) is not int or not MIN_RATE <= rate <= MAX_RATE:
        raise ClusterError(
            Problem.INVALID_CONFIG, f"a rate is {MIN_RATE} to {MAX_RATE} bytes a second"
        )
    return name, rate
