"""Whole runs: a seed is a world, the same in every process, and a failure names itself."""

import os
import subprocess
import sys

import pytest

from tidelog.raft.core import Core
from tidelog.raft.voter import Voter
from tidelog.sim import PLANTS, run_seed
from tidelog.sim.knobs import Knobs, draw
from tidelog.sim.scheduler import stream


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_seed_passes(seed: int) -> None:
    report = run_seed(seed)
    assert report.ok, report.failure
    assert report.failure is None
    assert report.events > 100


def test_two_runs_of_a_seed_are_the_same_line_by_line() -> None:
    first: list[str] = []
    second: list[str] = []
    one = run_seed(2, trace=first.append)
    two = run_seed(2, trace=second.append)
    assert first == second
    assert one == two
    assert len(first) > 100


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_is_the_same_world_in_a_process_with_another_hash_seed(seed: int) -> None:
    code = f"from tidelog.sim import run_seed; print(run_seed({seed}).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "20")
    }
    assert digests == {run_seed(seed).digest}


def test_different_seeds_are_different_worlds() -> None:
    assert len({run_seed(seed).digest for seed in (1, 2, 3)}) == 3


def test_printing_the_trace_changes_nothing() -> None:
    assert run_seed(5).digest == run_seed(5, trace=lambda _: None).digest


def test_an_error_inside_the_product_fails_the_run_and_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Core) -> None:
        raise ZeroDivisionError("planted by a test")

    monkeypatch.setattr(Core, "become_leader", broken)
    report = run_seed(1)
    assert not report.ok
    assert report.failure is not None
    assert "ZeroDivisionError" in report.failure
    assert "planted by a test" in report.failure


def test_a_world_that_never_elects_a_leader_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Voter, "on_election_timeout", lambda self, event: None)
    report = run_seed(1)
    assert not report.ok
    assert report.failure is not None
    assert "no confirmed leader" in report.failure


def test_a_plant_is_gone_after_its_run() -> None:
    name = next(iter(PLANTS))
    before = run_seed(6).digest
    run_seed(6, plant=name)
    assert run_seed(6).digest == before


def test_knobs_differ_from_seed_to_seed_and_can_be_overridden() -> None:
    drawn = [draw(stream(seed, "knobs")) for seed in range(200)]
    assert {knobs.voters for knobs in drawn} >= {1, 3, 5}
    assert len({knobs.segment_bytes for knobs in drawn}) > 3
    assert len({knobs.shipping for knobs in drawn}) == 2
    assert Knobs().override({"voters": 5, "spares": 0}).nodes == 5
    with pytest.raises(ValueError, match="no knobs named colour"):
        Knobs().override({"colour": "red"})
