"""Circumstances in which a planted bug shows: knobs and weights that make the rare common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.raft.types import Level
from tidelog.sim.knobs import CHORES, FAULTS
from tidelog.sim.network import NetworkKnobs
from tidelog.sim.scheduler import MS, SECOND

CRASHES: Final = {"crash": 12, "crash-mid-step": 8, "crash-all": 3, "isolate-leader": 6}
CUTS: Final = {"partition": 8, "isolate-leader": 10, "one-way-partition": 6, "crash": 3}
CHANGES: Final = {"reconfigure": 12, "cancel": 3, "crash": 3, "partition": 3, "slow-disk": 4}
SNAPSHOTS: Final = {"snapshot": 14, "compact": 12, "roll": 3, "crash": 5, "partition": 4, "wipe": 2}
REORDERED: Final = NetworkKnobs(
    delay=(100, 5_000), straggler=0.3, straggler_delay=(5_000, 60_000), duplication=0.3, pipes=False
)
# Leaders that are cut off while clients write to them and the disk is busy: logs part and are cut.
DIVERGING: Final = {
    "voters": 3,
    "groups": 1,
    "heartbeat": 10 * MS,
    "election": 60 * MS,
    "flush_delay": 2 * MS,
    "disk_delay": (2_000, 12_000),
    "late_done": 1.0,
    "network": NetworkKnobs(delay=(100, 400)),
    "client_delay": (100, 500),
    "writers": 6,
    "think": 4 * MS,
    "levels": {Level.LEADER: 3, Level.NONE: 2},
    "fault_interval": 40 * MS,
    "max_faults": 4,
    "chaos_events": 4_000,
}
# Compacted logs with many small segments that fit into one, and restarts.
MERGES: Final = {
    "segment_bytes": 4_096,
    "merge_files": 2,
    "recovery_chunk": 400,
    "disk_delay": (1_000, 6_000),
    "chore_interval": 15 * MS,
    "fault_interval": 40 * MS,
    "process_crash": 0.3,
}
# The same for longer, and each crash takes the power with it.
MERGES_CUT_SHORT: Final = {
    **MERGES,
    "process_crash": 0.0,
    "fault_interval": 25 * MS,
    "tended": True,
    "chaos": 8 * SECOND,
    "chaos_events": 5_000,
}
SMALL_SEGMENTS: Final = {"segment_bytes": 256, "recovery_chunk": 400}
# Nothing is read from a cache, and harm is done all the time.
READ_FROM_DISK: Final = {"cache_bytes": 512, "fault_interval": 30 * MS, "max_faults": 4}
# A start reads all of the log again.
LONG_TAILS: Final = {
    "voters": 5,
    "segment_bytes": 65_536,
    "recovery_bytes": 1_000_000,
    "records": 1,
    "fault_interval": 10 * MS,
    "max_faults": 4,
    "disk_delay": (100, 300),
    "chaos": 8 * SECOND,
    "chaos_events": 6_000,
}


def under(*happenings: Mapping[str, int], **knobs: Any) -> Mapping[str, Any]:
    """Knobs of worlds in which only these faults and chores happen, by name and weight.

    Where no fault is named, or no chore, they stay as they are drawn. They happen all the time.
    """
    weights = {name: weight for each in happenings for name, weight in each.items()}
    if unknown := sorted(weights.keys() - FAULTS.keys() - CHORES.keys()):
        raise ValueError(f"There are no faults or chores named {', '.join(unknown)}.")
    for knob, known in (("faults", FAULTS), ("chores", CHORES)):
        if chosen := {name: weight for name, weight in weights.items() if name in known}:
            knobs[knob] = chosen
    return {"mixes": 1, **knobs}
