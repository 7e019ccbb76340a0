"""Committed offsets: who may commit, what is found, what expires; and deleting groups."""

from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode
from tests.kafka.groups.world import GROUP, OK, Topics, World, a_join, subscription

from tidelog.kafka.groups.classic_types import Leaving
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.consumer_types import LEAVING
from tidelog.kafka.groups.records import OffsetValue
from tidelog.kafka.groups.shard_types import CommittedOffset, Fetch

DAY = 24 * 3_600_000
RETENTION = 7 * DAY
CHECK = GroupConfig().retention_check_interval


def at(partition: int, offset: int, topic: str = "t") -> CommittedOffset:
    return CommittedOffset(topic, partition, offset, 3, "note")


def test_a_tool_commits_into_a_group_without_members_and_finds_it_again() -> None:
    world = World()
    assert world.commit(at(0, 7), at(1, 8)) == (OK, OK)
    answer = world.shard.fetch(GROUP, Fetch(None, -1, (("t", 0), ("t", 3), ("u", 0))))
    assert answer.error is OK
    found = [
        value and (value.offset, value.leader_epoch, value.metadata) for *_, value in answer.offsets
    ]
    assert found == [(7, 3, "note"), None, None]
    nothing = world.shard.fetch("none", Fetch(None, -1, (("t", 0),)))
    assert nothing.offsets == (("t", 0, None),)


def test_only_members_of_this_generation_commit_into_a_group_that_has_members() -> None:
    world = World()
    [one] = world.stable(a_join(instance_id="a"))
    names = {"member_id": one.member_id, "instance_id": "a"}
    assert world.commit(at(0, 1), epoch=one.generation, **names) == (OK,)
    cases: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"epoch": one.generation + 1, **names}, ErrorCode.illegal_generation),
        ({"epoch": -1}, ErrorCode.unknown_member_id),
        ({"epoch": 1, "member_id": "x"}, ErrorCode.unknown_member_id),
        ({"epoch": 1, "member_id": "x", "instance_id": "a"}, ErrorCode.fenced_instance_id),
    ]
    for fields, error in cases:
        assert world.commit(at(0, 2), **fields) == (error,)
    assert world.committed() == {("t", 0): 1}


def test_a_commit_between_join_and_sync_waits_for_the_rebalance() -> None:
    world = World()
    one = world.joined(world.join(a_join()))
    errors = world.commit(at(0, 1), member_id=one.member_id, epoch=one.generation)
    assert errors == (ErrorCode.rebalance_in_progress,)


def test_a_member_may_commit_while_others_join() -> None:
    world = World()
    [one] = world.stable(a_join())
    world.join(a_join())
    assert world.commit(at(0, 1), member_id=one.member_id, epoch=one.generation) == (OK,)


def test_a_commit_is_a_sign_of_life() -> None:
    world = World()
    [one] = world.stable(a_join())
    for _ in range(5):
        world.run(9_000)
        assert world.commit(at(0, 1), member_id=one.member_id, epoch=one.generation) == (OK,)


def test_a_commit_of_a_generation_into_no_group_says_so_in_the_words_of_its_version() -> None:
    world = World()
    assert world.commit(at(0, 1), epoch=1, version=9) == (ErrorCode.group_id_not_found,)
    assert world.commit(at(0, 1), epoch=1, version=8) == (ErrorCode.illegal_generation,)
    assert not world.shard.groups


def test_members_of_a_consumer_group_commit_and_fetch_in_their_epoch() -> None:
    world = World()
    epoch = world.enter("a", "t").epoch
    assert world.commit(at(0, 5), member_id="a", epoch=epoch) == (OK,)
    stale = world.commit(at(0, 6), member_id="a", epoch=epoch - 1)
    assert stale == (ErrorCode.stale_member_epoch,)
    old = world.commit(at(0, 6), member_id="a", epoch=epoch, version=8)
    assert old == (ErrorCode.unsupported_version,)
    assert world.commit(at(0, 6), member_id="b", epoch=1) == (ErrorCode.unknown_member_id,)
    assert world.commit(at(0, 6)) == (ErrorCode.unknown_member_id,)
    for fetch, error in [
        (Fetch("a", epoch, None), OK),
        (Fetch("a", epoch + 1, None), ErrorCode.stale_member_epoch),
        (Fetch("b", epoch, None), ErrorCode.unknown_member_id),
        (Fetch(None, -1, None), OK),
    ]:
        assert world.shard.fetch(GROUP, fetch).error is error
    world.beat("a", LEAVING)
    assert world.commit(at(0, 9)) == (OK,)


def test_notes_and_numbers_of_offsets_are_bounded() -> None:
    world = World(GroupConfig(max_offsets_per_group=2))
    long = replace(at(0, 1), metadata="é" * 2_049)
    assert world.commit(long, at(1, 1), at(2, 1), at(3, 1), at(1, 2)) == (
        ErrorCode.offset_metadata_too_large,
        OK,
        OK,
        ErrorCode.invalid_commit_offset_size,
        OK,
    )


def test_a_commit_that_would_hold_up_the_node_is_refused() -> None:
    world = World(GroupConfig(max_offsets_per_commit=2))
    refused = (ErrorCode.invalid_commit_offset_size,) * 3
    assert world.commit(at(0, 1), at(1, 1), at(2, 1)) == refused
    assert not world.shard.groups


def test_offsets_are_found_after_a_fail_over() -> None:
    world = World()
    world.commit(at(0, 7), at(1, 8))
    world.commit(at(0, 9))
    world.fail_over()
    assert world.committed() == {("t", 0): 9, ("t", 1): 8}


def test_offsets_of_an_empty_group_expire_and_the_group_with_them() -> None:
    world = World()
    [one] = world.stable(a_join())
    world.commit(at(0, 1), member_id=one.member_id, epoch=one.generation)
    world.run(5_000)
    world.leave(Leaving(one.member_id))
    emptied = world.now
    world.run(RETENTION - CHECK)
    assert world.committed() == {("t", 0): 1}
    world.run(2 * CHECK)
    assert world.now > emptied + RETENTION
    assert not world.shard.groups
    assert not world.loaded().groups


def test_offsets_of_topics_that_a_member_reads_never_expire() -> None:
    world = World(
        GroupConfig(initial_rebalance_delay=0, max_session_timeout=DAY * 100),
        Topics(t=1, u=1),
    )
    world.stable(a_join(session_timeout=DAY * 20), group=GROUP)
    world.shard.groups[GROUP].offsets.load("t", 0, OffsetValue(1, commit_time=world.now))
    world.shard.groups[GROUP].offsets.load("u", 0, OffsetValue(1, commit_time=world.now))
    world.run(RETENTION + CHECK)
    assert world.committed() == {("t", 0): 1}


def test_what_members_of_another_kind_read_is_not_known_so_nothing_expires() -> None:
    world = World(GroupConfig(initial_rebalance_delay=0, max_session_timeout=DAY * 100))
    world.stable(a_join(session_timeout=DAY * 20, protocol_type="connect"))
    world.shard.groups[GROUP].offsets.load("t", 0, OffsetValue(1, commit_time=world.now))
    world.run(RETENTION + CHECK)
    assert world.committed() == {("t", 0): 1}


def test_a_client_may_set_when_its_offsets_expire() -> None:
    world = World()
    world.commit(at(0, 1), retention=2 * CHECK)
    world.commit(at(1, 1))
    world.run(CHECK)
    assert len(world.committed()) == 2
    world.run(2 * CHECK)
    assert world.committed() == {("t", 1): 1}


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    world = World(topics=Topics(t=1, u=1))
    world.commit(at(0, 1), at(0, 2, "u"))
    world.shard.forget_topics(["t"])
    world.settle()
    assert world.committed() == {("u", 0): 2}
    world.fail_over()
    assert world.committed() == {("u", 0): 2}


def test_offsets_of_a_topic_that_was_deleted_unseen_go_at_the_second_look() -> None:
    world = World(topics=Topics(t=1, u=1))
    world.commit(at(0, 1), at(0, 2, "u"))
    world.topics.delete("t")
    world.run(CHECK)
    assert len(world.committed()) == 2, "this node may be behind on topics"
    world.run(CHECK)
    assert world.committed() == {("u", 0): 2}


def test_offsets_are_deleted_unless_a_member_reads_their_topic() -> None:
    world = World(topics=Topics(t=2, u=2))
    world.stable(a_join(protocols=(("range", subscription("t")),)))
    for topic in ("t", "u"):
        world.shard.groups[GROUP].offsets.load(topic, 0, OffsetValue(1, commit_time=world.now))
    answer = world.shard.delete_offsets(GROUP, [("t", 0), ("u", 0), ("u", 1), ("none", 0)])
    assert answer.partitions == (
        ErrorCode.group_subscribed_to_topic,
        OK,
        OK,
        ErrorCode.unknown_topic_or_partition,
    )
    assert world.committed() == {("t", 0): 1}
    assert world.shard.delete_offsets("none", []).error is ErrorCode.group_id_not_found


def test_offsets_of_a_consumer_group_are_deleted_unless_a_member_reads_their_topic() -> None:
    world = World(topics=Topics(t=1, u=1))
    epoch = world.enter("a", topics=None, regex="t").epoch
    world.commit(at(0, 1), at(0, 1, "u"), member_id="a", epoch=epoch)
    answer = world.shard.delete_offsets(GROUP, [("t", 0), ("u", 0)])
    assert answer.partitions == (ErrorCode.group_subscribed_to_topic, OK)


def test_offsets_of_a_group_of_another_kind_are_deleted_only_when_it_is_empty() -> None:
    world = World()
    world.stable(a_join(protocol_type="connect"))
    assert world.shard.delete_offsets(GROUP, [("t", 0)]).error is ErrorCode.non_empty_group


def test_a_group_is_deleted_only_when_it_is_empty_and_then_for_good() -> None:
    world = World()
    [one] = world.stable(a_join())
    world.commit(at(0, 1), member_id=one.member_id, epoch=one.generation)
    assert world.shard.delete(GROUP) is ErrorCode.non_empty_group
    world.leave(Leaving(one.member_id))
    assert world.shard.delete(GROUP) is OK
    world.settle()
    assert world.shard.delete(GROUP) is ErrorCode.group_id_not_found
    assert world.shard.delete("") is ErrorCode.invalid_group_id
    assert not world.loaded().groups
    world.enter("a", "t")
    assert world.shard.delete(GROUP) is ErrorCode.non_empty_group
    world.beat("a", LEAVING)
    assert world.shard.delete(GROUP) is OK
    world.settle()
    assert not world.loaded().groups


def test_groups_are_listed_and_described_by_their_protocol() -> None:
    world = World()
    world.commit(at(0, 1), group="bare")
    world.stable(a_join(), group="classic")
    world.enter("a", "t", group="new")
    listed = {one.group: (one.protocol_type, one.state, one.type) for one in world.shard.listed()}
    assert listed == {
        "bare": ("", "Empty", "Classic"),
        "classic": ("consumer", "Stable", "Classic"),
        "new": ("consumer", "Stable", "Consumer"),
    }
    classic = world.shard.describe_classic("classic")
    assert classic is not None
    assert classic.protocol == "range"
    assert classic.members[0].assignment == classic.members[0].member_id.encode()
    assert world.shard.describe_classic("new") is None
    consumer = world.shard.describe_consumer("new")
    assert consumer is not None
    assert consumer.members[0].assigned == consumer.members[0].target == world.topics.all_of("t")
    assert world.shard.describe_consumer("classic") is None
