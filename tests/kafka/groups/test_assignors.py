"""Who gets which partition: all of them, each once, evenly, and as before where possible."""

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.kafka.groups.assignors import ASSIGNORS, Subscriber, range_assignor, uniform_assignor
from tidelog.kafka.groups.records import Assigned

TOPICS = [UUID(int=number) for number in range(1, 5)]

sizes = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
members = st.sampled_from([f"m{number}" for number in range(8)])
wishes = st.dictionaries(members, st.frozensets(st.sampled_from(TOPICS)), min_size=1)


def subscribers(
    wanted: dict[str, frozenset[UUID]], assigned: dict[str, Assigned] | None = None
) -> dict[str, Subscriber]:
    return {
        member: Subscriber(topics, member, (assigned or {}).get(member, frozenset()))
        for member, topics in wanted.items()
    }


@given(st.sampled_from(sorted(ASSIGNORS)), wishes, sizes)
def test_every_partition_that_somebody_wants_is_read_by_one_who_wants_it(
    name: str, wanted: dict[str, frozenset[UUID]], sizes: dict[UUID, int]
) -> None:
    found = ASSIGNORS[name](subscribers(wanted), sizes)
    assert found.keys() == wanted.keys()
    times = Counter(partition for partitions in found.values() for partition in partitions)
    anybody = frozenset[UUID]().union(*wanted.values())
    assert times == Counter(
        (topic, index) for topic, size in sizes.items() if topic in anybody for index in range(size)
    )
    for member, partitions in found.items():
        assert {topic for topic, _ in partitions} <= wanted[member]


@given(st.sets(members, min_size=1), sizes)
def test_equal_members_get_shares_that_differ_by_one_at_most(
    names: set[str], sizes: dict[UUID, int]
) -> None:
    found = uniform_assignor(subscribers(dict.fromkeys(names, frozenset(TOPICS))), sizes)
    shares = [len(partitions) for partitions in found.values()]
    assert max(shares) - min(shares) <= 1


@given(wishes, sizes, st.data())
def test_nobody_loses_a_partition_to_one_who_had_as_many(
    wanted: dict[str, frozenset[UUID]], sizes: dict[UUID, int], data: st.DataObject
) -> None:
    before = uniform_assignor(subscribers(wanted), sizes)
    assert uniform_assignor(subscribers(wanted, before), sizes) == before, "nothing changed"
    gone = data.draw(st.sampled_from(sorted(wanted)))
    left = {member: topics for member, topics in wanted.items() if member != gone}
    everybody_alike = len(set(wanted.values())) == 1
    after = uniform_assignor(subscribers(left, before), sizes)
    if everybody_alike:
        for member in left:
            assert before[member] <= after[member]


def test_a_newcomer_takes_no_more_than_its_share() -> None:
    sizes = {TOPICS[0]: 9}
    wanted = dict.fromkeys(("a", "b"), frozenset(TOPICS[:1]))
    before = uniform_assignor(subscribers(wanted), sizes)
    after = uniform_assignor(subscribers(wanted | {"c": frozenset(TOPICS[:1])}, before), sizes)
    assert {member: len(partitions) for member, partitions in after.items()} == {
        "a": 3,
        "b": 3,
        "c": 3,
    }
    moved = sum(len(before[member] - after[member]) for member in "ab")
    assert moved == 3


def test_ranges_follow_the_order_of_members_and_meet_across_topics() -> None:
    sizes = {TOPICS[0]: 5, TOPICS[1]: 5}
    wanted = dict.fromkeys(("b", "a"), frozenset(TOPICS[:2]))
    found = range_assignor(subscribers(wanted), sizes)
    assert found["a"] == {(topic, index) for topic in sizes for index in (0, 1, 2)}
    assert found["b"] == {(topic, index) for topic in sizes for index in (3, 4)}


def test_a_static_member_keeps_its_range_under_another_id() -> None:
    sizes = {TOPICS[0]: 4}
    topics = frozenset(TOPICS[:1])
    before = range_assignor({"x": Subscriber(topics, "one"), "y": Subscriber(topics, "two")}, sizes)
    after = range_assignor({"y": Subscriber(topics, "two"), "z": Subscriber(topics, "one")}, sizes)
    assert after["z"] == before["x"]
