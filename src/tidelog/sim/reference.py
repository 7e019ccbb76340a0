"""The fold of the whole history: what the machines of any replica must be at any offset.

The machines are the product's own, fed with the entries of the ledger as their leaders wrote them,
each once and in order. Replicas lag, so a state may be asked for at any offset that was ever the
end of an entry: states are kept at checkpoints and folded on from there.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tidelog.machines import Machine, Machines, Translation
from tidelog.records import NO_OFFSET, Offset
from tidelog.sim.truth import Lineage

# Entries between two checkpoints. A state is a few hundred bytes and an entry takes some 20 us to
# fold, so a question costs at most a third of a millisecond.
INTERVAL: Final = 16


class Reference:
    """The machines of one group, as the ledger makes them."""

    def __init__(self, ledger: Lineage, machines: Callable[[], Sequence[Machine]]) -> None:
        self._ledger = ledger
        self._machines = machines
        # State after the first n * INTERVAL entries of the ledger.
        self._checkpoints = [self._fresh().snapshot()]
        self._answers: dict[Offset, bytes] = {}

    def state_at(self, offset: Offset) -> bytes:
        """The snapshot of the machines after everything up to `offset`, the end of an entry."""
        known = self._answers.get(offset)
        if known is None:
            known = self._answers[offset] = self._fold(offset)
        return known

    def _fold(self, offset: Offset) -> bytes:
        entry = self._ledger.at(offset)
        if entry is None:
            if offset == NO_OFFSET:
                return self._checkpoints[0]
            raise ValueError(f"offset {offset} is not committed")
        wanted = (entry.depth + 1) // INTERVAL
        while len(self._checkpoints) <= wanted:
            self._checkpoints.append(self._run(len(self._checkpoints) * INTERVAL))
        return self._run(entry.depth + 1)

    def _run(self, count: int) -> bytes:
        """State after the first `count` entries, from the last checkpoint before."""
        index = min(count // INTERVAL, len(self._checkpoints) - 1)
        done = index * INTERVAL
        machines = self._fresh()
        if done:
            machines.log_reset(Offset(self._ledger.entries[done - 1].last + 1))
            machines.restore(self._checkpoints[index], self._ledger.entries[done - 1].last)
        for entry in self._ledger.entries[done:count]:
            batch = entry.batch
            machines.appended(batch)
            machines.apply((batch,))
        return machines.snapshot()

    def _fresh(self) -> Machines:
        return Machines(self._machines(), Translation())
