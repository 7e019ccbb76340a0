"""All groups of one partition of the internal topic, of both protocols.

Rules:
- A group has one protocol at a time. One without members takes the protocol of whoever comes, and
  keeps its offsets; one with members refuses the other protocol.
- A group comes into being with its first member or its first offset, and is gone when neither is
  left, at the next look at what has expired.
- What is written, and in which order, is what a new shard needs to become the same as this one. A
  classic group in the middle of a rebalance is the exception: the log has its last generation, and
  its members join once more.
- Requests are checked before anything changes: whoever is refused leaves no trace.
"""

from collections.abc import Callable, Iterator, Sequence

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.classic import CONSUMER_PROTOCOL, ClassicGroup
from tidelog.kafka.groups.classic_types import (
    ClassicView,
    Join,
    JoinAnswer,
    Leaving,
    State,
    Sync,
    SyncAnswer,
)
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.consumer import ConsumerGroup
from tidelog.kafka.groups.consumer_types import JOINING, Beat, BeatAnswer, ConsumerView, Refused
from tidelog.kafka.groups.loading import LoadedGroup, Loading
from tidelog.kafka.groups.offsets import Offsets
from tidelog.kafka.groups.outbox import Outbox, Step, Ticket
from tidelog.kafka.groups.records import NO_TIME, OffsetValue
from tidelog.kafka.groups.shard_types import (
    EPOCHS_FROM,
    Commit,
    CommittedOffset,
    DeleteOffsetsAnswer,
    Fetch,
    FetchAnswer,
    LeaveAnswer,
    Listed,
)
from tidelog.kafka.groups.timers import Timers
from tidelog.kafka.groups.topics import TopicSource

Group = ClassicGroup | ConsumerGroup


class Shard:
    """Every method is one step: call `take` after it for what is to be written and answered."""

    def __init__(
        self, *, config: GroupConfig, topics: TopicSource, new_id: Callable[[], str]
    ) -> None:
        self.timers = Timers()
        self.groups: dict[str, Group] = {}
        self._outbox = Outbox()
        self._config = config
        self._topics = topics
        self._new_id = new_id
        self._check = self.timers.new(self._check_due)

    def take(self) -> Step:
        return self._outbox.take()

    def answer(self, ticket: Ticket, answer: object) -> None:
        """Add an answer to the step that is being taken."""
        self._outbox.answer(ticket, answer)

    # ----------------------------------------------------------------------- life and fail-over

    def load(self, loading: Loading) -> None:
        """Take over what the log says. Timers start with `activate`."""
        for group_id, loaded in loading.groups():
            group = self._loaded_group(group_id, loaded)
            for (topic, partition), value in loaded.offsets.items():
                group.offsets.load(topic, partition, value)
            self.groups[group_id] = group

    def _loaded_group(self, group_id: str, loaded: LoadedGroup) -> Group:
        if loaded.is_consumer:
            consumer = self._new_consumer(group_id)
            consumer.load(loaded.consumer)
            return consumer
        classic = self._new_classic(group_id)
        if loaded.classic is not None:
            classic.load(loaded.classic)
        return classic

    def activate(self, now: int) -> None:
        """Begin to serve: members are expected to speak from now on."""
        for group in self.groups.values():
            group.activate(now)
        self._check.set(now + self._config.retention_check_interval)

    def close(self, error: ErrorCode) -> None:
        """Send everybody away who waits. The groups live on in the log."""
        for group in self.groups.values():
            group.close(error)

    # ------------------------------------------------------------------- members, classic groups

    def join(self, group_id: str, request: Join, ticket: Ticket, now: int) -> None:
        group = self._group_to_join(group_id, request)
        if isinstance(group, ErrorCode):
            self._outbox.answer(ticket, JoinAnswer(group, member_id=request.member_id))
        else:
            group.join(request, ticket, now)

    def _group_to_join(self, group_id: str, request: Join) -> ClassicGroup | ErrorCode:
        names = (request.member_id, request.instance_id, *(name for name, _ in request.protocols))
        config = self._config
        if not self._is_name(group_id):
            return ErrorCode.invalid_group_id
        if self._any_too_long(*names, request.protocol_type):
            return ErrorCode.invalid_request
        if not config.min_session_timeout <= request.session_timeout <= config.max_session_timeout:
            return ErrorCode.invalid_session_timeout
        known = self.groups.get(group_id)
        if isinstance(known, ClassicGroup):
            return known
        if known is not None and not known.is_empty:
            return ErrorCode.inconsistent_group_protocol
        if request.member_id:
            return ErrorCode.unknown_member_id
        group = self._new_classic(group_id)
        error = group.refuse_join(request)
        if error is not ErrorCode.none:
            return error
        return group if self._install(group, known) else ErrorCode.policy_violation

    def sync(self, group_id: str, request: Sync, ticket: Ticket, now: int) -> None:
        group = self._classic(group_id)
        if isinstance(group, ErrorCode):
            self._outbox.answer(ticket, SyncAnswer(group))
        else:
            group.sync(request, ticket, now)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now: int
    ) -> ErrorCode:
        group = self._classic(group_id)
        if isinstance(group, ErrorCode):
            return group
        return group.heartbeat(member_id, instance_id, generation, now)

    def leave(self, group_id: str, leaving: Sequence[Leaving], now: int) -> LeaveAnswer:
        if not self._is_name(group_id):
            return LeaveAnswer(ErrorCode.invalid_group_id)
        group = self.groups.get(group_id)
        if group is None:
            return LeaveAnswer(ErrorCode.unknown_member_id)
        if isinstance(group, ClassicGroup):
            return LeaveAnswer(ErrorCode.none, group.leave(leaving, now))
        return LeaveAnswer(ErrorCode.none, group.leave(leaving))

    def _classic(self, group_id: str) -> ClassicGroup | ErrorCode:
        """Return the classic group of this name; nobody is a member of one that is not there."""
        if not self._is_name(group_id):
            return ErrorCode.invalid_group_id
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else ErrorCode.unknown_member_id

    # ------------------------------------------------------------------ members, consumer groups

    def beat(self, group_id: str, beat: Beat, now: int) -> BeatAnswer:
        try:
            self._check_beat(group_id, beat)
            return self._group_to_beat(group_id, beat).heartbeat(beat, now)
        except Refused as refused:
            return BeatAnswer(refused.error, refused.message, beat.member_id)

    def _check_beat(self, group_id: str, beat: Beat) -> None:
        wrong = None
        if not self._is_name(group_id) or not self._is_name(beat.member_id):
            wrong = "a group and a member have names that are not empty and not too long"
        elif self._any_too_long(beat.instance_id, beat.rack_id) or beat.instance_id == "":
            wrong = "an instance id is not empty, and names are not too long"
        elif beat.epoch < JOINING - 2:
            wrong = f"{beat.epoch} is no epoch of a member"
        elif beat.epoch == JOINING:
            if beat.rebalance_timeout is None or beat.rebalance_timeout <= 0:
                wrong = "a member that joins tells its rebalance timeout"
            elif beat.owned is None or beat.owned:
                wrong = "a member that joins holds no partitions, and says so"
            elif beat.topics is None and not beat.regex:
                wrong = "a member that joins subscribes to topics or to a pattern"
        if wrong is not None:
            raise Refused(ErrorCode.invalid_request, wrong)

    def _group_to_beat(self, group_id: str, beat: Beat) -> ConsumerGroup:
        known = self.groups.get(group_id)
        if isinstance(known, ConsumerGroup):
            return known
        if known is not None and not known.is_empty:
            raise Refused(
                ErrorCode.group_id_not_found,
                f"group {group_id} has members of the classic protocol: they have to leave first",
            )
        if beat.epoch != JOINING:
            raise Refused(ErrorCode.group_id_not_found, f"there is no consumer group {group_id}")
        group = self._new_consumer(group_id)
        group.check_request(beat)
        if not self._install(group, known):
            raise Refused(
                ErrorCode.policy_violation,
                f"{len(self.groups)} groups in one partition of the internal topic are the maximum",
            )
        return group

    # ---------------------------------------------------------------------------------- offsets

    def commit(self, group_id: str, commit: Commit, now: int) -> tuple[ErrorCode, ...]:
        """Commit offsets; the answer has an error for each."""
        group = self._group_to_commit(group_id, commit, now)
        if isinstance(group, ErrorCode):
            return (group,) * len(commit.offsets)
        expire_time = NO_TIME if commit.retention is None else now + max(commit.retention, 0)
        return tuple(self._commit(group, one, now, expire_time) for one in commit.offsets)

    def _group_to_commit(self, group_id: str, commit: Commit, now: int) -> Group | ErrorCode:
        if self._any_too_long(group_id):
            return ErrorCode.invalid_group_id
        if len(commit.offsets) > self._config.max_offsets_per_commit:
            return ErrorCode.invalid_commit_offset_size
        group = self.groups.get(group_id)
        if group is None:
            if commit.epoch < 0:
                group = self._new_classic(group_id)
                return group if self._install(group, None) else ErrorCode.policy_violation
            if commit.version >= EPOCHS_FROM:
                return ErrorCode.group_id_not_found
            return ErrorCode.illegal_generation
        if isinstance(group, ClassicGroup):
            error = group.check_commit(commit.member_id, commit.instance_id, commit.epoch, now)
        else:
            error = group.check_commit(
                commit.member_id,
                commit.instance_id,
                commit.epoch,
                knows_epochs=commit.version >= EPOCHS_FROM,
            )
        return group if error is ErrorCode.none else error

    def _commit(self, group: Group, one: CommittedOffset, now: int, expire_time: int) -> ErrorCode:
        if len(one.metadata.encode()) > self._config.max_offset_metadata_bytes:
            return ErrorCode.offset_metadata_too_large
        offsets = group.offsets
        if (
            len(offsets) >= self._config.max_offsets_per_group
            and offsets.get(one.topic, one.partition) is None
        ):
            return ErrorCode.invalid_commit_offset_size
        value = OffsetValue(one.offset, one.leader_epoch, one.metadata, now, expire_time)
        offsets.commit(one.topic, one.partition, value)
        return ErrorCode.none

    def fetch(self, group_id: str, fetch: Fetch) -> FetchAnswer:
        """Read offsets. Of a group that is not there nothing is committed, which is no error."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            error = group.check_fetch(fetch.member_id, fetch.epoch)
            if error is not ErrorCode.none:
                return FetchAnswer(error)
        offsets = Offsets(group_id, self._outbox) if group is None else group.offsets
        if fetch.wanted is None:
            return FetchAnswer(ErrorCode.none, offsets.all())
        return FetchAnswer(
            ErrorCode.none,
            tuple(
                (topic, partition, offsets.get(topic, partition))
                for topic, partition in fetch.wanted
            ),
        )

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> DeleteOffsetsAnswer:
        """Forget offsets of topics that no member reads; the answer has an error for each."""
        group = self.groups.get(group_id)
        if group is None:
            return DeleteOffsetsAnswer(ErrorCode.group_id_not_found)
        if (
            isinstance(group, ClassicGroup)
            and not group.is_empty
            and group.protocol_type != CONSUMER_PROTOCOL
        ):
            return DeleteOffsetsAnswer(ErrorCode.non_empty_group)
        in_use = _in_use(group)
        errors = []
        for topic, partition in partitions:
            if in_use(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
                continue
            known = group.offsets.delete(topic, partition) or self._topics.by_name(topic)
            errors.append(ErrorCode.none if known else ErrorCode.unknown_topic_or_partition)
        return DeleteOffsetsAnswer(ErrorCode.none, tuple(errors))

    def forget_topics(self, names: Sequence[str]) -> None:
        """Drop the offsets of topics that were deleted: a new one of that name begins at 0."""
        for group in self.groups.values():
            for name in names:
                group.offsets.delete_topic(name)

    # ---------------------------------------------------------------------------- administration

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group that has no members, with its offsets."""
        if not group_id:
            return ErrorCode.invalid_group_id
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        if not group.is_empty:
            return ErrorCode.non_empty_group
        self._bury(group)
        return ErrorCode.none

    def listed(self) -> Iterator[Listed]:
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                yield Listed(group.id, group.protocol_type, group.state.value, "Classic")
            else:
                yield Listed(group.id, CONSUMER_PROTOCOL, group.state.value, "Consumer")

    def describe_classic(self, group_id: str) -> ClassicView | None:
        group = self.groups.get(group_id)
        return group.view() if isinstance(group, ClassicGroup) else None

    def describe_consumer(self, group_id: str) -> ConsumerView | None:
        group = self.groups.get(group_id)
        return group.view() if isinstance(group, ConsumerGroup) else None

    # ------------------------------------------------------------------------------- expiration

    def _check_due(self, now: int) -> None:
        """Forget what has expired, and groups of which nothing is left."""
        self._check.set(now + self._config.retention_check_interval)
        for group in tuple(self.groups.values()):
            self._expire(group, now)
            if group.is_idle and not len(group.offsets):
                self._bury(group)

    def _expire(self, group: Group, now: int) -> None:
        self._expire_deleted(group, now)
        base = NO_TIME
        if isinstance(group, ClassicGroup):
            if group.is_empty:
                base = group.state_time
            elif group.state is not State.STABLE or group.protocol_type != CONSUMER_PROTOCOL:
                return  # what its members read is not known, or not now
        group.offsets.expire(now, self._config.offset_retention, base=base, in_use=_in_use(group))

    def _expire_deleted(self, group: Group, now: int) -> None:
        """Drop offsets of topics that were deleted while nobody led this partition.

        A node that leads may still be behind on which topics there are, but not by this long.
        """
        settled = now - self._config.retention_check_interval
        for topic in group.offsets.topics():
            if self._topics.by_name(topic) is None:
                for partition in group.offsets.partitions(topic):
                    value = group.offsets.get(topic, partition)
                    if value is not None and value.commit_time < settled:
                        group.offsets.delete(topic, partition)

    # ------------------------------------------------------------------------------- small parts

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            outbox=self._outbox,
            timers=self.timers,
            config=self._config,
            new_id=self._new_id,
        )

    def _new_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(
            group_id,
            outbox=self._outbox,
            timers=self.timers,
            config=self._config,
            topics=self._topics,
        )

    def _install(self, group: Group, known: Group | None) -> bool:
        """Put a new group in its place, which may be that of an empty one of the other protocol."""
        if known is not None:
            group.offsets = known.offsets
            known.retire()
        elif len(self.groups) >= self._config.max_groups:
            return False
        self.groups[group.id] = group
        return True

    def _bury(self, group: Group) -> None:
        group.bury()
        del self.groups[group.id]

    def _is_name(self, text: str) -> bool:
        return bool(text) and not self._any_too_long(text)

    def _any_too_long(self, *texts: str | None) -> bool:
        limit = self._config.max_name_bytes
        # Four bytes are the most that a character takes.
        return any(
            text is not None and 4 * len(text) > limit and len(text.encode()) > limit
            for text in texts
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when a group contradicts itself. For tests."""
        for group_id, group in self.groups.items():
            assert group.id == group_id
            group.check_invariants()


def _in_use(group: Group) -> Callable[[str], bool]:
    """Return the test whether a member of this group reads a topic."""
    if isinstance(group, ClassicGroup):
        return group.subscriptions().__contains__
    return group.subscribes
