"""What histories with real processes noted (`tests/evidence.py`), as lines of the page."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.evidence_page import FAILED, table
from tests.evidence_runs import Tested
from tests.system.history import KINDS

Note = dict[str, Any]
HISTORY: Final = "history"


def read_notes(path: Path) -> list[Note]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines(tests: Sequence[Tested], notes: Sequence[Note], options: str) -> Iterator[str]:
    """Yield what was run, what came out, and what was looked for."""
    yield "Three node processes, clients that write, read and ask for ends, and one kind of fault."
    yield "Every history is checked as a whole when it ends; one with an anomaly fails its test."
    yield ""
    for each in tests:
        yield f"- {each.ran}: {each.passed} tests passed, {len(each.failed)} failed"
    yield ""
    yield from table(
        (
            *("fault", "client", "runs", "minutes", "acknowledged", "refused", "read"),
            *("anomalies", "command"),
        ),
        _rows(notes, options),
    )
    broken = [name for each in tests for name in each.failed]
    if broken:
        yield from (f"- {FAILED}: {_said(name)}" for name in broken)
        yield ""
    yield from _anomalies([each for each in notes if each["what"] == HISTORY], len(broken))
    yield from _power(notes)
    yield from _disks(notes)


def _rows(notes: Sequence[Note], options: str) -> Iterator[Sequence[object]]:
    groups: dict[tuple[str, str], list[Note]] = defaultdict(list)
    for each in notes:
        if each["what"] == HISTORY:
            groups[each["test"].partition("[")[0], each["client"]].append(each)
    for (test, client), runs in groups.items():
        seconds, acknowledged, refused, read = (
            sum(each[name] for each in runs)
            for name in ("seconds", "acknowledged", "failed", "read")
        )
        anomalies = sum(sum(each["anomalies"].values()) for each in runs)
        yield (
            *(_said(test), client, len(runs), f"{seconds / 60:.1f}"),
            *(f"{acknowledged:,}", refused, f"{read:,}", anomalies),
            f"`python -m pytest {test}{options}`",
        )


def _anomalies(histories: Sequence[Note], broken: int) -> Iterator[str]:
    hours = sum(each["seconds"] for each in histories) / 3600
    yield (
        f"Anomalies in {len(histories)} histories, {hours:.2f} hours together, by the names of"
        " Jepsen's checker for Kafka where it has one:"
    )
    yield ""
    yield from table(
        ("anomaly", "meaning", "found"),
        (
            (kind, meaning, sum(each["anomalies"][kind] for each in histories))
            for kind, meaning in KINDS.items()
        ),
    )
    if broken:
        yield f"{broken} tests failed; a history that did not come to its end is not in the table."
        yield ""


def _power(notes: Sequence[Note]) -> Iterator[str]:
    cuts = [each for each in notes if each["what"] == "power cuts"]
    lost: dict[str, int] = {  # by test, for those whose history was judged
        each["test"]: each["anomalies"]["lost-write"] for each in notes if each["what"] == HISTORY
    }
    judged = [each for each in cuts if each["test"] in lost]
    if cuts:
        yield (
            f"- Power was cut {sum(each['cuts'] for each in cuts)} times, which took"
            f" {sum(each['bytes_lost'] for each in cuts):,} bytes that no sync had made durable."
            f" Of {sum(each['acknowledged'] for each in judged):,} writes that were acknowledged at"
            " `acks=all` with default settings,"
            f" {sum(lost[each['test']] for each in judged)} were lost."
        )
    if len(judged) < len(cuts):
        yield f"- {FAILED}: histories with power cuts that did not end: {len(cuts) - len(judged)}"
    for each in notes:
        if each["what"] == "power cuts during compaction":
            yield (
                f"- Before power was cut while logs are compacted, the nodes that lost it were seen"
                f" to take {each['snapshots']} snapshots and to shrink"
                f" {each['compacted_segments']} segments."
            )
        if each["what"] == "power cut with write.caching":
            yield (
                f"- With `write.caching=true` a cut of all nodes took {each['lost']} of"
                f" {each['acknowledged']:,} acknowledged writes, the oldest of them acknowledged"
                f" {each['oldest_ms']} ms before the cut. {each['older']} of them were older than"
                f" `flush.ms` ({each['flush_ms']} ms); the documented window is `flush.ms` and the"
                " time of two flushes."
            )


def _disks(notes: Sequence[Note]) -> Iterator[str]:
    found = [each for each in notes if each["what"] == "lost disks"]
    if found:
        yield (
            f"- {sum(each['lost'] for each in found)} times a disk, a part of a replica or a bit"
            f" was lost under {sum(each['acknowledged'] for each in found):,} acknowledged writes,"
            " and the replicas were rebuilt by themselves."
        )


def _said(test: str) -> str:
    """Return what a test claims: its name, with spaces."""
    return test.rpartition("::")[2].removeprefix("test_").replace("_", " ")
