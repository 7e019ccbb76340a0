"""What processes cost, as the kernel counts it: processor seconds and memory.

Wall clock on a machine with two cores, shared by clients and nodes, says as much about the
neighbours as about the nodes. Processor seconds hardly depend on them.
"""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024
KIB = 1024
BUSY_LOAD = 0.5  # a load average a core above this means that somebody else is working


class BenchFailed(Exception):
    """A measurement cannot be made; the message says why, and what to do."""


def is_running(pid: int) -> bool:
    """Whether this process runs: one that ended and that nobody waited for does not."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in {"Z", "X"}
    return False


def wait_ended(pids: Sequence[int], timeout: float) -> list[int]:
    """Return those that still run after the timeout."""
    deadline = time.monotonic() + timeout
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if is_running(pid)]
        if left:
            time.sleep(0.02)
    return left


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor seconds that these processes have used, in user code and in the kernel."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_mib(pids: Sequence[int | str]) -> float:
    """Memory of the largest of these processes now; "self" is this one."""
    return max(_status(pid, "VmRSS") for pid in pids)


def peak_mib(pids: Sequence[int]) -> float:
    """Most memory that any of these processes had since `forget_peak`."""
    return max(_status(pid, "VmHWM") for pid in pids)


def forget_peak(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int | str, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / KIB
    return 0.0


def busy() -> str:
    """What to say about the neighbours; empty when there are none."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load / cores <= BUSY_LOAD:
        return ""
    return f"the machine was busy before this began (load {load:.1f} on {cores} cores)"


@dataclass(frozen=True, slots=True)
class Cost:
    """What the nodes of a cluster spent on one measurement."""

    cpu_s: float
    peak_mib: float  # of the largest node


class Meter:
    """Counts from its making until `read`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = list(pids)
        forget_peak(self._pids)
        self._began = cpu_seconds(self._pids)

    def read(self) -> Cost:
        return Cost(cpu_seconds(self._pids) - self._began, peak_mib(self._pids))


def tell(line: str) -> None:
    """Say how far a long run has got, apart from the figures."""
    print(f"     {line}", file=sys.stderr, flush=True)
