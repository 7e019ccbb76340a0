"""What goes in and out of a shard, beyond what one group of either protocol takes."""

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.records import NO_EPOCH, OffsetValue

# OffsetCommit names the epochs of consumer groups from this version on; before, a commit can only
# come from a member of a classic group.
EPOCHS_FROM: Final = 9


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    member_id: str
    instance_id: str | None
    epoch: int  # the generation, or the epoch of a member of a consumer group
    version: int  # of the request
    offsets: tuple[CommittedOffset, ...]
    retention: int | None = None  # milliseconds, of clients that still set it


@dataclass(frozen=True, slots=True)
class Fetch:
    member_id: str | None
    epoch: int
    wanted: tuple[tuple[str, int], ...] | None  # None: all


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    error: ErrorCode
    offsets: tuple[tuple[str, int, OffsetValue | None], ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    error: ErrorCode  # of the group as a whole
    members: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteOffsetsAnswer:
    error: ErrorCode
    partitions: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    group: str
    protocol_type: str
    state: str
    type: str  # as Kafka names it: Classic, Consumer
