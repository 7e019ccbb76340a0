"""The simulator itself: worlds a minute and events a second, on one processor."""

import time
from collections.abc import Iterator

from tidelog.sim import run_seed

NAME = "sim"
SEEDS = 60
QUICK_SEEDS = 6


def run(*, quick: bool = False) -> Iterator[str]:
    """Run consecutive seeds in this process and print the rates."""
    seeds = QUICK_SEEDS if quick else SEEDS
    events = failed = 0
    slowest = 0.0
    begun = time.perf_counter()
    for seed in range(1, seeds + 1):
        before = time.perf_counter()
        report = run_seed(seed)
        slowest = max(slowest, time.perf_counter() - before)
        events += report.events
        failed += not report.ok
    elapsed = time.perf_counter() - begun
    yield f"{60 * seeds / elapsed:,.0f} seeds a minute, {slowest:.2f} s for the slowest"
    yield f"{events / elapsed:,.0f} events a second, {events / seeds:,.0f} events a seed"
    yield f"{seeds - failed} of {seeds} seeds passed"
