"""Starts the process of Spark for a project, and listens to it.

    for event in launch(project, order): ...

The process ends when whoever listens goes away: an interrupt ends both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tidelog.spark.pipelines.events import Ended, Event, Problem, from_line
from tidelog.spark.pipelines.project import Project
from tidelog.spark.pipelines.runner import Order

_STOP_S: Final = 10.0


def launch(project: Project, order: Order) -> Iterator[Event]:
    """Run an order in a process of its own; raises `ProjectError` if the project is busy."""
    with project.locked():
        reading, writing = os.pipe()
        with project.log.open("w") as log, os.fdopen(reading) as events:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tidelog.spark.pipelines.runner",
                    replace(order, events=writing).to_json(),
                ],
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                # Ctrl-C reaches us, and we decide what becomes of the run.
                start_new_session=True,
            )
            os.close(writing)
            ended = False
            try:
                for line in events:
                    event = from_line(line)
                    ended = isinstance(event, Ended)
                    yield event
                if not ended:
                    code = child.wait()
                    yield Problem(f"Spark ended without a word (code {code}): see {project.log}.")
                    yield Ended(False)
            finally:
                _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started; a batch that was under way is run again."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    finally:
        if child.stdin is not None:
            child.stdin.close()
