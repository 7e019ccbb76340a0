"""Counting votes against a naive twin, and who stands first."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.raft.configuration import Configuration
from tidelog.raft.election import Campaign, Outcome, Preference
from tidelog.raft.messages import Ballot
from tidelog.raft.types import NodeId, Vnode

NODES = [Vnode(NodeId(number), 0) for number in range(6)]
N = NODES


@given(
    st.lists(st.sampled_from(NODES[:5]), min_size=1, unique=True),
    st.lists(st.sampled_from(NODES[:5]), unique=True),
    st.lists(st.tuples(st.sampled_from(NODES), st.booleans()), max_size=12),
)
def test_the_first_vote_of_each_voter_decides(
    voters: list[Vnode], old: list[Vnode], ballots: list[tuple[Vnode, bool]]
) -> None:
    campaign = Campaign(Ballot.VOTE, Configuration(tuple(voters), tuple(old)))
    first: dict[Vnode, bool] = {}
    for voter, granted in ballots:
        first.setdefault(voter, granted)
        outcome = campaign.record(voter, granted)
        halves = [half for half in (voters, old) if half]
        yes = [sum(first.get(node, False) for node in half) for half in halves]
        no = [sum(not first.get(node, True) for node in half) for half in halves]
        if all(2 * count > len(half) for count, half in zip(yes, halves, strict=True)):
            expected = Outcome.WON
        elif any(2 * count >= len(half) for count, half in zip(no, halves, strict=True)):
            expected = Outcome.LOST
        else:
            expected = Outcome.PENDING
        assert outcome is expected


def test_a_single_voter_wins_with_its_own_vote() -> None:
    assert Campaign(Ballot.VOTE, Configuration((N[0],))).record(N[0], True) is Outcome.WON


def test_learners_and_strangers_cannot_elect() -> None:
    campaign = Campaign(Ballot.VOTE, Configuration((N[0], N[1], N[2]), (), (N[3],)))
    campaign.record(N[0], True)
    assert campaign.record(N[3], True) is Outcome.PENDING
    assert campaign.record(N[4], True) is Outcome.PENDING
    assert campaign.record(Vnode(NodeId(1), 5), True) is Outcome.PENDING, "a former self of n1"
    assert campaign.record(N[1], True) is Outcome.WON


def rounds_until_standing(node: Vnode, lost: Vnode | None, configuration: Configuration) -> int:
    preference = Preference()
    return next(
        rounds for rounds in range(20) if preference.should_stand(node, lost, configuration)
    )


def test_everybody_stands_at_last_the_preferred_first() -> None:
    configuration = Configuration(tuple(N[:5]))
    waits = [rounds_until_standing(node, None, configuration) for node in N[:5]]
    assert waits == [0, 1, 2, 3, 4]


def test_the_leader_just_lost_is_not_waited_for() -> None:
    configuration = Configuration(tuple(N[:3]))
    assert rounds_until_standing(N[1], N[0], configuration) == 0
    assert rounds_until_standing(N[2], N[0], configuration) == 1
    assert rounds_until_standing(N[2], N[1], configuration) == 2, "n0 is still there"


def test_a_known_leader_makes_the_next_election_start_afresh() -> None:
    configuration = Configuration(tuple(N[:3]))
    preference = Preference()
    assert not preference.should_stand(N[2], None, configuration)
    preference.reset()
    assert not preference.should_stand(N[2], None, configuration)
    assert not preference.should_stand(N[2], None, configuration)
    assert preference.should_stand(N[2], None, configuration)
