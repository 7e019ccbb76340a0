"""What nodes keep on their disks, and hands that take it away from them."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.system.system import System

from tidelog.server.names import LOG_FILE, NODE_FILE

# What a node says of a replica that it can no longer trust.
LOST = "is lost and will be rebuilt"
# The operator's own, which come back with a new disk.
KEPT = (NODE_FILE, LOG_FILE)
_REVISION = re.compile(r".*-r(\d+)")


def replicas(cluster: System, node: int, topic: str) -> list[Path]:
    """Return the directories of a node's replicas of a topic, by partition."""
    root = cluster.cluster.node(node).directory
    return sorted((root / "topics" / topic).glob("*-g*-r*"))


def revisions(cluster: System, node: int, topic: str) -> list[int]:
    """Return the newest revision of each replica of a topic that a node has, by partition."""
    newest: dict[int, int] = {}
    for path in replicas(cluster, node, topic):
        found = _REVISION.fullmatch(path.name)
        assert found is not None, path
        index = int(path.name.split("-")[0])
        newest[index] = max(newest.get(index, 0), int(found[1]))
    return [newest[index] for index in sorted(newest)]


def segments(replica: Path) -> list[Path]:
    """Return the files of a log, oldest first; the last is written to."""
    return sorted((replica / "log").glob("*.log"), key=lambda path: int(path.name.split("-")[0]))


def flip(path: Path, position: int) -> None:
    """Turn one bit of a file around."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        (byte,) = os.pread(descriptor, 1, position)
        os.pwrite(descriptor, bytes([byte ^ 1]), position)
    finally:
        os.close(descriptor)


def empty(cluster: System, node: int) -> None:
    """Give a node that does not run a new disk."""
    for path in cluster.cluster.node(node).directory.iterdir():
        if not path.name.startswith(KEPT):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or a directory, at once also while a node writes to it."""
    gone = path.with_name(f"{path.name}.removed")
    path.rename(gone)
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
