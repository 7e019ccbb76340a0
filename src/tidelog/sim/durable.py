"""What would be left of a replica if power went now: the judge's own look at the simulated disks.

The product's code reads nothing here. A log segment is walked batch by batch over the bytes that
were synced, so that a bug in the log's own bookkeeping cannot vouch for itself.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING

from crc32c import crc32c

from tidelog.raft.types import GroupId, Vnode
from tidelog.records import Batch, CorruptBatch
from tidelog.sim.disk import SimDisk
from tidelog.sim.truth import Entry, GroupTruth
from tidelog.storage import Vote, VoteFile
from tidelog.storage.segment import parse_name

if TYPE_CHECKING:
    from tidelog.sim.world import World

# Asked after every flush, about the same few names.
_place = lru_cache(1_024)(parse_name)
_CRC_START = 21  # of a batch: everything from here on is covered by its checksum


class DurableDisks:
    """The disks of one group, as `facts.Disks`."""

    def __init__(self, world: World, group: GroupId, truth: GroupTruth) -> None:
        self._world = world
        self._directory = f"group-{group}"
        self._truth = truth
        # A vnode whose disk was wiped is gone for good. What it had promised it also had on disk,
        # and since nobody can win its vote any more, that promise is never broken.
        self._wiped: dict[Vnode, SimDisk] = {}

    def wiped(self, vnode: Vnode) -> None:
        """Keep what this vnode had on its disk, now that it will never be asked again."""
        disk = self._disk(vnode)
        if disk is not None:
            self._wiped[vnode] = disk.durable_copy()

    def holds(self, vnode: Vnode, entry: Entry) -> bool:
        """Whether the entry is in the synced bytes of the log, or covered by a snapshot."""
        if any(offset >= entry.last for offset in self._truth.replica(vnode).snapshots):
            return True
        disk = self._disk(vnode)
        directory = f"{self._directory}/log"
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
        """The vote file as a restart would find it."""
        disk = self._disk(vnode)
        if disk is None or not disk.exists(self._directory):
            return None
        data = disk.durable_bytes(f"{self._directory}/vote")
        if data is None:
            return None
        alone = SimDisk(random.Random(0))
        alone.open("vote", create=True).append([data])
        return VoteFile(alone, "vote").load()

    def _disk(self, vnode: Vnode) -> SimDisk | None:
        if vnode in self._wiped:
            return self._wiped[vnode]
        node = self._world.nodes.get(vnode.id)
        return node.disk if node is not None and node.vnode == vnode else None


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
