"""`python -m tests.collect_evidence`: run what shows that Tidelog is safe, and write the page.

Each line of `docs/evidence.md` comes from a run of this program, with the command that repeats it.
The parts run one after the other, and each is kept as it ends. A part that fails does not cost the
others, and is on the page as failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests import evidence_histories
from tests.evidence import VARIABLE
from tests.evidence_page import FAILED, TITLES, Part, page, table, today, troubles
from tests.evidence_runs import Ran, run, run_tests

PAGE: Final = Path("docs/evidence.md")
KEPT: Final = Path("build/evidence")
WORLDS: Final = 2_000
HISTORIES: Final = ("kills", "restarts", "network", "power_cuts", "lost_disks")
SUITES: Final = {
    "producing and consuming: confluent-kafka, kafka-python, aiokafka": "kafka/test_clients.py",
    "the same on node processes, with faults": "system/test_clients.py",
    "settings and refusals that clients stumbled over": "kafka/test_compatibility_clients.py",
    "admin clients": "kafka/test_admin_clients.py",
    "groups of both protocols": "kafka/groups/test_clients.py",
    "kcat": "system/test_kcat.py",
    "leader epochs, fencing and truncation": "system/test_epochs.py",
    "rot on the disk of a running node": "system/test_rot.py",
    "nodes that join, and strangers that try": "system/test_joining.py",
    "nodes that may open few files": "system/test_file_limit.py",
    "hostile bytes": "system/test_bad_input.py",
}
# How long commands may take, on a machine of two cores: several times what they do take.
WORLD_S: Final = 2.0  # each, with an hour for those that fail and are made smaller
SHRINKING_S: Final = 3_600.0
PLANTS_S: Final = 6 * 3_600.0
FILE_S: Final = 3_600.0  # the tests of one file


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run."""

    first: int | None  # world; None: those that failed in the past, and then from the first on
    worlds: int
    slow: bool
    scratch: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    failed: bool
    lines: list[str]


# --- The parts ------------------------------------------------------------------------------------


def _simulate(limit_s: float, *options: str) -> Outcome:
    ran = run((sys.executable, "-m", "tidelog", "sim", *options), limit_s)
    return Outcome(not ran.passed, _told(ran))


def _told(ran: Ran) -> list[str]:
    return [str(ran), "", "```", *ran.shown(), "```"]


def worlds(wanted: Wanted) -> Outcome:
    begin = () if wanted.first is None else ("--from", str(wanted.first))
    limit_s = SHRINKING_S + WORLD_S * wanted.worlds
    return _simulate(limit_s, *begin, "--seeds", str(wanted.worlds))


def plants(_: Wanted) -> Outcome:
    """Bugs that are planted on purpose, and how many worlds it takes to catch each."""
    return _simulate(PLANTS_S, "--plants")


def histories(wanted: Wanted) -> Outcome:
    notes = wanted.scratch / "notes"
    options = ("--slow",) if wanted.slow else ()
    tests = [
        run_tests(
            f"tests/system/test_{name}.py",
            wanted.scratch,
            FILE_S,
            *options,
            **{VARIABLE: str(notes)},
        )
        for name in HISTORIES
    ]
    found = evidence_histories.read_notes(notes)
    shown = "".join(f" {each}" for each in options)
    lines = evidence_histories.lines(tests, found, shown)
    return Outcome(not all(each.is_good for each in tests), list(lines))


def clients(wanted: Wanted) -> Outcome:
    tests = {
        name: run_tests(f"tests/{file}", wanted.scratch, FILE_S) for name, file in SUITES.items()
    }
    lines = list(
        table(
            ("tests", "passed", "failed", "skipped", "command"),
            (
                (name, each.passed, len(each.failed), each.skipped, each.ran)
                for name, each in tests.items()
            ),
        )
    )
    broken = [f"- {FAILED}: {name}" for each in tests.values() for name in each.failed]
    return Outcome(not all(each.is_good for each in tests.values()), lines + broken)


PARTS: Final[dict[str, Callable[[Wanted], Outcome]]] = {
    "worlds": worlds,
    "plants": plants,
    "histories": histories,
    "clients": clients,
}


# --- Running them ---------------------------------------------------------------------------------


def carry_out(name: str, work: Callable[[Wanted], Outcome], wanted: Wanted, commit: str) -> Part:
    """Run a part; what goes wrong in it is its outcome."""
    began = time.monotonic()
    try:
        outcome = work(wanted)
    except Exception as error:  # noqa: BLE001  # whatever it is, the others go on
        traceback.print_exc()
        outcome = Outcome(True, [f"It could not be run: `{error!r}`"])
    seconds = time.monotonic() - began
    return Part(name, commit, today(), seconds, outcome.failed, tuple(outcome.lines))


def current_commit() -> str:
    """Return the commit, marked if files differ from it; the page itself does not count."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE}")
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), check=True, text=True, capture_output=True)
    return done.stdout.strip()


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in TITLES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}; there are {_ALL}")
    return names


_ALL: Final = ",".join(TITLES)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.collect_evidence", description=__doc__)
    parser.add_argument("--parts", type=_names, default=_ALL, help=f"run these alone: {_ALL}")
    parser.add_argument(
        "--keep", type=Path, default=KEPT, metavar="DIR", help="where each part is kept as it ends"
    )
    parser.add_argument(
        "--assemble", action="store_true", help="run nothing, write the page from what is kept"
    )
    parser.add_argument("--from", type=int, dest="first", help="the first world", metavar="S")
    parser.add_argument("--seeds", type=int, default=WORLDS, help="how many worlds", metavar="N")
    parser.add_argument("--quick", action="store_true", help="leave out the histories marked slow")
    return parser


def main() -> None:
    chosen = _parser().parse_args()
    commit = current_commit()
    for name in () if chosen.assemble else chosen.parts:
        with tempfile.TemporaryDirectory() as scratch:
            wanted = Wanted(chosen.first, chosen.seeds, not chosen.quick, Path(scratch))
            carry_out(name, PARTS[name], wanted, commit).save(chosen.keep)
    PAGE.write_text("\n".join(page(chosen.keep, commit)) + "\n")
    found = troubles(chosen.keep, commit)
    print(f"{PAGE} is written" + (f", but {'; '.join(found)}" if found else ""))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
