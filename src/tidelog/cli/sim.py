"""`tidelog sim`: run many worlds of the simulator, replay one, or see planted bugs being caught.

Rules:
- A seed is a whole world: two runs of it are the same, byte for byte, in any process. So standard
  output of a replay carries no clock and no process.
- A failing world is reported with the command that replays it, and with the command of the smallest
  world that was found to fail in the same way.
- A fault, chore or invariant that many worlds did not exercise is a hole in the judge, and an error
  of the run, unless something was left out by request.
- A planted bug turns the verdict around: the command succeeds only if some world catches it. A
  crash of the simulator itself is bad news either way, because nothing was caught.
"""

import difflib
import os
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from tidelog.cli.plants import MOST, STARTS, measure
from tidelog.cli.progress import Progress
from tidelog.cli.worlds import Exercise, How, Outcome, run_one, spread

DEFAULT_SEEDS = 50
# So many worlds give every fault, chore and invariant its turn, unless the judge has a hole.
ENOUGH = 200


def describe_failure(outcome: Outcome) -> str:
    """Return what went wrong in a world, and how to see it again."""
    what = "crashed the simulator" if outcome.crashed else "failed"
    text = f"seed {outcome.plan.seed} {what}: {outcome.failure}"
    text += f"\n  replay it: {outcome.plan.command()}"
    if outcome.smaller is not None:
        size = f"{outcome.smaller_events:,} events instead of {outcome.events:,}"
        text += f"\n  a smaller world that fails so ({size}): {outcome.smaller.command()}"
    return text


def sim(
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds to run.", metavar="N", show_default="50"),
    ] = None,
    begin: Annotated[
        int | None,
        typer.Option("--from", min=0, help="The first of those seeds.", metavar="S"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this one seed only.", metavar="S")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print what happens, event by event.")
    ] = False,
    twice: Annotated[
        bool, typer.Option("--twice", help="Run each world twice, and compare the traces.")
    ] = False,
    plants: Annotated[
        bool,
        typer.Option(
            "--plants", help=f"Count the worlds that each planted bug takes; at most {MOST}."
        ),
    ] = False,
    starts: Annotated[
        int, typer.Option(min=1, help="With --plants: how many starts to try.", metavar="N")
    ] = STARTS,
    plant: Annotated[
        str | None,
        typer.Option(help="Plant this bug; succeed only if a world catches it.", metavar="NAME"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes to use.", metavar="N", show_default="one for each processor"
        ),
    ] = None,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink/--no-shrink", help="Look for a smaller world that fails in the same way."
        ),
    ] = True,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Leave out a fault or chore; may be repeated.", metavar="NAME"),
    ] = None,
    skip: Annotated[
        str, typer.Option(help="Leave out these faults and chores, by number.", metavar="3,7-9")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a knob of the world; may be repeated.", metavar="KNOB=N"),
    ] = None,
) -> None:
    """Run the deterministic simulator.

    Each seed is one world: nodes that run the real consensus core, log and machines, on a clock,
    a network and disks that are simulated. Messages are lost, doubled and reordered, nodes crash
    and lose what they had not flushed, disks fail. Every invariant is checked after every event,
    and each world ends with a phase without faults in which it must converge. The summary counts
    how often each fault, chore and invariant had its turn; one that had none in 200 worlds fails
    the run.

    Worlds that failed in the past run first, unless --from says where to begin. A world that fails
    is made smaller before it is printed: --without, --skip and --set replay the smaller one.

    **Examples**

    `tidelog sim --seeds 500` runs 500 worlds and prints those that fail

    `tidelog sim --from 20001 --seeds 500 --twice` runs others, each of them twice

    `tidelog sim --seed 17 --trace` replays one world, the same byte for byte

    `tidelog sim --plants` shows how many worlds it takes to catch each planted bug

    `tidelog sim --plant NAME` shows a world that catches one of them
    """
    from tidelog.sim import (
        PAST,
        InvalidPlan,
        Plan,
        parse_ranges,
        parse_settings,
        parse_without,
    )

    if seed is not None and (seeds is not None or begin is not None):
        raise typer.BadParameter(
            "--seed replays one seed, --seeds and --from run many: give one or the other."
        )
    if trace and seed is None:
        raise typer.BadParameter("--trace follows one seed: add --seed S.")
    if trace and twice:
        raise typer.BadParameter("--trace and --twice cannot be combined.")
    if plants and (seed is not None or seeds is not None or plant is not None):
        raise typer.BadParameter("--plants chooses its worlds itself: give it --from and --starts.")
    workers = jobs or len(os.sched_getaffinity(0))
    if plants:
        if not measure(1 if begin is None else begin, starts, workers):
            raise typer.Exit(1)
        return
    if plant is not None:
        check_plant(plant)
    try:
        make = partial(
            Plan,
            plant=plant,
            without=parse_without(without or ()),
            skip=parse_ranges(skip),
            knobs=parse_settings(settings or ()),
        )
    except InvalidPlan as error:
        raise typer.BadParameter(str(error)) from error
    if seed is not None:
        chosen = [seed]
    else:
        first = 1 if begin is None else begin
        chosen = list(range(first, first + (seeds or DEFAULT_SEEDS)))
        if begin is None and plant is None:
            past = [each.seed for each in PAST]
            chosen = past + [each for each in chosen if each not in past]
    plans = map(make, chosen)
    progress = Progress("worlds", len(chosen))
    how = How(twice=twice, shrinks=shrink and plant is None and not trace)
    strict = len(chosen) >= ENOUGH and not (without or skip or settings)
    if trace:  # the trace is progress enough, and it needs this process
        outcomes = (run_one(plan, how, typer.echo) for plan in plans)
        good = judge(outcomes, progress) if plant is None else hunt(outcomes, plant, progress)
    else:
        answers = spread(partial(run_one, how=how), plans, min(workers, len(chosen)))
        with progress, closing(answers):
            if plant is None:
                good = judge(answers, progress, strict=strict)
            else:
                good = hunt(answers, plant, progress)
    if not good:
        raise typer.Exit(1)


def check_plant(name: str) -> None:
    """Refuse the name of a bug that cannot be planted, with the nearest that can."""
    from tidelog.sim import PLANTS

    if name in PLANTS:
        return
    near = difflib.get_close_matches(name, PLANTS, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise typer.BadParameter(
        f"There is no planted bug named {name}.{hint} There are: {', '.join(PLANTS)}."
    )


def judge(outcomes: Iterator[Outcome], progress: Progress, *, strict: bool = False) -> bool:
    """Report each world that fails; return whether none did.

    With `strict`, what no world exercised is an error as well.
    """
    exercise = Exercise()
    for outcome in gather(outcomes, progress):
        exercise.add(outcome)
        if not outcome.ok:
            progress.say(describe_failure(outcome))
        elif progress.total == 1:
            progress.say(f"seed {outcome.plan.seed} passed: {outcome.summary}")
    if progress.done < progress.total:
        return False
    if progress.total > 1:
        failed = f"{progress.failed} of {progress.total} worlds failed"
        held = f"{progress.total} worlds passed"
        rate = 60 * progress.done / progress.elapsed()
        verdict = failed if progress.failed else held
        progress.say(f"{verdict}: {exercise.events:,} events, {rate:,.0f} worlds a minute")
        for line in exercise.lines():
            progress.say(line)
        if idle := exercise.idle():
            kind = "ERROR" if strict else "WARNING"
            progress.say(f"{kind}: no world exercised {', '.join(idle)}.")
            return progress.failed == 0 and not strict
    return progress.failed == 0


def hunt(outcomes: Iterator[Outcome], plant: str, progress: Progress) -> bool:
    """Run until a world catches the planted bug; return whether one did."""
    from tidelog.sim import PLANTS

    for outcome in gather(outcomes, progress):
        if outcome.crashed:
            progress.say(describe_failure(outcome))
            return False
        if outcome.failure is not None:
            if PLANTS[plant].is_caught_by(outcome.failure):
                progress.say(f"{plant} is caught. {describe_failure(outcome)}")
                return True
            progress.say(f"This is not what {plant} should cause. {describe_failure(outcome)}")
    if progress.done == progress.total:
        worlds = "the one world" if progress.total == 1 else f"any of {progress.total} worlds"
        progress.say(f"{plant} was not caught by {worlds} that ran; try more with --seeds.")
    return False


def gather(outcomes: Iterator[Outcome], progress: Progress) -> Iterator[Outcome]:
    """Count outcomes as they pass; end early, with a sentence, if a worker process dies."""
    try:
        for outcome in outcomes:
            progress.advance(failed=not outcome.ok)
            yield outcome
    except BrokenProcessPool:
        progress.say(
            f"A worker process died after {progress.line()}, perhaps for lack of memory. "
            "Try again with --jobs 1."
        )
