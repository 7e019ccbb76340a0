"""How many worlds it takes to catch each planted bug, from several starts.

A bug that takes more than `MOST` worlds from any start is a hole in the simulator: worlds that
would show it are too rare, or nothing judges what it breaks.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from statistics import median_high

from tidelog.cli.progress import Progress
from tidelog.cli.worlds import How, run_one, spread

MOST = 50  # worlds that a planted bug may take
STARTS = 5
# Between two starts. More than `MOST`, so that no world counts for two of them.
APART = 1_000


@dataclass(frozen=True, slots=True)
class Chase:
    """One planted bug from one start."""

    plant: str
    start: int


@dataclass(frozen=True, slots=True)
class Catch:
    """How a chase ended."""

    chase: Chase
    worlds: int | None  # that it took; None: it escaped
    trouble: str | None = None  # the simulator crashed, and how


def chase(task: Chase) -> Catch:
    """Run worlds until one catches the bug."""
    from tidelog.sim import PLANTS, Plan

    plant = PLANTS[task.plant]
    strange: str | None = None
    for seed in range(task.start, task.start + MOST):
        outcome = run_one(Plan(seed, task.plant), How())
        if outcome.crashed:
            return Catch(task, None, f"seed {seed} crashed the simulator: {outcome.failure}")
        if outcome.failure is not None and plant.is_caught_by(outcome.failure):
            return Catch(task, seed - task.start + 1)
        if outcome.failure is not None and strange is None:
            strange = f"seed {seed} failed in another way: {outcome.failure}"
    return Catch(task, None, strange)


def measure(first: int, starts: int, jobs: int) -> bool:
    """Print what each bug takes; return whether all are caught soon enough from every start."""
    from tidelog.sim import PLANTS

    tasks = [Chase(name, first + APART * number) for name in PLANTS for number in range(starts)]
    progress = Progress("chases", len(tasks))
    caught: dict[str, list[Catch]] = {name: [] for name in PLANTS}
    width = max(map(len, PLANTS))
    progress.say(f"{'':<{width}}  median  worst  of {starts} starts, in worlds")
    escaped: list[str] = []
    catches: Generator[Catch, None, None] = spread(chase, tasks, min(jobs, len(tasks)))
    with progress, closing(catches):
        for catch in catches:
            progress.advance(failed=catch.worlds is None)
            found = caught[catch.chase.plant]
            found.append(catch)
            if len(found) == starts:
                progress.say(_row(found, width))
                if any(each.worlds is None for each in found):
                    escaped.append(catch.chase.plant)
    if escaped:
        progress.say(f"Not caught by {MOST} worlds from every start: {', '.join(escaped)}.")
    else:
        progress.say(f"All {len(PLANTS)} planted bugs are caught within {MOST} worlds.")
    return not escaped


def _row(catches: list[Catch], width: int) -> str:
    from tidelog.sim import PLANTS

    name = catches[0].chase.plant
    needed = [each.worlds if each.worlds is not None else MOST + 1 for each in catches]
    middle, worst = (
        f">{MOST}" if number > MOST else str(number)
        for number in (median_high(needed), max(needed))
    )
    row = f"{name:<{width}}  {middle:>6}  {worst:>5}  {PLANTS[name].description}"
    return "\n".join([row, *(f"  {each.trouble}" for each in catches if each.trouble)])
