"""The vote file: what a replica must remember of its elections, durable before any answer.

One file, replaced as a whole. `save` blocks until the disk has it, because a vote that a crash can
take back lets one term have two leaders.
"""

import posixpath
import struct
from dataclasses import dataclass
from typing import Final

from tidelog.records import NO_OFFSET, Offset, Term
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog
from tidelog.storage.sealed import load_sealed, save_sealed

_MAGIC: Final = b"TLV1"
_VOTE: Final = struct.Struct(">qqqq")

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

    def load(self) -> Vote | None:
        """Return the vote saved last, durably; None if none ever was."""
        payload = load_sealed(self._disk, self._path, _MAGIC)
        if payload is None:
            return None
        # A process that was killed while it saved may have left a name that is not durable yet.
        self._disk.sync_directory(posixpath.dirname(self._path))
        if len(payload) != _VOTE.size:
            raise DamagedLog(self._path, 0, NO_OFFSET, f"a vote of {len(payload)} bytes")
        term, node, revision, compacted = _VOTE.unpack(payload)
        return Vote(Term(term), node, revision, Offset(compacted))

    def save(self, vote: Vote) -> None:
        """Replace the vote; durable when this returns."""
        payload = _VOTE.pack(vote.term, vote.node, vote.revision, vote.compacted)
        save_sealed(self._disk, self._path, _MAGIC, payload)
