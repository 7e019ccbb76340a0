"""The knobs of one log, each with the reason for its default."""

from dataclasses import dataclass, fields

from tidelog.storage.errors import LocalError

KIB = 1024
MIB = 1024 * KIB
HOUR_MS = 3_600_000

# What looking at one batch costs after a restart, in bytes of reading: parsing a batch and folding
# it into machines takes Python as long as reading some KiB. Budgets of recovery count it, so that
# they hold for batches of one small record too.
BATCH_COST = 2 * KIB


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one log rolls, indexes, retains and compacts. `None` means "no limit"."""

    # A segment is the unit of retention and compaction. 128 MiB is a second or two of writing at
    # full speed, and a thousand files for a log of 128 GiB.
    segment_bytes: int = 128 * MIB
    # Retention by time and compaction work on closed segments, so a slow log must close some too.
    segment_ms: int = 7 * 24 * HOUR_MS
    # One index entry per so many bytes: a lookup reads at most this much in vain, and 128 MiB
    # need 4,096 entries of 24 bytes.
    index_interval: int = 32 * KIB
    # What retention may remove: the oldest segments beyond this size, or older than this age.
    retention_bytes: int | None = None
    retention_ms: int | None = None
    # How long a tombstone or a transaction marker outlives the data it speaks of, so that a reader
    # that saw the data also sees its end. A day, as Kafka has it.
    delete_retention_ms: int = 24 * HOUR_MS
    # How young a segment's newest record may be before compaction touches the segment, and those
    # after it. None: compaction need not wait.
    min_compaction_lag_ms: int | None = None
    # Memory that one round of compaction may use for the keys it has seen; more keys only mean
    # more rounds. Three quarters are for keys of about 200 bytes each, so this holds 250,000.
    key_map_bytes: int = 64 * MIB
    # So many closed neighbours become one file at once. A merge costs five syncs whatever it is
    # of, so it waits until a few can go: with four, that is less than two syncs for each file less.
    merge_files: int = 4
    # The recovery point moves after so many flushed bytes, and a checkpoint of what machines made
    # of the log is taken after so many that they folded in; a batch counts for BATCH_COST more. So
    # this bounds what a restart reads again: 64 MiB take a fraction of a second, and a few more
    # syncs per 64 MiB cost nothing.
    recovery_bytes: int = 64 * MIB
    # Closed segments held open for reading when no pool is shared with other logs.
    open_segments: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if number is not None and number < 1:
                raise LocalError(f"{field.name} is {number}; it must be at least 1")


DEFAULT_CONFIG = LogConfig()
