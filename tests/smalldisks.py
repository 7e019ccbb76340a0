"""Small file systems of their own, for tests that fill them up."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1 << 20
FILLER = "filler"  # what `fill` leaves in the root of a file system


@contextlib.contextmanager
def small_disk(at: Path, mib: int) -> Iterator[Path]:
    """Mount a file system of that size in a directory; skip the test where that is forbidden."""
    at.mkdir(parents=True, exist_ok=True)
    options = f"size={mib}m,nr_inodes=20k"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tidelog-test", str(at)]
    try:
        found = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this machine has no `mount`, so no small file system can be made")
    if found.returncode:
        pytest.skip(f"this user may not mount a small file system: {found.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def fill(disk: Path, leave: int = 0) -> None:
    """Do what another program does that knows no measure: leave only so many bytes."""
    with contextlib.suppress(OSError), (disk / FILLER).open("ab", buffering=0) as file:
        while (size := free_bytes(disk) - leave) > 0:
            file.write(bytes(min(size, 1 << 16)))


def make_room(disk: Path) -> None:
    (disk / FILLER).unlink()
