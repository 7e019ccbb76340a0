"""The simulator: seeded time, network and disk under the real core, log and machines."""

from tidelog.sim.invariants import INVARIANTS
from tidelog.sim.knobs import CHORES, FAULTS
from tidelog.sim.past import PAST, Past
from tidelog.sim.plan import InvalidPlan, Plan, parse_ranges, parse_settings, parse_without
from tidelog.sim.plants import PLANTS, Plant
from tidelog.sim.run import Report, run_plan, run_seed
from tidelog.sim.shrink import Failing, shrink

__all__ = [
    "CHORES",
    "FAULTS",
    "INVARIANTS",
    "PAST",
    "PLANTS",
    "Failing",
    "InvalidPlan",
    "Past",
    "Plan",
    "Plant",
    "Report",
    "parse_ranges",
    "parse_settings",
    "parse_without",
    "run_plan",
    "run_seed",
    "shrink",
]
