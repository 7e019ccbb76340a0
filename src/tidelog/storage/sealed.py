"""Small files that are either whole or as they were: the state of a log, a checkpoint.

    position  size  field
           0     4  magic, which names the kind of file
           4     4  CRC32C of the payload
           8        payload

Written beside, synced, renamed over, and the directory synced: after `save` returns, a crash leaves
the new content; before that, the old or the new, never a mix.
"""

import contextlib
import posixpath
import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_OFFSET, Buffer
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog

# Ends the names of files that are being written. Whatever still has it at a start is left over
# from a crash and may be removed.
STAGING: Final = ".staging"

_HEADER: Final = struct.Struct(">4sI")


def save_sealed(disk: Disk, path: str, magic: bytes, payload: bytes) -> None:
    """Replace the file's content; durable when this returns."""
    replace_file(disk, path, [_HEADER.pack(magic, crc32c(payload)), payload])


def replace_file(disk: Disk, path: str, content: Sequence[Buffer]) -> None:
    """Put a new file in the place of another; durable when this returns."""
    staging = path + STAGING
    file = disk.open(staging, create=True)
    try:
        file.truncate(0)
        file.append(content)
        file.sync()
    except OSError:
        file.close()
        # On a disk that is full the half of it would take what the other half lacks.
        with contextlib.suppress(OSError):
            disk.remove(staging)
        raise
    file.close()
    disk.rename(staging, path)
    disk.sync_directory(posixpath.dirname(path))


def remove_staging(disk: Disk, directory: str) -> None:
    """Remove what a crash left of files that were being replaced; nothing may be replaced now."""
    for name in disk.list(directory):
        if name.endswith(STAGING):
            disk.remove(posixpath.join(directory, name))


def load_sealed(disk: Disk, path: str, magic: bytes) -> bytes | None:
    """Return the payload that was saved last, None if nothing ever was."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    with contextlib.closing(file):
        data = file.read(0, file.size())
    if len(data) < _HEADER.size:
        raise DamagedLog(path, len(data), NO_OFFSET, "the file is shorter than its header")
    found, crc = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if found != magic:
        raise DamagedLog(path, 0, NO_OFFSET, f"it begins with {found!r}, not {magic!r}")
    if crc32c(payload) != crc:
        raise DamagedLog(path, _HEADER.size, NO_OFFSET, "the checksum does not fit the content")
    return payload
