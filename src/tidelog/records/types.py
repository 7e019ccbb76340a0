"""The words every room shares: offsets, terms, and what a batch or a record is made of.

Nothing here knows how a batch is laid out in bytes; that is `batch.py`.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NewType, TypeAlias

# Bytes that somebody else may own. Readers take views of them and never copy on the way in.
Buffer: TypeAlias = bytes | bytearray | memoryview

# Position of a record in one log, counted from 0.
Offset = NewType("Offset", int)
# Number of a leadership, raised with each change; Kafka calls it the leader epoch.
Term = NewType("Term", int)

NO_OFFSET: Final = Offset(-1)  # "before the first": the dirty offset of an empty log
NO_TERM: Final = Term(0)  # terms of leaders start at 1

NO_TIMESTAMP: Final = -1  # Kafka's mark for "this record carries no time"
NO_PRODUCER: Final = -1  # producer id, epoch and sequence of a batch that is not idempotent


class BatchType(IntEnum):
    """What a batch is for; attribute bits 8 to 14, which Kafka leaves unused.

    Every type but DATA also carries Kafka's control bit, so that Kafka's tools skip it.
    """

    DATA = 0  # written by a client, or a transaction marker
    CONFIGURATION = 1  # the replicas of the group
    SNAPSHOT = 2  # a machine snapshot that travels through the log
    GHOST = 3  # stands for a gap on the wire; never stored, applied or served
    PLACEHOLDER = 4  # keeps the last offset of a segment whose last batch was compacted away
    CHANGELOG = 5  # a change to a table, in the payload's own format


class Codec(IntEnum):
    """How the records section is compressed; attribute bits 0 to 2."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Who set the time of the records; attribute bit 3."""

    CREATE = 0  # the producer, a time for each record
    LOG_APPEND = 1  # the broker, one time for the whole batch: its maximum timestamp


class MarkerType(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record, on its own: what a client wrote, without the batch around it."""

    offset_delta: int  # from the base offset of its batch; 0 <= delta <= last offset delta
    timestamp: int  # milliseconds since 1970, or NO_TIMESTAMP
    key: bytes | None
    value: bytes | None  # None is a tombstone
    headers: tuple[tuple[str, bytes | None], ...] = ()
