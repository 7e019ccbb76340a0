"""What all clients of a world have: a name, a group, a guess at who leads, and a timer."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.raft.types import NodeId
from tidelog.sim.history import History
from tidelog.sim.scheduler import MS, Timer

if TYPE_CHECKING:
    from tidelog.sim.world import World

# How often a client asks the cluster who leads, instead of trying somebody.
ASKS_WHO_LEADS: Final = 0.85
RETRY: Final = 10 * MS


class Asker(ABC):
    """What all clients have: a name, a group, a guess at who leads, and a timer."""

    def __init__(self, world: World, history: History, name: str) -> None:
        self.world = world
        self.history = history
        self.rng: random.Random = world.random(f"client/{name}")
        self.group = self.rng.choice(world.groups)
        self.stopped = False
        self._name = name
        self._leader: NodeId | None = None
        self._timer: Timer | None = None

    @property
    def name(self) -> str:
        """A name that is unique in the world."""
        return self._name

    def begin(self) -> None:
        """Wait a while, then act."""
        pause = round(self.rng.expovariate(1 / self.world.knobs.think))
        self._after(min(pause, 10 * self.world.knobs.think), "acts", self._act)

    @abstractmethod
    def _act(self) -> None:
        """Do what this kind of client does."""

    def _after(self, delay: int, what: str, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.world.at(delay, f"{self.name} {what}", callback)

    def _target(self) -> NodeId:
        """Whom to ask: the leader as far as this client knows, or anybody."""
        if self._leader is None:
            node = self.world.leader(self.group)
            if node is not None and self.rng.random() < ASKS_WHO_LEADS:
                self._leader = node.id
            else:
                return self.rng.choice(list(self.world.nodes))
        return self._leader
