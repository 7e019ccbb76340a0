"""The page of evidence tells what went wrong, and when and where each part of it ran."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests import evidence_runs
from tests.collect_evidence import HISTORIES, PARTS, SUITES, Outcome, Wanted, carry_out
from tests.evidence_histories import lines
from tests.evidence_page import FAILED, TITLES, Part, page, troubles
from tests.evidence_runs import SHOWN_FIRST, SHOWN_LAST, Ran, run, run_tests
from tests.system.history import KINDS

COMMIT = "0123456789ab"


def save(kept: Path, *names: str, commit: str = COMMIT, failed: bool = False) -> None:
    for name in names:
        said = (f"what {name} found",)
        Part(name, commit, "2026-11-19", 61.0, failed, said).save(kept)


def shown(kept: Path) -> dict[str, str]:
    """Return the page by the titles of its parts."""
    text = "\n".join(page(kept, COMMIT))
    return {part.partition("\n")[0]: part for part in text.split("## ")[1:]}


def test_a_page_is_put_together_from_parts_that_ran_before(tmp_path: Path) -> None:
    save(tmp_path, *TITLES)
    found = shown(tmp_path)
    for name, title in TITLES.items():
        assert f"what {name} found" in found[title]
        assert f"Ran at commit `{COMMIT}` on 2026-11-19, 1 min." in found[title]
    assert FAILED not in "".join(found.values())
    assert troubles(tmp_path, COMMIT) == []


def test_a_part_of_another_commit_is_marked(tmp_path: Path) -> None:
    save(tmp_path, *TITLES)
    save(tmp_path, "plants", commit="ba9876543210")
    found = shown(tmp_path)
    assert "Ran at commit `ba9876543210`" in found["Planted bugs"]
    marked = [title for title, text in found.items() if "another commit" in text]
    assert marked == ["Planted bugs"]
    assert troubles(tmp_path, COMMIT) == ["plants ran at ba9876543210"]


def test_a_failed_part_and_a_missing_one_are_failures(tmp_path: Path) -> None:
    save(tmp_path, "worlds", "plants")
    save(tmp_path, "clients", failed=True)
    found = shown(tmp_path)
    failed = [title for title, text in found.items() if FAILED in text]
    assert failed == ["Histories with real processes", "Clients"]
    assert troubles(tmp_path, COMMIT) == ["histories did not run", "clients failed"]


def test_an_error_in_a_part_is_its_outcome(tmp_path: Path) -> None:
    def work(_: Wanted) -> Outcome:
        raise OSError("no disk")

    part = carry_out("plants", work, Wanted(None, 1, False, tmp_path), COMMIT)
    part.save(tmp_path)
    assert part.failed
    assert "OSError('no disk')" in shown(tmp_path)["Planted bugs"]


def test_every_part_has_its_place_and_every_file_is_there() -> None:
    assert list(PARTS) == list(TITLES)
    here = Path(__file__).parent
    files = [*SUITES.values(), *(f"system/test_{name}.py" for name in HISTORIES)]
    assert [file for file in files if not (here / file).exists()] == []


# --- Commands -------------------------------------------------------------------------------------


def test_what_a_failed_command_said_is_kept_without_its_progress() -> None:
    program = "import sys; print('seed 7 failed'); print('3 of 9', file=sys.stderr); sys.exit(3)"
    ran = run((sys.executable, "-c", program), 60.0)
    assert ran.lines == ("seed 7 failed",)
    assert not ran.passed
    assert f"{FAILED}: it ended with code 3" in str(ran)


def test_a_command_that_goes_on_for_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_runs, "GRACE_S", 5.0)
    program = "import time; print('begun', flush=True); time.sleep(1000)"
    ran = run((sys.executable, "-c", program), 1.0)
    assert "it was ended after 1 s" in str(ran)


def test_the_first_lines_and_the_last_are_shown() -> None:
    said = tuple(str(number) for number in range(1000))
    found = Ran("command", 1.0, said).shown()
    assert found[: SHOWN_FIRST + 1] == [*said[:SHOWN_FIRST], "... 860 lines are left out ..."]
    assert found[SHOWN_FIRST + 1 :] == [*said[-SHOWN_LAST:]]


def test_a_fixture_that_fails_fails_its_test(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def broken():\n    yield\n    assert False\n"
        "def test_passes(): pass\n"
        "def test_breaks_at_its_end(broken): pass\n"
        "def test_fails(): assert False\n"
        "def test_fails_twice(broken): assert False\n"
        "@pytest.mark.skip\n"
        "def test_waits(): pass\n"
    )
    tested = run_tests(str(file), tmp_path, 60.0)
    assert tested.failed == ("test_breaks_at_its_end", "test_fails", "test_fails_twice")
    assert not tested.is_good
    assert (tested.passed, tested.skipped) == (1, 1)
    assert not run_tests(str(tmp_path / "test_gone.py"), tmp_path, 60.0).is_good


# --- Histories ------------------------------------------------------------------------------------


def history(test: str, **anomalies: int) -> dict[str, Any]:
    found = {
        **dict.fromkeys(KINDS, 0),
        **{kind.replace("_", "-"): n for kind, n in anomalies.items()},
    }
    return {
        "what": "history",
        "test": f"tests/system/test_power_cuts.py::{test}",
        "client": "librdkafka, acks=all",
        "seconds": 60,
        "acknowledged": 1000,
        "failed": 0,
        "read": 2000,
        "anomalies": found,
    }


def cuts(test: str) -> dict[str, Any]:
    return {
        "what": "power cuts",
        "test": f"tests/system/test_power_cuts.py::{test}",
        "cuts": 3,
        "bytes_lost": 10,
        "acknowledged": 1000,
    }


def test_anomalies_are_counted_by_kind_and_not_taken_for_granted() -> None:
    notes = [
        history("test_cut[a]", lost_write=2, unseen=1),
        history("test_cut[b]"),
        cuts("test_cut[a]"),
        cuts("test_that_hung"),
    ]
    found = list(lines([], notes, " --slow"))
    [row] = [each for each in found if each.startswith("| cut |")]
    assert row == (
        "| cut | librdkafka, acks=all | 2 | 2.0 | 2,000 | 0 | 4,000 | 3 "
        "| `python -m pytest tests/system/test_power_cuts.py::test_cut --slow` |"
    )
    counted = {each.split(" | ")[0][2:]: each.split(" | ")[-1] for each in found if "| " in each}
    assert counted["lost-write"] == "2 |"
    assert counted["unseen"] == "1 |"
    assert counted["duplicate"] == "0 |"
    text = "\n".join(found)
    assert "Power was cut 6 times" in text
    assert "Of 1,000 writes that were acknowledged at `acks=all` with default settings, 2 " in text
    assert f"{FAILED}: histories with power cuts that did not end: 1" in text
