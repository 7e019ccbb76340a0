"""What would be left of a replica if power went now: the judge's own look at the simulated disks.

The product's code reads nothing here. A log segment is walked batch by batch over the bytes that
were synced, so that a bug in the log's own bookkeeping cannot vouch for itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from crc32c import crc32c

from tidelog.raft.types import GroupId, Vnode
from tidelog.records import Batch, CorruptBatch
from tidelog.sim.disk import SimDisk
from tidelog.sim.memory import directory_of
from tidelog.sim.truth import Entry, GroupTruth
from tidelog.storage import DamagedLog, Vote, VoteFile
from tidelog.storage.segment import parse_name
from tidelog.storage.state import StateFile

if TYPE_CHECKING:
    from tidelog.sim.world import World

# Asked after every flush, about the same few names.
_place = lru_cache(1_024)(parse_name)
_CRC_START = 21  # of a batch: everything from here on is covered by its checksum


class DurableDisks:
    """The disks of one group, as `facts.Disks`."""

    def __init__(self, world: World, group: GroupId, truth: GroupTruth) -> None:
        self._world = world
        self._group = group
        self._truth = truth
        # A vnode whose disk was wiped is gone for good. What it had promised it also had on disk,
        # and since nobody can win its vote any more, that promise is never broken.
        self._wiped: dict[Vnode, SimDisk] = {}
        # What a vnode had before its files were harmed. It may not count on all of it any more, and
        # what it writes from then on may be unreadable: nothing here tells.
        self._harmed: dict[Vnode, SimDisk] = {}

    def wiped(self, vnode: Vnode) -> None:
        """Keep what this vnode had on its disk, now that it will never be asked again."""
        disk = self._disk(vnode)
        if disk is not None:
            self._wiped[vnode] = disk.durable_copy()

    def harmed(self, vnode: Vnode) -> None:
        """Keep what this vnode has on its disk before somebody harms it."""
        disk = self._disk(vnode)
        if disk is not None:
            self._harmed[vnode] = disk.durable_copy()

    def mended(self, vnode: Vnode) -> None:
        """What this vnode has on its disk was read again, and is what was written."""
        self._harmed.pop(vnode, None)

    def holds(self, vnode: Vnode, entry: Entry) -> bool:
        """Whether the entry is in the synced bytes of the log, or covered by a snapshot."""
        if any(offset >= entry.last for offset in self._truth.replica(vnode).snapshots):
            return True
        if vnode in self._harmed:
            return True
        disk = self._disk(vnode)
        directory = f"{self._directory(vnode)}/log"
        if disk is None or not disk.exists(directory):
            return False
        segments = [
            (*place, name)
            for name in disk.list(directory)
            if (place := _place(name)) is not None and place[0] <= entry.last
        ]
        for _, term, name in sorted(segments, reverse=True):
            if term == entry.term:
                return _contains(disk.durable_bytes(f"{directory}/{name}"), entry)
        return False

    def vote(self, vnode: Vnode) -> Vote | None:
        """The vote file as a restart would find it; if that was harmed, as it was before."""
        vote = self._vote_on(self._disk(vnode), vnode)
        return self._vote_on(self._harmed.get(vnode), vnode) if vote is None else vote

    def _vote_on(self, disk: SimDisk | None, vnode: Vnode) -> Vote | None:
        directory = self._directory(vnode)
        if disk is None or not disk.exists(directory):
            return None
        data = disk.durable_bytes(f"{directory}/vote")
        if data is None:
            return None
        alone = SimDisk(random.Random(0))
        alone.open("vote", create=True).append([data])
        try:
            return VoteFile(alone, "vote").load()
        except DamagedLog:
            return None

    def resealed(self, vnode: Vnode) -> list[tuple[Entry, Batch]]:
        """Batches of a harmed log that have their checksum and are not what was written."""
        disk = self._disk(vnode)
        directory = f"{self._directory(vnode)}/log"
        if disk is None or not disk.exists(directory):
            return []
        return [
            (entry, batch)
            for name in disk.list(directory)
            if _place(name) is not None
            for batch in _sound(disk.durable_bytes(f"{directory}/{name}"))
            if (entry := self._truth.entries.get((batch.last_offset, batch.term))) is not None
            and batch.data != entry.data
        ]

    def begins_late(self, vnode: Vnode) -> bool:
        """Whether the log on this disk lacks its beginning, or does not tell."""
        disk = self._disk(vnode)
        if disk is None:
            return True
        state = StateFile(disk.durable_copy(), f"{self._directory(vnode)}/log")
        try:
            return not state.load() or state.state.start > 0
        except OSError:
            return True

    def _directory(self, vnode: Vnode) -> str:
        return directory_of(self._group, vnode.revision)

    def _disk(self, vnode: Vnode) -> SimDisk | None:
        if vnode in self._wiped:
            return self._wiped[vnode]
        node = self._world.nodes.get(vnode.id)
        if node is None or node.vnode_of(self._group) != vnode:
            return None
        return node.disk


def _sound(data: bytes | None) -> Iterator[Batch]:
    """The batches that have their checksum, as far as one leads to the next."""
    view = memoryview(data or b"")
    position = 0
    while position < len(view):
        try:
            batch = Batch.parse(view, position)
        except CorruptBatch:
            return
        if crc32c(batch.data[_CRC_START:]) == batch.crc:
            yield batch
        position += batch.size


def _contains(data: bytes | None, entry: Entry) -> bool:
    """Whether these bytes hold the entry's batch, after nothing but whole batches."""
    if data is None:
        return False
    view = memoryview(data)
    position = 0
    while position < len(view):
        try:
            batch = Batch.parse(view, position)
        except CorruptBatch:
            return False
        if batch.last_offset >= entry.last:
            return (
                batch.last_offset == entry.last
                and batch.term == entry.term
                and crc32c(batch.data[_CRC_START:]) == batch.crc
            )
        position += batch.size
    return False
