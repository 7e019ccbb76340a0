"""A group of the new protocol (KIP-848): members send heartbeats, the server does the rest.

Three numbers only rise. The *group epoch* says that something changed: a member, a subscription, a
topic. The *target epoch* says for which group epoch the division of the work was computed. A
*member epoch* says which division a member has arrived at; how it gets there is in `reconcile`.

    heartbeat:  subscription or topics changed?  -> group epoch + 1
                target epoch behind?             -> compute the target assignment anew
                member not at its target?        -> its next step, in the answer

Rules:
- A member speaks with its epoch, or with the one before when it may have missed an answer. Any
  other epoch fences it: it drops what it holds and joins again.
- A member that is silent for the session timeout, or that does not give partitions up within its
  rebalance timeout, is out.
- A static member that goes away for a while (epoch -2) keeps its place until its session ends, and
  comes back under a new member id.
- A record for each of these facts goes to the log before the answer goes out, new members before
  epochs before targets, and epochs before members that are gone: a coordinator that finds only the
  first few of them does the rest again.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from tidelog.kafka.groups.classic_types import Leaving
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.consumer_types import (
    AWAY,
    JOINING,
    Beat,
    BeatAnswer,
    ConsumerMemberView,
    ConsumerView,
    GroupState,
    Loaded,
    Member,
    Refused,
    described,
)
from tidelog.kafka.groups.offsets import Offsets
from tidelog.kafka.groups.outbox import Outbox
from tidelog.kafka.groups.reconcile import Current, MemberState, advance
from tidelog.kafka.groups.records import (
    NO_PARTITIONS,
    Assigned,
    CurrentKey,
    CurrentValue,
    GroupEpochKey,
    GroupEpochValue,
    Key,
    MemberKey,
    MemberValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
    Value,
    encode,
    encode_value,
)
from tidelog.kafka.groups.timers import Timers
from tidelog.kafka.groups.topicregex import InvalidPattern, TopicPattern
from tidelog.kafka.groups.topics import Topic, TopicSource, hash_topics, matching

_NO_MEMBER: Final = MemberValue(None, None, "", "", (), None, -1, None)


class ConsumerGroup:
    """All methods take effect at once; records go to the outbox."""

    def __init__(
        self,
        group_id: str,
        *,
        outbox: Outbox,
        timers: Timers,
        config: GroupConfig,
        topics: TopicSource,
    ) -> None:
        self.id = group_id
        self.offsets = Offsets(group_id, outbox)
        self.epoch = 0
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.targets: dict[str, Assigned] = {}  # of every member, once computed
        self.is_dead = False
        # Who holds a partition: it is assigned to that member, or that member is to give it up.
        self._owners: dict[tuple[UUID, int], str] = {}
        self._hash = 0  # of the subscribed topics, as of the last look
        self._seen: int | None = None  # version of the topics at the last look
        self._outbox = outbox
        self._timers = timers
        self._config = config
        self._topics = topics

    # -------------------------------------------------------------------------------- heartbeat

    def heartbeat(self, beat: Beat, now: int) -> BeatAnswer:
        """Do all that one heartbeat asks for; raises `Refused` before anything has changed."""
        if beat.epoch < JOINING:
            return self._depart(beat, now)
        member = self._admit(beat)
        changed = self._describe(member, beat)
        if (
            self._topics_changed(subscription_changed=changed)
            or changed
            or member.id not in self.targets
        ):
            self._raise_epoch()
        if self.target_epoch < self.epoch:
            self._retarget()
        before = member.current
        self._advance(member, beat.owned, now)
        member.session.set(now + self._config.consumer_session_timeout)
        after = member.current
        tell = beat.epoch == JOINING or beat.is_full or after.assigned != before.assigned
        return BeatAnswer(
            ErrorCode.none,
            member_id=member.id,
            epoch=after.epoch,
            assignment=after.assigned if tell else None,
            waits=after.state is MemberState.UNRELEASED,
        )

    def _admit(self, beat: Beat) -> Member:
        """Return the member that speaks, new or known, with its subscription checked."""
        self.check_request(beat)
        known = self.members.get(beat.member_id)
        holder = None
        if beat.instance_id is not None and beat.instance_id in self.static:
            holder = self.members[self.static[beat.instance_id]]
        if beat.epoch != JOINING:
            return self._check_known(beat, known, holder)
        if holder is not None and holder.id != beat.member_id:
            if holder.current.epoch != AWAY:
                raise Refused(
                    ErrorCode.unreleased_instance_id,
                    f"instance {beat.instance_id} is still in use by member {holder.id}",
                )
            if known is None:
                return self._take_over(holder, beat.member_id)
        if known is not None:
            if known.value.instance_id != beat.instance_id:
                raise Refused(ErrorCode.invalid_request, "a member does not change its instance id")
            return known
        if len(self.members) >= self._config.max_members:
            raise Refused(
                ErrorCode.group_max_size_reached,
                f"the group has {len(self.members)} members, which is the maximum",
            )
        return self._new_member(beat.member_id, _NO_MEMBER)

    def _check_known(self, beat: Beat, known: Member | None, holder: Member | None) -> Member:
        if beat.instance_id is not None:
            if holder is None:
                raise _unknown(beat.member_id)
            if holder.id != beat.member_id:
                raise _fenced_instance(beat.instance_id, holder.id)
        if known is None:
            raise _unknown(beat.member_id)
        current = known.current
        lost_answer = (
            beat.epoch == current.previous_epoch
            and beat.owned is not None
            and beat.owned <= current.assigned
        )
        if beat.epoch != current.epoch and not lost_answer:
            raise Refused(
                ErrorCode.fenced_member_epoch,
                f"the member is in epoch {current.epoch}, not {beat.epoch}: join again",
            )
        return known

    def check_request(self, beat: Beat) -> None:
        """Raise `Refused` if a heartbeat is wrong, whoever sends it."""
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            raise Refused(
                ErrorCode.unsupported_assignor,
                f"assignor {beat.assignor} is not one of {', '.join(sorted(ASSIGNORS))}",
            )
        if beat.regex:
            try:
                TopicPattern(beat.regex)
            except InvalidPattern as problem:
                raise Refused(ErrorCode.invalid_regular_expression, str(problem)) from problem
        if len(encode_value(described(_NO_MEMBER, beat))) > self._config.max_record_bytes:
            raise Refused(ErrorCode.invalid_request, "the subscription is too large")

    def _describe(self, member: Member, beat: Beat) -> bool:
        """Note what the member says of itself; tell whether its subscription changed."""
        old, new = member.value, described(member.value, beat)
        if new == old:
            return False
        member.value = new
        if new.instance_id is not None:
            self.static[new.instance_id] = member.id
        if new.regex != old.regex:
            member.pattern = TopicPattern(new.regex) if new.regex else None
        self._write(MemberKey(self.id, member.id), new)
        return (new.topics, new.regex, new.assignor) != (old.topics, old.regex, old.assignor)

    def _take_over(self, holder: Member, member_id: str) -> Member:
        """Let a static member come back under a new id, with what it had."""
        target = self.targets.get(holder.id)
        self._forget(holder)
        self._erase(holder)
        member = self._new_member(member_id, holder.value)
        member.pattern = holder.pattern
        self._write(MemberKey(self.id, member.id), member.value)
        if target is not None:
            self.targets[member.id] = target
            self._write(TargetKey(self.id, member.id), TargetValue(target))
        self._become(member, Current(previous_epoch=0, assigned=holder.current.assigned))
        return member

    # ------------------------------------------------------------------------ epochs and targets

    def _raise_epoch(self) -> None:
        self.epoch += 1
        self._write(GroupEpochKey(self.id), GroupEpochValue(self.epoch, self._hash))

    def _topics_changed(self, *, subscription_changed: bool) -> bool:
        """Look at the subscribed topics again, if need be; tell whether they differ."""
        version = self._topics.version
        if self._seen == version and not subscription_changed:
            return False
        self._seen = version
        found = hash_topics(self._subscribed().values())
        changed = found != self._hash
        self._hash = found
        return changed

    def _subscribed(self) -> dict[str, Topic]:
        """Return all topics that somebody subscribes to and that exist."""
        found: dict[str, Topic] = {}
        for member in self.members.values():
            for name in member.value.topics:
                topic = self._topics.by_name(name)
                if topic is not None:
                    found[name] = topic
        patterns = {m.pattern.text: m.pattern for m in self.members.values() if m.pattern}
        if patterns:
            for topic in self._topics.topics():
                if any(pattern.matches(topic.name) for pattern in patterns.values()):
                    found[topic.name] = topic
        return found

    def _retarget(self) -> None:
        """Divide the subscribed topics among the members anew."""
        topics = self._subscribed()
        matches: dict[str, frozenset[UUID]] = {}  # topics of each pattern, found once
        subscribers = {}
        for member in self.members.values():
            wanted = {topics[name].id for name in member.value.topics if name in topics}
            if member.pattern is not None:
                if member.pattern.text not in matches:
                    matches[member.pattern.text] = matching(member.pattern, topics)
                wanted |= matches[member.pattern.text]
            subscribers[member.id] = Subscriber(
                frozenset(wanted),
                member.value.instance_id or member.id,
                self.targets.get(member.id, NO_PARTITIONS),
            )
        sizes = {topic.id: topic.partitions for topic in topics.values()}
        targets = ASSIGNORS[self.assignor](subscribers, sizes)
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                self._write(TargetKey(self.id, member_id), TargetValue(target))
        self.targets = targets
        self.target_epoch = self.epoch
        self._write(TargetEpochKey(self.id), TargetEpochValue(self.target_epoch))

    @property
    def assignor(self) -> str:
        """Return the assignor that most members ask for."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            # One that the log knows and this release does not gets no vote.
            if member.value.assignor in ASSIGNORS:
                votes[member.value.assignor] = votes.get(member.value.assignor, 0) + 1
        return max(sorted(votes), key=lambda name: votes[name], default=DEFAULT_ASSIGNOR)

    def _advance(self, member: Member, owned: Assigned | None, now: int) -> None:
        """Take the member's next step towards its target."""
        before = member.current
        after = advance(
            before,
            self.target_epoch,
            self.targets[member.id],
            owned,
            lambda partition: self._owners.get(partition, member.id) == member.id,
        )
        if after != before:
            self._become(member, after)
        if after.state is not MemberState.UNREVOKED:
            member.revocation.cancel()
        elif before.state is not MemberState.UNREVOKED or before.revoking != after.revoking:
            member.revocation.set(now + self._patience(member))

    def _patience(self, member: Member) -> int:
        return min(max(member.value.rebalance_timeout, 0), self._config.max_rebalance_timeout)

    def _become(self, member: Member, current: Current) -> None:
        self._release(member)
        member.current = current
        for partition in current.held:
            self._owners[partition] = member.id
        self._write(
            CurrentKey(self.id, member.id),
            CurrentValue(
                current.epoch,
                current.previous_epoch,
                current.state,
                current.assigned,
                current.revoking,
            ),
        )

    def _release(self, member: Member) -> None:
        for partition in member.current.held:
            if self._owners.get(partition) == member.id:
                del self._owners[partition]

    # ------------------------------------------------------------------------------- departures

    def _depart(self, beat: Beat, now: int) -> BeatAnswer:
        member = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            holder = self.static.get(beat.instance_id)
            if holder is None:
                raise _unknown(beat.member_id)
            if holder != beat.member_id:
                raise _fenced_instance(beat.instance_id, holder)
        if member is None:
            raise _unknown(beat.member_id)
        if beat.epoch == AWAY:
            if member.value.instance_id is None:
                raise Refused(ErrorCode.invalid_request, "only a static member can be away")
            self._become(
                member,
                replace(
                    member.current, epoch=AWAY, state=MemberState.STABLE, revoking=NO_PARTITIONS
                ),
            )
            member.revocation.cancel()
            member.session.set(now + self._config.consumer_session_timeout)
        else:
            self._remove(member)
        return BeatAnswer(ErrorCode.none, member_id=beat.member_id, epoch=beat.epoch)

    def leave(self, leaving: Iterable[Leaving]) -> tuple[ErrorCode, ...]:
        """Let an administrator remove members, by id or by instance id."""
        return tuple(self._leave(one) for one in leaving)

    def _leave(self, leaving: Leaving) -> ErrorCode:
        member_id = leaving.member_id
        if leaving.instance_id is not None:
            holder = self.static.get(leaving.instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            if member_id and member_id != holder:
                return ErrorCode.fenced_instance_id
            member_id = holder
        if member_id not in self.members:
            return ErrorCode.unknown_member_id
        self._remove(self.members[member_id])
        return ErrorCode.none

    def _remove(self, member: Member) -> None:
        self._forget(member)
        self._topics_changed(subscription_changed=True)
        self._raise_epoch()
        self._erase(member)

    def _forget(self, member: Member) -> None:
        self._release(member)
        member.session.cancel()
        member.revocation.cancel()
        del self.members[member.id]
        if member.value.instance_id is not None:
            self.static.pop(member.value.instance_id, None)
        self.targets.pop(member.id, None)

    def _erase(self, member: Member) -> None:
        for key in (
            CurrentKey(self.id, member.id),
            TargetKey(self.id, member.id),
            MemberKey(self.id, member.id),
        ):
            self._write(key, None)

    # ---------------------------------------------------------------------------------- offsets

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, *, knows_epochs: bool
    ) -> ErrorCode:
        """Tell whether this member may commit offsets now."""
        if epoch < 0 and not self.members:
            return ErrorCode.none
        if instance_id is not None and self.static.get(instance_id, member_id) != member_id:
            return ErrorCode.fenced_instance_id
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not knows_epochs:
            return ErrorCode.unsupported_version
        return ErrorCode.none if epoch == member.current.epoch else ErrorCode.stale_member_epoch

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Tell whether offsets may be fetched under this name; tools fetch without one."""
        if member_id is None and epoch < 0:
            return ErrorCode.none
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if epoch == member.current.epoch else ErrorCode.stale_member_epoch

    def subscribes(self, topic: str) -> bool:
        return any(
            topic in member.value.topics
            or (member.pattern is not None and member.pattern.matches(topic))
            for member in self.members.values()
        )

    # ----------------------------------------------------------------------- life and fail-over

    def load(self, loaded: Loaded) -> None:
        """Take what the log says. Timers start with `activate`."""
        self.target_epoch = loaded.target_epoch
        self.epoch = max(loaded.epoch or 0, loaded.target_epoch)
        self._hash = loaded.metadata_hash
        for member_id, value in loaded.members.items():
            member = self._new_member(member_id, value)
            if value.instance_id is not None:
                self.static[value.instance_id] = member_id
            if value.regex:
                try:
                    member.pattern = TopicPattern(value.regex)
                except InvalidPattern:
                    member.pattern = None  # Kafka took it; here it subscribes to nothing
            member.current = loaded.current(member_id)
            if member_id in loaded.targets:
                self.targets[member_id] = loaded.target(member_id)
            for partition in member.current.held:
                self._owners[partition] = member_id

    def activate(self, now: int) -> None:
        """Expect the members that were loaded to speak from now on."""
        for member in self.members.values():
            member.session.set(now + self._config.consumer_session_timeout)
            if member.current.state is MemberState.UNREVOKED:
                member.revocation.set(now + self._patience(member))

    def bury(self) -> None:
        """Delete an empty group and its offsets. The epoch goes last: it is what proves a group."""
        self.offsets.delete_all()
        self.retire()

    def retire(self) -> None:
        """Delete an empty group but for its offsets: it goes on in the classic protocol."""
        self._write(TargetEpochKey(self.id), None)
        self._write(GroupEpochKey(self.id), None)
        self.is_dead = True

    def close(self, _error: ErrorCode) -> None:
        """Let no timer fire any more. Nobody waits here: every heartbeat is answered at once."""
        for member in self.members.values():
            member.session.cancel()
            member.revocation.cancel()

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing but its offsets keeps this group."""
        return not self.members

    @property
    def state(self) -> GroupState:
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        arrived = all(
            member.current.state is MemberState.STABLE and member.current.epoch == self.target_epoch
            for member in self.members.values()
        )
        return GroupState.STABLE if arrived else GroupState.RECONCILING

    def view(self) -> ConsumerView:
        return ConsumerView(
            self.state.value,
            self.epoch,
            self.target_epoch,
            self.assignor,
            tuple(
                ConsumerMemberView(
                    member.id,
                    member.current.epoch,
                    member.value,
                    member.current.assigned,
                    self.targets.get(member.id, NO_PARTITIONS),
                )
                for member in self.members.values()
            ),
        )

    # ------------------------------------------------------------------------------- small parts

    def _new_member(self, member_id: str, value: MemberValue) -> Member:
        member = Member(
            member_id,
            value,
            None,
            self._timers.new(lambda _: self._remove(member)),
            self._timers.new(lambda _: self._remove(member)),
        )
        self.members[member_id] = member
        if value.instance_id is not None:
            self.static[value.instance_id] = member_id
        return member

    def _write(self, key: Key, value: Value | None) -> None:
        self._outbox.write(encode(key, value))

    def check_invariants(self) -> None:
        """Raise AssertionError when this group contradicts itself. For tests."""
        held: dict[tuple[UUID, int], str] = {}
        for member in self.members.values():
            current = member.current
            assert not current.assigned & current.revoking
            assert bool(current.revoking) == (current.state is MemberState.UNREVOKED)
            assert current.epoch <= self.target_epoch
            assert member.session.due is not None
            for partition in current.held:
                assert partition not in held, f"two members hold {partition}"
                held[partition] = member.id
        assert held == self._owners
        assert self.target_epoch <= self.epoch
        assert self.targets.keys() <= self.members.keys()
        if self.target_epoch == self.epoch:  # otherwise the targets are to be computed anew
            targeted = [partition for target in self.targets.values() for partition in target]
            assert len(targeted) == len(set(targeted))
        assert self.static == {
            m.value.instance_id: m.id
            for m in self.members.values()
            if m.value.instance_id is not None
        }


def _unknown(member_id: str) -> Refused:
    return Refused(
        ErrorCode.unknown_member_id, f"{member_id or 'a member without id'} is not in the group"
    )


def _fenced_instance(instance_id: str, holder: str) -> Refused:
    return Refused(ErrorCode.fenced_instance_id, f"instance {instance_id} is now member {holder}")
