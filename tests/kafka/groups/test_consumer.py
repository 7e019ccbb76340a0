"""The new protocol (KIP-848): what heartbeats do, and what they are told."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.groups.world import GROUP, OK, REBALANCE, Topics, World, a_join

from tidelog.kafka.groups.classic_types import Leaving
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.consumer import ConsumerGroup
from tidelog.kafka.groups.consumer_types import AWAY, LEAVING, BeatAnswer
from tidelog.kafka.groups.records import NO_PARTITIONS, Assigned
from tidelog.kafka.groups.shard_types import CommittedOffset

SESSION = GroupConfig().consumer_session_timeout


def group(world: World) -> ConsumerGroup:
    found = world.shard.groups[GROUP]
    assert isinstance(found, ConsumerGroup)
    return found


class Consumer:
    """A member that does what it is told."""

    def __init__(self, world: World, member_id: str, *topics: str, **fields: Any) -> None:
        self.world = world
        self.id = member_id
        self.owned: Assigned = NO_PARTITIONS
        answer = world.enter(member_id, *topics, **fields)
        assert answer.error is OK, answer
        self.take(answer)

    def take(self, answer: BeatAnswer) -> None:
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.owned = answer.assignment

    def beat(self, **fields: Any) -> BeatAnswer:
        answer = self.world.beat(self.id, self.epoch, owned=self.owned, **fields)
        assert answer.error is OK, answer
        self.take(answer)
        return answer


def settle(*members: Consumer) -> None:
    """Let everybody send heartbeats until nothing changes any more."""
    for _ in range(10):
        before = [(member.epoch, member.owned) for member in members]
        for member in members:
            member.beat()
        if before == [(member.epoch, member.owned) for member in members]:
            return
    raise AssertionError("the group does not settle")


def test_the_first_member_gets_everything_at_once() -> None:
    world = World()
    answer = world.enter("a", "t")
    assert (answer.error, answer.epoch, answer.member_id) == (OK, 1, "a")
    assert answer.assignment == world.topics.all_of("t")
    assert world.beat("a", 1).assignment is None, "what has not changed is not told again"


def test_a_partition_changes_hands_only_when_its_owner_has_let_go() -> None:
    world = World()
    first = Consumer(world, "a", "t")
    second = Consumer(world, "b", "t")
    assert second.owned == NO_PARTITIONS
    assert second.beat().waits
    told = world.beat("a", first.epoch)
    assert told.epoch == 1, "the epoch stays until partitions are given up"
    assert told.assignment is not None
    assert len(told.assignment) == 2
    assert second.beat().assignment is None, "they are not given up yet"
    first.take(told)
    assert first.beat().epoch == 2
    assert second.beat().assignment == world.topics.all_of("t") - first.owned


def test_members_come_and_go_and_all_partitions_are_read_by_exactly_one() -> None:
    world = World(topics=Topics(t=7, u=5))
    members = [Consumer(world, name, "t", "u") for name in "abc"]
    settle(*members)
    assert sorted(len(member.owned) for member in members) == [4, 4, 4]
    world.beat("b", LEAVING)
    del members[1]
    settle(*members)
    assert members[0].owned | members[1].owned == world.topics.all_of("t", "u")
    assert not members[0].owned & members[1].owned
    assert group(world).state.value == "Stable"


def test_who_is_silent_is_out_and_its_partitions_go_to_the_others() -> None:
    world = World()
    first, second = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    settle(first, second)
    world.run(SESSION // 2)
    settle(second)
    world.run(SESSION // 2)
    settle(second)
    assert second.owned == world.topics.all_of("t")
    assert world.beat("a", first.epoch).error is ErrorCode.unknown_member_id


def test_who_does_not_let_go_within_its_rebalance_timeout_is_out() -> None:
    world = World(GroupConfig(consumer_session_timeout=10 * REBALANCE))
    first, second = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    for _ in range(3):
        held = world.beat("a", first.epoch, owned=first.owned)
        world.run(REBALANCE // 3)
    assert held.epoch == 1
    assert world.beat("a", first.epoch).error is ErrorCode.unknown_member_id
    assert second.beat().assignment == world.topics.all_of("t")


def test_a_wrong_epoch_fences_and_the_one_before_is_forgiven_once() -> None:
    world = World()
    first = Consumer(world, "a", "t")
    world.enter("b", "t")
    first.beat()
    first.beat()
    assert first.epoch == 2
    assert world.beat("a", 3).error is ErrorCode.fenced_member_epoch
    assert world.beat("a", 1).error is ErrorCode.fenced_member_epoch
    repeated = world.beat("a", 1, owned=first.owned)
    assert (repeated.error, repeated.epoch) == (OK, 2)
    back = world.enter("a", "t")
    assert (back.error, back.assignment) == (OK, first.owned)


def test_a_change_of_subscription_or_topics_divides_the_work_anew() -> None:
    world = World(topics=Topics(t=2, u=2))
    only = Consumer(world, "a", "t")
    only.beat(topics=("t", "u"))
    assert only.owned == world.topics.all_of("t", "u")
    world.topics.set("t", 6)
    only.beat()
    assert only.owned == world.topics.all_of("t", "u")
    world.topics.delete("u")
    only.beat()
    only.beat()
    assert only.owned == world.topics.all_of("t")
    epoch = only.epoch
    world.topics.set("other", 3)
    only.beat()
    assert only.epoch == epoch, "a topic that nobody reads changes nothing"


def test_a_pattern_follows_topics_as_they_come() -> None:
    world = World(topics=Topics(orders_a=1, bills=1))
    only = Consumer(world, "a", topics=None, regex=".*orders.*")
    assert only.owned == world.topics.all_of("orders_a")
    world.topics.set("orders_b", 2)
    only.beat()
    assert only.owned == world.topics.all_of("orders_a", "orders_b")
    only.beat(topics=("bills",), regex="")
    only.beat()
    assert only.owned == world.topics.all_of("bills")


def test_a_pattern_means_internal_topics_as_well() -> None:
    world = World(topics=Topics(__consumer_offsets=1, bills=1))
    only = Consumer(world, "a", topics=None, regex=".*offsets")
    assert only.owned == world.topics.all_of("__consumer_offsets")


def test_a_pattern_that_cannot_be_read_is_refused_with_a_reason() -> None:
    answer = World().enter("a", topics=None, regex="orders(")
    assert answer.error is ErrorCode.invalid_regular_expression
    assert answer.message


def test_most_members_decide_on_the_assignor() -> None:
    world = World(topics=Topics(t=4, u=4))
    members = [
        Consumer(world, "a", "t", "u", assignor="range"),
        Consumer(world, "b", "t", "u", assignor="range"),
        Consumer(world, "c", "t", "u"),
    ]
    settle(*members)
    for member in members:
        by_topic = {
            topic: {index for name, index in member.owned if name == topic}
            for topic, _ in member.owned
        }
        assert len(set(map(frozenset, by_topic.values()))) == 1, "equal numbers meet in one member"
    assert group(world).view().assignor == "range"
    refused = world.enter("d", "t", assignor="magic")
    assert refused.error is ErrorCode.unsupported_assignor
    assert "d" not in group(world).members


def test_a_static_member_goes_away_and_comes_back_to_what_it_had() -> None:
    world = World()
    first = Consumer(world, "a", "t", instance_id="one")
    second = Consumer(world, "b", "t", instance_id="two")
    settle(first, second)
    had, epoch = first.owned, group(world).epoch
    assert world.beat("a", AWAY, instance_id="one").epoch == AWAY
    settle(second)
    assert second.owned == world.topics.all_of("t") - had
    back = Consumer(world, "a2", "t", instance_id="one")
    assert back.owned == had
    assert group(world).epoch == epoch, "nobody else notices"
    assert world.beat("a", first.epoch, instance_id="one").error is ErrorCode.fenced_instance_id


def test_a_static_member_that_stays_away_loses_its_place() -> None:
    world = World()
    first = Consumer(world, "a", "t", instance_id="one")
    second = Consumer(world, "b", "t")
    settle(first, second)
    world.beat("a", AWAY, instance_id="one")
    world.run(SESSION - 1)
    settle(second)
    world.run(1)
    settle(second)
    assert second.owned == world.topics.all_of("t")


def test_an_instance_that_is_in_use_is_not_given_away() -> None:
    world = World()
    Consumer(world, "a", "t", instance_id="one")
    answer = world.enter("b", "t", instance_id="one")
    assert answer.error is ErrorCode.unreleased_instance_id
    assert list(group(world).members) == ["a"]


def test_an_administrator_removes_members() -> None:
    world = World()
    Consumer(world, "a", "t", instance_id="one")
    Consumer(world, "b", "t")
    answer = world.leave(
        Leaving("", "one"), Leaving("b"), Leaving("c"), Leaving("", "two"), Leaving("x", "one")
    )
    unknown = ErrorCode.unknown_member_id
    assert answer.members == (OK, OK, unknown, unknown, unknown)
    assert group(world).is_empty


@pytest.mark.parametrize(
    "fields",
    [
        {"rebalance_timeout": None},
        {"rebalance_timeout": 0},
        {"owned": None},
        {"owned": Topics(t=1).all_of("t")},
        {"topics": None},
        {"instance_id": ""},
        {"instance_id": "x" * 5_000},
        {"topics": tuple(f"topic-{number}" * 20 for number in range(10_000))},
    ],
)
def test_a_first_heartbeat_says_all_that_is_needed(fields: dict[str, Any]) -> None:
    world = World()
    assert world.enter("a", "t", **fields).error is ErrorCode.invalid_request
    assert not world.shard.groups
    assert not world.log


def test_names_and_epochs_that_make_no_sense_are_refused() -> None:
    world = World()
    assert world.enter("", "t").error is ErrorCode.invalid_request
    assert world.enter("a", "t", group="").error is ErrorCode.invalid_request
    assert world.beat("a", -3).error is ErrorCode.invalid_request
    assert world.beat("a", 1).error is ErrorCode.group_id_not_found
    Consumer(world, "b", "t")
    assert world.beat("a", 1).error is ErrorCode.unknown_member_id
    assert world.beat("b", AWAY).error is ErrorCode.invalid_request
    assert world.beat("a", LEAVING).error is ErrorCode.unknown_member_id


def test_a_full_group_takes_nobody() -> None:
    world = World(GroupConfig(max_members=1))
    Consumer(world, "a", "t")
    assert world.enter("b", "t").error is ErrorCode.group_max_size_reached


def test_members_go_on_after_a_fail_over_also_in_the_middle_of_a_rebalance() -> None:
    world = World()
    first, second = Consumer(world, "a", "t"), Consumer(world, "b", "t", instance_id="two")
    first.take(world.beat("a", first.epoch))
    world.fail_over()
    settle(first, second)
    assert first.owned | second.owned == world.topics.all_of("t")
    assert not first.owned & second.owned
    world.fail_over()
    world.run(SESSION)
    assert group(world).is_empty


def test_a_pattern_still_counts_after_a_fail_over() -> None:
    world = World()
    only = Consumer(world, "a", topics=None, regex="t.*")
    world.fail_over()
    world.topics.set("tt", 1)
    only.beat()
    assert only.owned == world.topics.all_of("t", "tt")


# --- The two protocols ---------------------------------------------------------------------------


def test_a_group_with_members_refuses_the_other_protocol() -> None:
    world = World()
    [member] = world.stable(a_join(), group="classic")
    refused = world.enter("a", "t", group="classic")
    assert refused.error is ErrorCode.group_id_not_found
    assert refused.message
    assert world.heartbeat(member.member_id, member.generation, group="classic") is OK

    Consumer(world, "a", "t")
    ticket = world.join(a_join())
    assert world.joined(ticket).error is ErrorCode.inconsistent_group_protocol
    assert world.heartbeat("a", 1) is ErrorCode.unknown_member_id


def test_an_empty_group_takes_the_other_protocol_and_keeps_its_offsets() -> None:
    world = World()
    world.commit(CommittedOffset("t", 0, 42))
    [member] = world.stable(a_join())
    world.leave(Leaving(member.member_id))
    for _ in range(2):
        only = Consumer(world, "a", "t")
        assert world.committed() == {("t", 0): 42}
        world.fail_over()
        only.beat()
        world.beat("a", LEAVING)
        [member] = world.stable(a_join())
        assert world.committed() == {("t", 0): 42}
        world.fail_over()
        assert world.heartbeat(member.member_id, member.generation) is OK
        world.leave(Leaving(member.member_id))


def test_a_refused_newcomer_does_not_change_the_protocol_of_an_empty_group() -> None:
    world = World()
    [member] = world.stable(a_join())
    world.leave(Leaving(member.member_id))
    before = len(world.log)
    assert world.enter("a", "t", assignor="magic").error is ErrorCode.unsupported_assignor
    assert world.shard.describe_classic(GROUP) is not None
    assert len(world.log) == before
