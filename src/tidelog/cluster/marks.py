"""How far the replicas of a node were when it stopped: what a start must find at least.

A replica's directory that was put back from an older copy is whole in itself, and has forgotten
what it promised since. So a node that stops writes down, beside its replicas, what each of them had
saved and knew to be committed. Neither ever falls in the life of a replica, so these marks hold for
good; they are only less sharp after a crash, when they are those of the last stop. Without the file
nothing is demanded.
"""

import contextlib
from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final

from tidelog.cluster.legacy import Legacy
from tidelog.raft.types import GroupId, HardState, NodeId, Vnode
from tidelog.records import Offset, Term
from tidelog.storage import Disk
from tidelog.storage.sealed import load_sealed, save_sealed

if TYPE_CHECKING:
    from tidelog.cluster.groups import Hosted
    from tidelog.cluster.registry import Registry

FILE: Final = "marks"
_MAGIC: Final = b"TLK1"
_ROW: Final = Struct(">8q")  # group, revision, committed, term, compacted, voted, node, revision
_NOBODY: Final = (0, 0, 0)

Place = tuple[GroupId, int]  # a group, and the revision of the replica here


class Marks:
    def __init__(self) -> None:
        self._legacies: dict[Place, Legacy] = {}

    def get(self, group: GroupId, revision: int) -> Legacy | None:
        """What a replica must have at least; None if nothing is known."""
        return self._legacies.get((group, revision))

    def note(self, replicas: Iterable["Hosted"]) -> None:
        """Take the marks of replicas that are about to be closed."""
        for hosted in replicas:
            core = hosted.replica.core
            if hosted.replica.lost is None:
                committed = min(core.committed, core.flushed)
                place = (hosted.group, core.vnode.revision)
                self._legacies[place] = Legacy(committed, core.persisted, None)

    def load(self, disk: Disk) -> None:
        with contextlib.suppress(OSError):
            payload = load_sealed(disk, FILE, _MAGIC) or b""
            if len(payload) % _ROW.size == 0:
                self._legacies = dict(map(_decode, _ROW.iter_unpack(payload)))

    def save(self, disk: Disk, registry: "Registry") -> None:
        """Write down those of all replicas that the node still has."""
        rows = [
            _encode(place, legacy)
            for place, legacy in self._legacies.items()
            if registry.hosts(*place)
        ]
        save_sealed(disk, FILE, _MAGIC, b"".join(rows))


def _encode(place: Place, legacy: Legacy) -> bytes:
    hard = legacy.hard
    voted = _NOBODY if hard.voted_for is None else (1, *hard.voted_for)
    return _ROW.pack(*place, legacy.flushed, hard.term, hard.compacted, *voted)


def _decode(row: tuple[int, ...]) -> tuple[Place, Legacy]:
    group, revision, committed, term, compacted, voted, node, of = row
    voted_for = Vnode(NodeId(node), of) if voted else None
    hard = HardState(Term(term), voted_for, Offset(compacted))
    return (GroupId(group), revision), Legacy(Offset(committed), hard, None)
