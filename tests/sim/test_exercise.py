"""What worlds really do: every fault, chore and invariant has its turn, and each does its harm."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tidelog.cli.worlds import Exercise, Outcome
from tidelog.sim import Plan, Report
from tidelog.sim.nemesis import Nemesis
from tidelog.sim.run import Run

# Worlds that are run once for all these claims, a third of a second each.
SEEDS: Final = range(1, 41)
_LINE: Final = re.compile(r"\s*(?P<ms>[0-9.]+) (?P<text>.*)")
_HAPPENING: Final = re.compile(r"nemesis \d+: (?P<name>.*)")


@dataclass(frozen=True, slots=True)
class World:
    """One world, and what its trace says."""

    run: Run
    report: Report
    lines: list[tuple[float, str]]  # milliseconds, and what happened

    @property
    def nemesis(self) -> Nemesis:
        return self.run.nemesis

    def happenings(self) -> Iterator[tuple[float, int, str]]:
        """When, where in the trace, and what."""
        for number, (at, text) in enumerate(self.lines):
            if (found := _HAPPENING.fullmatch(text)) is not None:
                yield at, number, found["name"]

    def after(self, number: int, within_ms: float) -> list[str]:
        """What follows a line of the trace."""
        first, _ = self.lines[number]
        return [text for at, text in self.lines[number + 1 :] if at <= first + within_ms]


def world_of(seed: int) -> World:
    lines: list[tuple[float, str]] = []

    def note(line: str) -> None:
        found = _LINE.match(line)
        assert found is not None, line
        lines.append((float(found["ms"]), found["text"]))

    run = Run(seed, {}, note)
    return World(run, run.run(), lines)


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [world_of(seed) for seed in SEEDS]


def test_every_fault_chore_and_invariant_has_its_turn(worlds: list[World]) -> None:
    exercise = Exercise()
    for world in worlds:
        report = world.report
        assert report.ok, report.failure
        exercise.add(
            Outcome(
                Plan(report.seed),
                ok=True,
                crashed=False,
                failure=None,
                events=report.events,
                summary=report.summary,
                happened=report.happened,
                judged=report.judged,
            )
        )
    assert exercise.idle() == []


def test_mixes_take_turns_within_a_world(worlds: list[World]) -> None:
    changing = 0
    for world in worlds:
        knobs = world.run.knobs
        begins = next(at for at, text in world.lines if text == "======== chaos")
        seen: dict[int, set[str]] = {}
        for at, _, name in world.happenings():
            turn = min(int((at - begins) * 1_000) * knobs.mixes // knobs.chaos, knobs.mixes - 1)
            seen.setdefault(turn, set()).add(name)
            mixed = {**world.nemesis._faults_by_turn[turn], **world.nemesis._chores_by_turn[turn]}
            assert name in mixed, f"seed {world.run.seed} did {name} out of its turn"
        changing += len({frozenset(names) for names in seen.values()}) > 1
    assert changing > 0


def test_a_burst_cuts_kills_and_removes_within_an_election_timeout(worlds: list[World]) -> None:
    whole = 0
    for world in worlds:
        for _, number, name in world.happenings():
            if name == "burst":
                soon = world.after(number, world.run.knobs.election / 1_000)
                parts = Counter(
                    kind
                    for text in soon
                    for kind, words in (
                        ("cut", "nemesis cuts"),
                        ("kill", "loses power"),
                        ("kill", "is killed"),
                        ("remove", "ChangeConfiguration"),
                    )
                    if words in text
                )
                whole += all(parts[kind] for kind in ("cut", "kill", "remove"))
    assert whole > 0


def test_two_disks_are_full_at_once(worlds: list[World]) -> None:
    twice = 0
    for world in worlds:
        for _, number, name in world.happenings():
            if name == "full-disks":
                full = {text for text in world.after(number, 0) if "has room for" in text}
                twice += len(full) == 2
    assert twice > 0


def test_requests_arrive_once_more_over_another_connection(worlds: list[World]) -> None:
    late = sum(
        re.search(r"request \d+ from .*-echo", text) is not None
        for world in worlds
        for _, text in world.lines
    )
    assert late > 0


@pytest.mark.parametrize("words", ["is harmed", "is lost", "is sound again"])
def test_replicas_are_harmed_lost_and_found_sound_again(worlds: list[World], words: str) -> None:
    assert any(words in text for world in worlds for _, text in world.lines)
