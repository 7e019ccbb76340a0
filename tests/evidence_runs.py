"""Commands that the evidence runs: bounded in time, with what they printed and what failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.evidence_page import FAILED

# A command that is told to end has this long to put its own processes away.
GRACE_S: Final = 120.0
# Lines of what a command printed: a world that fails has three, and a run that fails many need not
# be shown in full.
SHOWN_FIRST, SHOWN_LAST = 60, 80


@dataclass(frozen=True, slots=True)
class Ran:
    """One command that was run."""

    command: str
    seconds: float
    lines: tuple[str, ...]  # of its standard output: progress is on the other
    why: str = ""  # it failed; empty if it did not

    @property
    def passed(self) -> bool:
        return not self.why

    def __str__(self) -> str:
        text = f"`{self.command}` ({self.seconds:.0f} s)"
        return text if self.passed else f"{text} {FAILED}: {self.why}"

    def shown(self) -> list[str]:
        """Return the first lines, which tell of failures, and the last, which sum up."""
        left_out = len(self.lines) - SHOWN_FIRST - SHOWN_LAST
        if left_out <= 0:
            return list(self.lines)
        first, last = self.lines[:SHOWN_FIRST], self.lines[-SHOWN_LAST:]
        return [*first, f"... {left_out} lines are left out ...", *last]


def run(command: Sequence[str], limit_s: float, **environment: str) -> Ran:
    """Run a command for no longer than it may take."""
    shown = " ".join("python" if each == sys.executable else _quoted(each) for each in command)
    print(f"... {shown}", file=sys.stderr, flush=True)
    began = time.monotonic()
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, env={**os.environ, **environment}
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
            why = f"it ended with code {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            output, why = _end(process), f"it was ended after {limit_s:.0f} s"
    lines = tuple(line.rstrip() for line in output.splitlines())
    return Ran(shown, time.monotonic() - began, lines, why)


def _end(process: subprocess.Popen[str]) -> str:
    """Interrupt a command, so that it puts its nodes away, and kill it if it goes on."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=GRACE_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


@dataclass(frozen=True, slots=True)
class Tested:
    """What became of the tests of one file."""

    ran: Ran
    passed: int
    skipped: int
    failed: tuple[str, ...]  # those that failed, or whose fixtures did

    @property
    def is_good(self) -> bool:
        return self.ran.passed and not self.failed


def run_tests(file: str, scratch: Path, limit_s: float, *more: str, **environment: str) -> Tested:
    """Run the tests of a file."""
    report = scratch / "junit.xml"
    report.unlink(missing_ok=True)
    hidden = f"--junitxml={report}"
    command = (sys.executable, "-m", "pytest", "-q", file, *more, hidden)
    ran = run(command, limit_s, **environment)
    ran = Ran(ran.command.replace(f" {hidden}", ""), ran.seconds, ran.lines, ran.why)
    if not report.exists():  # it could not begin, or was killed
        return Tested(ran, 0, 0, ())
    return _read(report, ran)


def _read(report: Path, ran: Ran) -> Tested:
    passed = skipped = 0
    failed: dict[str, None] = {}  # a test that fails and whose fixture does, is one
    for case in ET.parse(report).getroot().iter("testcase"):
        name = case.get("name", "?")
        if case.find("failure") is not None or case.find("error") is not None:
            failed[name] = None
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Tested(ran, passed, skipped, tuple(failed))
