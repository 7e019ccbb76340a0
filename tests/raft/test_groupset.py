import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.raft.groupset import (
    CorruptBeat,
    LightBeat,
    LightReply,
    check_bytes,
    decode_beat,
    decode_reply,
    encode_beat,
    encode_reply,
)

HEADER = 13
LAST = 2**63 - 1

ids = st.lists(
    st.integers(0, 300) | st.integers(0, LAST) | st.sampled_from([127, 128, 16383, 16384, LAST]),
    unique=True,
    max_size=40,
).map(sorted)


def beat(groups: list[int], sequence: int = 7) -> LightBeat:
    checks = np.arange(len(groups), dtype=np.uint8)
    return LightBeat(sequence, np.array(groups, np.int64), checks)


@given(ids, st.integers(0, 2**64 - 1))
def test_a_beat_is_read_as_it_was_written(groups: list[int], sequence: int) -> None:
    written = beat(groups, sequence)
    read = decode_beat(encode_beat(written))
    assert read.sequence == sequence
    assert read.groups.tolist() == groups
    assert read.checks.tolist() == written.checks.tolist()


@given(ids, st.integers(0, 2**64 - 1))
def test_a_reply_is_read_as_it_was_written(refused: list[int], sequence: int) -> None:
    read = decode_reply(encode_reply(LightReply(sequence, np.array(refused, np.int64))))
    assert read.sequence == sequence
    assert read.refused.tolist() == refused


def test_dense_groups_take_two_bytes_each_and_sparse_ones_a_few() -> None:
    dense = encode_beat(beat(list(range(0, 12_700, 127))))
    assert len(dense) == HEADER + 2 * 100
    sparse = encode_beat(beat(list(range(0, 1_000_000, 10_000))))
    assert len(sparse) == HEADER + 3 * 100 - 1  # the first id is 0
    assert len(encode_reply(LightReply(1, np.empty(0, np.int64)))) == HEADER


def raw(version: int, count: int, rest: bytes) -> bytes:
    return bytes([version]) + bytes(8) + count.to_bytes(4, "little") + rest


@given(st.integers(1, 2), st.integers(0, 30), st.binary(max_size=60))
def test_hostile_bytes_raise_the_one_error_or_have_no_other_spelling(
    version: int, count: int, rest: bytes
) -> None:
    body = raw(version, count, rest)
    try:
        again = encode_beat(decode_beat(body)) if version == 1 else encode_reply(decode_reply(body))
    except CorruptBeat:
        return
    assert again == body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "0 bytes are too few for a heartbeat"),
        (raw(2, 0, b""), "begins with 2 and not with 1"),
        (raw(1, 2**32 - 1, b"\x00" * 9), "cannot hold 4294967295 numbers"),
        (raw(1, 3, b"\x00\x00\x00\x00"), "of 3 groups has 1 check bytes"),
        (raw(1, 1, b"\x80\x80"), "1 numbers were announced and 0 are there"),
        (raw(1, 1, b"\x80\x00\x00"), "not in its shortest form"),
        (raw(1, 1, b"\xff" * 9 + b"\x01\x00"), "longer than 63 bits"),
        (raw(1, 2, (b"\xff" * 8 + b"\x7f") * 2 + bytes(2)), "beyond the last there is"),
    ],
)
def test_what_is_wrong_with_a_beat_is_said_in_a_sentence(body: bytes, reason: str) -> None:
    with pytest.raises(CorruptBeat, match=reason):
        decode_beat(body)


def test_a_reply_with_something_behind_it_is_refused() -> None:
    with pytest.raises(CorruptBeat, match="1 bytes are left over"):
        decode_reply(raw(2, 1, b"\x00\x00"))


def check(sequence: int, **changed: int) -> int:
    facts = {"group": 5, "term": 3, "leader": 0, "follower": 0} | changed
    one = {name: np.full(1, value, np.int64) for name, value in facts.items()}
    revisions = (one["leader"].astype(np.int32), one["follower"].astype(np.int32))
    return int(check_bytes(sequence, one["group"], one["term"], *revisions)[0])


@pytest.mark.parametrize(
    "other", [{"term": 4}, {"term": 3 + 256}, {"leader": 1}, {"follower": 1}, {"group": 6}]
)
def test_two_states_share_a_check_byte_in_few_beats_and_never_many_in_a_row(
    other: dict[str, int],
) -> None:
    same = [check(number) == check(number, **other) for number in range(5_000)]
    assert sum(same) < 5_000 * 3 // 256
    assert not any(all(same[start : start + 4]) for start in range(len(same)))
