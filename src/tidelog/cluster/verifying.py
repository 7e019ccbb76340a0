"""Background verification: every file of every replica of this node is read again now and then.

Rot in a segment that nobody reads would stay unknown until its last good copy is gone. So a task
reads all segments and snapshots, those verified longest ago first, in a lane of their own and at a
bounded rate; segments that were not verified for `verify_every_s` are due. When each was verified
survives a restart in `DATA/verified`; where that file is lost, everything is due again.

Once a minute the names in the directories of every replica are compared with those that it knows: a
file that was removed while it was open reads well until the node restarts, and is missing all the
same.

Damage makes the replica lost, as it does whoever meets it. Any other error of a read is counted,
and what could not be read is due again: one file never keeps the others from being verified. What
cannot be seen from here: pages that the kernel still has in memory are not read from the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.raft.types import GroupId
from tidelog.records import NO_OFFSET, Offset
from tidelog.storage import DamagedLog, Disk, SnapshotInfo, StorageError, VerifyJob, wall_ms
from tidelog.storage.sealed import load_sealed, save_sealed

if TYPE_CHECKING:
    from tidelog.cluster.groups import Groups, Hosted
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

LANE: Final = "verify"
FILE: Final = "verified"
_MAGIC: Final = b"TLV1"
_ROW: Final = struct.Struct(">qqqq")  # group, revision, base, when
MAX_ROWS: Final = 1 << 20  # 32 MiB; segments beyond that are due again after a restart
# Work of one step, in bytes with BATCH_COST for each batch: 512 batches at most, 2 ms of Python.
STEP: Final = 1 << 20
ON_REQUEST: Final = 8 << 20  # bytes per second, where verification in the background is off
LOOK_S: Final = 10.0  # how soon something due is looked for again
SAVE_S: Final = 60.0
NAMES_S: Final = 60.0  # how often the names in a directory are compared
GROUPS_AT_ONCE: Final = 50  # looked at before others get the loop
SNAPSHOT: Final = Offset(-1)  # stands for the newest snapshot of a replica, as the base does


class Piece(NamedTuple):
    """What is verified at a time: a segment, by its base, or the newest snapshot."""

    group: GroupId
    revision: int
    base: Offset


@dataclass(slots=True)
class Counts:
    """Since this process started."""

    bytes: int = 0
    segments: int = 0
    snapshots: int = 0
    damaged: int = 0
    unread: int = 0  # reads that failed for a reason that may pass
    last_full_pass: int | None = None  # wall time in milliseconds


class Verifier:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._at: dict[Piece, int] = {}  # when each was verified
        self._changed = False
        self._saved = 0.0
        self._named = 0.0
        self._task: asyncio.Task[None] | None = None
        self.counts = Counts()

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._node.config.verify_bytes_per_s:
            self._task = self._node.loop.create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def _groups(self) -> Groups:
        return self._node.groups

    async def _run(self) -> None:
        await self.blocking(self._load)
        self._saved = self._named = self._node.loop.time()
        while True:
            try:
                if await self._pass():
                    self.counts.last_full_pass = wall_ms()
                await self._look_around()
            except OSError as error:  # short of handles, say; nothing depends on this
                log.warning("verification pauses: %s", error)
            await asyncio.sleep(min(LOOK_S, self._node.config.verify_every_s))

    async def _pass(self) -> bool:
        """Verify what is due; say whether all of it could be read."""
        errors: list[str] = []
        for piece in await self._due():
            try:
                await self._verify(piece)
            except OSError as error:
                self.counts.unread += 1
                errors.append(f"group {piece.group}: {error}")
            await self._look_around()
        if errors:
            log.warning("%d files could not be verified, the first: %s", len(errors), errors[0])
        return not errors

    async def blocking(self, job: Callable[[], None]) -> None:
        """Run a job in the lane; raises the `OSError` that it ends with."""
        await self._node.executor.run(LANE, job)

    async def pace(self, work: int) -> None:
        """Wait as long as this much work may take at the rate that is set."""
        await asyncio.sleep(work / (self._node.config.verify_bytes_per_s or ON_REQUEST))

    # --- What is due -----------------------------------------------------------------------------

    async def _due(self) -> list[Piece]:
        """Return what was not verified for long, the longest first; forget what is gone."""
        now = wall_ms()
        before = now - int(self._node.config.verify_every_s * 1000)
        known: dict[Piece, int] = {}
        for number, hosted in enumerate(self._groups):
            for piece in pieces(hosted):
                # A clock that was set back must not keep anything from being verified.
                at = self._at.get(piece, 0)
                known[piece] = at if at <= now else 0
            if number % GROUPS_AT_ONCE == GROUPS_AT_ONCE - 1:
                await asyncio.sleep(0)
        # Replicas that are not open yet, or are opened again, were verified as well.
        state = self._node.state
        closed = {
            piece: at
            for piece, at in self._at.items()
            if self._groups.get(piece.group) is None and state.partition(piece.group) is not None
        }
        self._at = known | closed
        return sorted((each for each in known if known[each] <= before), key=known.__getitem__)

    def find(self, piece: Piece) -> Hosted | None:
        """Return the replica that a piece belongs to, while it runs and is not lost."""
        hosted = self._groups.get(piece.group)
        if hosted is None or hosted.replica.core.vnode.revision != piece.revision:
            return None
        return None if hosted.replica.lost is not None else hosted

    async def _verify(self, piece: Piece) -> None:
        hosted = self.find(piece)
        if hosted is None:
            return
        if piece.base == SNAPSHOT:
            await self._verify_snapshot(piece, hosted)
            return
        job = hosted.replica.log.verify_job(self._groups.disk, piece.base)
        if job is None:
            return
        with contextlib.closing(job):
            while not job.done:
                await self.pace(await self.step(job))
        self.ended(piece, job)

    async def verify_snapshot(self, piece: Piece, hosted: Hosted) -> None:
        """Read the newest snapshot of a replica now; damage ends the replica."""
        await self._verify_snapshot(piece, hosted)

    async def step(self, job: VerifyJob, note: Callable[..., object] | None = None) -> int:
        """Do a step of a job in the lane; return the work that it was."""
        read, work = job.bytes, [0]

        def run() -> None:
            work[0] = job.step(STEP, note)

        await self.blocking(run)
        self.counts.bytes += job.bytes - read
        return work[0]

    def ended(self, piece: Piece, job: VerifyJob) -> None:
        """Count a job that is done; damage that it found ends the replica."""
        hosted = self.find(piece)
        if hosted is None:
            return
        damage = hosted.replica.log.confirm(job)
        if damage is not None:
            self._damaged(hosted, damage)
        elif job.damage is None:
            self.counts.segments += 1
            self._note(piece)

    async def _verify_snapshot(self, piece: Piece, hosted: Hosted) -> None:
        files = hosted.replica.snapshots
        info = files.latest()
        if info is None:
            return
        try:
            await self.blocking(lambda: files.check(info))
        except DamagedLog as damage:
            if self.find(piece) is hosted and files.latest() == info:
                await self._snapshot_damaged(hosted, damage, info)
            return
        except StorageError:
            return  # a newer one took its place
        self.counts.snapshots += 1
        self.counts.bytes += info.size
        self._note(piece)
        await self.pace(info.size)

    def _note(self, piece: Piece) -> None:
        self._at[piece] = wall_ms()
        self._changed = True

    def _damaged(self, hosted: Hosted, damage: DamagedLog) -> None:
        self.counts.damaged += 1
        self._groups.touch(hosted)
        hosted.replica.damaged(damage)

    async def _snapshot_damaged(
        self, hosted: Hosted, damage: DamagedLog, info: SnapshotInfo
    ) -> None:
        """Rebuild the replica from its peers; one that has none is opened again without the file.

        What takes its place, if anything does, is found then.
        """
        replica = hosted.replica
        if set(replica.core.configuration.members) != {replica.core.vnode}:
            self._damaged(hosted, damage)
            return
        await self.blocking(lambda: replica.snapshots.put_aside(info))
        if self._groups.get(hosted.group) is hosted:
            self.counts.damaged += 1
            self._groups.was_set_aside(damage)
            self._groups.touch(hosted)
            replica.give_up(StorageError(f"{damage.path} is damaged: {damage.reason}"))

    # --- Names -----------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        """Compare names, and save what is known, when it is time for either."""
        now = self._node.loop.time()
        if now - self._named >= min(NAMES_S, self._node.config.verify_every_s):
            self._named = now
            for hosted in self._groups:
                await self._compare_names(hosted)
        if self._changed and now - self._saved >= SAVE_S:
            self._saved, self._changed = now, False
            rows = list(self._at.items())[:MAX_ROWS]
            await self.blocking(lambda: self._save(rows))

    async def _compare_names(self, hosted: Hosted) -> None:
        replica = hosted.replica
        if replica.lost is not None or replica.failed is not None:
            return
        segments, snapshots = replica.log.names(), replica.snapshots.names()
        found: set[str] = set()
        stored: set[str] = set()
        absent: list[str] = []

        def look() -> None:
            # A directory that is gone has no names.
            disk = self._groups.disk
            with contextlib.suppress(FileNotFoundError):
                found.update(disk.list(replica.log.directory))
            with contextlib.suppress(FileNotFoundError):
                stored.update(disk.list(replica.snapshots.directory))
            if not disk.exists(replica.vote_file.path):
                absent.append(replica.vote_file.path)

        await self.blocking(look)
        if self._groups.get(hosted.group) is hosted and replica.lost is None:
            damage = replica.log.missing(found, segments)
            if absent and damage is None:
                damage = DamagedLog(absent[0], 0, NO_OFFSET, "the file is missing")
            if damage is not None:
                self._damaged(hosted, damage)
                return
            gone = replica.snapshots.missing(stored, snapshots)
            info = None if gone is None else replica.snapshots.find(gone.offset)
            if gone is not None and info is not None:
                await self._snapshot_damaged(hosted, gone, info)

    # --- Across restarts -------------------------------------------------------------------------

    def _load(self) -> None:
        with contextlib.suppress(OSError):
            payload = load_sealed(self._disk, FILE, _MAGIC) or b""
            if len(payload) % _ROW.size == 0:
                self._at = {
                    Piece(GroupId(group), revision, Offset(base)): at
                    for group, revision, base, at in _ROW.iter_unpack(payload)
                }

    def _save(self, rows: list[tuple[Piece, int]]) -> None:
        payload = b"".join(_ROW.pack(*piece, at) for piece, at in rows if at)
        save_sealed(self._disk, FILE, _MAGIC, payload)

    @property
    def _disk(self) -> Disk:
        return self._groups.disk

    # --- Looking at it ---------------------------------------------------------------------------

    def describe(self) -> dict[str, object]:
        """Return the counts, for the status of the node."""
        counts = self.counts
        return {
            "bytes": counts.bytes,
            "segments": counts.segments,
            "snapshots": counts.snapshots,
            "damaged": counts.damaged,
            "unread": counts.unread,
            "snapshots_set_aside": self._groups.snapshots_set_aside,
            "last_full_pass_ms": counts.last_full_pass,
        }

    def describe_replica(self, hosted: Hosted) -> dict[str, object]:
        """Return how many pieces of a replica were verified, and when the oldest of these was."""
        mine = list(pieces(hosted))
        at = [found for piece in mine if (found := self._at.get(piece, 0))]
        return {"verified": len(at), "of": len(mine), "oldest_ms": min(at, default=None)}


def pieces(hosted: Hosted) -> Iterator[Piece]:
    """Yield what there is to verify of a replica."""
    replica = hosted.replica
    if replica.lost is not None:
        return
    revision = replica.core.vnode.revision
    for base in replica.log.verifiable():
        yield Piece(hosted.group, revision, base)
    if replica.snapshots.latest() is not None:
        yield Piece(hosted.group, revision, SNAPSHOT)
