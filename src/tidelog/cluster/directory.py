"""Which process uses a node's data directory: the lock that a running node holds on it.

Rules:
- The lock (`flock` on DIR/lock) is the truth. Held means that a node lives, free means that none
  does, whatever the file says: the kernel drops the lock when the process ends, however it ends.
- The holder writes its pid and its start time into the file. A pid alone proves nothing, because
  the system hands it out again; with the start time it names one process.
- A signal goes to that process or to none: `Process.send` pins the process first, then compares.
"""

import contextlib
import fcntl
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

LOCK: Final = "lock"
# A look takes the lock for an instant, so a node that wants it tries more than once.
TAKE_ATTEMPTS: Final = 10
TAKE_PAUSE_S: Final = 0.02
MAX_LOCK_BYTES: Final = 200


class Taken(Exception):
    """Another process holds the directory; the message says which, as far as it is known."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    started: int  # in clock ticks since the machine started; 0 where the system does not say

    def is_running(self) -> bool:
        return _start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False if it is gone.

        Raises `PermissionError` if the process belongs to another user.
        """
        if not hasattr(os, "pidfd_open"):  # not Linux
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
                return True
            return False
        try:
            pinned = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # From here on the signal cannot reach a later process with the same pid.
            if not self.is_running():
                return False
            signal.pidfd_send_signal(pinned, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pinned)
        return True


@dataclass(frozen=True, slots=True)
class Held:
    """A directory that a process holds."""

    # None if the holder has not said who it is: it took the lock this very moment, runs out of
    # sight (in another container), or is something other than a node.
    process: Process | None

    def __str__(self) -> str:
        if self.process is None:
            return "a process that did not write its pid into the lock file"
        return f"process {self.process.pid}"


def take(data: Path) -> IO[bytes]:
    """Lock the directory for as long as the result stays open.

    Raises `Taken` if another process has it, `OSError` if it cannot be used at all.
    """
    data.mkdir(parents=True, exist_ok=True)
    file = (data / LOCK).open("a+b")
    try:
        _lock(file, data)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "started": _start_time(os.getpid())}).encode())
        # Whatever the disk says to that: the lock itself needs no bytes.
        with contextlib.suppress(OSError):
            file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: IO[bytes], data: Path) -> None:
    for _ in range(TAKE_ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(TAKE_PAUSE_S)
    raise Taken(str(look(data) or "another process"))


def look(data: Path) -> Held | None:
    """Return who holds the directory; None if it is free, or is not there."""
    try:
        file = (data / LOCK).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            for _ in range(TAKE_ATTEMPTS):
                file.seek(0)
                process = _read(file.read(MAX_LOCK_BYTES))
                if process is not None and process.is_running():
                    return Held(process)
                time.sleep(TAKE_PAUSE_S)  # it may be about to write
            return Held(None)
        return None


def _read(text: bytes) -> Process | None:
    try:
        found = json.loads(text)
        pid, started = found["pid"], found["started"]
    except (ValueError, KeyError, TypeError):
        return None
    if type(pid) is not int or type(started) is not int or pid < 1:
        return None
    return Process(pid, started)


def _start_time(pid: int) -> int:
    """Return when a process started; -1 if there is none, 0 if the system does not tell."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return -1
        except PermissionError:
            return 0
        return 0
    try:
        # The second field is the name in parentheses, and a name may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return -1
