"""Noting new replicas in the registry, in batches: one write for all that were opened meanwhile."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.raft.types import GroupId

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

LANE: Final = "vote"  # nothing that takes long goes before it there


class Registrar:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._waiting: list[tuple[GroupId, int, Callable[[OSError | None], None]]] = []
        self._busy = False

    def add(self, group: GroupId, revision: int, done: Callable[[OSError | None], None]) -> None:
        """Note a replica; `done` is called once it may take part, or with what went wrong."""
        self._waiting.append((group, revision, done))
        if not self._busy:
            self._busy = True
            self._node.loop.call_soon(self._write)

    def _write(self) -> None:
        batch, self._waiting = self._waiting, []
        registry = self._node.joining.registry
        places = [(group, revision) for group, revision, _ in batch]

        def written(error: OSError | None) -> None:
            self._busy = bool(self._waiting)
            if self._busy:
                self._write()
            for _, _, done in batch:
                done(error)

        self._node.executor.submit(LANE, lambda: registry.add(places), written)
