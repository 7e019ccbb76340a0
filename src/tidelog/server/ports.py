"""TCP ports for the nodes of a cluster on this machine, and who has a port that is taken.

A node keeps its ports for life, so they must still be free after it was down for a while. The
system gives any port of its ephemeral range to whatever connection comes next; ports that are
chosen here lie outside that range.
"""

import contextlib
import errno
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
# The default of Linux and the range that IANA recommends, for systems that do not say.
USUAL_EPHEMERAL: Final = range(32_768, 65_536)
# Below are ports of well-known services, Kafka's 9092 and its neighbours among them.
LOWEST: Final = 15_000
HIGHEST: Final = 65_000
_LISTENING: Final = "0A"  # the state in /proc/net/tcp


class NoPorts(Exception):
    """There are not enough free ports on this machine."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that has a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"


def ephemeral_range(file: Path = RANGE_FILE) -> range:
    """Return the ports that the system gives to outgoing connections."""
    try:
        low, high = map(int, file.read_text().split())
    except (OSError, ValueError):
        return USUAL_EPHEMERAL
    return range(low, high + 1)


def choose(count: int, host: str, *, avoid: range | None = None) -> list[int]:
    """Return different ports that are free now, outside the ephemeral range if it leaves room."""
    taken = ephemeral_range() if avoid is None else avoid
    candidates = [port for port in range(LOWEST, HIGHEST) if port not in taken]
    if len(candidates) < count:
        candidates = list(range(LOWEST, HIGHEST))
    random.shuffle(candidates)  # two clusters that start at the same time choose differently
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if is_free(host, port):
            found.append(port)
    if len(found) < count:
        raise NoPorts(f"only {len(found)} ports are free on {host} and {count} are needed")
    return found


def is_free(host: str, port: int) -> bool:
    """Tell whether a server could listen there now.

    Raises `OSError` if that cannot be found out: no such address, a privileged port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the node's listener does
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def taken_by(host: str, port: int) -> str | None:
    """Return who has a port, as a subject for a sentence; None if it is free or 0.

    Raises `OSError` as `is_free` does.
    """
    if not port or is_free(host, port):
        return None
    found = owner(port)
    return "a process that cannot be seen from here" if found is None else str(found)


def owner(port: int) -> Owner | None:
    """Return the process that has a port; None if it cannot be seen from here."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return None
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's process, or it ended
            for handle in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(handle.readlink()) in wanted:
                        return Owner(int(process.name), (process / "comm").read_text().strip())
    return None


def _inodes(port: int) -> list[str]:
    """Return the sockets bound to a port: those that listen, or else all."""
    listening: list[str] = []
    others: list[str] = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                    (listening if fields[3] == _LISTENING else others).append(fields[9])
    return listening or others
