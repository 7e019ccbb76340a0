"""A driver that moves a topic to a lake, and dies by kill -9 in a window of its second commit.

    python lake_driver.py BOOTSTRAP LAKE TOPIC WINDOW ENGINE

The engine `spark` is a real one; `plain` runs the tasks in this process, so that there is no wait
for a JVM. Everything else is the same.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from pyiceberg.table import Table

from tidelog.spark.lake import Lake, LakeJob

# What is replaced in here, so that it dies at the right moment.
job_module: Any = import_module("tidelog.spark.lake.job")
iceberg: Any = Table

WINDOWS = ("before writing", "amid writing", "before commit", "amid commit", "after commit")
SIZE = 60  # offsets that a commit takes


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(window: str, run: Callable[..., Any]) -> None:
    """Let the second pass through a window be the last."""
    passes = 0

    def second() -> bool:
        nonlocal passes
        passes += 1
        return passes == 2

    def run_tasks(spark: Any, work: Any, items: Sequence[Any]) -> Any:
        if window == "before writing" and second():
            die()
        if window == "amid writing" and second():
            run(spark, work, items[:1])
            die()
        return run(spark, work, items)

    commit = job_module.commit

    def dying_commit(*given: Any) -> Any:
        if window == "before commit" and second():
            die()
        return commit(*given)

    do_commit = iceberg._do_commit

    def dying_do_commit(table: Table, updates: Any, requirements: Any) -> None:
        dies = window in ("amid commit", "after commit") and second()
        if dies and window == "amid commit":
            die()
        do_commit(table, updates, requirements)
        if dies:
            die()

    job_module.run_tasks = run_tasks
    job_module.commit = dying_commit
    iceberg._do_commit = dying_do_commit


def main() -> None:
    bootstrap, place, topic, window, engine = sys.argv[1:]
    spark: Any = None
    run: Callable[..., Any] = job_module.run_tasks
    if engine == "spark":
        from tidelog.spark import session

        spark = session("driver", master="local[2]", settings={"spark.driver.memory": "1g"})
    else:
        run = run_here
    arm(window, run)
    for _ in LakeJob(spark, Lake(place), topic, bootstrap, max_offsets=SIZE).run():
        pass
    if spark is not None:
        spark.stop()


def run_here(_: Any, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [work(item) for item in items]


if __name__ == "__main__":
    main()
