"""Which replicas a node hosts: written before one takes part for the first time.

A replica whose files are gone must not be taken for one that is new: it may have voted, and it may
have acknowledged what it forgot. So a node opens a replica in three steps: it creates the files, a
vote that promises nothing among them; it notes the replica here, durably; only then it lets it take
part. What is noted and not there is lost. What is there and not noted never took part.

`registry` is a row of records, appended in batches with one sync for each batch:

    4 bytes CRC32C of the rest, 4 bytes size, JSON

    ["birth", BIRTH]                    the first: whose registry this is
    ["host", GROUP, REVISION]           a replica takes part
    ["lost", GROUP, REVISION, REASON]   it must never take part again
    ["gone", GROUP, REVISION]           it was removed, by a decision of group 0

A crash may tear the last batch, of which nothing was used yet. Whatever else is wrong with the
file, the replicas that it no longer names are found by their files, and are lost then.
"""

import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final

from crc32c import crc32c

from tidelog.raft.types import GroupId
from tidelog.storage import Disk, replace_file

NAME: Final = "registry"
_HEAD: Final = Struct(">II")
_MAX_RECORD: Final = 4096
_MAX_REASON: Final = 1000
# The file is written anew when it has grown to this size and twice what is in it.
_MIN_REWRITE: Final = 1 << 20

Place = tuple[GroupId, int]  # a group, and the revision of the replica here


class Registry:
    """The replicas of one birth of a node. Methods that write block; any thread may call them."""

    def __init__(self, disk: Disk, birth: str) -> None:
        """Use `load` or `begin`."""
        self._disk = disk
        self._birth = birth
        self._lock = threading.Lock()
        self._hosted: frozenset[Place] = frozenset()
        self._lost: Mapping[Place, str] = {}
        self._size = 0  # of the file; 0: it has to be written anew

    @classmethod
    def begin(cls, disk: Disk, birth: str) -> "Registry":
        """Begin the registry of a new birth, in the place of what is there."""
        registry = cls(disk, birth)
        registry._rewrite(frozenset(), {})
        return registry

    @classmethod
    def load(cls, disk: Disk, birth: str) -> "Registry | None":
        """Read the registry of this birth; None if it is missing, or too damaged to be that."""
        try:
            file = disk.open(NAME)
        except FileNotFoundError:
            return None
        with contextlib.closing(file):
            records = _records(file.read(0, file.size()))
        if not records or records[0] != ["birth", birth]:
            return None
        registry = cls(disk, birth)
        hosted: set[Place] = set()
        lost: dict[Place, str] = {}
        for record in records[1:]:
            match record:
                case ["host", int(group), int(revision)]:
                    hosted.add((GroupId(group), revision))
                case ["lost", int(group), int(revision), str(why)]:
                    lost[GroupId(group), revision] = why
                case ["gone", int(group), int(revision)]:
                    hosted.discard((GroupId(group), revision))
                    lost.pop((GroupId(group), revision), None)
                case _:
                    return None
        registry._rewrite(frozenset(hosted), lost)
        return registry

    def __len__(self) -> int:
        return len(self._hosted)

    def hosts(self, group: GroupId, revision: int) -> bool:
        """Whether this replica may have taken part."""
        return (group, revision) in self._hosted

    def why_lost(self, group: GroupId, revision: int) -> str | None:
        return self._lost.get((group, revision))

    @property
    def hosted(self) -> frozenset[Place]:
        return self._hosted

    # --- Writing --------------------------------------------------------------------------------

    def add(self, places: Sequence[Place]) -> None:
        """Note replicas that are about to take part; durable when this returns."""
        with self._lock:
            hosted = self._hosted | set(places)
            self._append([["host", *place] for place in places], hosted, self._lost)

    def lose(self, group: GroupId, revision: int, why: str) -> None:
        """Note that a replica must not take part again; durable when this returns."""
        why = why[:_MAX_REASON]
        with self._lock:
            lost = {**self._lost, (group, revision): why}
            self._append([["lost", group, revision, why]], self._hosted, lost)

    def remove(self, places: Sequence[Place]) -> None:
        """Forget replicas whose files were removed; durable when this returns."""
        with self._lock:
            known = [each for each in places if each in self._hosted or each in self._lost]
            if known:
                lost = {place: why for place, why in self._lost.items() if place not in known}
                hosted = self._hosted - set(known)
                self._append([["gone", *place] for place in known], hosted, lost)

    def _append(
        self, records: list[list[Any]], hosted: frozenset[Place], lost: Mapping[Place, str]
    ) -> None:
        data = b"".join(map(_encode, records))
        live = 64 * (len(hosted) + len(lost) + 1)
        size, self._size = self._size, 0  # should this fail, the end of the file is unknown
        if size == 0 or size + len(data) > max(_MIN_REWRITE, 2 * live):
            self._rewrite(hosted, lost)
            return
        with contextlib.closing(self._disk.open(NAME)) as file:
            file.append([data])
            file.sync()
        self._size = size + len(data)
        self._hosted, self._lost = hosted, lost

    def _rewrite(self, hosted: frozenset[Place], lost: Mapping[Place, str]) -> None:
        records: list[list[Any]] = [["birth", self._birth]]
        records += [["host", *place] for place in sorted(hosted)]
        records += [["lost", *place, lost[place]] for place in sorted(lost)]
        data = b"".join(map(_encode, records))
        replace_file(self._disk, NAME, [data])
        self._size = len(data)
        self._hosted, self._lost = hosted, lost


def _encode(record: list[Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    size = len(body).to_bytes(4, "big")
    return crc32c(size + body).to_bytes(4, "big") + size + body


def _records(data: bytes) -> list[Any]:
    """The records up to the first that is not whole."""
    records = []
    at = 0
    while at + _HEAD.size <= len(data):
        crc, size = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + size
        if size > _MAX_RECORD + _MAX_REASON * 6 or end > len(data):
            break
        if crc32c(data[at + 4 : end]) != crc:
            break
        try:
            records.append(json.loads(data[at + _HEAD.size : end]))
        except ValueError:
            break
        at = end
    return records
