"""The clients of a world: writers at every level, idempotent or not, and readers of four kinds.

A client behaves like a real one: it guesses who leads, gives up when nobody answers in time, and
believes only what it was told. What it lived through goes into the `History`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.raft.types import GroupId, Level
from tidelog.sim.history import History
from tidelog.sim.truth import GroupTruth

if TYPE_CHECKING:
    from tidelog.sim.world import World
from tidelog.sim.readers import Auditor, Browser, Checker, Consumer, Reader
from tidelog.sim.writer import Writer


class Clients:
    """All clients of a world, as `world.Workload`."""

    def __init__(self) -> None:
        self.history = History()
        self._writers: list[Writer] = []
        self._readers: list[Reader] = []

    def start(self, world: World) -> None:
        """Set every client going."""
        knobs = world.knobs
        for number in range(knobs.writers):
            self._writers.append(Writer(world, self.history, f"writer-{number}", number))
        kinds = (Consumer, Auditor, Checker, Browser)
        for number in range(knobs.readers):
            kind = kinds[number % len(kinds)]
            self._readers.append(kind(world, self.history, f"reader-{number}"))
        for client in (*self._writers, *self._readers):
            client.begin()

    def stop(self) -> None:
        """Let every client finish; a last writer of each group writes once more.

        Consumers read on to that write: one that saw what a crash took back afterwards is told so
        at the latest then.
        """
        for reader in self._readers:
            reader.stopped = not isinstance(reader, Consumer)
            reader.hurries = True
        for writer in self._writers:
            writer.stopped = True
        for last in self._last_writers():
            self._writers.append(last)
            last.write_now(Level.QUORUM)

    def _last_writers(self) -> list[Writer]:
        if not self._writers:
            return []
        world, count = self._writers[0].world, len(self._writers)
        last = []
        for number, group in enumerate(world.groups):
            writer = Writer(world, self.history, f"last-{group}", count + number)
            writer.group = group
            writer.idempotent = True
            writer.stopped = True
            last.append(writer)
        return last

    def settled(self) -> bool:
        """Whether every write has an answer, or its client has given up, and all was read."""
        return not any(writer.busy for writer in self._writers) and not any(
            isinstance(reader, Consumer) and reader.behind for reader in self._readers
        )

    def leave(self) -> None:
        """Nobody asks anything any more."""
        for reader in self._readers:
            reader.stopped = True

    def complaints(self, group: GroupId, truth: GroupTruth) -> list[str]:
        """What the clients have to say about a group when all is over."""
        return list(self.history.judge(group, truth))
