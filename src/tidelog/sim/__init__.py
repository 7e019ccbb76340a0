"""The simulator: seeded time, network and disk under the real core, log and machines."""

from tidelog.sim.plants import PLANTS, Plant
from tidelog.sim.run import Report, run_seed

__all__ = ["PLANTS", "Plant", "Report", "run_seed"]
