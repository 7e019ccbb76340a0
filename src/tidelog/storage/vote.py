"""The vote file: what a replica must remember of its elections, durable before any answer.

`save` blocks until the disk has it, because a vote that a crash can take back lets one term have
two leaders. When a node dies, its peers save thousands of votes at once, so a save is one append
and one sync. The file begins, and begins anew when it has grown, as a whole beside the old one.

It is a row of entries, each written twice: an append that a crash tore leaves the entry before it,
and a copy that rots leaves the other. The last sound one counts.

    position  size  field
           0     4  magic
           4     4  CRC32C of the rest
           8    32  term, node, revision, compacted
"""

import contextlib
import posixpath
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_OFFSET, Offset, Term
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog
from tidelog.storage.sealed import replace_file

_MAGIC: Final = b"TLV1"
_VOTE: Final = struct.Struct(">qqqq")
_ENTRY: Final = struct.Struct(f">4sI{_VOTE.size}s")
_MAX_SIZE: Final = 4096

NO_NODE: Final = -1


@dataclass(frozen=True, slots=True)
class Vote:
    """The newest term a replica has seen, and whom it voted for in that term."""

    term: Term  # never falls from one save to the next
    node: int  # NO_NODE: no vote in this term yet
    revision: int  # with `node`, the identity of a replica: a node that came back is another one
    compacted: Offset  # records at or below it may be missing from the log; never falls


class VoteFile:
    """The vote of one replica, in one file."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._size = 0  # where the next entry goes; 0: the file has to begin anew

    def load(self) -> Vote | None:
        """Return the vote saved last, durably; None if none ever was."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        with contextlib.closing(file):
            data = file.read(0, file.size())
            # A process that was killed while it saved may have left what is not durable yet.
            file.sync()
        self._disk.sync_directory(posixpath.dirname(self._path))
        starts = range(0, len(data) - _ENTRY.size + 1, _ENTRY.size)
        sound = [at for at in starts if _is_sound(data, at)]
        if not sound:
            raise DamagedLog(self._path, 0, NO_OFFSET, f"no vote is whole in {len(data)} bytes")
        if sound[-1] + _ENTRY.size == len(data):
            self._size = len(data)
        _, _, payload = _ENTRY.unpack_from(data, sound[-1])
        term, node, revision, compacted = _VOTE.unpack(payload)
        return Vote(Term(term), node, revision, Offset(compacted))

    def save(self, vote: Vote) -> None:
        """Add the vote; durable when this returns."""
        payload = _VOTE.pack(vote.term, vote.node, vote.revision, vote.compacted)
        entry = _ENTRY.pack(_MAGIC, crc32c(payload), payload)
        size, self._size = self._size, 0  # should this fail, nobody knows what the file ends with
        if 0 < size < _MAX_SIZE:
            with contextlib.closing(self._disk.open(self._path)) as file:
                file.append([entry, entry])
                file.sync()
        else:
            size = 0
            replace_file(self._disk, self._path, [entry, entry])
        self._size = size + 2 * _ENTRY.size


def _is_sound(data: bytes, at: int) -> bool:
    magic, crc, payload = _ENTRY.unpack_from(data, at)
    return bool(magic == _MAGIC and crc == crc32c(payload))
