"""What a replica holds, in few numbers: a digest for each range of its offsets.

A node reads the files of one replica in the lane of verification, at its rate, and folds every
batch between two offsets into the digest of the range that the batch begins in: where it begins and
ends, its term and its checksum, which is checked against its bytes first. Nothing is said about the
records of a replica whose files changed meanwhile, or that was compacted there.

A job is named by whoever asks. Asking again under the same name tells how far it is; one that
nobody asks about is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.verifying import Piece
from tidelog.raft.types import GroupId
from tidelog.records import Batch, Offset

if TYPE_CHECKING:
    from tidelog.cluster.groups import Hosted
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

MAX_RANGES: Final = 4096  # of one job: 50 KB of JSON
MAX_JOBS: Final = 64  # of one node; a leader has one under way
FORGOTTEN_S: Final = 30.0  # after which a job that nobody asks about is given up
_ROW: Final = struct.Struct(">qqqI")  # base, last, term, crc

Arguments = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be read."""

    group: GroupId
    revision: int
    first: Offset
    last: Offset
    span: int  # offsets of one range

    @property
    def ranges(self) -> int:
        return (self.last - self.first) // self.span + 1


class Fold:
    """The digests of one order; a thread feeds it."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.digests: dict[int, int] = {}  # by number of the range; none where nothing begins
        self.batches = 0

    def note(self, batch: Batch) -> None:
        order = self._order
        if order.first <= batch.base_offset <= order.last:
            number = (batch.base_offset - order.first) // order.span
            row = _ROW.pack(batch.base_offset, batch.last_offset, batch.term, batch.crc)
            self.digests[number] = crc32c(row, self.digests.get(number, 0))
            self.batches += 1


@dataclass(slots=True)
class _Job:
    order: Order
    task: asyncio.Task[Answer]
    asked: float


class Digests:
    """The orders that this node works on, for others and for itself."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._jobs: dict[str, _Job] = {}

    def close(self) -> None:
        for job in self._jobs.values():
            job.task.cancel()
        self._jobs.clear()

    # --- Operations between nodes ---------------------------------------------------------------

    async def marks(self, arguments: Arguments) -> Answer:
        """Return between which offsets a replica of this node may be compared."""
        return _marks(self.find(arguments))

    def find(self, arguments: Arguments) -> Hosted:
        """Return the replica that another node asks about; raises `ClusterError`."""
        return self._hosted(*_place(arguments))

    async def digest(self, arguments: Arguments) -> Answer:
        """Begin a job, or tell how far it is: `done`, and then `digests` or a `problem`."""
        name = arguments.get("job")
        if not isinstance(name, str) or not 0 < len(name) <= 100:
            raise ClusterError(Problem.INVALID_NAME, "a job needs a name")
        loop = self._node.loop
        job = self._jobs.get(name)
        if job is None:
            order = _order(arguments)
            hosted = self._hosted(order.group, order.revision)
            self._forget()
            if len(self._jobs) >= MAX_JOBS:
                raise ClusterError(Problem.BUSY, "this node digests enough replicas: ask later")
            job = _Job(order, loop.create_task(self._read(order, hosted)), loop.time())
            self._jobs[name] = job
        job.asked = loop.time()
        if not job.task.done():
            return {"done": False}
        del self._jobs[name]
        return {"done": True, **job.task.result()}

    def _forget(self) -> None:
        now = self._node.loop.time()
        for name, job in tuple(self._jobs.items()):
            if now - job.asked > FORGOTTEN_S:
                job.task.cancel()
                del self._jobs[name]

    def _hosted(self, group: GroupId, revision: int) -> Hosted:
        hosted = self._node.verifier.find(Piece(group, revision, Offset(0)))
        if hosted is None:
            raise ClusterError(
                Problem.UNKNOWN_PARTITION,
                f"this node has no replica of group {group} with revision {revision}",
            )
        return hosted

    # --- Reading --------------------------------------------------------------------------------

    async def _read(self, order: Order, hosted: Hosted) -> Answer:
        """Read what was ordered; whatever comes in between is a `problem`, never an exception."""
        fold = Fold(order)
        try:
            problem = await self._read_segments(order, hosted, fold)
        except OSError as error:
            problem = str(error)
        except Exception as error:
            log.exception("a replica could not be digested")
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            marks = _marks(hosted)
            if marks["first"] > order.first:
                problem = "it was compacted or cut meanwhile"
        if problem is not None:
            return {"problem": problem}
        return {"digests": {str(number): digest for number, digest in fold.digests.items()}}

    async def _read_segments(self, order: Order, hosted: Hosted, fold: Fold) -> str | None:
        verifier, replica = self._node.verifier, hosted.replica
        position = order.first
        while position <= order.last:
            base = max(
                (each for each in replica.log.verifiable() if each <= position), default=None
            )
            job = None
            if base is not None:
                job = replica.log.verify_job(self._node.groups.disk, base)
            if base is None or job is None or job.place.last < position:
                return "its files changed meanwhile"
            piece = Piece(order.group, order.revision, base)
            with contextlib.closing(job):
                while not job.done:
                    await verifier.pace(await verifier.step(job, fold.note))
                    if verifier.find(piece) is not hosted:
                        return "the replica was closed or lost meanwhile"
            verifier.ended(piece, job)
            if job.damage is not None or not replica.log.is_as_read(job):
                return "its files changed meanwhile" if job.damage is None else str(job.damage)
            position = Offset(job.place.last + 1)
        return None


def _marks(hosted: Hosted) -> Answer:
    """Compaction makes replicas differ rightly; above its marks, committed logs are equal."""
    core, log = hosted.replica.core, hosted.replica.log
    compacted = max(core.hard.compacted, core.collectible)
    return {
        "first": max(log.start, compacted + 1),
        "last": min(core.committed, core.flushed, log.verifiable_end),
    }


def _place(arguments: Arguments) -> tuple[GroupId, int]:
    group, revision = arguments.get("group"), arguments.get("revision")
    if type(group) is not int or type(revision) is not int:
        raise ClusterError(Problem.UNKNOWN_PARTITION, "name a group and a revision")
    return GroupId(group), revision


def _order(arguments: Arguments) -> Order:
    found = [arguments.get(name) for name in ("first", "last", "span")]
    if any(type(each) is not int for each in found):
        raise ClusterError(Problem.INVALID_CONFIG, "name first, last and span")
    first, last, span = (int(each or 0) for each in found)
    if first < 0 or last < first or span < 1 or (last - first) // span >= MAX_RANGES:
        raise ClusterError(
            Problem.INVALID_CONFIG, f"offsets {first} to {last} by {span}: not 1 to {MAX_RANGES}"
        )
    return Order(*_place(arguments), Offset(first), Offset(last), span)
