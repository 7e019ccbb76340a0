"""Node processes on a disk that loses power: what was not synced is gone, names included.

`kill -9` leaves the page cache to the operating system, so a test that only kills processes can
never notice a missing fsync. Here each node runs with a `Recorder` in its process, which copies to
a store beside the data whatever a sync makes durable: the bytes of a file when the file is synced,
the names in a directory when the directory is. After the process is killed, `cut_power` rebuilds
the data directory from that store.

    DATA/            what the node sees, as the operating system has it
    DATA.durable/    contents and a journal of what the syncs so far made durable

Between two syncs a disk may write what it likes. Given a source of chance, `cut_power` therefore
keeps some of what was not synced: of each file a prefix of the bytes that were appended since, torn
anywhere, and of the names some changes and not others. Without one it keeps nothing.

The real syncs are left out, since nothing here depends on the machine's own disk.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import runpy
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.system import System

from tidelog.cluster.directory import LOCK
from tidelog.server.names import NODE_FILE, SERVING_FILE
from tidelog.server.nodes import LocalCluster, LocalNode

ROOT_VARIABLE = "TIDELOG_TEST_POWER_ROOT"
# While this file is in the store, syncs return without making anything durable.
LIES = "lies"
JOURNAL = "journal"
CONTENTS = "contents"
# Files of at most this size are copied whole at each sync; larger ones only grow, or are cut.
SMALL = 64 << 10
DIRECTORY = "/"  # stands for a directory where a journal has the content of a file
# The operator's own files, and what the harness reads: no node relies on them after a crash.
KEPT = ("node.toml", "node.log")
# Who runs is written for the harness, which would take a torn number for another process.
GONE = (LOCK, SERVING_FILE)


def store_of(root: Path) -> Path:
    return root.with_name(root.name + ".durable")


# --- In the node's process ------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """A file that some sync concerned; its handle keeps the inode number from being reused."""

    number: int
    handle: int
    size: int = 0  # bytes that are durable
    cut: int | None = None  # the file was cut to this size since the last sync
    version: int = 0  # of its content in the store: begins anew when bytes were replaced

    @property
    def content(self) -> str:
        return f"{self.number}-{self.version}"


class Recorder:
    """Copies what becomes durable. Any thread may sync."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.store = store_of(root)
        shutil.rmtree(self.store, ignore_errors=True)
        (self.store / CONTENTS).mkdir(parents=True)
        self._journal = (self.store / JOURNAL).open("a")
        self._seen: dict[int, _Seen] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        for directory, _, names in os.walk(self.root):
            for name in names:
                self._adopt(os.path.join(directory, name))
            self._note_names(directory)

    def install(self) -> None:
        """Take the place of the calls that make things durable."""
        cut = os.ftruncate

        def truncate(descriptor: int, size: int) -> None:
            with self._lock:
                cut(descriptor, size)
                seen = self._seen.get(os.fstat(descriptor).st_ino)
                if seen is not None:
                    seen.cut = size if seen.cut is None else min(seen.cut, size)

        os.ftruncate = truncate
        os.fsync = os.fdatasync = self.sync  # type: ignore[assignment]

    def sync(self, file: int | object) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()  # type: ignore[attr-defined]
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not f"{path}/".startswith(f"{self.root}/") or (self.store / LIES).exists():
            return
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._note_names(path)
        else:
            self._note_content(descriptor)

    def _adopt(self, path: str) -> None:
        """Take a file as it was found when the process began: all of it is durable."""
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY)
            self._note_content(handle)
            os.close(handle)

    def _look(self, descriptor: int) -> _Seen:
        number = os.fstat(descriptor).st_ino
        if number not in self._seen:
            handle = os.dup(descriptor)
            self._seen[number] = _Seen(next(self._numbers), handle)
        return self._seen[number]

    def _note_content(self, descriptor: int) -> None:
        with self._lock:
            seen = self._look(descriptor)
            cut, seen.cut = seen.cut, None
            size = os.fstat(descriptor).st_size
            replaced = size < seen.size or size <= SMALL or (cut is not None and cut < seen.size)
            if replaced:
                seen.version += 1
            begin = 0 if replaced else seen.size
            with (self.store / CONTENTS / seen.content).open("ab") as copy:
                copy.truncate(begin)
                # Another handle: this one may be open for writing only.
                with open(f"/proc/self/fd/{descriptor}", "rb") as source:
                    source.seek(begin)
                    copy.write(source.read(size - begin))
            seen.size = size
            self._write(file=self._inode(descriptor), content=seen.content, size=size)

    def _note_names(self, directory: str) -> None:
        with self._lock:
            names: dict[str, str] = {}
            for entry in os.scandir(directory):
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        names[entry.name] = DIRECTORY
                    else:
                        names[entry.name] = self._name_of(entry.path)
            self._write(directory=os.path.relpath(directory, self.root), names=names)

    def _name_of(self, path: str) -> str:
        """Return the inode behind a name; one that was never synced is durable, and empty."""
        handle = os.open(path, os.O_RDONLY)
        try:
            inode = os.fstat(handle).st_ino
            if inode not in self._seen:
                seen = self._look(handle)
                (self.store / CONTENTS / seen.content).touch()
                self._write(file=str(inode), content=seen.content, size=0)
            return str(inode)
        finally:
            os.close(handle)

    @staticmethod
    def _inode(descriptor: int) -> str:
        return str(os.fstat(descriptor).st_ino)

    def _write(self, **entry: object) -> None:
        # One write call a line: a process that is killed leaves whole lines and at most one torn.
        self._journal.write(json.dumps(entry) + "\n")
        self._journal.flush()


def main() -> None:
    """Run `tidelog` in this process, on a disk that remembers what was synced."""
    Recorder(Path(os.environ[ROOT_VARIABLE])).install()
    runpy.run_module("tidelog", run_name="__main__", alter_sys=True)


# --- In the harness -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Durable:
    contents: dict[str, tuple[str, int]] = field(default_factory=dict)  # by inode: name and size
    names: dict[str, dict[str, str]] = field(default_factory=dict)  # by directory: name to inode


def _read_journal(store: Path) -> _Durable:
    durable = _Durable()
    for line in (store / JOURNAL).read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break  # the process was killed while it wrote this line
        if "file" in entry:
            durable.contents[entry["file"]] = (entry["content"], entry["size"])
        else:
            durable.names[entry["directory"]] = entry["names"]
    return durable


def cut_power(root: Path, chance: random.Random | None = None) -> int:
    """Leave in `root` what a power cut leaves; return how many bytes of files it took away.

    No process may run on it.
    """
    store = store_of(root)
    durable = _read_journal(store)
    before = _bytes_below(root)
    rebuilt = root.with_name(root.name + ".rebuilt")
    shutil.rmtree(rebuilt, ignore_errors=True)
    _rebuild(root, ".", rebuilt, store, durable, chance)
    for name in os.listdir(root):
        if name.startswith(KEPT):
            shutil.copy2(root / name, rebuilt / name)
    shutil.rmtree(root)
    rebuilt.rename(root)
    return before - _bytes_below(root)


def _rebuild(
    root: Path,
    directory: str,
    target: Path,
    store: Path,
    durable: _Durable,
    chance: random.Random | None,
) -> None:
    target.mkdir()
    live = _live_names(root / directory)
    known = durable.names.get(directory, {})
    for name in sorted((known.keys() | live.keys()) - set(GONE)):
        inode = known.get(name)
        if chance is not None and inode != live.get(name) and chance.random() < 0.5:
            inode = live.get(name)
        if inode is None:
            continue
        if inode == DIRECTORY:
            below = name if directory == "." else f"{directory}/{name}"
            _rebuild(root, below, target / name, store, durable, chance)
            continue
        content = _durable_content(store, durable, inode)
        if chance is not None and live.get(name) == inode:
            content = _more(content, (root / directory / name).read_bytes(), chance)
        (target / name).write_bytes(content)


def _live_names(directory: Path) -> dict[str, str]:
    if not directory.is_dir():
        return {}
    return {
        each.name: DIRECTORY
        if each.is_dir(follow_symlinks=False)
        else str(each.stat(follow_symlinks=False).st_ino)
        for each in os.scandir(directory)
    }


def _durable_content(store: Path, durable: _Durable, inode: str) -> bytes:
    if inode not in durable.contents:
        return b""
    name, size = durable.contents[inode]
    return (store / CONTENTS / name).read_bytes()[:size]


def _more(durable: bytes, live: bytes, chance: random.Random) -> bytes:
    """Add some of what was written since the last sync."""
    if not live.startswith(durable):
        return chance.choice((durable, live))  # it was cut, and perhaps written again
    rest = live[len(durable) :]
    kept = chance.choice((0, len(rest), chance.randint(0, len(rest))))
    return durable + rest[:kept]


def _bytes_below(root: Path) -> int:
    return sum(each.stat().st_size for each in root.rglob("*") if each.is_file())


class PoweredCluster(LocalCluster):
    """Node processes that lose what they did not sync when they lose power."""

    def command(self, node: LocalNode) -> list[str]:
        config = str(node.directory / NODE_FILE)
        return [sys.executable, "-m", "tests.system.power", "start", "--config", config]

    def start(self, number: int) -> None:
        os.environ[ROOT_VARIABLE] = str(self.node(number).directory)
        try:
            super().start(number)
        finally:
            del os.environ[ROOT_VARIABLE]

    def lie(self, number: int) -> None:
        """From now on this node's syncs return without having done anything."""
        (store_of(self.node(number).directory) / LIES).touch()


@dataclass(slots=True)
class Power:
    """The mains of a cluster: counts what its cuts took."""

    system: System
    chance: random.Random | None
    cuts: int = 0
    bytes_lost: int = 0

    def cut(self, *numbers: int) -> None:
        """Cut the power of these nodes at the same time."""
        self.system.kill(*numbers)
        for number in numbers:
            root = self.system.cluster.node(number).directory
            self.bytes_lost += cut_power(root, self.chance)
            self.cuts += 1

    def cycle(self, *numbers: int) -> None:
        self.cut(*numbers)
        self.system.start(*numbers)


Chance = Callable[[], random.Random | None]


if __name__ == "__main__":
    main()
