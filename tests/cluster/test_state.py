"""The machine of group 0: every command, every refusal, and that a copy is the same."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.orders import (
    KAFKA,
    T,
    Town,
    cancel,
    commands,
    contents,
    create,
    feature,
    join,
    likely,
    nodes,
    reassign,
    status,
    token,
    update,
)

from tidelog.cluster import commands as cmd
from tidelog.cluster import model, state
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import Address, MemberStatus
from tidelog.cluster.release import NeedsRelease
from tidelog.cluster.state import ClusterState
from tidelog.machines import NO_OBJECTION, CannotApply, CorruptSnapshot
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import BatchType, Offset, Record, Term, build_batch, internal_batch

LEAVING, DRAINING, ACTIVE = MemberStatus.LEAVING, MemberStatus.DRAINING, MemberStatus.ACTIVE


class TestFounding:
    def test_nothing_is_done_before_the_cluster_is_founded(self) -> None:
        town = Town()
        assert town.refuses(join(1)) is Problem.UNAVAILABLE
        assert town.refuses(create("tide", (1,))) is Problem.UNAVAILABLE

    def test_the_first_founding_wins(self) -> None:
        town = Town()
        town.do(cmd.CreateCluster(token=T, cluster_id="one", seeds=nodes(1, 2)))
        town.do(cmd.CreateCluster(token=T, cluster_id="two", seeds=nodes(3)))
        assert town.state.cluster_id == "one"
        assert town.state.seeds.keys() == {1, 2}

    def test_a_cluster_without_an_id_or_with_impossible_seeds_is_not_founded(self) -> None:
        town = Town()
        for command in (
            cmd.CreateCluster(token=T, cluster_id="", seeds=nodes(1)),
            cmd.CreateCluster(token=T, cluster_id="x" * 1001, seeds=nodes(1)),
            cmd.CreateCluster(token=T, cluster_id="one", seeds=nodes(*range(1001))),
        ):
            assert town.refuses(command) is Problem.INVALID_NAME
        impossible = cmd.CreateCluster(token=T, cluster_id="one", seeds=nodes(1, 2**31))
        assert town.refuses(impossible) is Problem.UNKNOWN_NODE
        assert town.state.cluster_id == ""


class TestMembers:
    def test_founders_have_revision_0_and_those_who_join_a_new_one(self) -> None:
        town = Town()
        town.do(cmd.CreateCluster(token=T, cluster_id="one", seeds=nodes(1, 2)))
        assert town.do(join(1)) == 0
        first, second = town.number(join(3)), town.number(join(4))
        assert 0 < first < second
        assert town.state.members[NodeId(3)].vnode == Vnode(NodeId(3), first)
        assert town.state.seeds.keys() == {2}

    def test_a_node_that_comes_back_is_somebody_else(self) -> None:
        town = Town.founded(1, 2)
        town.do(status(2, LEAVING))
        town.do(cmd.RemoveMember(token=T, id=NodeId(2)))
        assert town.number(join(2)) > 0

    def test_who_cannot_join(self) -> None:
        town = Town.founded(1)
        assert town.refuses(join(1)) is Problem.NODE_EXISTS
        assert town.refuses(join(-1)) is Problem.UNKNOWN_NODE
        assert town.refuses(join(2**31)) is Problem.UNKNOWN_NODE
        assert town.refuses(join(2, rack="")) is Problem.INVALID_CONFIG
        for address in (
            Address("", 1),
            Address("h" * 256, 1),
            Address("h", 0),
            Address("h", 65536),
        ):
            assert town.refuses(replace(join(2), rpc=address)) is Problem.INVALID_CONFIG
            assert town.refuses(replace(join(2), kafka=address)) is Problem.INVALID_CONFIG

    def test_a_full_cluster_takes_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "MAX_MEMBERS", 2)
        assert Town.founded(1, 2).refuses(join(3)) is Problem.UNAVAILABLE

    def test_a_member_may_move_and_be_upgraded(self) -> None:
        town = Town.founded(1)
        there = Address("there", 1)
        town.do(replace(update(1, rack="b", version=7), rpc=there))
        member = town.state.member(NodeId(1))
        assert (member.rack, member.rpc, member.kafka, member.version) == ("b", there, KAFKA, 7)
        assert town.refuses(update(2)) is Problem.UNKNOWN_NODE
        assert town.refuses(replace(update(1), rpc=Address("", 1))) is Problem.INVALID_CONFIG

    def test_a_member_leaves_when_it_has_nothing_left(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (3, 1)))
        remove = cmd.RemoveMember(token=T, id=NodeId(3))
        assert town.refuses(remove) is Problem.BUSY
        town.do(status(3, LEAVING))
        assert town.refuses(remove) is Problem.BUSY
        town.do(reassign("tide", 0, 2, 1))
        assert town.refuses(remove) is Problem.BUSY  # until the move is over
        partition = town.state.partition_at("tide", 0)
        assert partition.target is not None
        town.do(cmd.FinishReassign(token=T, group=partition.group, target=partition.target))
        town.do(remove)
        assert town.state.members.keys() == {1, 2}
        assert town.refuses(remove) is Problem.UNKNOWN_NODE

    def test_a_founder_that_never_came_is_forgotten(self) -> None:
        town = Town()
        town.do(cmd.CreateCluster(token=T, cluster_id="one", seeds=nodes(1, 2)))
        town.do(cmd.RemoveMember(token=T, id=NodeId(2)))
        assert town.number(join(2)) > 0

    def test_nobody_leaves_if_too_few_would_remain(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2)))
        town.do(status(1, LEAVING))
        assert town.refuses(status(2, LEAVING)) is Problem.INVALID_REPLICATION
        town.do(status(1, ACTIVE))
        town.do(status(2, LEAVING))
        assert town.refuses(status(9, DRAINING)) is Problem.UNKNOWN_NODE

    def test_the_last_member_stays(self) -> None:
        assert Town.founded(1).refuses(status(1, LEAVING)) is Problem.INVALID_REPLICATION


class TestTopics:
    def test_a_topic_has_what_it_was_created_with(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(replace(create("tide", (1, 2), (2, 3), retention="5"), internal=True))
        topic = town.state.topic("tide")
        assert [each.nodes for each in topic.partitions] == [(1, 2), (2, 3)]
        assert [each.index for each in topic.partitions] == [0, 1]
        assert topic.config == {"retention": "5"}
        assert topic.internal
        assert topic.replication_factor == 2
        assert town.state.topics_by_id[topic.id] is topic
        assert town.state.partition_count == 2
        assert town.state.leader_counts == {1: 1, 2: 1}
        assert town.state.replica_counts == {1: 1, 2: 2, 3: 1}
        for partition in topic.partitions:
            assert town.state.group_of("tide", partition.index) == partition.group
            assert town.state.partition_of(partition.group) == ("tide", partition.index)
            assert town.state.partition(partition.group) is partition
        assert town.state.group_of("tide", 2) is None
        assert town.state.group_of("ebb", 0) is None
        assert town.state.partition(GroupId(99)) is None

    def test_what_is_no_topic(self) -> None:
        town = Town.founded(1, 2)
        town.do(create("tide", (1,), id=5))
        town.do(status(2, LEAVING))
        for name in ("", ".", "..", "a/b", "x" * 250, "é", "new\n"):
            assert town.refuses(create(name, (1,), id=6)) is Problem.INVALID_NAME
        assert town.refuses(create("tide", (1,), id=6)) is Problem.TOPIC_EXISTS
        assert town.refuses(create("ebb", (1,), id=5)) is Problem.TOPIC_EXISTS
        assert town.refuses(create("ebb")) is Problem.INVALID_PARTITIONS
        assert town.refuses(create("ebb", *[(1,)] * 10_001)) is Problem.INVALID_PARTITIONS
        for replicas in ([()], [(1, 1)], [(9,)], [(2,)], [(1,), ()]):
            assert town.refuses(create("ebb", *replicas)) is Problem.INVALID_ASSIGNMENT
        assert town.refuses(create("ebb", (1,), a="x" * 1001)) is Problem.INVALID_CONFIG

    def test_partitions_of_one_topic_have_equally_many_replicas(self) -> None:
        refused = Town.founded(1, 2).refuses(create("tide", (1, 2), (1,)))
        assert refused is Problem.INVALID_ASSIGNMENT

    def test_a_full_cluster_takes_no_partition(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "MAX_TOTAL_PARTITIONS", 3)
        town = Town.founded(1)
        town.do(create("tide", (1,), (1,)))
        assert town.refuses(create("ebb", (1,), (1,))) is Problem.INVALID_PARTITIONS
        town.do(create("ebb", (1,)))

    def test_a_deleted_topic_leaves_nothing_and_its_groups_are_not_used_again(self) -> None:
        town = Town.founded(1)
        town.do(create("tide", (1,), (1,), id=5))
        groups = [each.group for each in town.state.topic("tide").partitions]
        town.do(cmd.DeleteTopic(token=T, name="tide", id=token(5)))
        assert not town.state.topics
        assert not town.state.topics_by_id
        assert town.state.partition_count == 0
        assert town.state.replica_counts[NodeId(1)] == 0
        town.do(create("tide", (1,), id=6))
        assert town.state.topic("tide").partitions[0].group not in groups
        again = cmd.DeleteTopic(token=T, name="tide", id=token(5))
        assert town.refuses(again) is Problem.UNKNOWN_TOPIC
        assert town.refuses(replace(again, name="ebb")) is Problem.UNKNOWN_TOPIC

    def test_partitions_are_added_after_those_that_are_there(self) -> None:
        town = Town.founded(1, 2)
        town.do(create("tide", (1,), id=5))
        add = cmd.AddPartitions(
            token=T, name="tide", id=token(5), first=1, replicas=(nodes(2), nodes(1))
        )
        town.do(add)
        assert [each.nodes for each in town.state.topic("tide").partitions] == [(1,), (2,), (1,)]
        assert town.refuses(add) is Problem.INVALID_PARTITIONS  # somebody was faster
        add = replace(add, first=3)
        assert town.refuses(replace(add, id=token(6))) is Problem.INVALID_PARTITIONS
        assert town.refuses(replace(add, replicas=())) is Problem.INVALID_PARTITIONS
        assert town.refuses(replace(add, replicas=(nodes(9),))) is Problem.INVALID_ASSIGNMENT
        assert town.refuses(replace(add, name="ebb")) is Problem.UNKNOWN_TOPIC

    def test_settings_are_set_and_taken_back(self) -> None:
        town = Town.founded(1)
        town.do(create("tide", (1,), a="1", b="2"))
        change = cmd.SetTopicConfig(token=T, name="tide", changes={"a": None, "c": "3"})
        town.do(change)
        assert town.state.topic("tide").config == {"b": "2", "c": "3"}
        assert town.refuses(replace(change, name="ebb")) is Problem.UNKNOWN_TOPIC
        town.do(cmd.SetClusterConfig(token=T, changes={"x": "1", "y": None}))
        town.do(cmd.SetClusterConfig(token=T, changes={"z": "2"}))
        assert town.state.config == {"x": "1", "z": "2"}
        for changes in ({"no name": "1"}, {"": "1"}, {"a": "x" * 1001}, {"a" * 201: "1"}):
            refused = cmd.SetTopicConfig(token=T, name="tide", changes={"b": None, **changes})
            assert town.refuses(refused) is Problem.INVALID_CONFIG
        many = {f"o{number}": "1" for number in range(model.MAX_OPTIONS)}
        refused_too = cmd.SetClusterConfig(token=T, changes=many)
        assert town.refuses(refused_too) is Problem.INVALID_CONFIG


class TestReassignment:
    def test_a_partition_moves_by_way_of_both_places(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2)))
        before = town.state.partition_at("tide", 0)
        town.do(reassign("tide", 0, 3, 2))
        moving = town.state.partition_at("tide", 0)
        assert moving.replicas == before.replicas
        assert moving.target is not None
        assert [each.id for each in moving.target] == [3, 2]
        assert moving.target[1] == before.replicas[1]  # who stays is who it was
        assert moving.target[0].revision > before.replicas[0].revision
        assert {each.id for each in moving.hosts} == {1, 2, 3}
        assert town.state.leader_counts[NodeId(3)] == 1
        town.do(cmd.FinishReassign(token=T, group=moving.group, target=moving.target))
        done = town.state.partition_at("tide", 0)
        assert (done.replicas, done.target) == (moving.target, None)
        assert town.state.replica_counts[NodeId(1)] == 0

    def test_a_replica_that_comes_back_is_somebody_else(self) -> None:
        town = Town.founded(1, 2)
        town.do(create("tide", (1,)))
        seen = set(town.state.partition_at("tide", 0).replicas)
        for node in (2, 1):
            town.do(reassign("tide", 0, node))
            moving = town.state.partition_at("tide", 0)
            assert moving.target is not None
            assert seen.isdisjoint(moving.target)
            seen.update(moving.target)
            town.do(cmd.FinishReassign(token=T, group=moving.group, target=moving.target))

    def test_a_move_that_is_cancelled_leads_back(self) -> None:
        town = Town.founded(1, 2)
        town.do(create("tide", (1,)))
        before = town.state.partition_at("tide", 0)
        town.do(reassign("tide", 0, 2))
        there = town.state.partition_at("tide", 0)
        town.do(cancel("tide", 0))
        back = town.state.partition_at("tide", 0)
        assert back.target == before.replicas
        assert set(back.hosts) == set(there.hosts)
        assert there.target is not None
        late = cmd.FinishReassign(token=T, group=back.group, target=there.target)
        assert town.refuses(late) is Problem.NOT_CHANGING
        town.do(cmd.FinishReassign(token=T, group=back.group, target=before.replicas))
        after = town.state.partition_at("tide", 0)
        assert (after.replicas, after.target) == (before.replicas, None)

    def test_a_move_to_where_the_replicas_are_is_done_already(self) -> None:
        town = Town.founded(1, 2)
        town.do(create("tide", (1, 2)))
        town.do(reassign("tide", 0, 1, 2))
        assert town.state.partition_at("tide", 0).target is None
        town.do(reassign("tide", 0, 2, 1))  # another preferred leader moves nothing
        assert town.state.partition_at("tide", 0).target is None
        assert town.state.partition_at("tide", 0).nodes == (2, 1)
        town.do(reassign("tide", 0, 2))
        town.do(reassign("tide", 0, 2))  # asking for a move twice is one move
        assert town.refuses(reassign("tide", 0, 1)) is Problem.BUSY

    def test_what_cannot_be_moved(self) -> None:
        town = Town.founded(1, 2)
        town.do(create("tide", (1,)))
        town.do(status(2, LEAVING))
        assert town.refuses(reassign("ebb", 0, 1)) is Problem.UNKNOWN_TOPIC
        for index in (-1, 1):
            assert town.refuses(reassign("tide", index, 1)) is Problem.UNKNOWN_PARTITION
        for replicas in ((), (1, 1), (2,), (9,)):
            assert town.refuses(reassign("tide", 0, *replicas)) is Problem.INVALID_ASSIGNMENT
        assert town.refuses(cancel("tide", 0)) is Problem.NOT_CHANGING
        assert town.refuses(cancel("tide", 1)) is Problem.UNKNOWN_PARTITION
        finish = cmd.FinishReassign(token=T, group=GroupId(99), target=())
        assert town.refuses(finish) is Problem.UNKNOWN_PARTITION
        group = town.state.partition_at("tide", 0).group
        assert town.refuses(replace(finish, group=group)) is Problem.NOT_CHANGING


class TestNumbers:
    def test_nobody_else_gets_the_same_producer_ids(self) -> None:
        town = Town.founded(1)
        assert town.do(cmd.AllocateProducerIds(token=T, count=1000)) == 0
        assert town.do(cmd.AllocateProducerIds(token=T, count=1)) == 1000
        assert town.do(cmd.AllocateProducerIds(token=T, count=5)) == 1001
        for count in (0, -1, 1_000_001):
            refused = cmd.AllocateProducerIds(token=T, count=count)
            assert town.refuses(refused) is Problem.UNAVAILABLE

    def test_numbers_that_are_used_up_are_refused(self) -> None:
        town = Town.founded(1)
        town.state.next_revision = 2**31
        assert town.refuses(join(2)) is Problem.UNAVAILABLE
        assert town.refuses(create("tide", (1,))) is Problem.UNAVAILABLE
        town.state.next_producer_id = 2**63 - 2
        refused = cmd.AllocateProducerIds(token=T, count=2)
        assert town.refuses(refused) is Problem.UNAVAILABLE

    def test_a_feature_needs_everybody_and_is_not_lost_again(self) -> None:
        town = Town.founded(1, 2)
        town.do(update(1, version=3))
        assert town.refuses(feature("spring", 1, needs=3)) is Problem.UNAVAILABLE
        town.do(update(2, version=3))
        town.do(feature("spring", 2, needs=3))
        town.do(feature("spring", 1, needs=1))  # already more than that
        assert town.state.features == {"spring": 2}
        assert town.refuses(join(3, version=2)) is Problem.UNAVAILABLE
        assert town.refuses(update(1, version=2)) is Problem.UNAVAILABLE
        town.do(join(3, version=3))
        assert town.refuses(feature("no name", 1, needs=1)) is Problem.INVALID_NAME
        assert town.refuses(feature("spring", 0, needs=1)) is Problem.INVALID_NAME

    def test_there_are_not_more_features_than_a_bound(self) -> None:
        town = Town.founded(1)
        for number in range(model.MAX_OPTIONS):
            town.do(feature(f"f{number}", 1, needs=0))
        assert town.refuses(feature("one.more", 1, needs=0)) is Problem.UNAVAILABLE
        town.do(feature("f0", 2, needs=0))


class TestTokens:
    def test_a_command_proposed_twice_is_carried_out_once(self) -> None:
        town = Town.founded(1)
        command = cmd.AllocateProducerIds(token=token(7), count=10)
        heard: list[int] = []
        town.state.on_change(lambda: heard.append(town.state.version))
        town.feed(command)
        town.feed(command)
        assert town.state.results[token(7)].get() == 0
        assert town.state.next_producer_id == 10
        assert len(heard) == 1

    def test_a_refusal_is_remembered_too(self) -> None:
        town = Town.founded(1)
        refused = replace(create("tide", (2,)), token=token(7))
        town.feed(refused)
        town.do(join(2))
        town.feed(refused)
        with pytest.raises(ClusterError) as caught:
            town.state.results[token(7)].get()
        assert caught.value.problem is Problem.INVALID_ASSIGNMENT
        assert not town.state.topics

    def test_the_oldest_results_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "MAX_RESULTS", 5)
        town = Town.founded(1)
        for number in range(10, 20):
            town.feed(cmd.AllocateProducerIds(token=token(number), count=1))
        assert list(town.state.results) == [token(number) for number in range(15, 20)]

    def test_a_long_complaint_is_cut(self) -> None:
        town = Town.founded(1)
        result = town.try_(create("ebb" * 1000, (1,)))
        assert result.problem is Problem.INVALID_NAME
        assert len(result.message) <= state.MAX_MESSAGE


class TestMachine:
    def test_listeners_hear_of_changes_until_they_leave(self) -> None:
        town = Town.founded(1)
        heard: list[str] = []
        leave = town.state.on_change(lambda: heard.append("a"))
        town.state.on_change(lambda: heard.append("b"))
        town.do(join(2))
        leave()
        town.refuses(join(2))
        town.state.restore(town.state.snapshot())
        assert heard == ["a", "b", "b", "b"]

    def test_other_batches_are_none_of_its_business(self) -> None:
        town = Town.founded(1)
        before = town.state.snapshot()
        town.state.apply(internal_batch(BatchType.CONFIGURATION, b"x"))
        town.state.apply(build_batch([Record(0, 0, None, b"x")]))
        assert town.state.snapshot() == before

    @pytest.mark.parametrize("payload", [b"", b"{}", b"\xff"])
    def test_what_is_no_command_for_this_release_is_not_skipped(self, payload: bytes) -> None:
        town = Town.founded(1)
        before = town.state.snapshot()
        with pytest.raises(NeedsRelease, match="upgrade this node to a newer release than 1"):
            town.state.apply(internal_batch(BatchType.CHANGELOG, payload))
        assert town.state.snapshot() == before

    @pytest.mark.parametrize(
        "fields",
        [
            {"kind": "Sink"},
            {"kind": "Sink", "command": [1]},
            {"version": 2},
            {"command": {"more": 1}},
            {"beside": 1},
            {},
        ],
        ids=str,
    )
    def test_a_command_of_a_later_release_is_not_skipped_and_says_which(
        self, fields: dict[str, object]
    ) -> None:
        town = Town.founded(1)
        before = town.state.snapshot()
        envelope = {**json.loads(cmd.encode(join(2))), "needs": 7, **fields}
        batch = internal_batch(BatchType.CHANGELOG, _bytes(envelope)).stamp(Offset(40), Term(1))
        with pytest.raises(NeedsRelease, match=r"offset 40 .*: upgrade this node to release 7$"):
            town.state.apply(batch)
        assert town.state.snapshot() == before

    def test_no_command_is_proposed_that_a_member_cannot_carry_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        town = Town.founded(1)
        town.do(join(2, version=2))
        monkeypatch.setitem(cmd._SINCE, cmd.DeleteTopic, 2)
        later = cmd.DeleteTopic(token=T, name="tide", id=T)
        with pytest.raises(ClusterError, match=r"needs release 2 .* node 1 runs release 1"):
            town.state.check_decodable(later)
        town.state.check_decodable(join(3))
        town.do(update(1, version=2))
        town.state.check_decodable(later)

    def test_nothing_of_its_log_must_stay_for_its_sake(self) -> None:
        assert Town.founded(1).state.collectible() == NO_OBJECTION

    @settings(max_examples=150)
    @given(st.lists(commands | likely, max_size=40), st.data())
    def test_whatever_comes_the_state_is_sound_and_a_copy_goes_on_the_same_way(
        self, sequence: list[cmd.Command], data: st.DataObject
    ) -> None:
        town = Town.founded(0, 1, 2)
        half = data.draw(st.integers(0, len(sequence)))
        for command in sequence[:half]:
            town.try_(command)
        other = town.copy()
        assert contents(other) == contents(town.state)
        assert other.snapshot() == town.state.snapshot()
        for number, command in enumerate(sequence[half:]):
            fresh = replace(command, token=token(2**100 + number))
            batch = internal_batch(BatchType.CHANGELOG, cmd.encode(fresh))
            town.state.apply(batch)
            other.apply(batch)
            town.state.check_invariants()
            other.check_invariants()
        assert other.snapshot() == town.state.snapshot()
        assert other.results == town.state.results


class TestSnapshots:
    def harbour(self) -> Town:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2), (2, 3), a="1"))
        town.do(create("ebb", (3,)))
        town.do(reassign("tide", 0, 3, 2))
        town.do(feature("spring", 1, needs=1))
        town.refuses(join(1))
        return town

    def test_nothing_restores_to_nothing(self) -> None:
        town = self.harbour()
        town.state.restore(b"")
        assert contents(town.state) == contents(ClusterState())

    def test_a_damaged_snapshot_is_refused_and_the_state_stays(self) -> None:
        town = self.harbour()
        whole = town.state.snapshot()
        other = self.harbour()
        for damaged in (b"x", b"{}", whole[:-1], whole + b" ", b" " + whole):
            with pytest.raises(CorruptSnapshot):
                other.state.restore(damaged)
            assert other.state.snapshot() == whole

    @settings(max_examples=200)
    @given(st.data())
    def test_a_flipped_byte_is_refused_or_makes_another_sound_state(
        self, data: st.DataObject
    ) -> None:
        damaged = bytearray(self.harbour().state.snapshot())
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(32, 126))
        fresh = ClusterState()
        with suppress(CorruptSnapshot, CannotApply):
            fresh.restore(bytes(damaged))
            assert fresh.snapshot() == damaged

    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("next_group", 2, "never given out"),
            ("version", -1, "below its first value"),
            ("next_revision", 0, "below its first value"),
        ],
    )
    def test_a_snapshot_that_contradicts_itself_is_refused(
        self, field: str, value: object, says: str
    ) -> None:
        plain = json.loads(self.harbour().state.snapshot())
        plain[field] = value
        with pytest.raises(CorruptSnapshot, match=says):
            ClusterState().restore(_bytes(plain))

    @pytest.mark.parametrize(
        ("format", "says"),
        [
            (3, "written by another release .*upgrade this node to a newer release than 1"),
            (
                1,
                "written by another release: .*Start this node with that release, or with an empty",
            ),
        ],
    )
    def test_the_snapshot_of_another_release_is_not_called_damaged(
        self, format: int, says: str
    ) -> None:
        town = self.harbour()
        before = town.state.snapshot()
        plain = {"format": format, "topics": {"another": "shape"}}
        with pytest.raises(CannotApply, match=says):
            town.state.restore(_bytes(plain))
        assert town.state.snapshot() == before

    def test_topics_that_contradict_themselves_are_refused(self) -> None:
        whole = self.harbour().state.snapshot()
        spoilt = [json.loads(whole) for _ in range(5)]
        spoilt[0]["topics"][0]["partitions"] = []
        spoilt[1]["topics"][1]["partitions"].reverse()
        spoilt[2]["topics"][0]["id"] = spoilt[2]["topics"][1]["id"]
        spoilt[3]["topics"][0]["partitions"][0]["replicas"] = []
        spoilt[4]["topics"][1]["partitions"][0]["group"] = 2
        for plain in spoilt:
            with pytest.raises(CorruptSnapshot):
                ClusterState().restore(_bytes(plain))


def _bytes(plain: object) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
