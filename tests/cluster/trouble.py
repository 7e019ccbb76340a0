"""Real disks of real nodes that fail syncs or are full when a test says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidelog.cluster import node as node_module
from tidelog.records import Buffer
from tidelog.storage.disk import RealDisk, RealFile


class TroubledDisk(RealDisk):
    """A directory of the operating system, with faults by switch."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.fails_below: str | None = None  # syncs of files whose path begins with this fail
        self.full_below: str | None = None  # files whose path begins with this take nothing more

    def open(self, path: str, create: bool = False) -> RealFile:
        if create and self.is_full(path) and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on this troubled disk", path)
        file = super().open(path, create)
        return TroubledFile(self, path, os.dup(file._descriptor), file)

    def fails(self, path: str) -> bool:
        return self.fails_below is not None and path.startswith(self.fails_below)

    def is_full(self, path: str) -> bool:
        return self.full_below is not None and path.startswith(self.full_below)

    def sync_directory(self, path: str) -> None:
        if self.fails(path):
            raise OSError(errno.EIO, "This troubled disk fails", path)
        super().sync_directory(path)


class TroubledFile(RealFile):
    def __init__(self, disk: TroubledDisk, path: str, descriptor: int, opened: RealFile) -> None:
        opened.close()
        super().__init__(descriptor)
        self._disk = disk
        self._path = path

    def append(self, buffers: Sequence[Buffer]) -> int:
        if self._disk.is_full(self._path):
            raise OSError(errno.ENOSPC, "No space left on this troubled disk", self._path)
        return super().append(buffers)

    def sync(self) -> None:
        if self._disk.fails(self._path):
            raise OSError(errno.EIO, "This troubled disk fails", self._path)
        super().sync()


class Disks:
    """The disks of all nodes that a test starts."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._disks: dict[Path, TroubledDisk] = {}

    def open(self, root: str | os.PathLike[str]) -> TroubledDisk:
        return self._disks.setdefault(Path(root), TroubledDisk(root))

    def __getitem__(self, number: int) -> TroubledDisk:
        return self._disks[self._data / f"node-{number}"]


def troubled(data: Path, monkeypatch: pytest.MonkeyPatch) -> Disks:
    """Let the nodes of a test run on disks that it can trouble."""
    found = Disks(data)
    monkeypatch.setattr(node_module, "RealDisk", found.open)
    return found
