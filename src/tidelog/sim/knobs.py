"""What differs from seed to seed: the shape of the cluster, sizes, windows, timeouts, fault rates.

Limits that are generous in production are drawn tiny here, so that what is rare there (a segment of
one batch, a window of one message, a chunk of a few bytes) is common. Each fault and each
chore has a weight, and each run leaves some out: one that is always there hides what happens
without it.

A planted bug may override any knob to make its circumstance common: see `override`.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from tidelog.raft.core import Options
from tidelog.raft.types import Level, ShippingMode
from tidelog.sim.network import NetworkKnobs
from tidelog.sim.scheduler import MS, SECOND
from tidelog.storage import LogConfig

# Every fault that `faults.py` knows, with its weight where it is not left out. The weight is the
# share of the fault among all that are started; `fault_interval` says how often one is.
FAULTS: Final[Mapping[str, int]] = {
    "crash": 8,
    "crash-mid-step": 8,
    "crash-all": 2,
    "wipe": 3,
    "slow-disk": 4,
    "full-disk": 3,
    "full-disks": 2,
    "failing-fsync": 3,
    "partition": 6,
    "one-way-partition": 5,
    "isolate-leader": 10,
    "burst": 5,
    "clog": 3,
    "storm": 5,
    "pause": 4,
    "clock": 2,
    "switch-shipping": 1,
    "stranger": 3,
    "rot": 5,
    "lose-file": 3,
    "swap-files": 3,
}
# What the operator does, in the same way; `chore_interval` says how often.
CHORES: Final[Mapping[str, int]] = {
    "reconfigure": 5,
    "cancel": 2,
    "transfer": 4,
    "snapshot": 8,
    "compact": 8,
    "retention": 6,
    "roll": 2,
    "verify": 4,
}
LEFT_OUT: Final = 0.25  # share of faults that a run does without


@dataclass(frozen=True, slots=True)
class Knobs:
    # --- shape
    voters: int = 3  # of the first configuration
    spares: int = 1  # nodes that no first configuration knows
    groups: int = 1

    # --- time, in microseconds of a node's own clock
    heartbeat: int = 40 * MS
    election: int = 200 * MS  # the base: a timeout is drawn between one and two of it
    flush_delay: int = 20 * MS  # longest time that dirty data waits for a flush
    client_delay: tuple[int, int] = (100, 1_500)
    client_loss: float = 0.0  # of requests and of answers, each
    # Share of the requests of an idempotent writer that arrive once more, late, over a connection
    # of their own, as what was stuck in a network that the writer has long turned away from.
    client_echo: float = 0.0
    disk_delay: tuple[int, int] = (200, 3_000)  # of one blocking job
    late_done: float = 0.3  # share of jobs that the loop hears of later than they ended

    network: NetworkKnobs = field(default_factory=NetworkKnobs)

    # --- sizes, in bytes
    segment_bytes: int = 4_096
    index_interval: int = 256
    # Flushed between two moves of a log's recovery point, applied between two checkpoints; a batch
    # counts for 2 KiB more.
    recovery_bytes: int = 40_000
    key_map_bytes: int = 65_536  # memory of one round of compaction
    tombstones: int = 60_000  # milliseconds for which compaction keeps a tombstone
    merge_files: int = 2  # neighbouring segments that become one at once
    cache_bytes: int = 65_536
    recovery_chunk: int = 512
    max_inflight_bytes: int = 4_096
    max_uncommitted_bytes: int = 65_536
    flush_bytes: int = 1_024
    snapshot_chunk: int = 64
    shipping: ShippingMode = ShippingMode.SIDE
    max_log_snapshot: int = 65_536

    # --- chaos
    chaos: int = 4 * SECOND  # how long it lasts, unless so many events happen first:
    chaos_events: int = 2_500
    fault_interval: int = 60 * MS  # mean time between the starts of two faults
    max_faults: int = 4  # that last at the same time
    faults: Mapping[str, int] = field(default_factory=lambda: dict(FAULTS))
    chore_interval: int = 60 * MS  # mean time between two chores
    chores: Mapping[str, int] = field(default_factory=lambda: dict(CHORES))
    tended: bool = False  # leaders replace members that are gone while faults go on
    mixes: int = 1  # of faults and chores, which take turns; 1: all those above, always
    # Left out, though they are drawn: faults and chores by name, and happenings by number.
    without: frozenset[str] = frozenset()
    skip: frozenset[int] = frozenset()
    # Share of crashes that kill the process alone: what was written is still in the page cache.
    process_crash: float = 0.3
    # Share of the unsynced regions which survive a power loss and of which a part reads as zeros.
    bit_rot: float = 0.2

    # --- clients
    writers: int = 3
    readers: int = 2
    keys: int = 6
    think: int = 30 * MS  # mean pause of a client between two requests
    patience: int = 400 * MS  # how long a client waits for an answer
    records: int = 3  # most records in one batch
    idempotent: float = 0.5  # share of writers that are idempotent producers
    under_way: int = 1  # most batches that one of those sends before it hears of the first
    levels: Mapping[Level, int] = field(
        default_factory=lambda: {
            Level.NONE: 1,
            Level.LEADER: 2,
            Level.MEMORY: 2,
            Level.QUORUM: 5,
        }
    )

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.voters + self.spares

    def options(self, shipping: ShippingMode) -> Options:
        """Return what a core is given on a node that ships snapshots in this way."""
        return Options(
            recovery_chunk=self.recovery_chunk,
            max_inflight_bytes=self.max_inflight_bytes,
            max_uncommitted_bytes=self.max_uncommitted_bytes,
            flush_bytes=self.flush_bytes,
            snapshot_chunk=self.snapshot_chunk,
            max_log_snapshot=self.max_log_snapshot,
            shipping=shipping,
        )

    def log_config(self) -> LogConfig:
        """Return what every log is given."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            index_interval=self.index_interval,
            recovery_bytes=self.recovery_bytes,
            key_map_bytes=self.key_map_bytes,
            delete_retention_ms=self.tombstones,
            merge_files=self.merge_files,
        )

    def override(self, changes: Mapping[str, Any]) -> "Knobs":
        """Return these knobs with some replaced; refuse a name that does not exist."""
        known = {knob.name for knob in fields(self)}
        if unknown := sorted(set(changes) - known):
            raise ValueError(f"There are no knobs named {', '.join(unknown)}.")
        return replace(self, **changes)


def draw(rng: random.Random) -> Knobs:
    """Draw the knobs of one run."""
    voters = rng.choices((1, 2, 3, 4, 5), (1, 1, 12, 1, 4))[0]
    heartbeat = rng.randint(10, 40) * MS
    disk_delay = (100, rng.choice((300, 3_000, 20_000)))
    message_delay = (100, rng.choice((400, 2_000, 10_000)))
    # To win takes two rounds of messages and a vote on two disks: with less than that, nobody may
    # ever lead, and that is no fault.
    election = max(heartbeat * rng.randint(3, 6), 4 * message_delay[1] + 3 * disk_delay[1])
    return Knobs(
        voters=voters,
        spares=rng.choices((0, 1, 2), (3, 5, 2))[0],
        groups=rng.choices((1, 2, 3), (14, 2, 1))[0],
        heartbeat=heartbeat,
        election=election,
        flush_delay=rng.randint(2, 80) * MS,
        client_delay=(100, rng.choice((500, 1_500, 10_000))),
        client_loss=rng.choice((0.0, 0.02, 0.1)),
        client_echo=rng.choice((0.0, 0.05, 0.3)),
        disk_delay=disk_delay,
        late_done=rng.choice((0.0, 0.3, 0.8)),
        network=NetworkKnobs(
            delay=message_delay,
            straggler=rng.choice((0.0, 0.0, 0.02, 0.1)),
            loss=rng.choice((0.0, 0.0, 0.01, 0.05)),
            duplication=rng.choice((0.0, 0.0, 0.02, 0.1)),
            pipes=rng.random() < 0.5,
        ),
        segment_bytes=rng.choice((256, 512, 1_024, 4_096, 16_384, 65_536)),
        index_interval=rng.choice((64, 256, 4_096)),
        recovery_bytes=rng.choice((100, 20_000, 1_000_000)),
        key_map_bytes=rng.choice((400, 4_000, 65_536)),
        tombstones=rng.choice((1, 500, 60_000)),
        under_way=rng.choice((1, 2, 5)),
        cache_bytes=rng.choice((512, 4_096, 1_048_576)),
        recovery_chunk=rng.choice((100, 400, 2_000, 65_536)),
        max_inflight_bytes=rng.choice((200, 1_000, 8_000, 1_048_576)),
        max_uncommitted_bytes=rng.choice((2_000, 65_536, 1_048_576)),
        flush_bytes=rng.choice((1, 500, 4_000, 262_144)),
        snapshot_chunk=rng.choice((32, 100, 1_000, 32_768)),
        shipping=rng.choice(tuple(ShippingMode)),
        chaos=rng.randint(3, 8) * SECOND,
        chaos_events=rng.randint(1_500, 4_000),
        fault_interval=rng.choice((30, 60, 120, 300)) * MS,
        max_faults=rng.randint(1, 4),
        faults=_some(rng, FAULTS),
        chore_interval=rng.choice((20, 40, 80, 300)) * MS,
        chores=_some(rng, CHORES),
        mixes=rng.choice((1, 1, 2, 3, 5)),
        process_crash=rng.choice((0.0, 0.3, 0.7)),
        bit_rot=rng.choice((0.0, 0.2, 0.5)),
        writers=rng.randint(1, 5),
        readers=rng.randint(0, 4),
        keys=rng.choice((2, 6, 20)),
        think=rng.choice((10, 30, 80)) * MS,
        patience=heartbeat * rng.randint(5, 20),
        records=rng.choice((1, 3, 8)),
        idempotent=rng.choice((0.0, 0.5, 1.0)),
        levels={level: rng.randint(0, 5) + (level is Level.QUORUM) for level in Level},
        merge_files=rng.choice((2, 3, 4)),
        tended=rng.random() < 0.6,
    )


def _some(rng: random.Random, weights: Mapping[str, int]) -> Mapping[str, int]:
    """Leave some out and make others rarer or more common than usual."""
    return {
        name: 0 if rng.random() < LEFT_OUT else rng.randint(1, 2 * weight)
        for name, weight in weights.items()
    }
