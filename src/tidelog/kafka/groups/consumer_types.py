"""What goes in and out of a consumer group, and what it remembers of a member."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.reconcile import Current
from tidelog.kafka.groups.records import NO_PARTITIONS, Assigned, MemberValue
from tidelog.kafka.groups.timers import Timer
from tidelog.kafka.groups.topicregex import TopicPattern

JOINING: Final = 0  # the epoch of a member that wants in
LEAVING: Final = -1
AWAY: Final = -2  # a static member that will be back


class GroupState(Enum):
    """The value is the name that clients are told."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Refused(Exception):
    """A request that cannot be granted: the error code, and a sentence for people."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat. What is None has not changed since the last one."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: int | None = None
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assigned | None = None  # what the member holds

    @property
    def is_full(self) -> bool:
        """Tell whether the member says all it has to say, as after an error."""
        return (
            self.owned is not None
            and self.rebalance_timeout is not None
            and (self.topics is not None or self.regex is not None)
        )


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assignment: Assigned | None = None  # None: as before
    waits: bool = False  # for partitions that others still hold


@dataclass(frozen=True, slots=True)
class ConsumerMemberView:
    member_id: str
    epoch: int
    value: MemberValue
    assigned: Assigned
    target: Assigned


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer group as tools see it."""

    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMemberView, ...]


@dataclass(slots=True, eq=False)
class Member:
    id: str
    value: MemberValue
    pattern: TopicPattern | None
    session: Timer = field(repr=False)
    revocation: Timer = field(repr=False)  # runs while it is to give partitions up
    current: Current = field(default_factory=Current)


@dataclass(slots=True)
class Loaded:
    """What the log says about one consumer group, in whatever order it says it."""

    epoch: int | None = None  # None: no record of the group itself
    metadata_hash: int = 0
    target_epoch: int = 0
    members: dict[str, MemberValue] = field(default_factory=dict)
    targets: dict[str, Assigned] = field(default_factory=dict)
    currents: dict[str, Current] = field(default_factory=dict)

    def current(self, member_id: str) -> Current:
        return self.currents.get(member_id, Current())

    def target(self, member_id: str) -> Assigned:
        return self.targets.get(member_id, NO_PARTITIONS)


def described(value: MemberValue, beat: Beat) -> MemberValue:
    """Return the member's value with what the heartbeat says."""
    topics = value.topics if beat.topics is None else tuple(sorted(set(beat.topics)))
    regex = value.regex if beat.regex is None else beat.regex or None
    if beat.epoch == JOINING:
        # A member that joins says all: what it leaves out is not so.
        topics = tuple(sorted(set(beat.topics or ())))
        regex = beat.regex or None
    return replace(
        value,
        instance_id=value.instance_id if beat.instance_id is None else beat.instance_id,
        rack_id=value.rack_id if beat.rack_id is None else beat.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=topics,
        regex=regex,
        rebalance_timeout=(
            value.rebalance_timeout if beat.rebalance_timeout is None else beat.rebalance_timeout
        ),
        assignor=value.assignor if beat.assignor is None else beat.assignor,
    )
