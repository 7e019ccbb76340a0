"""Who leads what: claims as bytes, and which of two claims is believed."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cluster import leaders
from tidelog.cluster.leaders import (
    Claim,
    CorruptClaims,
    Leadership,
    LeaderTable,
    decode_claims,
    encode_claims,
)
from tidelog.raft.types import GroupId, NodeId

ONE, TWO = NodeId(1), NodeId(2)
GROUP = GroupId(7)

numbers = st.integers(0, 2**63 - 1)
claims = st.builds(
    Claim, numbers.map(GroupId), numbers, st.lists(numbers.map(NodeId), max_size=4).map(tuple)
)


def claim(term: int, *in_sync: NodeId) -> Claim:
    return Claim(GROUP, term, in_sync)


class TestClaims:
    @given(st.lists(claims, max_size=5))
    def test_what_is_written_is_read(self, told: list[Claim]) -> None:
        assert decode_claims(encode_claims(told)) == told

    @given(st.binary(max_size=40))
    def test_garbage_is_corrupt(self, garbage: bytes) -> None:
        with suppress(CorruptClaims):
            assert decode_claims(garbage) == []  # the one list that is as short as that

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"{}",
            b"1",
            b"[1]",
            b"[[1,2]]",
            b"[[1,2,3]]",
            b'[[1,2,"34"]]',
            b'[["1",2,[]]]',
            b"[[1.0,2,[]]]",
            b"[[1e999,2,[]]]",
            b"[[Infinity,2,[]]]",
            b"[[NaN,2,[]]]",
            b"[[true,2,[]]]",
            b"[[-1,2,[]]]",
            b"[[1,-2,[]]]",
            b"[[1,2,[-3]]]",
            b"[[1,2,[null]]]",
            b"[[9223372036854775808,2,[]]]",
            b"[" * 100_000,
            b"[[1,2," + b"[" * 900 + b"]" * 900 + b"]]",
            b"\xff",
        ],
        ids=lambda payload: payload[:30],
    )
    def test_what_is_no_list_of_claims_is_corrupt(self, payload: bytes) -> None:
        with pytest.raises(CorruptClaims):
            decode_claims(payload)

    def test_more_claims_than_a_node_can_have_are_corrupt(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leaders, "MAX_CLAIMS", 2)
        assert len(decode_claims(json.dumps([[1, 1, []]] * 2).encode())) == 2
        with pytest.raises(CorruptClaims, match="at most 2"):
            decode_claims(json.dumps([[1, 1, []]] * 3).encode())


class TestTable:
    def test_the_higher_term_is_true_whoever_is_heard_first(self) -> None:
        table = LeaderTable()
        assert table.get(GROUP) is None
        assert table.claim(ONE, claim(3, ONE, TWO))
        assert not table.claim(TWO, claim(2, TWO))
        assert table.get(GROUP) == ONE
        assert table.claim(TWO, claim(4, TWO))
        assert table.leadership(GROUP) == Leadership(4, TWO, (TWO,))

    def test_the_same_claim_again_is_no_news_and_other_followers_are(self) -> None:
        table = LeaderTable()
        assert table.claim(ONE, claim(3, ONE))
        assert not table.claim(ONE, claim(3, ONE))
        assert table.claim(ONE, claim(3, ONE, TWO))

    @given(st.permutations([(1, 3), (2, 3), (1, 2), (2, 1)]))
    def test_all_who_hear_the_same_claims_believe_the_same(
        self, order: list[tuple[int, int]]
    ) -> None:
        table = LeaderTable()
        for node, term in order:
            table.claim(NodeId(node), claim(term))
        assert table.leadership(GROUP) == Leadership(3, TWO, ())

    def test_a_later_term_ends_a_leadership_and_an_older_does_not(self) -> None:
        table = LeaderTable()
        table.lost(GROUP, 9)  # of a group nobody knows
        table.claim(ONE, claim(3))
        table.lost(GROUP, 3)
        assert table.get(GROUP) == ONE
        table.lost(GROUP, 4)
        assert table.get(GROUP) is None

    def test_groups_that_are_gone_are_forgotten(self) -> None:
        table = LeaderTable()
        table.claim(ONE, claim(3))
        table.claim(ONE, Claim(GroupId(8), 1, ()))
        table.keep_only({GROUP, GroupId(9)}, 10)
        assert table.get(GROUP) == ONE
        assert table.get(GroupId(8)) is None
        assert not table.has_led(GroupId(8))

    def test_a_leader_may_be_heard_of_before_its_topic(self) -> None:
        table = LeaderTable()
        table.claim(ONE, Claim(GroupId(12), 1, ()))
        table.keep_only({GROUP}, 10)
        assert table.get(GroupId(12)) == ONE
        assert table.has_led(GroupId(12))

    def test_a_group_has_led_though_its_leader_is_gone(self) -> None:
        table = LeaderTable()
        assert not table.has_led(GROUP)
        table.claim(ONE, claim(3))
        table.lost(GROUP, 4)
        assert table.get(GROUP) is None
        assert table.has_led(GROUP)
