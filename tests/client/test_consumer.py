"""How a group shares out partitions, and the bytes in which its members tell each other."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client import TopicPartition
from tidelog.client.consumer import assign_ranges, write_assignment
from tidelog.client.groups import read_assignment

topics = st.sampled_from(["a", "b", "c"])


@given(
    st.dictionaries(
        st.text(alphabet="xyz", min_size=1, max_size=3),
        st.lists(topics, unique=True, min_size=1),
        min_size=1,
    ),
    st.dictionaries(topics, st.integers(1, 9)),
)
def test_every_partition_that_somebody_wants_goes_to_one_of_them(
    wanted: dict[str, list[str]], counts: dict[str, int]
) -> None:
    shares = assign_ranges(wanted, counts)
    given_out = [partition for share in shares.values() for partition in share]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == {
        TopicPartition(topic, index)
        for topic, count in counts.items()
        if any(topic in each for each in wanted.values())
        for index in range(count)
    }
    for member, share in shares.items():
        assert all(partition.topic in wanted[member] for partition in share)


def test_shares_are_runs_as_even_as_can_be() -> None:
    shares = assign_ranges({"m1": ["t"], "m2": ["t"], "m3": ["t"]}, {"t": 7})
    assert [[p.index for p in share] for share in shares.values()] == [[0, 1, 2], [3, 4], [5, 6]]


def test_an_assignment_survives_the_way_to_its_member() -> None:
    share = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
    assert read_assignment(write_assignment(share)) == tuple(share)
    assert read_assignment(b"") == ()
    assert read_assignment(b"\0\0garbage that is no assignment") == ()
