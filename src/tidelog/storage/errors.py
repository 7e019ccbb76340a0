"""What can go wrong in this room, split by whose fault it is.

`LocalError` is a bug in the code above (a batch that does not follow the log, a cut inside a
batch). `StorageError` is the disk's fault, and is an `OSError` with its number, so that a caller
can tell a full disk from a broken one. `DamagedLog` is the one kind that waiting or retrying
cannot mend: bytes that were flushed are gone or changed. A file that has vanished and a sector that
the disk no longer reads count as well.
"""

import errno
from typing import Final

from tidelog.records import CorruptBatch, Offset

# What a file system answers where the medium, or its own checksum, gave up on a read. Asking again
# does not help, so this is damage; any other error may pass.
_UNREADABLE: Final = frozenset(
    {errno.EIO, errno.EBADMSG, errno.ENODATA, getattr(errno, "EUCLEAN", errno.EIO)}
)


class LocalError(Exception):
    """The caller broke the contract: a bug on this side of the disk."""


class StorageError(OSError):
    """The disk refused or failed; `errno` is the cause's own, or EIO when there is none."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__((cause.errno if cause else None) or errno.EIO, message)

    def __str__(self) -> str:
        return str(self.strerror)


class Unreadable(CorruptBatch):
    """The disk does not return the bytes at this position: damage, never a torn append."""


def is_unreadable(error: OSError) -> bool:
    """Whether a read failed because the bytes are lost, and not because the machine is short."""
    return error.errno in _UNREADABLE


class DamagedLog(StorageError):
    """Bytes that were flushed are gone or changed. Nothing was cut: the replica is lost."""

    path: str  # the file
    position: int  # where in the file the damage begins
    reason: str  # what is wrong with it
    offset: Offset  # first log offset that may be affected, NO_OFFSET if none can be named

    def __init__(self, path: str, position: int, offset: Offset, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at position {position} (offset {offset}), below what was flushed: "
            f"{reason}. The node rebuilds this replica from its peers; if it cannot, "
            "`tidelog node recover` goes on with what is left."
        )
        self.path = path
        self.position = position
        self.reason = reason
        self.offset = offset
