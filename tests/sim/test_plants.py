"""Every planted bug is caught, by an invariant that it breaks, and by nothing but the bug."""

from typing import Final

import pytest

from tidelog.cli.plants import MOST, Chase, chase
from tidelog.sim import PLANTS
from tidelog.sim.circumstances import under
from tidelog.sim.invariants import INVARIANTS
from tidelog.sim.run import Run

# Where to begin: elsewhere than `tidelog sim --plants` does, and anywhere is as good.
BEGIN: Final = 500


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught_and_its_world_is_sound_without_it(name: str) -> None:
    plant = PLANTS[name]
    caught = chase(Chase(name, BEGIN))
    assert caught.trouble is None
    assert caught.worlds is not None, f"{MOST} worlds from {BEGIN} on do not show {name}"
    without = Run(BEGIN + caught.worlds - 1, plant.knobs, None).run()
    assert without.ok, without.failure


def test_there_are_at_least_fifteen_plants_and_each_says_what_it_breaks() -> None:
    assert len(PLANTS) >= 15
    numbers = {invariant.number for invariant in INVARIANTS}
    for name, plant in PLANTS.items():
        assert plant.name == name
        assert plant.description
        assert set(plant.invariants) <= numbers
        assert plant.invariants


def test_a_failure_of_another_kind_does_not_count_as_catching_a_bug() -> None:
    plant = PLANTS["commit-on-dirty"]
    assert plant.invariants == (1,)
    assert plant.is_caught_by("invariant 1, what is committed is flushed: ...")
    assert not plant.is_caught_by("invariant 13, a flush counts only what is on disk: ...")
    assert not plant.is_caught_by("not alive: quiet took too long")
    assert PLANTS["lost-appends-stay-lost"].is_caught_by("not alive: quiet took too long")
    assert not plant.is_caught_by("n1 found damage that nobody did: ...")
    assert PLANTS["sweep-too-soon"].is_caught_by("n1 found damage that nobody did: ...")


def test_a_plant_cannot_ask_for_a_fault_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no faults or chores named flood"):
        under({"flood": 3})
