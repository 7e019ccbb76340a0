"""Progress of long commands, on standard error so that standard output stays clean for pipes.

Rules:
- A command that ends within two seconds shows nothing.
- On a terminal there is a bar. Elsewhere (a CI log, a file) there is a plain line now and then.
"""

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from typer import echo

# Seconds before anything is shown: shorter waits need no explanation.
QUIET_SECONDS = 2.0
# Seconds between plain lines: a run of ten minutes leaves sixty lines in a CI log.
LINE_SECONDS = 10.0
# Seconds between refreshes of the bar: four a second look alive and cost nothing.
BAR_SECONDS = 0.25


class Progress:
    """Shows how many of `total` things are done, from a thread of its own, as a context manager.

    The thread lets a single long step show the passing time too. The caller only counts.
    """

    def __init__(
        self, what: str, total: int, *, console: Console | None = None, quiet: float = QUIET_SECONDS
    ) -> None:
        self.what = what  # the plural of what is counted: "seeds"
        self.total = total
        self.done = 0  # 0 <= done <= total; written by the caller's thread alone
        self.failed = 0  # how many of `done` were bad news
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._started = time.monotonic()
        self._bar: Bar | None = None  # set while a bar is on the terminal
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def advance(self, *, failed: bool = False) -> None:
        """Count one more as done."""
        self.done += 1
        self.failed += failed

    def say(self, text: str) -> None:
        """Print a result to standard output, without tearing the bar when both share a terminal."""
        bar = self._bar
        if bar is not None and sys.stdout.isatty():
            bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            echo(text)

    def line(self) -> str:
        """Say where things stand, as one plain line."""
        failures = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} {self.what}{failures}, {self.elapsed():.0f} s"

    def elapsed(self) -> float:
        """Return the seconds since the work began."""
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finished.set()
        self._thread.join()

    def _show(self) -> None:
        if self._finished.wait(self._quiet):
            return
        if self._console.is_terminal:
            self._show_bar()
        else:
            self._show_lines()

    def _show_lines(self) -> None:
        while True:
            self._console.print(self.line(), highlight=False, soft_wrap=True)
            if self._finished.wait(LINE_SECONDS):
                return

    def _show_bar(self) -> None:
        columns = (
            TextColumn(self.what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failures]}", style="red"),
            TextColumn("{task.fields[seconds]:.0f} s"),
        )
        bar = Bar(
            *columns,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with bar:
            self._bar = bar
            task = bar.add_task(self.what, total=self.total, failures="", seconds=0.0)
            while True:
                failures = f"{self.failed} failed" if self.failed else ""
                bar.update(task, completed=self.done, failures=failures, seconds=self.elapsed())
                bar.refresh()
                if self._finished.wait(BAR_SECONDS):
                    break
            self._bar = None
