"""Run worlds of the simulator on several processes, and add up what they exercised.

Rules:
- A task is small and goes to a process by value; what comes back is an `Outcome`, small too.
- A crash of the simulator itself is bad news whatever was asked, because nothing was judged.
"""

import multiprocessing
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tidelog.sim import Plan

# Tasks handed to the pool for each worker. Two keep a worker busy while the first answer travels;
# the bound keeps `--seeds 1000000` from queueing a million tasks.
AHEAD = 2

Task = TypeVar("Task")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one world, small enough to travel between processes."""

    plan: "Plan"
    ok: bool  # every invariant held and the liveness phase converged
    crashed: bool  # the simulator itself raised: `failure` is its traceback, and ok is False
    failure: str | None  # which invariant broke and how; None if and only if ok
    events: int
    summary: str
    happened: Mapping[str, int] = field(default_factory=dict)  # faults and chores
    judged: Mapping[str, int] = field(default_factory=dict)  # by each invariant
    smaller: "Plan | None" = None  # the smallest world found that fails in the same way
    smaller_events: int = 0


@dataclass(frozen=True, slots=True)
class How:
    """What to do with each world beside running it."""

    twice: bool = False  # run it again and compare
    shrinks: bool = False  # look for a smaller world that fails in the same way


def run_one(plan: "Plan", how: How, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run one world and turn whatever happens into an outcome."""
    from tidelog.sim import run_plan

    try:
        report = run_plan(plan, trace=trace)
        failure = report.failure
        if how.twice and failure is None:
            failure = _difference(plan, report.digest)
        smaller = None
        if how.shrinks and report.failure is not None:
            smaller = _smaller(plan)
    except Exception:  # noqa: BLE001  the seed must reach the user whatever went wrong under it
        return Outcome(plan, False, True, traceback.format_exc().rstrip(), 0, "")
    return Outcome(
        plan,
        failure is None,
        False,
        failure,
        report.events,
        report.summary,
        report.happened,
        report.judged,
        *(smaller or (None, 0)),
    )


def _difference(plan: "Plan", digest: str) -> str | None:
    """Run a world again; return the first line in which two runs differ, if they do."""
    from tidelog.sim import run_plan

    if run_plan(plan).digest == digest:
        return None
    traces: list[list[str]] = [[], []]
    for lines in traces:
        run_plan(plan, trace=lines.append)
    for number, (one, two) in enumerate(zip_longest(*traces), 1):
        if one != two:
            return f"two runs of it differ from line {number} on:\n    {one}\n    {two}"
    return "two runs of it differed, and two more did not"


def _smaller(plan: "Plan") -> "tuple[Plan, int] | None":
    """Return the smallest world found that fails in the same way, and how long it is."""
    from tidelog.sim import Failing, run_plan, shrink

    def failing(candidate: "Plan") -> Failing | None:
        report = run_plan(candidate)
        if report.failure is None:
            return None
        return Failing(report.failure, report.events, report.happenings, tuple(report.happened))

    first = failing(plan)
    if first is None:
        return None
    smallest, found = shrink(plan, first, failing)
    return None if smallest == plan else (smallest, found.events)


def spread(
    run: Callable[[Task], Answer], tasks: Iterable[Task], jobs: int
) -> Generator[Answer, None, None]:
    """Run tasks on `jobs` processes and yield answers as they come, in any order."""
    if jobs == 1:
        for task in tasks:
            yield run(task)
        return
    # Fresh interpreters: forking is unsafe beside the progress thread, and a hash seed of its own
    # in each worker brings out any run that leans on the order of a set.
    context = multiprocessing.get_context("spawn")
    # Ctrl-C is for the parent: it stops handing out tasks, and the workers end with theirs.
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=context,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    waiting: set[Future[Answer]] = set()
    try:
        for task in tasks:
            if len(waiting) >= jobs * AHEAD:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
            waiting.add(pool.submit(run, task))
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Exercise:
    """How often each fault, chore and invariant had its turn, over many worlds."""

    def __init__(self) -> None:
        self.events = 0
        self._happened: Counter[str] = Counter()
        self._judged: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Count one world."""
        self.events += outcome.events
        self._happened.update(outcome.happened)
        self._judged.update(outcome.judged)

    def lines(self) -> Iterator[str]:
        """Say how often each had its turn."""
        for title, counts in (("faults", self._faults()), ("chores", self._chores())):
            yield f"{title}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items())
        yield "events judged by each invariant: " + ", ".join(
            f"{label.removeprefix('invariant ')}: {count:,}"
            for label, count in self._invariants().items()
        )

    def idle(self) -> list[str]:
        """Return those that had none: each is a hole in the judge."""
        every = {**self._faults(), **self._chores(), **self._invariants()}
        return [name for name, count in every.items() if not count]

    def _faults(self) -> Mapping[str, int]:
        from tidelog.sim import FAULTS

        return {name: self._happened[name] for name in sorted(FAULTS)}

    def _chores(self) -> Mapping[str, int]:
        from tidelog.sim import CHORES

        return {name: self._happened[name] for name in sorted(CHORES)}

    def _invariants(self) -> Mapping[str, int]:
        from tidelog.sim import INVARIANTS

        return {each.label: self._judged[each.label] for each in INVARIANTS}
