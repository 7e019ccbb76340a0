"""A shard that reads the log is the shard that wrote it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kio.schema.errors import ErrorCode
from tests.kafka.groups.world import OK, REBALANCE, Topics, World, a_join, subscription

from tidelog.kafka.groups.classic import ClassicGroup
from tidelog.kafka.groups.classic_types import JoinAnswer, Leaving, State
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.consumer import ConsumerGroup
from tidelog.kafka.groups.consumer_types import AWAY, LEAVING
from tidelog.kafka.groups.records import NO_PARTITIONS, Assigned
from tidelog.kafka.groups.shard import Group, Shard
from tidelog.kafka.groups.shard_types import CommittedOffset

GROUPS = st.sampled_from(["g", "h"])
MEMBERS = st.sampled_from("abcd")
TOPICS = st.sampled_from(["t", "u", "v"])
INSTANCES = st.sampled_from([None, None, "one", "two"])


def durable(shard: Shard) -> dict[str, tuple[object, object]]:
    """Return what a fail-over must not change."""
    return {
        group_id: (sorted(group.offsets), _state(group))
        for group_id, group in shard.groups.items()
        if not _is_nothing(group)
    }


def _is_nothing(group: Group) -> bool:
    return isinstance(group, ClassicGroup) and not group.offsets and group.generation == 0


def _state(group: Group) -> object:
    if isinstance(group, ConsumerGroup):
        return (
            group.epoch,
            group.target_epoch,
            {one.id: (one.value, one.current) for one in group.members.values()},
            group.targets,
            group.static,
        )
    return group.value() if group.state in {State.STABLE, State.EMPTY} else "rebalancing"


class Replay(RuleBasedStateMachine):
    """Clients do anything; now and then the coordinator changes."""

    @initialize()
    def begin(self) -> None:
        config = GroupConfig(initial_rebalance_delay=0, retention_check_interval=3_600_000)
        self.world = World(config, Topics(t=3, u=2, v=1))
        self.joins: dict[tuple[str, str], int] = {}
        self.joined: dict[tuple[str, str], JoinAnswer] = {}
        self.epochs: dict[tuple[str, str], int] = {}
        self.owned: dict[tuple[str, str], Assigned] = {}

    # --- The classic protocol -------------------------------------------------------------------

    @rule(group=GROUPS, member=MEMBERS, instance=INSTANCES, topics=st.sets(TOPICS, min_size=1))
    def join(self, group: str, member: str, instance: str | None, topics: set[str]) -> None:
        known = self.joined.get((group, member))
        request = a_join(
            known.member_id if known is not None else "",
            instance_id=instance,
            protocols=(("range", subscription(*sorted(topics))),),
        )
        self.joins[group, member] = self.world.join(request, group)

    @rule(group=GROUPS, member=MEMBERS)
    def sync(self, group: str, member: str) -> None:
        answer = self.world.answers.get(self.joins.get((group, member), 0))
        if not isinstance(answer, JoinAnswer):
            return
        if answer.error is not OK:
            self.joined.pop((group, member), None)
            return
        self.joined[group, member] = answer
        work = tuple((one.member_id, one.member_id.encode()) for one in answer.members)
        self.world.sync(answer, work, group)

    @rule(group=GROUPS, member=MEMBERS)
    def leave(self, group: str, member: str) -> None:
        known = self.joined.pop((group, member), None)
        if known is not None:
            self.world.leave(Leaving(known.member_id), group=group)

    # --- The new protocol -----------------------------------------------------------------------

    @rule(group=GROUPS, member=MEMBERS, instance=INSTANCES, topics=st.sets(TOPICS, min_size=1))
    def enter(self, group: str, member: str, instance: str | None, topics: set[str]) -> None:
        answer = self.world.enter(member, *topics, group=group, instance_id=instance)
        if answer.error is OK:
            self.epochs[group, member] = answer.epoch
            self.owned[group, member] = answer.assignment or NO_PARTITIONS

    @rule(group=GROUPS, member=MEMBERS, tells=st.booleans())
    def beat(self, group: str, member: str, tells: bool) -> None:
        epoch = self.epochs.get((group, member))
        if epoch is None:
            return
        owned = self.owned[group, member] if tells else None
        answer = self.world.beat(member, epoch, group, owned=owned)
        if answer.error is OK:
            self.epochs[group, member] = answer.epoch
            if answer.assignment is not None:
                self.owned[group, member] = answer.assignment
        else:
            del self.epochs[group, member]

    @rule(group=GROUPS, member=MEMBERS, instance=INSTANCES, epoch=st.sampled_from([LEAVING, AWAY]))
    def depart(self, group: str, member: str, instance: str | None, epoch: int) -> None:
        if self.world.beat(member, epoch, group, instance_id=instance).error is OK:
            self.epochs.pop((group, member), None)

    # --- The rest -------------------------------------------------------------------------------

    @rule(group=GROUPS, topic=TOPICS, offset=st.integers(0, 100))
    def commit(self, group: str, topic: str, offset: int) -> None:
        self.world.commit(CommittedOffset(topic, 0, offset), group=group)

    @rule(group=GROUPS, topic=TOPICS)
    def delete_offsets(self, group: str, topic: str) -> None:
        self.world.shard.delete_offsets(group, [(topic, 0)])
        self.world.settle()

    @rule(group=GROUPS)
    def delete(self, group: str) -> None:
        error = self.world.shard.delete(group)
        self.world.settle()
        assert (error is OK) <= (group not in self.world.shard.groups)
        assert error in {OK, ErrorCode.non_empty_group, ErrorCode.group_id_not_found}

    @rule(topic=TOPICS, partitions=st.integers(1, 5))
    def resize(self, topic: str, partitions: int) -> None:
        known = self.world.topics.by_name(topic)
        assert known is not None
        self.world.topics.set(topic, max(partitions, known.partitions))

    @rule(milliseconds=st.sampled_from([1, 5_000, 20_000, REBALANCE, 8 * 24 * 3_600_000]))
    def wait(self, milliseconds: int) -> None:
        self.world.run(milliseconds)

    @rule()
    def fail_over(self) -> None:
        self.world.fail_over()

    @rule(count=st.integers(1, 12))
    def lose_the_tail(self, count: int) -> None:
        """Go on from a part of a step, as when one is too large for one append."""
        del self.world.log[-count:]
        self.world.fail_over()

    @invariant()
    def a_new_shard_would_be_the_same(self) -> None:
        wrote = durable(self.world.shard)
        read = durable(self.world.loaded())
        assert durable(self.world.loaded(self.world.compacted())) == read
        for group_id, (offsets, state) in wrote.items():
            if state == "rebalancing":
                assert not offsets or group_id in read
            else:
                assert read[group_id] == (offsets, state)
        assert read.keys() <= wrote.keys()


Replay.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestReplay = Replay.TestCase
