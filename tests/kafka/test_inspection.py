"""Produce: garbage under a right CRC is refused, and what takes long is not overtaken."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from kio.schema.errors import ErrorCode
from tests.kafka.broker import NEWEST_PRODUCE, NOON, PRODUCE, batch, broker, run, values_of
from tests.kafka.test_listener import Client, listening, produce_fields
from tests.records.samples import records

from tidelog.kafka import inspection
from tidelog.kafka.errors import Refused
from tidelog.kafka.inspection import ALLOWANCE, UNPACKED, Allowance, Partly, Rules, inspect
from tidelog.records import HEADER_SIZE, Batch, Codec, Record, TimestampType, build_batch
from tidelog.records import codecs as packing

RULES = Rules(
    1 << 20, needs_keys=False, codec=None, level=None, takes_zstd=True, transactional=False
)
RECORD = b"\x12\x00\x00\x00\x01\x06abc\x00"  # no key, the value abc, no headers


def framed(section: bytes, count: int, codec: Codec = Codec.NONE) -> bytearray:
    """Return a batch of any bytes whose header agrees with itself and whose CRC is right."""
    data = bytearray(build_batch([Record(0, NOON, None, b"v")]).data[:HEADER_SIZE])
    data += packing.compress(codec, section) if section else b""
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec)
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    return sealed(data)


def sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


GARBAGE: dict[str, tuple[bytes, int]] = {
    "no record at all": (b"\xff" * 40, 1),
    "a count of 2^31 - 1": (RECORD, 2**31 - 1),
    "one record fewer than the header counts": (RECORD * 2, 3),
    "a record after the last": (RECORD * 2, 1),
    "the same offset twice": (RECORD * 2, 2),
    "an offset past the last": (RECORD.replace(b"\x12\x00\x00\x00", b"\x12\x00\x00\x04"), 1),
    "a record longer than the batch": (b"\x7e" + RECORD[1:], 1),
    "a key longer than its record": (b"\x12\x00\x00\x00\x7eabcde", 1),
    "a value of negative length": (b"\x12\x00\x00\x00\x01\x03abc\x00", 1),
    "a number without an end": (b"\x12\x00\x00" + b"\x80" * 12, 1),
    "headers that are not there": (b"\x12\x00\x00\x00\x01\x06abc\x02", 1),
    "a negative count of headers": (b"\x12\x00\x00\x00\x01\x06abc\x01", 1),
}


@pytest.mark.parametrize("codec", Codec)
def test_garbage_under_a_right_crc_is_an_invalid_record(tmp_path: Path, codec: Codec) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for what, (section, count) in GARBAGE.items():
                answer = await node.produce(bytes(framed(section, count, codec)))
                assert answer.error_code is ErrorCode.invalid_record, what
                assert answer.error_message, what
            assert node.partition().high_watermark == 0
            assert (await node.produce(bytes(framed(RECORD, 1, codec)))).base_offset == 0
            assert values_of(await node.fetch(0)) == [(0, b"abc")]

    run(story())


@pytest.mark.parametrize("codec", [each for each in Codec if each is not Codec.NONE])
def test_what_cannot_be_unpacked_is_an_invalid_record(tmp_path: Path, codec: Codec) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            data = framed(b"", 1, codec)
            data += b"neither is this"
            struct.pack_into(">i", data, 8, len(data) - 12)
            answer = await node.produce(bytes(sealed(data)))
            assert answer.error_code is ErrorCode.invalid_record
            assert node.partition().high_watermark == 0

    run(story())


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_is_too_large(tmp_path: Path, codec: Codec) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, max_message_bytes="20000")
            just = build_batch([Record(0, NOON, None, bytes(20_000 * UNPACKED - 20))], codec=codec)
            bomb = build_batch([Record(0, NOON, None, bytes(20_000 * UNPACKED))], codec=codec)
            assert bomb.size < 20_000
            answer = await node.produce(bomb)
            assert answer.error_code is ErrorCode.message_too_large
            assert (await node.produce(just)).base_offset == 0

    run(story())


def test_a_time_in_the_header_that_no_record_has_is_put_right(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            data = Batch.parse(bytearray(batch(b"x", b"y").data))
            await node.produce(data.set_time(NOON + 10**12, TimestampType.CREATE))
            fetched = await node.fetch(0)
            (written,) = (Batch.parse(fetched.records),)
            assert written.max_timestamp == NOON + 1
            written.check_crc()

    run(story())


# --- What takes long --------------------------------------------------------------------------


def test_what_takes_long_is_left_to_a_thread() -> None:
    small, packed = batch(b"x"), build_batch([Record(0, NOON, None, bytes(ALLOWANCE))])
    large = build_batch([Record(0, NOON, None, bytes(ALLOWANCE))], codec=Codec.ZSTD)
    assert inspect(small.data, RULES, Allowance(ALLOWANCE)) == small
    assert inspect(packed.data, RULES, Allowance(ALLOWANCE)) == packed
    with pytest.raises(Partly):
        inspect(large.data, RULES, Allowance(ALLOWANCE))
    assert inspect(large.data, RULES) == large
    with pytest.raises(Partly):
        inspect(packed.data, RULES, Allowance(1))


def test_a_request_does_not_overtake_one_that_is_inspected_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            await node.create("t", 1)
            client = await Client.connect(server)
            values = [
                bytes(2 * ALLOWANCE) if number % 3 == 0 else b"%d" % number for number in range(12)
            ]
            for number, value in enumerate(values):
                fields = produce_fields(node, value)
                if number % 3 == 0:
                    packed = batch(value, codec=Codec.ZSTD)
                    fields["topic_data"][0] = node.topic_fields(
                        "t", partition_data=[{"index": 0, "records": bytes(packed.data)}]
                    )
                client.send(PRODUCE, NEWEST_PRODUCE, **fields)
            for number in range(len(values)):
                _, answer = await client.receive(PRODUCE, NEWEST_PRODUCE)
                (written,) = answer.responses[0].partition_responses
                assert (written.error_code, written.base_offset) == (ErrorCode.none, number)
            await client.close()

    run(story())


# --- By chance --------------------------------------------------------------------------------


def read_by_others(data: bytes) -> list[int]:
    """Return the offsets that both clients find, which read every record to its last byte."""
    found: list[list[int]] = []
    readers: list[Any] = [AiokafkaRecords(data), KafkaPythonRecords(data)]
    for reader in readers:
        offsets: list[int] = []
        while (part := reader.next_batch()) is not None:
            assert part.validate_crc()
            offsets += [record.offset for record in part]
        found.append(offsets)
    assert found[0] == found[1]
    return found[0]


@settings(max_examples=400)
@given(written=records(max_size=4), codec=st.sampled_from(Codec), data=st.data())
def test_what_is_accepted_can_be_read_by_others(
    written: list[Record], codec: Codec, data: st.DataObject
) -> None:
    damaged = bytearray(packing.decompress(Codec.NONE, build_batch(written).records))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    count = data.draw(st.integers(1, len(written) + 1))
    sent = bytearray(framed(bytes(damaged), count, codec))
    with suppress(Refused):
        accepted = inspect(memoryview(sent), RULES)
        assert read_by_others(bytes(accepted.data)) == list(range(count))


@settings(max_examples=200)
@given(codec=st.sampled_from(Codec), noise=st.binary(min_size=1, max_size=200))
def test_noise_is_never_accepted_unless_others_can_read_it(codec: Codec, noise: bytes) -> None:
    data = framed(b"", 1, codec)
    data += noise
    struct.pack_into(">i", data, 8, len(data) - 12)
    with suppress(Refused):
        accepted = inspect(memoryview(sealed(data)), RULES)
        assert read_by_others(bytes(accepted.data)) == [0]


def test_every_setting_of_compression_is_known() -> None:
    assert set(inspection.CODECS.values()) == set(Codec)
