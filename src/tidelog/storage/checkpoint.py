"""The checkpoint file: what a replica made of its log so far, so that a start need not read it all.

It is a cache of the log, kept by one replica for itself. Rules:
- It speaks of committed offsets that were flushed here, so no crash and no truncation of a suffix
  makes it wrong; only its age differs. One that is older than the log's beginning is of no use.
- One file, replaced as a whole. What cannot be read counts as not being there: the log tells the
  same, more slowly.
"""

import contextlib
import struct
from dataclasses import dataclass
from typing import Final

from tidelog.records import Offset, Term
from tidelog.storage.disk import Disk
from tidelog.storage.sealed import load_sealed, save_sealed

_MAGIC: Final = b"TLC2"
_PLACE: Final = struct.Struct(">qqI")  # offset, term, size of the metadata


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state, and the place in the log whose past it sums up."""

    offset: Offset  # last offset whose effect it contains
    term: Term  # of that offset
    state: bytes  # the owner's own
    metadata: bytes  # likewise: what a snapshot would carry beside the state


class CheckpointFile:
    """The checkpoint of one replica, in one file."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def load(self) -> Checkpoint | None:
        """Return the checkpoint saved last; None if none ever was, or if it is damaged.

        A disk that cannot read it is no reason to stay away: what it sums up is in the log.
        """
        payload: bytes | None = None
        with contextlib.suppress(OSError):
            payload = load_sealed(self._disk, self._path, _MAGIC)
        if payload is None or len(payload) < _PLACE.size:
            return None
        offset, term, size = _PLACE.unpack_from(payload)
        end = _PLACE.size + size
        return Checkpoint(Offset(offset), Term(term), payload[end:], payload[_PLACE.size : end])

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; durable when this returns."""
        place = _PLACE.pack(checkpoint.offset, checkpoint.term, len(checkpoint.metadata))
        content = place + checkpoint.metadata + checkpoint.state
        save_sealed(self._disk, self._path, _MAGIC, content)
