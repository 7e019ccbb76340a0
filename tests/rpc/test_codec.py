"""Raft messages as bytes: what is written is read again, and nothing else is read at all."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rpc.letters import INT64, append, configurations, data_batch, messages

from tidelog.raft.configuration import Configuration
from tidelog.raft.messages import (
    AppendRequest,
    Ballot,
    Message,
    SnapshotChunk,
    SnapshotFound,
    SnapshotMeta,
    VoteReply,
)
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import Offset, Term
from tidelog.rpc.codec import decode, encode
from tidelog.rpc.errors import CorruptFrame

GROUP = GroupId(1)
HERE, THERE = Vnode(NodeId(1), 0), Vnode(NodeId(2), 0)
TERM = Term(4)
MAGIC_AT = 16  # where a batch says its version


def body(message: Message) -> bytes:
    return b"".join(map(bytes, encode(message)))


@given(messages)
def test_every_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode(memoryview(body(message))) == message


@given(messages, st.data())
def test_a_message_that_was_cut_is_corrupt_or_another_whole_message(
    message: Message, data: st.DataObject
) -> None:
    whole = body(message)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with suppress(CorruptFrame):
        # Where a payload may have any length, a part of it is a payload too.
        assert body(decode(memoryview(part))) == part


@given(messages, st.data())
def test_a_damaged_message_is_corrupt_or_another_message(
    message: Message, data: st.DataObject
) -> None:
    damaged = bytearray(body(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    with suppress(CorruptFrame):
        assert body(decode(memoryview(damaged))) == damaged


@given(st.binary(max_size=200))
def test_garbage_is_corrupt(garbage: bytes) -> None:
    with suppress(CorruptFrame):
        assert body(decode(memoryview(garbage))) == garbage


@given(messages)
def test_no_message_has_bytes_left_over(message: Message) -> None:
    if not isinstance(message, SnapshotChunk):
        with pytest.raises(CorruptFrame):
            decode(memoryview(body(message) + b"\x00"))


@given(configurations())
def test_the_configuration_of_a_snapshot_travels_with_it(configuration: Configuration) -> None:
    meta = SnapshotMeta(Offset(9), TERM, configuration, 100, 7)
    read = decode(memoryview(body(SnapshotFound(GROUP, HERE, THERE, TERM, meta))))
    assert isinstance(read, SnapshotFound)
    assert read.snapshot.configuration == configuration


def test_a_batch_is_copied_neither_on_the_way_out_nor_on_the_way_in() -> None:
    batch = data_batch(0, [b"value"])
    parts = encode(append(1, 2, 1, batch))
    assert parts[1] is batch.data
    received = bytearray(b"".join(map(bytes, parts)))
    message = decode(memoryview(received))
    assert isinstance(message, AppendRequest)
    assert message.batches[0].data.obj is received


def test_a_batch_that_is_none_is_corrupt() -> None:
    batch = data_batch(0, [b"value"])
    damaged = bytearray(body(append(1, 2, 1, batch)))
    damaged[-batch.size + MAGIC_AT] = 1
    with pytest.raises(CorruptFrame, match="an append with"):
        decode(memoryview(damaged))


def test_a_choice_that_does_not_exist_is_corrupt() -> None:
    whole = bytearray(body(VoteReply(GROUP, HERE, THERE, TERM, Ballot.VOTE, True)))
    for position in (-1, -2):  # granted, ballot
        damaged = bytearray(whole)
        damaged[position] = 3
        with pytest.raises(CorruptFrame, match="choice that does not exist"):
            decode(memoryview(damaged))


def test_a_tag_that_does_not_exist_is_corrupt() -> None:
    for tag in (0, 12, 255):
        with pytest.raises(CorruptFrame, match=f"tag {tag} does not exist"):
            decode(memoryview(bytes([tag]) * 100))
    with pytest.raises(CorruptFrame, match="without bytes"):
        decode(memoryview(b""))


@pytest.mark.parametrize(
    "wrong",
    [
        {"term": -1},
        {"group": -1},
        {"source": Vnode(NodeId(-1), 0)},
        {"target": Vnode(NodeId(-1), 0)},
        {"seq": -1},
        {"prev_offset": -2},
        {"prev_term": -1},
        {"committed": -2},
        {"visible": -2},
        {"compacted": -2},
    ],
    ids=str,
)
def test_a_number_out_of_range_is_corrupt(wrong: dict[str, object]) -> None:
    message = replace(append(1, 2, 1), **wrong)  # type: ignore[arg-type]
    with pytest.raises(CorruptFrame):
        decode(memoryview(body(message)))


def test_a_number_that_does_not_fit_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="cannot be encoded"):
        encode(replace(append(1, 2, 1), seq=INT64 + 1))
