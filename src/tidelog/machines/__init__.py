"""Deterministic folds of a partition's log: offset translation, producers, start, an example."""

from tidelog.machines.balances import Account, Balances
from tidelog.machines.encoding import CorruptSnapshot
from tidelog.machines.machine import NO_OBJECTION, CannotApply, Machine
from tidelog.machines.machines import Machines
from tidelog.machines.producers import Producers, Standing, Verdict
from tidelog.machines.start import LogStart, start_batch
from tidelog.machines.translation import Translation, UnknownOffset

__all__ = [
    "NO_OBJECTION",
    "Account",
    "Balances",
    "CannotApply",
    "CorruptSnapshot",
    "LogStart",
    "Machine",
    "Machines",
    "Producers",
    "Standing",
    "Translation",
    "UnknownOffset",
    "Verdict",
    "start_batch",
]
