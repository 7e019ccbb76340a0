"""The reserve of a node: a file that keeps bytes of the disk from all other programs.

It is allocated and never written. Whoever lets go of it removes it, which needs no free byte.
"""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

NAME: Final = "reserve"


class Reserve:
    """The file in a node's directory. All of this blocks."""

    def __init__(self, data: Path) -> None:
        self._path = data / NAME

    def held(self) -> int:
        """Return the bytes that it holds of the disk, which a former process may have taken."""
        try:
            return self._path.stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    def settle(self, size: int) -> None:
        """Hold that many bytes; with 0, let go of them. What cannot be had is not held."""
        if size == 0:
            self._path.unlink(missing_ok=True)
        elif not self._path.exists():
            self._take(size)

    def _take(self, size: int) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            # Half a reserve, taken while the disk ran full, would be the last straw.
            with contextlib.suppress(OSError):
                self._path.unlink()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINVAL):
                raise
        finally:
            os.close(descriptor)
