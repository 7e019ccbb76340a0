"""Configurations: their bytes, and why neighbours in a change can never decide apart."""

import struct
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.raft import quorum
from tidelog.raft.configuration import EMPTY, Configuration, InvalidConfiguration
from tidelog.raft.types import NodeId, Vnode


def vnodes(*numbers: int) -> tuple[Vnode, ...]:
    return tuple(Vnode(NodeId(number), 0) for number in numbers)


ids = st.integers(0, 2**31 - 1)
sets_of_nodes = st.lists(
    st.builds(Vnode, ids.map(NodeId), st.integers(0, 3)), max_size=5, unique_by=lambda node: node.id
).map(tuple)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    voters, old = draw(sets_of_nodes), draw(sets_of_nodes)
    learners = tuple(node for node in draw(sets_of_nodes) if node not in voters + old)
    return Configuration(voters, old, learners)


@given(configurations())
def test_what_is_encoded_is_decoded(configuration: Configuration) -> None:
    assert Configuration.decode(configuration.encode()) == configuration


@given(st.one_of(st.binary(max_size=80), configurations().map(Configuration.encode)), st.data())
def test_hostile_bytes_are_refused_or_are_a_configuration(
    data: bytes, draws: st.DataObject
) -> None:
    hostile = bytearray(data)
    if hostile and draws.draw(st.booleans()):
        place = draws.draw(st.integers(0, len(hostile) - 1))
        hostile[place] ^= draws.draw(st.integers(1, 255))
    del hostile[draws.draw(st.integers(0, len(hostile))) :]
    try:
        configuration = Configuration.decode(bytes(hostile))
    except InvalidConfiguration:
        return
    assert configuration.encode() == bytes(hostile)


def test_a_version_of_the_future_asks_for_an_upgrade() -> None:
    with pytest.raises(InvalidConfiguration, match=r"version 2 .* upgrade this node"):
        Configuration.decode(b"\x02" + EMPTY.encode()[1:])


def test_counts_that_promise_more_nodes_than_there_are_bytes_cost_no_memory() -> None:
    huge = struct.pack(">BHHH", 1, 65535, 65535, 65535)
    with pytest.raises(InvalidConfiguration, match="do not hold 196605 nodes"):
        Configuration.decode(huge)


def test_a_node_is_listed_once_and_a_learner_is_no_voter() -> None:
    twice = (Vnode(NodeId(1), 0), Vnode(NodeId(1), 2))
    for sets in ((twice, (), ()), ((), twice, ()), (vnodes(2), (), twice)):
        with pytest.raises(InvalidConfiguration, match="listed twice"):
            Configuration(*sets)
    with pytest.raises(InvalidConfiguration, match="voter too"):
        Configuration(vnodes(1, 2), (), vnodes(2))
    with pytest.raises(InvalidConfiguration, match="voter too"):
        Configuration(vnodes(1), vnodes(2), vnodes(2))


def test_a_wiped_node_may_learn_beside_its_former_self() -> None:
    wiped = Vnode(NodeId(1), 1)
    configuration = Configuration(vnodes(1, 2, 3), (), (wiped,))
    assert not configuration.is_voter(wiped)
    assert wiped in configuration.members


def _quorums(configuration: Configuration) -> list[set[Vnode]]:
    members = configuration.members
    return [
        set(chosen)
        for size in range(len(members) + 1)
        for chosen in combinations(members, size)
        if quorum.agreed(configuration.halves, set(chosen).__contains__)
    ]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
)
def test_every_quorum_of_a_joint_configuration_meets_every_quorum_of_its_neighbours(
    old: list[int], new: list[int]
) -> None:
    newcomers = vnodes(*(number for number in new if number not in old))
    before = Configuration(vnodes(*old)).with_learners(newcomers)
    joint = before.joint(vnodes(*new))
    after, back = joint.left(), joint.cancelled()
    assert after == Configuration(vnodes(*new))
    assert back == Configuration(vnodes(*old))
    for neighbour in (before, after, back):
        for one in _quorums(joint):
            for other in _quorums(neighbour):
                assert one & other


def test_a_learner_that_becomes_a_voter_is_no_learner_any_more() -> None:
    before = Configuration(vnodes(1, 2, 3)).with_learners(vnodes(4, 5))
    joint = before.joint(vnodes(1, 2, 4))
    assert str(joint) == "(n1 n2 n4)&(n1 n2 n3) learners=(n5)"
    assert joint.members == vnodes(1, 2, 4, 3, 5)


def test_the_first_voter_is_preferred_and_learners_never_stand() -> None:
    configuration = Configuration(vnodes(3, 1), vnodes(1, 2), vnodes(7))
    assert [configuration.priority(node) for node in vnodes(3, 1, 2, 7, 9)] == [3, 2, 1, 0, 0]


def test_it_prints_itself_in_one_line() -> None:
    assert str(Configuration(vnodes(1, 2, 3))) == "(n1 n2 n3)"
    assert str(Configuration((Vnode(NodeId(4), 2),))) == "(n4r2)"
    assert str(EMPTY) == "()"
