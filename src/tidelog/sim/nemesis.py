"""The nemesis: when faults start and end, and when the operator does a chore.

Theory of operation:
- Faults and chores are *happenings*. When each one happens, what it is and what it draws is decided
  by the seed alone and by nothing that happened before: each has a number and a generator of its
  own. So a happening that is left out (`knobs.without`, `knobs.skip`) leaves all others as they
  were, and a failing world can be shrunk to those that matter.
- A world has one mix of faults and chores or several that take turns (`knobs.mixes`): each leans
  on a few and leaves out the rest, because faults that are always there hide what happens without
  them. Some turns have no faults.
- A fault ends after a while. What is fair is in `faults.Faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.sim.faults import DURATION, Faults, Undo
from tidelog.sim.hand import Hand, NothingToDo
from tidelog.sim.operator import Operator

if TYPE_CHECKING:
    from tidelog.sim.world import World

# Share of the turns in which nothing goes wrong.
CALM_TURNS: Final = 0.1
# A mix that takes turns with others knows at most so many faults, and as many chores.
MIXED: Final = 5
LEAN: Final = 4  # by how much it may lean on one


@dataclass(slots=True, eq=False)
class _Active:
    name: str
    undo: Undo


class Nemesis:
    """Everything that happens to one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = Faults(world)
        self.operator = Operator(world)
        self.started: dict[str, int] = {}  # how often each fault and chore found something to do
        self._active: list[_Active] = []  # in order of their start; <= knobs.max_faults
        self._running = False
        self._began = 0
        self._happenings = 0  # drawn so far, those that were left out included
        self._when = {kind: world.random(f"{kind}/when") for kind in ("fault", "chore")}
        self._what = {kind: world.random(f"{kind}/what") for kind in ("fault", "chore")}
        knobs = world.knobs
        self._faults_by_turn = [
            self._mix("fault", turn, knobs.faults, self.faults.known) for turn in range(knobs.mixes)
        ]
        self._chores_by_turn = [
            self._mix("chore", turn, knobs.chores, self.operator.known)
            for turn in range(knobs.mixes)
        ]

    @property
    def happenings(self) -> int:
        """How many were drawn so far."""
        return self._happenings

    def start(self) -> None:
        """Begin: the network takes on the habits of this run, and happenings begin."""
        self._running = True
        self._began = self.world.now
        self.faults.calm_storms()
        self.operator.begin()
        self._wait("fault", self.world.knobs.fault_interval, self._strike)
        self._wait("chore", self.world.knobs.chore_interval, self._toil)

    def stop(self) -> None:
        """End every fault and start none any more; all nodes come up again."""
        self._running = False
        while self._active:
            self._end(self._active[0])
        self.world.network.heal()
        for node in self.world.nodes.values():
            node.disk.heal()
            node.slow = 1
            node.set_clock(1.0, 0)
            node.resume()
            node.start()
        self.operator.heal()

    # --- When and what ----------------------------------------------------------------------------

    def _mix(
        self, kind: str, turn: int, weights: Mapping[str, int], known: Mapping[str, object]
    ) -> Mapping[str, int]:
        """Return the weights of one turn."""
        there = {name: weights[name] for name in known if weights.get(name, 0) > 0}
        if self.world.knobs.mixes == 1 or not there:
            return there
        rng = self.world.random(f"{kind}/mix/{turn}")
        if kind == "fault" and rng.random() < CALM_TURNS:
            return {}
        chosen = rng.sample(list(there), rng.randint(1, min(MIXED, len(there))))
        return {name: there[name] * rng.randint(1, LEAN) for name in chosen}

    def _turn(self) -> int:
        knobs = self.world.knobs
        return min((self.world.now - self._began) * knobs.mixes // knobs.chaos, knobs.mixes - 1)

    def _wait(self, kind: str, mean: int, callback: Callable[[], None]) -> None:
        pause = min(round(self._when[kind].expovariate(1 / mean)), 10 * mean)
        self.world.at(pause, kind, callback)

    def _draw(self, kind: str, weights: Mapping[str, int], hand: Hand) -> str | None:
        """Draw the next happening; None if it is left out."""
        self._happenings += 1
        number, chance = self._happenings, self._what[kind].random()
        if not weights:
            return None
        name = _choose(weights, chance)
        knobs = self.world.knobs
        if name in knobs.without or number in knobs.skip:
            return None
        hand.rng = self.world.random(f"happening/{number}")
        self.world.trace.line(self.world.now, f"nemesis {number}: {name}")
        return name

    def _strike(self) -> None:
        if not self._running:
            return
        name = self._draw("fault", self._faults_by_turn[self._turn()], self.faults)
        if name is not None and len(self._active) < self.world.knobs.max_faults:
            self._begin(name)
        self._wait("fault", self.world.knobs.fault_interval, self._strike)

    def _begin(self, name: str) -> None:
        rng = self.faults.rng
        try:
            undo = self.faults.known[name]()
        except NothingToDo:
            return
        self._count(name)
        if undo is not None:
            active = _Active(name, undo)
            self._active.append(active)
            duration = self.world.draw(rng, DURATION)
            self.world.at(duration, f"end of {name}", lambda: self._end(active))

    def _toil(self) -> None:
        if not self._running:
            return
        name = self._draw("chore", self._chores_by_turn[self._turn()], self.operator)
        if name is not None:
            try:
                self.operator.known[name]()
            except NothingToDo:
                pass
            else:
                self._count(name)
        self._wait("chore", self.world.knobs.chore_interval, self._toil)

    def _count(self, name: str) -> None:
        self.started[name] = self.started.get(name, 0) + 1

    def _end(self, active: _Active) -> None:
        if active in self._active:
            self._active.remove(active)
            self.world.trace.line(self.world.now, f"nemesis end of {active.name}")
            active.undo()


def _choose(weights: Mapping[str, int], chance: float) -> str:
    """Return the name at this place, from 0 to 1, of all weights laid end to end."""
    place = chance * sum(weights.values())
    for name, weight in weights.items():
        place -= weight
        if place < 0:
            return name
    return name
