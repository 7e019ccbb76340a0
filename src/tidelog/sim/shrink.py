"""Make a failing world smaller, as long as it fails in the same way.

Happenings, clients and nodes draw from generators of their own, so what is left of a world when
one of them goes is mostly what it was. The shrinker leaves out whole kinds of faults and chores
first, then single happenings, many at once and ever fewer (delta debugging), then clients and
nodes; last it ends the chaos earlier. Each step is one run, and the number of runs is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from tidelog.sim.plan import SETTABLE, Plan

# A run takes about a third of a second, so this is a minute at most.
MAX_RUNS: Final = 150
# In this order: what makes a trace hard to read comes first.
_KNOBS: Final = ("groups", "spares", "readers", "writers", "under_way", "records", "keys")


@dataclass(frozen=True, slots=True)
class Failing:
    """What the shrinker knows of one run that failed."""

    failure: str
    events: int
    happenings: int  # that were drawn
    happened: tuple[str, ...]  # faults and chores that found something to do


def kind(failure: str) -> str:
    """What stays the same of a failure when its numbers change."""
    if found := re.match(r"invariant \d+", failure):
        return found[0]
    if found := re.search(r"raised (\w+)", failure):
        return found[0]
    return re.sub(r"\d+", "", failure).partition(":")[0]


def shrink(
    plan: Plan,
    failing: Failing,
    run: Callable[[Plan], Failing | None],
    max_runs: int = MAX_RUNS,
) -> tuple[Plan, Failing]:
    """Return the smallest plan found that fails in the same way, no later, and how it fails.

    `run` returns None for a plan that does not fail.
    """
    search = _Search(plan, failing, run, max_runs)
    search.drop_kinds()
    search.drop_happenings()
    search.lower_knobs()
    search.shorten()
    return search.plan, search.failing


class _Search:
    def __init__(
        self, plan: Plan, failing: Failing, run: Callable[[Plan], Failing | None], runs: int
    ) -> None:
        self.plan = plan  # the smallest so far
        self.failing = failing  # and how it fails
        self._run = run
        self._runs_left = runs
        self._kind = kind(failing.failure)
        self._longest = failing.events

    def _accepts(self, candidate: Plan) -> bool:
        """Whether a smaller plan fails in the same way; then it is the smallest so far."""
        if self._runs_left == 0 or candidate == self.plan:
            return False
        self._runs_left -= 1
        found = self._run(candidate)
        if found is None or kind(found.failure) != self._kind or found.events > self._longest:
            return False
        self.plan, self.failing = candidate, found
        return True

    def drop_kinds(self) -> None:
        for name in self.failing.happened:
            without = tuple(sorted({*self.plan.without, name}))
            self._accepts(replace(self.plan, without=without))

    def drop_happenings(self) -> None:
        """Leave out a chunk of what is left, then of the rest, with ever smaller chunks."""
        left = self._left()
        size = max(1, len(left) // 2)
        while left and self._runs_left:
            for start in range(0, len(left), size):
                self._skip(left[start : start + size])
            if size == 1:
                return
            left, size = self._left(), max(1, size // 2)

    def _left(self) -> list[int]:
        gone = set(self.plan.skip)
        return [n for n in range(1, self.failing.happenings + 1) if n not in gone]

    def _skip(self, numbers: Iterable[int]) -> None:
        skip = tuple(sorted({*self.plan.skip, *numbers}))
        self._accepts(replace(self.plan, skip=skip))

    def lower_knobs(self) -> None:
        for name in _KNOBS:
            least = SETTABLE[name]
            if not self._set(name, least):
                self._set(name, least + 1)

    def shorten(self) -> None:
        """End the chaos earlier: halve it while the world fails, then less and less."""
        length = dict(self.plan.knobs).get("chaos_events", self.failing.events)
        step = length // 2
        while step > max(10, length // 50) and self._runs_left:
            if self._set("chaos_events", length - step):
                length -= step
            step = min(step // 2, length // 2)

    def _set(self, name: str, value: int) -> bool:
        knobs = dict(self.plan.knobs) | {name: value}
        return self._accepts(replace(self.plan, knobs=tuple(sorted(knobs.items()))))
