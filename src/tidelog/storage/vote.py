"""The vote file: what a replica must remember of its elections, durable before any answer.

`save` blocks until the disk has it, because a vote that a crash can take back lets one term have
two leaders. When a node dies, its peers save thousands of votes at once, so a save is two writes in
place and one sync: the file has its full size from the beginning, and neither grows nor moves.

    position  size  field
           0   512  slot
         512   512  the same slot again

    slot      size  field
           0     4  magic
           4     4  CRC32C of the rest
           8     8  sequence: one more with each save
          16    32  term, node, revision, compacted
          48     2  size of the owner's name; 0: written by a release that did not note it
          50   462  the owner's name, then zeros

A slot fills one sector, and they are written in order. A crash in the middle of a save leaves at
most one of them torn, and then the other holds this vote or the one before, which is all that the
replica had promised. So one sound slot is enough, and of two the newer counts. A file of another
size, or without a sound slot, is damage that no crash explains: it may have held a vote that
nothing else remembers. So is the vote of another replica: whoever moved it here moved the log and
the snapshots beside it as well, and those do not say whose they are.
"""

import contextlib
import posixpath
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_OFFSET, NO_TERM, Offset, Term
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog, LocalError
from tidelog.storage.sealed import replace_file

_MAGIC: Final = b"TLV2"
_HEAD: Final = struct.Struct(">4sI")
_VOTE: Final = struct.Struct(">qqqqq")
_SLOT: Final = 512
_OWNER: Final = struct.Struct(">H")
_OWNER_AT: Final = _HEAD.size + _VOTE.size
MAX_OWNER: Final = _SLOT - _OWNER_AT - _OWNER.size  # bytes of the owner's name
SIZE: Final = 2 * _SLOT

NO_NODE: Final = -1


@dataclass(frozen=True, slots=True)
class Vote:
    """The newest term a replica has seen, and whom it voted for in that term."""

    term: Term  # never falls from one save to the next
    node: int  # NO_NODE: no vote in this term yet
    revision: int  # with `node`, the identity of a replica: a node that came back is another one
    compacted: Offset  # records at or below it may be missing from the log; never falls


# What a replica writes before it takes part for the first time, so that a file that is missing
# later is known to be lost.
NOTHING_PROMISED: Final = Vote(NO_TERM, NO_NODE, 0, NO_OFFSET)


class VoteFile:
    """The vote of one replica, in one file."""

    def __init__(self, disk: Disk, path: str, owner: str = "") -> None:
        """`owner` names the replica; without it the vote of any is read."""
        self._owner = owner.encode()
        if len(self._owner) > MAX_OWNER:
            raise LocalError(f"{owner!r} is too long to name a replica")
        self._disk = disk
        self._path = path
        self._sequence = 0  # of the newest save
        self._certain = False  # both slots are known to hold the newest vote
        self._marker = path + ".poisoned"  # exists while the page cache cannot be trusted

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._path

    def load(self) -> Vote | None:
        """Return the vote saved last, durably; None if the file is missing."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        with contextlib.closing(file):
            data = file.read(0, SIZE + 1)
            # A process that was killed while it saved may have left what is not durable yet.
            file.sync()
        self._disk.sync_directory(posixpath.dirname(self._path))
        if len(data) != SIZE:
            reason = f"it has {len(data)} bytes or more, and a vote has {SIZE}"
            raise DamagedLog(self._path, min(len(data), SIZE), NO_OFFSET, reason)
        slots = [each for each in (data[:_SLOT], data[_SLOT:]) if _is_sound(each)]
        if not slots:
            raise DamagedLog(self._path, 0, NO_OFFSET, "neither copy of the vote is whole")
        votes = [_VOTE.unpack_from(each, _HEAD.size) for each in slots]
        owner = _owner_of(max(slots, key=lambda each: _VOTE.unpack_from(each, _HEAD.size)))
        if self._owner and owner not in (b"", self._owner):
            reason = f"it is the vote of {owner.decode()}, and this is {self._owner.decode()}"
            raise DamagedLog(self._path, _OWNER_AT, NO_OFFSET, reason)
        sequence, term, node, revision, compacted = max(votes)
        vote = Vote(Term(term), node, revision, Offset(compacted))
        self._sequence = sequence
        self._certain = len(votes) == 2 and votes[0] == votes[1]
        if self._disk.exists(self._marker):
            # The sync above says nothing: the kernel reports pages that it could not write once.
            self._certain = False
            self.save(vote)
            self._disk.remove(self._marker)
        return vote

    def save(self, vote: Vote) -> None:
        """Replace the vote; durable when this returns."""
        self._sequence += 1
        payload = _VOTE.pack(self._sequence, vote.term, vote.node, vote.revision, vote.compacted)
        payload += _OWNER.pack(len(self._owner)) + self._owner
        payload = payload.ljust(_SLOT - _HEAD.size, b"\0")
        slot = _HEAD.pack(_MAGIC, crc32c(payload)) + payload
        try:
            self._write(slot)
        except OSError:
            self._leave_marker()
            raise

    def _leave_marker(self) -> None:
        """Keep the next life from taking what the page cache shows for saved.

        The marker need not be durable: a crash of the machine empties the cache.
        """
        with contextlib.suppress(OSError):
            self._disk.open(self._marker, create=True).close()

    def _write(self, slot: bytes) -> None:
        # Should this fail, or should a slot be damaged, the whole file is written anew: a failed
        # sync may never write these pages again.
        certain, self._certain = self._certain, False
        if certain:
            with contextlib.closing(self._disk.open(self._path)) as file:
                file.write(0, slot)
                file.write(_SLOT, slot)
                file.sync()
        else:
            replace_file(self._disk, self._path, [slot, slot])
        self._certain = True


def _owner_of(slot: bytes) -> bytes:
    (size,) = _OWNER.unpack_from(slot, _OWNER_AT)
    return slot[_OWNER_AT + _OWNER.size :][:size]


def _is_sound(slot: bytes) -> bool:
    magic, crc = _HEAD.unpack_from(slot)
    return bool(magic == _MAGIC and crc == crc32c(slot[_HEAD.size :]))
