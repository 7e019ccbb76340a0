"""What a world is made from: a seed, and what a user or the shrinker changed about it.

A plan replays the same world, event by event, in any process, and `command` is the command line
that does so.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from tidelog.sim.knobs import CHORES, FAULTS

# The knobs that a plan may set, each with the least that makes sense.
SETTABLE: Final[Mapping[str, int]] = {
    "chaos_events": 1,
    "groups": 1,
    "keys": 1,
    "readers": 0,
    "records": 1,
    "spares": 0,
    "under_way": 1,
    "writers": 1,
}


class InvalidPlan(ValueError):
    """This asks for something that no world has; the text is meant for the user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One world."""

    seed: int
    plant: str | None = None
    without: tuple[str, ...] = ()  # faults and chores that are drawn and left out
    skip: tuple[int, ...] = ()  # happenings that are left out, by number, in order
    knobs: tuple[tuple[str, int], ...] = ()  # values in place of those that were drawn

    def overrides(self) -> dict[str, Any]:
        """The knobs that this plan changes."""
        changes: dict[str, Any] = dict(self.knobs)
        if self.without:
            changes["without"] = frozenset(self.without)
        if self.skip:
            changes["skip"] = frozenset(self.skip)
        return changes

    def command(self) -> str:
        """The one command that shows this world, event by event."""
        words = ["tidelog", "sim", "--seed", str(self.seed), "--trace"]
        if self.plant is not None:
            words += ["--plant", self.plant]
        for name in self.without:
            words += ["--without", name]
        if self.skip:
            words += ["--skip", ranges(self.skip)]
        for name, value in self.knobs:
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)


def parse_without(names: Iterable[str]) -> tuple[str, ...]:
    """Check names of faults and chores."""
    known = FAULTS.keys() | CHORES.keys()
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in known:
            raise InvalidPlan(
                f"There is no fault or chore named {name}. There are: {', '.join(sorted(known))}."
            )
    return chosen


def parse_ranges(text: str) -> tuple[int, ...]:
    """Read numbers as `ranges` writes them: `3,7-9`."""
    numbers: set[int] = set()
    try:
        for part in filter(None, text.split(",")):
            first, dash, last = part.partition("-")
            numbers.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise InvalidPlan(f"{text!r} is not a list of numbers such as 3,7-9.") from None
    return tuple(sorted(numbers))


def parse_settings(settings: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Read settings such as `writers=1`."""
    chosen: dict[str, int] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        least = SETTABLE.get(name)
        if least is None:
            raise InvalidPlan(
                f"{name} cannot be set. Set one of {', '.join(SETTABLE)}, as in writers=1."
            )
        if not value.isdecimal() or int(value) < least:
            raise InvalidPlan(f"{setting}: {name} needs a number of at least {least}.")
        chosen[name] = int(value)
    return tuple(chosen.items())


def ranges(numbers: Iterable[int]) -> str:
    """Write sorted numbers in short: `3,7-9`."""
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        stretch = [number for _, number in run]
        first, last = stretch[0], stretch[-1]
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)
