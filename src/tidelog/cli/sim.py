"""`tidelog sim`: run many seeds of the simulator, replay one, or see a planted bug being caught.

Rules:
- A seed is a whole world: two runs of it are the same, byte for byte, in any process. So standard
  output of a replay carries no clock and no process.
- A failing seed is reported with the one command that replays it.
- A planted bug turns the verdict around: the command succeeds only if some seed catches it. A
  crash of the simulator itself is bad news either way, because nothing was caught.
"""

import difflib
import multiprocessing
import os
import shlex
import signal
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from tidelog.cli.progress import Progress

DEFAULT_SEEDS = 50
# Seeds handed to the pool for each worker. Two keep a worker busy while the first answer travels;
# the bound keeps `--seeds 1000000` from queueing a million tasks.
AHEAD = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed, small enough to travel between processes."""

    seed: int
    ok: bool  # every invariant held and the liveness phase converged
    crashed: bool  # the simulator itself raised: `failure` is its traceback, and ok is False
    failure: str | None  # which invariant broke and how; None if and only if ok
    events: int
    summary: str


def run_one(seed: int, plant: str | None, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed and turn whatever happens into an outcome."""
    from tidelog.sim import run_seed

    try:
        report = run_seed(seed, plant=plant, trace=trace)
    except Exception:  # noqa: BLE001  the seed must reach the user whatever went wrong under it
        return Outcome(seed, False, True, traceback.format_exc().rstrip(), 0, "")
    return Outcome(seed, report.ok, False, report.failure, report.events, report.summary)


def run_many(seeds: range, plant: str | None, jobs: int) -> Generator[Outcome, None, None]:
    """Run seeds on `jobs` processes and yield outcomes as they come, in any order."""
    if jobs == 1:
        for seed in seeds:
            yield run_one(seed, plant)
        return
    # Fresh interpreters: forking is unsafe beside the progress thread, and a hash seed of its own
    # in each worker brings out any run that leans on the order of a set.
    context = multiprocessing.get_context("spawn")
    # Ctrl-C is for the parent: it stops handing out seeds, and the workers end with theirs.
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=context,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    waiting: set[Future[Outcome]] = set()
    try:
        for seed in seeds:
            if len(waiting) >= jobs * AHEAD:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
            waiting.add(pool.submit(run_one, seed, plant))
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def replay_command(seed: int, plant: str | None) -> str:
    """Return the one command that shows a seed again, line by line."""
    planted = f" --plant {shlex.quote(plant)}" if plant else ""
    return f"tidelog sim --seed {seed} --trace{planted}"


def describe_failure(outcome: Outcome, plant: str | None) -> str:
    """Return what went wrong under a seed, and how to see it again."""
    what = "crashed the simulator" if outcome.crashed else "failed"
    command = replay_command(outcome.seed, plant)
    return f"seed {outcome.seed} {what}: {outcome.failure}\n  replay it: {command}"


def sim(
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Run seeds 1 to N.", metavar="N", show_default=str(DEFAULT_SEEDS)),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this one seed only.", metavar="S")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print what happens, event by event.")
    ] = False,
    plants: Annotated[
        bool, typer.Option("--plants", help="List the bugs that can be planted, and leave.")
    ] = False,
    plant: Annotated[
        str | None,
        typer.Option(help="Plant this bug; succeed only if a seed catches it.", metavar="NAME"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes to use.", metavar="N", show_default="one for each processor"
        ),
    ] = None,
) -> None:
    """Judge the core in simulated worlds.

    Each seed is one world: nodes that run the real consensus core, log and machines, on a clock,
    a network and disks that are simulated. Messages are lost, doubled and reordered, nodes crash
    and lose what they had not flushed, disks fail. Every invariant is checked after every event,
    and each world ends in peace, where it must converge.

    **Examples**

    `tidelog sim --seeds 500` runs 500 worlds and prints the seeds that fail

    `tidelog sim --seed 17 --trace` replays one world, the same byte for byte

    `tidelog sim --plants` lists the bugs that the simulator knows how to plant

    `tidelog sim --plant NAME` shows that one of them is caught
    """
    if seed is not None and seeds is not None:
        raise typer.BadParameter("--seed replays one seed and --seeds runs many: give one of them.")
    if trace and seed is None:
        raise typer.BadParameter("--trace follows one seed: add --seed S.")
    if plants:
        list_plants()
        return
    if plant is not None:
        check_plant(plant)
    chosen = range(seed, seed + 1) if seed is not None else range(1, (seeds or DEFAULT_SEEDS) + 1)
    progress = Progress("seeds", len(chosen))
    verdict = judge if plant is None else hunt
    if trace:  # the trace is progress enough, and it needs this process
        traced = partial(run_one, plant=plant, trace=typer.echo)
        good = verdict(map(traced, chosen), plant, progress)
    else:
        workers = min(jobs or len(os.sched_getaffinity(0)), len(chosen))
        with progress, closing(run_many(chosen, plant, workers)) as outcomes:
            good = verdict(outcomes, plant, progress)
    if not good:
        raise typer.Exit(1)


def list_plants() -> None:
    """Print the name and the meaning of each bug that can be planted."""
    from tidelog.sim import PLANTS

    width = max((len(name) for name in PLANTS), default=0)
    for name, entry in PLANTS.items():
        typer.echo(f"{name:<{width}}  {entry.description}")


def check_plant(name: str) -> None:
    """Refuse the name of a bug that nobody can plant, with the nearest that exists."""
    from tidelog.sim import PLANTS

    if name in PLANTS:
        return
    near = difflib.get_close_matches(name, PLANTS, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise typer.BadParameter(
        f"There is no planted bug named {name}.{hint} `tidelog sim --plants` lists them."
    )


def judge(outcomes: Iterator[Outcome], plant: str | None, progress: Progress) -> bool:
    """Report each seed that fails; return whether none did."""
    events = 0
    for outcome in gather(outcomes, progress):
        events += outcome.events
        if not outcome.ok:
            progress.say(describe_failure(outcome, plant))
        elif progress.total == 1:
            progress.say(f"seed {outcome.seed} passed: {outcome.summary}")
    if progress.done < progress.total:
        return False
    if progress.total > 1:
        failed = f"{progress.failed} of {progress.total} seeds failed"
        held = f"{progress.total} seeds passed"
        rates = f"{events:,} events, {60 * progress.done / progress.elapsed():,.0f} seeds a minute"
        progress.say(f"{failed if progress.failed else held}: {rates}")
    return progress.failed == 0


def hunt(outcomes: Iterator[Outcome], plant: str | None, progress: Progress) -> bool:
    """Run until a seed catches the planted bug; return whether one did."""
    for outcome in gather(outcomes, progress):
        if outcome.crashed:
            progress.say(describe_failure(outcome, plant))
            return False
        if not outcome.ok:
            progress.say(f"{plant} is caught. {describe_failure(outcome, plant)}")
            return True
    if progress.done == progress.total:
        seeds = "the one seed" if progress.total == 1 else f"any of {progress.total} seeds"
        progress.say(f"{plant} was not caught by {seeds} that ran; try more with --seeds.")
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
