"""The thirty-two invariants, each a function that yields what it objects to.

An invariant is given a `Case` (what happened during one event, and the whole history) and yields a
sentence for each thing that should not be. Those marked EVENT are asked after every event, those
marked END once the world has come to rest. The numbers are those of the research page on Raft.
"""

from tidelog.sim.invariants.table import INVARIANTS, Invariant, InvariantViolation, When
from tidelog.sim.judge import Judge

__all__ = ["INVARIANTS", "Invariant", "InvariantViolation", "Judge", "When"]
