"""`docs/evidence.md`, put together from what the parts of the evidence left behind.

Each part is saved as it ends: what it ran, at which commit, when, and its lines of the page. So a
part can be run again alone, or on another day; the page says of each at which commit it ran, and
marks a part that ran at another commit than the page is for, failed, or never ran.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

FAILED: Final = "**FAILED**"
# Every part, in the order of the page, and its title.
TITLES: Final = {
    "worlds": "Simulated worlds",
    "plants": "Planted bugs",
    "histories": "Histories with real processes",
    "clients": "Clients",
}
NOT_COVERED: Final = (
    "Transactions: Tidelog has none yet, so Jepsen's checkers of aborted and precommitted reads, of"
    " dependency cycles and of order within a transaction (G0, G1a, G1c, precommitted-read,"
    " int-poll-skip, int-nonmonotonic-poll, int-send-skip, int-nonmonotonic-send) have nothing to"
    " judge.",
    "Reads by consumers of a group while its members change: histories read with assigned"
    " partitions. Groups have tests of their own.",
    "Java clients: the tests need nothing but Python. `docs/compatibility.md` says what was tried"
    " with them by hand.",
    "Histories with other clients than librdkafka, but for kills of leaders under kafka-python.",
    "More than three node processes, and more than one machine. Clocks of real nodes are never"
    " skewed against each other; those of simulated nodes are.",
    "Disks that reorder the writes to one file: a power cut here keeps a prefix of what was"
    " appended since the last sync.",
    "File systems other than the one this ran on.",
    "Jepsen itself, which needs hosts that it can log in to. The checks here use the names of its"
    " checkers, and were written for this project.",
)


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the evidence came to."""

    name: str
    commit: str
    date: str
    seconds: float
    failed: bool
    lines: tuple[str, ...]

    def save(self, kept: Path) -> None:
        kept.mkdir(parents=True, exist_ok=True)
        partial = _file(kept, self.name).with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1))
        partial.replace(_file(kept, self.name))


def load(kept: Path, name: str) -> Part | None:
    """Return what a part came to when it ran last; None if it never did."""
    try:
        found = json.loads(_file(kept, name).read_text())
    except FileNotFoundError:
        return None
    return Part(**{**found, "lines": tuple(found["lines"])})


def _file(kept: Path, name: str) -> Path:
    return kept / f"{name}.json"


def page(kept: Path, commit: str) -> Iterator[str]:
    """Yield the lines of the page for a commit."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    yield from ("# Evidence", "")
    yield "What was tested, how much, and what was found. `make evidence` runs all of it and writes"
    yield "this page; `make evidence ARGS='--parts NAME'` runs one part again."
    yield ""
    yield f"- commit `{commit}`, {today()}"
    yield (
        f"- {platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory_gib} GiB,"
        f" Python {platform.python_version()}"
    )
    yield ""
    for name, title in TITLES.items():
        yield from (f"## {title}", "")
        part = load(kept, name)
        if part is None:
            yield f"This part did not run. {FAILED}"
        else:
            yield from (_standing(part, commit), "", *part.lines)
        yield ""
    yield from ("## What is not covered", "", *(f"- {each}" for each in NOT_COVERED))


def _standing(part: Part, commit: str) -> str:
    took = f"{part.seconds / 60:.0f} min" if part.seconds >= 60 else f"{part.seconds:.0f} s"
    text = f"Ran at commit `{part.commit}` on {part.date}, {took}."
    if part.commit != commit:
        text += " **That is another commit than this page's.**"
    return f"{text} {FAILED}" if part.failed else text


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def troubles(kept: Path, commit: str) -> list[str]:
    """Return a sentence for each part that is missing, failed, or of another commit."""
    found: list[str] = []
    for name in TITLES:
        part = load(kept, name)
        if part is None:
            found.append(f"{name} did not run")
        elif part.failed:
            found.append(f"{name} failed")
        elif part.commit != commit:
            found.append(f"{name} ran at {part.commit}")
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""
