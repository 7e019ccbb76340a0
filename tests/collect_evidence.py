"""`python -m tests.collect_evidence`: run what shows that Tidelog is safe, and write the page.

Each line of `docs/evidence.md` comes from a run of this program, with the command that repeats it.
Nothing is carried over from an earlier page. A part that fails is on the page as failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.evidence import VARIABLE
from tests.system.history import KINDS

PAGE = Path("docs/evidence.md")
WORLDS = 2_000
HISTORIES = ("kills", "restarts", "network", "power_cuts", "lost_disks")
SUITES = {
    "producing and consuming: confluent-kafka, kafka-python, aiokafka": "kafka/test_clients.py",
    "the same on node processes, with faults": "system/test_clients.py",
    "admin clients": "kafka/test_admin_clients.py",
    "groups of both protocols": "kafka/groups/test_clients.py",
    "kcat": "system/test_kcat.py",
    "hostile bytes": "system/test_bad_input.py",
}
NOT_COVERED = (
    "Transactions: Tidelog has none yet, so Jepsen's checkers of aborted and intermediate reads, of"
    " dependency cycles and of order within a transaction (G0, G1a, G1c, int-poll-skip,"
    " int-nonmonotonic-poll, int-send-skip, int-nonmonotonic-send) have nothing to judge.",
    "More than three node processes, and more than one machine. Clocks of real nodes are never"
    " skewed against each other; those of simulated nodes are.",
    "Disks that reorder the writes to one file: a power cut here keeps a prefix of what was"
    " appended since the last sync.",
    "File systems other than the one this ran on.",
    "Jepsen itself, which needs hosts that it can log in to. The checks here use the names of its"
    " checkers, and were written for this project.",
    "Reads by consumers of a group while its members change: histories read with assigned"
    " partitions. Groups have tests of their own.",
)


@dataclass(frozen=True, slots=True)
class Ran:
    """One command that was run."""

    command: str
    seconds: float
    output: str
    passed: bool

    def __str__(self) -> str:
        return f"`{self.command}` ({self.seconds:.0f} s){'' if self.passed else ' **FAILED**'}"


def run(command: Sequence[str], **environment: str) -> Ran:
    shown = " ".join("python" if each == sys.executable else _quoted(each) for each in command)
    print(f"... {shown}", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = subprocess.run(
        command,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    return Ran(shown, time.monotonic() - began, done.stdout, done.returncode == 0)


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


# --- Simulated worlds -----------------------------------------------------------------------------


def worlds(first: int, count: int) -> Iterator[str]:
    program = (sys.executable, "-m", "tidelog", "sim")
    judged = run((*program, "--from", str(first), "--seeds", str(count)))
    yield from ("## Simulated worlds", "", str(judged), "", "```", *_tail(judged), "```", "")
    caught = run((*program, "--plants"))
    yield "Bugs that are planted on purpose, and how many worlds it took to catch each:"
    yield from ("", str(caught), "", "```", *_tail(caught), "```", "")


def _tail(ran: Ran, lines: int = 120) -> list[str]:
    return [line.rstrip() for line in ran.output.splitlines()][-lines:]


# --- Histories ------------------------------------------------------------------------------------


def histories(notes: Path, *, slow: bool) -> Iterator[str]:
    files = [f"tests/system/test_{name}.py" for name in HISTORIES]
    options = ["--slow"] if slow else []
    command = [sys.executable, "-m", "pytest", "-q", *filter(os.path.exists, files), *options]
    ran = run(command, **{VARIABLE: str(notes)})
    found = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    yield from ("## Histories with real processes", "")
    yield "Three node processes, clients that write, read and ask for ends, and one kind of fault."
    yield "Every history is checked as a whole when it ends; one with an anomaly fails its test."
    yield from ("", str(ran), "", _last_line(ran), "")
    yield from _table(
        ("fault", "client", "runs", "minutes", "acknowledged", "refused", "read", "anomalies"),
        _history_rows([each for each in found if each["what"] == "history"], ran),
    )
    yield from _power_cuts(found)
    yield from (
        "What is looked for, by the names of Jepsen's checker for Kafka where it has one:",
        "",
    )
    yield from _table(("anomaly", "meaning"), KINDS.items())


def _history_rows(notes: list[dict[str, Any]], ran: Ran) -> Iterator[Sequence[object]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for each in notes:
        groups[_said(each["test"]), each["client"]].append(each)
    for (fault, client), runs in groups.items():
        seconds, acknowledged, failed, read = (
            sum(each[name] for each in runs)
            for name in ("seconds", "acknowledged", "failed", "read")
        )
        minutes = f"{seconds / 60:.1f}"
        yield fault, client, len(runs), minutes, f"{acknowledged:,}", failed, f"{read:,}", 0
    for test in re.findall(r"^FAILED (\S+)", ran.output, re.MULTILINE):
        yield _said(test), "", "", "", "", "", "", "**FAILED**"


def _power_cuts(found: list[dict[str, Any]]) -> Iterator[str]:
    cuts = [each for each in found if each["what"] == "power cuts"]
    yield (
        f"Power was cut {sum(each['cuts'] for each in cuts)} times, which took"
        f" {sum(each['bytes_lost'] for each in cuts):,} bytes that no sync had made durable, under"
        f" {sum(each['acknowledged'] for each in cuts):,} acknowledged writes at `acks=all` with"
        " default settings: none of them was lost."
    )
    for each in found:
        if each["what"] == "power cut with write.caching":
            yield (
                f"With `write.caching=true` a cut of all nodes took {each['lost']} of"
                f" {each['acknowledged']:,} acknowledged writes, the oldest of them acknowledged"
                f" {each['window_ms']} ms before the cut."
            )
    yield ""


def _said(test: str) -> str:
    """Return what a test claims: its name, with spaces."""
    return test.rpartition("::")[2].removeprefix("test_").replace("_", " ")


# --- Suites of clients ----------------------------------------------------------------------------


def suites(scratch: Path) -> Iterator[str]:
    yield from ("## Clients", "")
    rows = []
    for name, file in SUITES.items():
        report = scratch / "junit.xml"
        command = (sys.executable, "-m", "pytest", "-q", f"tests/{file}")
        ran = run((*command, f"--junitxml={report}"))
        suite = next(ET.parse(report).getroot().iter("testsuite")).attrib
        tests, failures, errors, skipped = (
            int(suite[each]) for each in ("tests", "failures", "errors", "skipped")
        )
        passed = tests - failures - errors - skipped
        shown = ran.command.replace(f" --junitxml={report}", "")
        rows.append((name, passed, failures + errors, skipped, f"`{shown}`"))
    yield from _table(("clients", "passed", "failed", "skipped", "command"), rows)


# --- The page -------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Any) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""


def _last_line(ran: Ran) -> str:
    lines = ran.output.strip().splitlines()
    return f"`{lines[-1]}`" if lines else ""


def _commit() -> str:
    asked = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    return subprocess.run(asked, check=False, text=True, capture_output=True).stdout.strip()


def page(first: int, count: int, *, slow: bool) -> Iterator[str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    yield from ("# Evidence", "")
    yield "What was tested, how much, and what was found. `make evidence` runs all of it and writes"
    yield "this page."
    yield ""
    yield f"- commit `{_commit()}`, {time.strftime('%Y-%m-%d', time.gmtime())}"
    yield (
        f"- {platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory} GiB,"
        f" Python {platform.python_version()}"
    )
    yield ""
    with tempfile.TemporaryDirectory() as scratch:
        yield from worlds(first, count)
        yield from histories(Path(scratch) / "notes", slow=slow)
        yield from suites(Path(scratch))
    yield from ("## What is not covered", "", *(f"- {each}" for each in NOT_COVERED))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.collect_evidence", description=__doc__)
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first world")
    parser.add_argument("--seeds", type=int, default=WORLDS, help="how many worlds")
    parser.add_argument("--quick", action="store_true", help="leave out the tests marked slow")
    chosen = parser.parse_args()
    lines = list(page(chosen.first, chosen.seeds, slow=not chosen.quick))
    PAGE.write_text("\n".join(lines) + "\n")
    failed = sum("**FAILED**" in line for line in lines)
    print(f"{PAGE} is written" + (f"; {failed} parts failed" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
