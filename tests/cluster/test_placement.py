"""Where replicas go: the rules of the module, each as a property."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidelog.cluster.model import Address, Member, MemberStatus, PartitionState
from tidelog.cluster.placement import LeaderMove, Move, balance_leaders, place, plan_reassign
from tidelog.raft.types import GroupId, NodeId, Vnode

HERE = Address("10.0.0.1", 9092)


def member(number: int, rack: str | None = None) -> Member:
    return Member(NodeId(number), 0, rack, HERE, HERE, MemberStatus.ACTIVE, 1)


def members(*racks: str | None) -> list[Member]:
    """Nodes 0, 1, 2... in these racks."""
    return [member(number, rack) for number, rack in enumerate(racks)]


def partition(group: int, *nodes: int, target: Sequence[int] | None = None) -> PartitionState:
    goal = None if target is None else tuple(Vnode(NodeId(each), 1) for each in target)
    replicas = tuple(Vnode(NodeId(each), 0) for each in nodes)
    return PartitionState(group, GroupId(group), replicas, goal)


def spread(counts: Sequence[int]) -> int:
    return max(counts) - min(counts)


def racks_of(nodes: Sequence[NodeId], among: Sequence[Member]) -> Counter[object]:
    rack = {each.id: each.id if each.rack is None else each.rack for each in among}
    return Counter(rack[node] for node in nodes)


clusters = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8).map(
    lambda racks: members(*racks)
)


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Member], int, int]:
    cluster = draw(clusters)
    return cluster, draw(st.integers(0, 20)), draw(st.integers(1, len(cluster)))


class TestPlace:
    @given(questions())
    def test_a_node_holds_one_replica_of_a_partition(
        self, question: tuple[list[Member], int, int]
    ) -> None:
        cluster, partitions, factor = question
        placed = place(cluster, {}, {}, partitions, factor)
        assert len(placed) == partitions
        for nodes in placed:
            assert len(set(nodes)) == len(nodes) == factor
            assert set(nodes) <= {each.id for each in cluster}

    @given(questions())
    def test_no_rack_gets_a_second_replica_while_another_has_none(
        self, question: tuple[list[Member], int, int]
    ) -> None:
        cluster, partitions, factor = question
        sizes = racks_of([each.id for each in cluster], cluster)
        for nodes in place(cluster, {}, {}, partitions, factor):
            used = racks_of(nodes, cluster)
            fullest = max(used.values())
            for rack, size in sizes.items():
                assert used[rack] >= fullest - 1 or used[rack] == size

    @given(st.integers(1, 8), st.integers(1, 30), st.data())
    def test_without_racks_replicas_and_leaders_are_even(
        self, size: int, partitions: int, data: st.DataObject
    ) -> None:
        factor = data.draw(st.integers(1, size))
        cluster = members(*[None] * size)
        placed = place(cluster, {}, {}, partitions, factor)
        replicas = Counter(node for nodes in placed for node in nodes)
        leaders = Counter(nodes[0] for nodes in placed)
        assert spread([replicas[each.id] for each in cluster]) <= 1
        assert spread([leaders[each.id] for each in cluster]) <= 1

    @given(questions())
    def test_the_answer_depends_on_the_question_alone(
        self, question: tuple[list[Member], int, int]
    ) -> None:
        cluster, partitions, factor = question
        backwards = list(reversed(cluster))
        assert place(cluster, {}, {}, partitions, factor) == place(
            backwards, {}, {}, partitions, factor
        )

    def test_a_new_node_gets_what_the_others_have_too_much_of(self) -> None:
        load = {NodeId(0): 10, NodeId(1): 10}
        placed = place(members(None, None, None), load, load, 5, 1)
        assert placed == ((2,),) * 5

    def test_the_lower_id_decides_last(self) -> None:
        assert place(members(None, None, None), {}, {}, 1, 2) == ((0, 1),)

    @pytest.mark.parametrize("factor", [0, -1, 4])
    def test_more_replicas_than_nodes_cannot_be_placed(self, factor: int) -> None:
        with pytest.raises(ValueError, match="on 3 nodes"):
            place(members(None, None, None), {}, {}, 1, factor)


class TestReassign:
    def test_the_replica_of_a_node_that_leaves_goes_to_the_emptiest_node(self) -> None:
        cluster = members(None, None, None, None)
        load = {NodeId(0): 1, NodeId(1): 5, NodeId(2): 3, NodeId(3): 3}
        moves = plan_reassign(cluster[1:], [partition(7, 0, 1)], load, {NodeId(0)}, 10)
        assert moves == [Move(GroupId(7), (NodeId(2), NodeId(1)))]

    def test_it_goes_to_another_rack_if_there_is_one(self) -> None:
        cluster = members("a", "b", "b", "c")
        load = {NodeId(3): 100}
        moves = plan_reassign(cluster[1:], [partition(7, 0, 1)], load, {NodeId(0)}, 10)
        assert moves == [Move(GroupId(7), (NodeId(3), NodeId(1)))]

    def test_what_cannot_or_need_not_move_is_left_out(self) -> None:
        stay = [
            partition(1, 0, 1, 2),  # nobody is left for it
            partition(2, 1, 2),  # not on a node that leaves
            partition(3, 0, 1, target=(1, 2)),  # on its way
        ]
        assert plan_reassign(members(None, None, None)[1:], stay, {}, {NodeId(0)}, 10) == []

    def test_a_partition_that_cannot_move_takes_nothing_from_the_others(self) -> None:
        cluster = [member(3), member(4)]
        cannot = partition(1, 0, 1, 2)  # all three leave, and there are two nodes
        can = partition(2, 0)
        leaving = {NodeId(0), NodeId(1), NodeId(2)}
        load = {NodeId(3): 0, NodeId(4): 1}
        assert plan_reassign(cluster, [cannot, can], load, leaving, 10) == [
            Move(GroupId(2), (NodeId(3),))
        ]

    @given(
        st.lists(st.permutations(range(6)), max_size=10),
        st.sets(st.integers(0, 5), min_size=1),
        st.integers(1, 3),
        st.integers(0, 10),
    )
    def test_moves_are_few_and_leave_everything_else_where_it_is(
        self, orders: list[list[int]], leaving: set[int], factor: int, limit: int
    ) -> None:
        partitions = [partition(n, *order[:factor]) for n, order in enumerate(orders)]
        staying = [member(number) for number in range(6) if number not in leaving]
        gone = set(map(NodeId, leaving))
        moves = plan_reassign(staying, partitions, {}, gone, limit)
        assert len(moves) <= limit
        by_group = {each.group: each for each in partitions}
        for move in moves:
            before = by_group[move.group].nodes
            assert len(set(move.replicas)) == len(before)
            assert gone.isdisjoint(move.replicas)
            assert all(
                new == old
                for new, old in zip(move.replicas, before, strict=True)
                if old not in gone
            )
        if len(staying) >= factor:
            due = sum(not gone.isdisjoint(each.nodes) for each in partitions)
            assert len(moves) == min(limit, due)


groups_led = st.lists(
    st.tuples(st.permutations(range(5)), st.integers(1, 4), st.integers(0, 4)), max_size=12
)


class TestLeaders:
    @given(groups_led, st.sets(st.integers(0, 4)), st.integers(0, 12))
    def test_moves_go_to_a_replica_that_may_lead_and_stop_at_the_limit(
        self, led: list[tuple[list[int], int, int]], able: set[int], limit: int
    ) -> None:
        replicas = {
            GroupId(n): [NodeId(each) for each in order[:factor]]
            for n, (order, factor, _) in enumerate(led)
        }
        leaders = {
            GroupId(n): replicas[GroupId(n)][place % factor]
            for n, (_, factor, place) in enumerate(led)
        }
        eligible = set(map(NodeId, able))
        moves = balance_leaders(leaders, replicas, eligible, limit)
        assert len(moves) <= limit
        assert len({move.group for move in moves}) == len(moves)
        for move in moves:
            assert move.source == leaders[move.group] != move.target
            assert move.target in eligible
            assert move.target in replicas[move.group]
        urgent = [move.source not in eligible for move in moves]
        assert urgent == sorted(urgent, reverse=True)

    @given(groups_led, st.sets(st.integers(0, 4), min_size=1))
    def test_after_the_moves_there_is_nothing_left_to_move(
        self, led: list[tuple[list[int], int, int]], able: set[int]
    ) -> None:
        replicas = {
            GroupId(n): [NodeId(each) for each in order[:factor]]
            for n, (order, factor, _) in enumerate(led)
        }
        leaders = {group: nodes[-1] for group, nodes in replicas.items()}
        eligible = set(map(NodeId, able))
        for move in balance_leaders(leaders, replicas, eligible, 100):
            leaders[move.group] = move.target
        assert balance_leaders(leaders, replicas, eligible, 100) == []
        for group, leader in leaders.items():
            assume(not eligible.isdisjoint(replicas[group]))
            assert leader in eligible
            assert leader == replicas[group][0] or replicas[group][0] not in eligible

    def test_a_group_whose_leader_may_not_lead_goes_to_whoever_leads_least(self) -> None:
        one, two, three = NodeId(1), NodeId(2), NodeId(3)
        moves = balance_leaders(
            {GroupId(1): one, GroupId(2): two, GroupId(3): one},
            {GroupId(1): [one, two, three], GroupId(2): [two], GroupId(3): [one, two, three]},
            {two, three},
            10,
        )
        assert moves == [
            LeaderMove(GroupId(1), one, three),
            LeaderMove(GroupId(3), one, two),
        ]

    def test_a_group_that_is_led_well_stays_while_its_preferred_replica_is_away(self) -> None:
        one, two, three = NodeId(1), NodeId(2), NodeId(3)
        assert (
            balance_leaders({GroupId(1): three}, {GroupId(1): [one, two, three]}, {two, three}, 9)
            == []
        )
        assert balance_leaders({GroupId(1): one}, {GroupId(1): [one, two]}, set(), 9) == []
