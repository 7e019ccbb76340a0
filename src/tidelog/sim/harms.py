"""Faults that harm files: bits that rot, files that are lost, files that stand in for others.

What is fair, beside what is fair of a wipe (`faults.Faults.may_harm`):
- One harm for each replica, until another took its place or all its files were found sound again.
  Two files that lie in agreement cannot be told from the truth.
- The flush mark is on the disk and speaks of all that was flushed. It is not synced with every
  flush, by design: for the half minute that a kernel takes to write it, rot at the end of a log is
  taken for a torn append if power is lost as well. It is neither swapped nor put back.
- Bits rot in what was flushed. Base offsets have no checksum, and nothing tells where a batch
  belongs that nobody counts on yet.
- No older vote is put back: a voter that is made to forget its vote in silence cannot know.
- A file is swapped or put back while its process is down. A file may vanish at any time.

What a replica can do without (`HINTS`) may be harmed anywhere and at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.registry import NAME as REGISTRY
from tidelog.raft.types import GroupId
from tidelog.records import Batch, CorruptBatch, Offset
from tidelog.sim.hand import NothingToDo
from tidelog.sim.node import Harm
from tidelog.sim.scheduler import MS
from tidelog.storage.flushmark import MARK_NAME, FlushMark
from tidelog.storage.segment import LOG_SUFFIX, parse_name

if TYPE_CHECKING:
    from tidelog.sim.faults import Faults
    from tidelog.sim.node import SimNode

Undo = Callable[[], None]

FLIPS: Final = (1, 1, 1, 2, 5)  # bits that rot at once
DOWNTIME: Final = (2 * MS, 300 * MS)
SEGMENT: Final = LOG_SUFFIX
SNAPSHOT: Final = ".snapshot"
VOTE: Final = "/vote"
STATE: Final = "/log.state"
HINTS: Final = (".index", "/checkpoint")
# Kinds of files that rot, with how often each is chosen.
ROT: Final = {SEGMENT: 8, SNAPSHOT: 4, VOTE: 1, STATE: 1, ".index": 1, "/checkpoint": 1}
# Where the header of a snapshot file says how long its metadata is, which end it.
_HEADER: Final = 40
_METADATA: Final = slice(36, 40)


@dataclass(frozen=True, slots=True)
class Victim:
    """A replica that may be harmed."""

    node: SimNode
    group: GroupId
    marked: Offset  # what its disk knows to have been flushed

    @property
    def directory(self) -> str:
        return self.node.memory.directory_of(self.group)

    def harm(self, what: str, path: str, *, in_log: bool, spare: bool = False) -> Harm:
        """Return what is about to be done to it."""
        return Harm(what, path, self.node.configurations(self.group), in_log, spare)

    def files(self, *kinds: str) -> list[str]:
        """Return the files of these kinds."""
        return [each for each in self.node.disk.files(self.directory) if each.endswith(kinds)]


class Harms:
    """The faults of this kind."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.known: dict[str, Callable[[], Undo | None]] = {
            "rot": self._rot,
            "lose-file": self._lose_file,
            "swap-files": self._swap_files,
        }

    # --- Whom -------------------------------------------------------------------------------------

    def _victims(self) -> list[Victim]:
        """Return the replicas that may be harmed now, and have something to lose."""
        found = []
        for node in self._faults.world.nodes.values():
            for group in self._faults.world.groups:
                if group in node.harm or not self._faults.may_harm(node, group):
                    continue
                victim = _victim(node, group)
                if victim is not None:
                    found.append(victim)
        return found

    def _victim(self) -> Victim:
        victims = self._victims()
        if not victims:
            raise NothingToDo
        return self._faults.rng.choice(victims)

    def _still(self, victim: Victim) -> Victim | None:
        """Return a victim that was chosen earlier as it is now; None if it may not be harmed."""
        node, group = victim.node, victim.group
        if group in node.harm or not self._faults.may_harm(node, group):
            return None
        now = _victim(node, group)
        return now if now is not None and now.directory == victim.directory else None

    def _harm(self, victim: Victim, harm: Harm) -> None:
        """Harm is about to be done."""
        node, group = victim.node, victim.group
        node.disk.write_back(f"{victim.directory}/log/{MARK_NAME}")
        self._faults.world.trace.note(node, group, f"is harmed: {harm.what}")
        self._faults.world.judge.on_harm(node, group)
        node.harm[group] = harm

    # --- Rot --------------------------------------------------------------------------------------

    def _rot(self) -> None:
        rng = self._faults.rng
        kind = rng.choices(list(ROT), list(ROT.values()))[0]
        if kind in HINTS:
            self._rot_hint(kind)
            return
        victim = self._victim()
        path = self._choose(victim.files(kind))
        end = _durable_size(victim.node, path) if kind != SEGMENT else _flushed_end(victim, path)
        if kind == SNAPSHOT and rng.random() < 0.5:
            end = _header_end(victim.node, path)
        places = self._places(end)
        what = f"{len(places)} bits of {path} rot"
        spare = kind == SNAPSHOT and max(places) < _header_end(victim.node, path)
        self._harm(victim, victim.harm(what, path, in_log=kind == SEGMENT, spare=spare))
        self._flip(victim.node, path, places)

    def _rot_hint(self, kind: str) -> None:
        node, group = self._faults.node(), self._faults.group()
        directory = node.memory.directory_of(group)
        files = [each for each in node.disk.files(directory) if each.endswith(kind)]
        path = self._choose(files)
        places = self._places(_durable_size(node, path))
        self._faults.world.trace.note(node, group, f"{len(places)} bits of {path} rot")
        self._flip(node, path, places)

    def _choose(self, files: list[str]) -> str:
        if not files:
            raise NothingToDo
        return self._faults.rng.choice(files)

    def _places(self, end: int) -> list[int]:
        if not end:
            raise NothingToDo
        rng = self._faults.rng
        return [rng.randrange(end) for _ in range(rng.choice(FLIPS))]

    def _flip(self, node: SimNode, path: str, places: list[int]) -> None:
        for place in dict.fromkeys(places):
            node.disk.damage(path, place, self._faults.rng.randrange(8))

    # --- Files that are gone ----------------------------------------------------------------------

    def _lose_file(self) -> None:
        rng = self._faults.rng
        kind = rng.choice(("segment", "log", "vote", "state", "mark", "snapshots", "all", REGISTRY))
        if kind == REGISTRY:
            self._lose_registry()
            return
        victim = self._victim()
        directory = victim.directory
        if kind == "segment":
            path = self._choose(
                [each for each in victim.files(SEGMENT) if _is_flushed(each, victim)]
            )
        else:
            names = {"state": "log/log.state", "mark": f"log/{MARK_NAME}", "all": ""}
            path = f"{directory}/{names.get(kind, kind)}".rstrip("/")
        in_log = kind in ("segment", "log", "all")
        self._at_rest_or_not(victim.node)
        found = self._still(victim)
        if found is None or not victim.node.disk.exists(path):
            raise NothingToDo
        self._harm(found, found.harm(f"{path} is gone", path, in_log=in_log))
        if kind in ("log", "snapshots", "all"):
            victim.node.disk.lose_directory(path)
        else:
            victim.node.disk.lose(path)

    def _lose_registry(self) -> None:
        node = self._victim().node
        self._at_rest_or_not(node)
        victims = [each for each in self._victims() if each.node is node]
        if len(victims) < len(self._faults.world.groups) or not node.disk.exists(REGISTRY):
            raise NothingToDo
        for victim in victims:
            self._harm(victim, victim.harm("the registry is gone", REGISTRY, in_log=False))
        node.disk.lose(REGISTRY)

    def _at_rest_or_not(self, node: SimNode) -> None:
        """Let it happen while the node is down, or while it runs."""
        if self._faults.rng.random() < 0.5:
            self._restart(node)

    def _restart(self, node: SimNode) -> None:
        faults = self._faults
        power = faults.rng.random() >= faults.world.knobs.process_crash
        node.crash(power=power, downtime=faults.world.draw(faults.rng, DOWNTIME))

    # --- Files that stand in for others -----------------------------------------------------------

    def _swap_files(self) -> Undo | None:
        victim = self._victim()
        if self._faults.rng.random() < 0.5:
            return self._restore(victim)
        self._restart(victim.node)
        found = self._still(victim)
        if found is None:
            raise NothingToDo
        files = found.files(SEGMENT, SNAPSHOT, VOTE, STATE, *HINTS)
        if len(files) < 2:
            raise NothingToDo
        one, other = self._faults.rng.sample(files, 2)
        self._harm(found, found.harm(f"{one} and {other} are swapped", "", in_log=True))
        found.node.disk.swap(one, other)
        return None

    def _restore(self, victim: Victim) -> Undo:
        """Copy a file now, and put the copy back later."""
        path = self._choose(victim.files(SEGMENT, STATE))
        content = victim.node.disk.durable_bytes(path)
        if content is None:
            raise NothingToDo
        self._faults.say(f"copies {path} of n{victim.node.id}")

        def undo() -> None:
            self._restart(victim.node)
            found = self._still(victim)
            if found is None or not victim.node.disk.exists(path):
                return
            self._harm(found, found.harm(f"{path} is an older copy", path, in_log=True))
            found.node.disk.put_back(path, content)

        return undo


def _victim(node: SimNode, group: GroupId) -> Victim | None:
    """Return a replica if its disk knows of all that it flushed, and it is in order."""
    replica = node.replicas.get(group)
    if replica is not None and (replica.failed is not None or replica.lost is not None):
        return None
    log = f"{node.memory.directory_of(group)}/log"
    if not node.disk.exists(f"{log}/{MARK_NAME}"):
        return None
    mark = FlushMark(node.disk, log)
    mark.load()
    flushed = node.flushed(group)
    return Victim(node, group, mark.offset) if mark.offset >= flushed else None


def _is_flushed(path: str, victim: Victim) -> bool:
    """Whether something of a segment was flushed."""
    place = parse_name(path.rpartition("/")[2])
    return place is not None and place[0] <= victim.marked


def _durable_size(node: SimNode, path: str) -> int:
    return len(node.disk.durable_bytes(path) or b"")


def _flushed_end(victim: Victim, path: str) -> int:
    """Return where the batches end that are known to have been flushed."""
    view = memoryview(victim.node.disk.durable_bytes(path) or b"")
    end = 0
    try:
        while end < len(view) and (batch := Batch.parse(view, end)).last_offset <= victim.marked:
            end += batch.size
    except CorruptBatch:
        pass
    return end


def _header_end(node: SimNode, path: str) -> int:
    content = node.disk.durable_bytes(path) or b""
    return min(_HEADER + int.from_bytes(content[_METADATA], "big"), len(content))
