"""`tidelog sim` as a user meets it: exit codes, the replay command, planted bugs, help, progress.

The simulator is replaced by a tiny one whose verdict on each seed is known, because these are
claims about the command. Claims about the simulator itself are in tests/sim.
"""

import io
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import tidelog
import tidelog.sim
from tidelog.cli import progress as progress_module
from tidelog.cli.app import app
from tidelog.cli.progress import Progress
from tidelog.sim import Past, Plan
from tidelog.sim.past import Where


@dataclass(frozen=True, slots=True)
class FakeReport:
    seed: int
    ok: bool
    failure: str | None
    events: int
    summary: str
    digest: str = "same"
    happenings: int = 8
    happened: dict[str, int] = field(default_factory=lambda: {"crash": 2, "wipe": 1})
    judged: dict[str, int] = field(default_factory=lambda: {"invariant 1": 7})


@dataclass(frozen=True, slots=True)
class FakePlant:
    name: str
    description: str

    def is_caught_by(self, failure: str) -> bool:
        return failure.startswith("committed")


class FakeSimulator:
    """Seeds in `bad` fail, seeds in `broken` raise, and a planted bug is caught from seed 3 on.

    A bad world fails as long as happening 5 is there. Seeds in `moody` are another world each time.
    """

    def __init__(self) -> None:
        self.bad: set[int] = set()
        self.broken: set[int] = set()
        self.moody: set[int] = set()
        self.caught_from = 3  # in each thousand
        self.ran: list[int] = []
        self._runs: Counter[int] = Counter()

    def run_plan(self, plan: Plan, *, trace: Callable[[str], None] | None = None) -> FakeReport:
        seed = plan.seed
        self.ran.append(seed)
        self._runs[seed] += 1
        mood = self._runs[seed] if seed in self.moody else 0
        if trace is not None:
            trace(f"t=0 world {seed} begins")
            trace(f"t=1 mood {mood}")
        if seed in self.broken:
            raise KeyError("a bug of the simulator")
        failed = seed in self.bad and 5 not in plan.skip
        if plan.plant is not None:
            failed = seed % 1_000 >= self.caught_from
        return FakeReport(
            seed=seed,
            ok=not failed,
            failure="committed went back from 7 to 5 on node 2" if failed else None,
            events=dict(plan.knobs).get("chaos_events", 1000),
            summary="1000 events, 3 nodes",
            digest=f"digest {mood}",
        )


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> FakeSimulator:
    fake = FakeSimulator()
    plants = {
        "commit-on-dirty": FakePlant("commit-on-dirty", "count dirty entries as committed"),
        "trailing-ghost": FakePlant("trailing-ghost", "end a recovery read with a ghost"),
    }
    monkeypatch.setattr(tidelog.sim, "run_plan", fake.run_plan)
    monkeypatch.setattr(tidelog.sim, "PLANTS", plants)
    monkeypatch.setattr(tidelog.sim, "PAST", ())
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})


def test_version_prints_the_version_of_the_package() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"tidelog {tidelog.__version__}\n"


def test_help_teaches_every_option_of_sim() -> None:
    result = run("sim", "--help")
    assert result.exit_code == 0
    options = "seeds from seed trace twice plants starts plant jobs no-shrink without skip set"
    for option in options.split():
        assert f"--{option}" in result.output
    assert "tidelog sim --seed 17 --trace" in result.output


def test_seeds_runs_that_many_worlds_and_succeeds_when_all_hold(simulator: FakeSimulator) -> None:
    result = run("sim", "--seeds", "4", "--jobs", "1")
    assert result.exit_code == 0
    assert simulator.ran == [1, 2, 3, 4]
    assert "4 worlds passed: 4,000 events" in result.output


def test_fifty_seeds_run_when_no_number_is_given(simulator: FakeSimulator) -> None:
    assert run("sim", "--jobs", "1").exit_code == 0
    assert simulator.ran == list(range(1, 51))


def test_a_failing_seed_prints_one_command_that_replays_it(simulator: FakeSimulator) -> None:
    simulator.bad = {3}
    result = run("sim", "--seeds", "5", "--jobs", "1")
    assert result.exit_code == 1
    assert "seed 3 failed: committed went back from 7 to 5 on node 2" in result.output
    commands = [line for line in result.output.splitlines() if "tidelog sim" in line]
    assert commands[0] == "  replay it: tidelog sim --seed 3 --trace"
    assert "1 of 5 worlds failed" in result.output


def test_the_printed_command_runs_and_shows_the_failure_again(simulator: FakeSimulator) -> None:
    simulator.bad = {3}
    first = run("sim", "--seeds", "5", "--jobs", "1")
    command = first.output.split("replay it: tidelog ")[1].splitlines()[0]
    again = run(*command.split())
    assert again.exit_code == 1
    assert "t=0 world 3 begins" in again.output
    assert "committed went back from 7 to 5 on node 2" in again.output
    assert simulator.ran[-1] == 3


def test_a_replay_prints_the_same_bytes_twice(simulator: FakeSimulator) -> None:
    first = run("sim", "--seed", "17", "--trace")
    assert first.exit_code == 0
    assert first.output == (
        "t=0 world 17 begins\nt=1 mood 0\nseed 17 passed: 1000 events, 3 nodes\n"
    )
    assert run("sim", "--seed", "17", "--trace").output == first.output


def test_a_simulator_that_raises_is_a_failure_with_its_seed(simulator: FakeSimulator) -> None:
    simulator.broken = {2}
    result = run("sim", "--seeds", "3", "--jobs", "1")
    assert result.exit_code == 1
    assert "seed 2 crashed the simulator" in result.output
    assert "a bug of the simulator" in result.output
    assert "tidelog sim --seed 2 --trace" in result.output
    assert simulator.ran == [1, 2, 3]


def test_plants_counts_the_worlds_that_each_bug_takes(simulator: FakeSimulator) -> None:
    result = run("sim", "--plants", "--starts", "3", "--jobs", "1")
    assert result.exit_code == 0
    rows = [line.split(maxsplit=3) for line in result.output.splitlines()]
    assert rows[1] == ["commit-on-dirty", "3", "3", "count dirty entries as committed"]
    assert rows[2] == ["trailing-ghost", "3", "3", "end a recovery read with a ghost"]
    assert simulator.ran[:9] == [1, 2, 3, 1001, 1002, 1003, 2001, 2002, 2003]


def test_plants_fails_if_a_bug_escapes_fifty_worlds_from_any_start(
    simulator: FakeSimulator,
) -> None:
    simulator.caught_from = 52
    result = run("sim", "--plants", "--starts", "1", "--jobs", "1")
    assert result.exit_code == 1
    assert ">50" in result.output
    assert (
        "Not caught by 50 worlds from every start: commit-on-dirty, trailing-ghost."
        in result.output
    )


def test_worlds_that_failed_in_the_past_run_first(
    simulator: FakeSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = tuple(Past(seed, "695ac21", Where.WORLD, "what it was") for seed in (786, 2))
    monkeypatch.setattr(tidelog.sim, "PAST", past)
    run("sim", "--seeds", "3", "--jobs", "1")
    assert simulator.ran == [786, 2, 1, 3]
    simulator.ran.clear()
    run("sim", "--from", "7", "--seeds", "2", "--jobs", "1")
    assert simulator.ran == [7, 8]


def test_the_summary_counts_what_was_exercised_and_warns_of_what_was_not(
    simulator: FakeSimulator,
) -> None:
    output = run("sim", "--seeds", "3", "--jobs", "1").output
    assert "crash 6" in output
    assert "1: 21, 2: 0" in output
    warning = next(line for line in output.splitlines() if line.startswith("WARNING"))
    assert "partition" in warning
    assert "invariant 2," in warning
    assert "wipe" not in warning


def test_what_many_worlds_did_not_exercise_fails_the_run(simulator: FakeSimulator) -> None:
    result = run("sim", "--seeds", "200", "--jobs", "1")
    assert result.exit_code == 1
    assert "200 worlds passed" in result.output
    error = next(line for line in result.output.splitlines() if line.startswith("ERROR"))
    assert "no world exercised" in error
    assert "partition" in error
    assert run("sim", "--seeds", "199", "--jobs", "1").exit_code == 0, "too few to tell"


@pytest.mark.parametrize(
    "less", [("--without", "partition"), ("--skip", "1"), ("--set", "writers=1")], ids=str
)
def test_what_was_left_out_by_request_is_no_error(
    simulator: FakeSimulator, less: tuple[str, str]
) -> None:
    result = run("sim", "--seeds", "200", "--jobs", "1", *less)
    assert result.exit_code == 0
    assert "WARNING: no world exercised" in result.output


def test_a_failing_world_is_made_smaller_before_it_is_printed(simulator: FakeSimulator) -> None:
    simulator.bad = {3}
    result = run("sim", "--seed", "3")
    assert "a smaller world that fails so (" in result.output
    command = result.output.split("instead of 1,000): tidelog ")[1].splitlines()[0]
    assert "--without crash --without wipe --skip 1-4,6-8" in command
    again = run(*command.split())
    assert again.exit_code == 1
    assert "committed went back" in again.output
    assert "smaller" not in run("sim", "--seed", "3", "--no-shrink").output


def test_twice_finds_a_world_that_is_not_the_same_again(simulator: FakeSimulator) -> None:
    assert run("sim", "--seeds", "3", "--twice", "--jobs", "1").exit_code == 0
    simulator.moody = {2}
    result = run("sim", "--seeds", "3", "--twice", "--jobs", "1")
    assert result.exit_code == 1
    assert "seed 2 failed: two runs of it differ from line 2 on:" in result.output
    assert "t=1 mood" in result.output


def test_a_planted_bug_that_is_caught_is_success_and_ends_the_hunt(
    simulator: FakeSimulator,
) -> None:
    result = run("sim", "--plant", "trailing-ghost", "--jobs", "1")
    assert result.exit_code == 0
    assert simulator.ran == [1, 2, 3]
    assert "trailing-ghost is caught" in result.output
    assert "tidelog sim --seed 3 --trace --plant trailing-ghost" in result.output


def test_a_planted_bug_that_escapes_is_failure(simulator: FakeSimulator) -> None:
    result = run("sim", "--plant", "trailing-ghost", "--seeds", "2", "--jobs", "1")
    assert result.exit_code == 1
    assert "trailing-ghost was not caught by any of 2 worlds" in result.output


def test_a_crash_of_the_simulator_does_not_count_as_catching_a_bug(
    simulator: FakeSimulator,
) -> None:
    simulator.broken = {1}
    result = run("sim", "--plant", "trailing-ghost", "--jobs", "1")
    assert result.exit_code == 1
    assert "seed 1 crashed the simulator" in result.output


def test_an_unknown_plant_is_refused_with_the_nearest_name(simulator: FakeSimulator) -> None:
    result = run("sim", "--plant", "trailing-gost")
    assert result.exit_code == 2
    assert "Did you mean trailing-ghost?" in result.output
    assert simulator.ran == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seed", "1", "--seeds", "2"], "give one or the other"),
        (["--trace"], "add --seed S"),
        (["--seed", "1", "--from", "2"], "give one or the other"),
        (["--seed", "1", "--trace", "--twice"], "cannot be combined"),
        (["--plants", "--seeds", "3"], "chooses its worlds itself"),
        (["--without", "flood"], "no fault or chore named flood"),
        (["--skip", "3-x"], "not a list of numbers"),
        (["--set", "colour=1"], "colour cannot be set"),
        (["--set", "writers=0"], "at least 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    simulator: FakeSimulator, arguments: list[str], sentence: str
) -> None:
    result = run("sim", *arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert simulator.ran == []


def test_short_work_shows_no_progress() -> None:
    written = io.StringIO()
    with Progress("seeds", 2, console=Console(file=written)) as progress:
        progress.advance()
        progress.advance()
    assert written.getvalue() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_long_work_shows_how_far_it_is(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(progress_module, "BAR_SECONDS", 0.01)
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=100)
    progress = Progress("seeds", 8, console=console, quiet=0.0)
    for failed in (False, True, False):
        progress.advance(failed=failed)
    with progress:
        # The only wait: until the thread has drawn once. A thread that never draws hits the
        # time limit that every test has.
        while "1 failed" not in written.getvalue():
            time.sleep(0.001)
    shown = written.getvalue()
    assert ("3/8" if terminal else "3 of 8 seeds, 1 failed") in shown
