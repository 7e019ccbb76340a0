"""Bytes that are no request: they are refused, never believed, and never harm the node."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kafka.broker import (
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    NEWEST_FETCH,
    NEWEST_PRODUCE,
    OFFSET_FOR_LEADER_EPOCH,
    PATIENCE,
    PRODUCE,
    Broker,
    batch,
    broker,
    run,
)
from tests.kafka.desk import build, versions

from tidelog.kafka import codec, fetchform, produceform
from tidelog.kafka.codec import Malformed
from tidelog.kafka.dispatch import Disconnect

FORMS = [(PRODUCE, version) for version in versions(PRODUCE)] + [
    (FETCH, version) for version in versions(FETCH)
]


def produce_body(node: Broker, version: int, records: bytes) -> bytes:
    return codec.encode(
        build(
            PRODUCE,
            version,
            transactional_id=None,
            acks=1,
            timeout=PATIENCE,
            topic_data=[
                node.topic_fields("t", partition_data=[{"index": 0, "records": records}] * 2)
            ],
        )
    )


def fetch_body(node: Broker, version: int) -> bytes:
    asked = {
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 100,
    }
    return codec.encode(
        build(
            FETCH,
            version,
            replica_id=-1,
            replica_state={"replica_id": -1, "replica_epoch": -1},
            max_wait=timedelta(0),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=0,
            topics=[
                node.topic_fields("t", partitions=[{"partition": each, **asked} for each in (0, 1)])
            ],
            forgotten_topics_data=[node.topic_fields("t", partitions=[1, 2])],
            rack_id="a",
        )
    )


def body(node: Broker, api_key: int, version: int) -> bytes:
    if api_key == PRODUCE:
        return produce_body(node, version, bytes(batch(b"some value").data))
    return fetch_body(node, version)


async def survives(node: Broker, api_key: int, version: int, sent: bytes) -> bool:
    """Hand in bytes; tell whether they were taken. Anything but an answer or a refusal raises."""
    try:
        received = await asyncio.wait_for(node.hand_in(api_key, version, sent), 0.01)
    except (Malformed, Disconnect):
        return False
    except TimeoutError:
        return True  # a fetch that may wait for hours, by what its bytes say now
    node.read(api_key, version, received)
    return True


def damaged(sent: bytes, rng: random.Random) -> Iterator[bytes]:
    """Damage a request in as many ways as one can think of, one at a time."""
    for position in range(len(sent)):
        for value in {0, 0x7F, 0x80, 0xFF, sent[position] ^ 1 << rng.randrange(8)}:
            yield sent[:position] + bytes((value,)) + sent[position + 1 :]
    for position in range(len(sent) - 4):
        for number in (-1, -2, 2**31 - 1, -(2**31)):
            yield sent[:position] + struct.pack(">i", number) + sent[position + 4 :]


@pytest.mark.parametrize(("api_key", "version"), FORMS)
def test_a_request_cut_short_anywhere_is_refused(
    tmp_path: Path, api_key: int, version: int
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            whole = body(node, api_key, version)
            assert await survives(node, api_key, version, whole)
            end = node.partition().end
            for length in range(len(whole)):
                assert not await survives(node, api_key, version, whole[:length]), length
            assert node.partition().end == end  # nothing of half a request is written

    run(story())


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(PRODUCE, 3), (PRODUCE, 9), (PRODUCE, 13), (FETCH, 4), (FETCH, 11)]
    + [(FETCH, 12), (FETCH, NEWEST_FETCH)],
)
def test_a_damaged_request_is_answered_or_refused(
    tmp_path: Path, api_key: int, version: int
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            whole = body(node, api_key, version)
            answered = 0
            for sent in damaged(whole, random.Random(version)):
                answered += await survives(node, api_key, version, sent)
            assert answered > 0
            assert (await node.produce(batch(b"still here"))).base_offset >= 0

    run(story())


@pytest.mark.parametrize(
    "api_key", [PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH]
)
def test_noise_is_answered_or_refused(tmp_path: Path, api_key: int) -> None:
    async def story() -> None:
        rng = random.Random(api_key)
        async with broker(tmp_path) as node:
            await node.create()
            for version in versions(api_key):
                for _ in range(200):
                    noise = rng.randbytes(rng.randrange(60))
                    await survives(node, api_key, version, noise)

    run(story())


@pytest.mark.parametrize("version", [12, NEWEST_PRODUCE])
def test_counts_that_lie_cost_nothing(version: int) -> None:
    head = b"\x00" + struct.pack(">hi", -1, 1000)
    billions = b"\xff\xff\xff\xff\x0f"
    name = bytes(16) if version == NEWEST_PRODUCE else b"\x02t"
    for sent in (
        head + billions,
        head + b"\x02" + name + billions,
        head + b"\x02" + name + b"\x02" + struct.pack(">i", 0) + billions,
    ):
        with pytest.raises(Malformed):
            produceform.parse(version, memoryview(sent + bytes(100)))


def test_a_request_for_too_many_partitions_is_refused() -> None:
    many = produceform.MAX_PARTITIONS + 1
    sent = struct.pack(">hhiihsi", -1, 1, 1000, 1, 1, b"t", many)
    sent += struct.pack(">ii", 0, -1) * many
    with pytest.raises(Malformed, match="partitions"):
        produceform.parse(3, memoryview(sent))
    asked = struct.pack(">iqi", 0, 0, 1) * many
    sent = struct.pack(">iiiibihsi", -1, 0, 1, 1, 0, 1, 1, b"t", many) + asked
    with pytest.raises(Malformed, match="partitions"):
        fetchform.parse(4, memoryview(sent))


@given(st.sampled_from(FORMS), st.binary(max_size=200))
def test_parsers_raise_nothing_but_malformed(form: tuple[int, int], data: bytes) -> None:
    api_key, version = form
    parse = produceform.parse if api_key == PRODUCE else fetchform.parse
    with contextlib.suppress(Malformed):
        parse(version, memoryview(data))
