"""Worlds that failed once pass now, and say what was wrong."""

import pytest

from tidelog.sim import PAST, Past, run_seed
from tidelog.sim.past import Where


@pytest.mark.parametrize("past", PAST, ids=lambda past: str(past.seed))
def test_a_world_that_failed_once_passes(past: Past) -> None:
    report = run_seed(past.seed)
    assert report.ok, f"{past.what}: {report.failure}"


def test_each_past_failure_is_told_once_and_by_whose_fault_it_was() -> None:
    assert len({past.seed for past in PAST}) == len(PAST)
    assert {past.where for past in PAST} == set(Where)
    assert all(past.what and past.commit for past in PAST)
