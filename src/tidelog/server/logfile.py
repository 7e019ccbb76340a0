"""The log of a node as files of bounded size: node.log, node.log.1, node.log.2 ...

The event loop only puts lines into a queue. A thread writes them and rotates the files, so a slow
disk delays the log and not the node. Nothing here is unbounded: lines are cut, the queue drops what
does not fit and the log says how many lines it lost.
"""

import contextlib
import logging
import os
import queue
import threading
from pathlib import Path
from typing import Final

MAX_LINE_BYTES: Final = 64 << 10  # a traceback of a deep stack is a tenth of that
MAX_WAITING: Final = 10_000  # lines; a node that works says a few a minute
CLOSE_S: Final = 5.0


class RotatingFile:
    """Files that together never hold more than about `files * max_bytes`; for one thread."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._files = files
        self._handle = _open(path)
        # The parent process may have sent our output into the same file. What the interpreter
        # itself prints must then follow to the new file.
        self._outputs = [number for number in (1, 2) if _is_same(number, self._handle)]

    def write(self, line: bytes) -> None:
        """Append a line; raises `OSError`, and the next line is tried all the same."""
        size = os.fstat(self._handle).st_size  # others may write to it too
        if size and size + len(line) > self._max_bytes:
            self._make_room(size)
        while line:
            line = line[os.write(self._handle, line) :]

    def close(self) -> None:
        os.close(self._handle)

    def _make_room(self, size: int) -> None:
        try:
            self._rotate()
        except OSError:
            # Without descriptors, say, which is what the next lines are about: they go on in the
            # same file for a while.
            if size > 2 * self._max_bytes:
                raise

    def _rotate(self) -> None:
        """Begin a new file; whatever fails, there is one to write to, and the next line retries."""
        if self._files == 1:
            os.ftruncate(self._handle, 0)
            return
        # Opened before anything is renamed: that is what fails when the disk or the table of
        # descriptors is full.
        partial = self._name("partial")
        fresh = _open(partial, os.O_TRUNC)
        try:
            for number in range(self._files - 2, -1, -1):
                source = self._name(number) if number else self.path
                with contextlib.suppress(FileNotFoundError):  # or an attempt before this one failed
                    source.replace(self._name(number + 1))
            partial.replace(self.path)
        except OSError:
            os.close(fresh)
            raise
        before, self._handle = self._handle, fresh
        for number in self._outputs:
            os.dup2(fresh, number)
        os.close(before)

    def _name(self, which: int | str) -> Path:
        return self.path.with_name(f"{self.path.name}.{which}")


class BackgroundHandler(logging.Handler):
    """Formats log records where they are made and lets a thread write them."""

    def __init__(self, file: RotatingFile) -> None:
        super().__init__()
        self.lost = 0
        self._file = file
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write, name="node-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode(errors="replace")
            self._waiting.put_nowait(_cut(line) + b"\n")
        except queue.Full:
            self.lost += 1
        except Exception:  # noqa: BLE001  # what logging asks of handlers
            self.handleError(record)

    def close(self) -> None:
        """Write what is waiting, as long as that does not take for ever."""
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
        super().close()

    def _write(self) -> None:
        told = 0
        while (line := self._waiting.get()) is not None:
            lost = self.lost
            if lost > told:
                line = (
                    b"(%d log lines were lost: the disk did not take them)\n" % (lost - told) + line
                )
            try:
                self._file.write(line)
                told = lost
            except OSError:
                self.lost += 1  # a full disk, most likely; the next line tries again
        self._file.close()


def log_to(path: Path, max_bytes: int, files: int, level: int, form: str) -> BackgroundHandler:
    """Send the log of this process to a file; raises `OSError` if it cannot be opened.

    The result must be closed at the end, or the last lines may be missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = BackgroundHandler(RotatingFile(path, max_bytes, files))
    handler.setFormatter(logging.Formatter(form))
    logging.basicConfig(level=level, handlers=[handler])
    logging.raiseExceptions = False
    return handler


def _cut(line: bytes) -> bytes:
    if len(line) <= MAX_LINE_BYTES:
        return line
    return line[:MAX_LINE_BYTES] + b" ... (%d bytes more)" % (len(line) - MAX_LINE_BYTES)


def _open(path: Path, more: int = 0) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | more, 0o644)


def _is_same(one: int, other: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(one), os.fstat(other))
    return False
