"""Worlds that no run before has seen: each commit draws its own, and the run prints where."""

from typing import Final

import pytest
from tests.conftest import FRESH_WORLDS

from tidelog.sim import run_seed

# Parts of a dozen worlds spread over the workers.
PARTS: Final = 20
WORLDS: Final = FRESH_WORLDS // PARTS


@pytest.mark.parametrize("part", range(PARTS))
def test_fresh_worlds_pass(part: int, fresh_seed: int) -> None:
    first = fresh_seed + part * WORLDS
    for seed in range(first, first + WORLDS):
        report = run_seed(seed)
        assert report.ok, f"tidelog sim --seed {seed}: {report.failure}"
