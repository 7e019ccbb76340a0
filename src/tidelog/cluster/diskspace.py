"""How much room there is on the disk of a node, asked without waiting for a disk that hangs.

One question is under way at a time, in a thread that nothing waits for: whoever asks meanwhile gets
the same answer, and a disk that never answers costs one thread.
"""

import asyncio
import errno
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 1.0  # less than another node waits for all that this one has to say


@dataclass(frozen=True, slots=True)
class Room:
    free_bytes: int
    total_bytes: int


class DiskSpace:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._asked: asyncio.Future[Room | OSError] | None = None

    async def look(self) -> Room:
        """Return what there is; raises `OSError`, also if the disk does not answer in time."""
        if self._asked is None:
            loop = asyncio.get_running_loop()
            self._asked = loop.create_future()
            threading.Thread(
                target=self._ask, args=(loop,), name="tidelog-disk-space", daemon=True
            ).start()
        try:
            answer = await asyncio.wait_for(asyncio.shield(self._asked), PATIENCE_S)
        except TimeoutError:
            why = f"its disk does not answer within {PATIENCE_S:g} s"
            raise OSError(errno.ETIMEDOUT, why, os.fspath(self._directory)) from None
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        answer: Room | OSError
        try:
            usage = shutil.disk_usage(self._directory)
            answer = Room(usage.free, usage.total)
        except OSError as error:
            answer = error
        try:
            loop.call_soon_threadsafe(self._answered, answer)
        except RuntimeError:
            return  # the loop is closed

    def _answered(self, answer: Room | OSError) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(answer)
