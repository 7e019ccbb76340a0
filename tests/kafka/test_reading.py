"""Messages from bytes and to bytes: the same as `kio`'s, for whatever a client may send."""

from __future__ import annotations

import contextlib
import io
import logging
import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer
from tests.kafka.desk import build

from tidelog.kafka import codec, primitives, reading
from tidelog.kafka.apis import default_table
from tidelog.kafka.codec import OPERATIONS, Answers, Malformed
from tidelog.kafka.ratelimit import BURST, RateLimited

SERVED = [
    (api.key, version)
    for api in default_table()
    if api.key != OPERATIONS  # JSON, and no message of Kafka's
    for version in range(api.min_version, api.max_version + 1)
]


# --- Requests that `kio` reads --------------------------------------------------------------------


@given(st.sampled_from(SERVED), st.binary(max_size=300))
def test_noise_is_a_message_or_malformed(form: tuple[int, int], data: bytes) -> None:
    with contextlib.suppress(Malformed):
        codec.decode_request(*form, data)


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    [
        (3, 1, {"topics": None}),
        (3, 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True}),
        (
            2,
            11,
            {
                "replica_id": -1,
                "isolation_level": 1,
                "timeout": timedelta(seconds=3),
                "topics": [
                    {
                        "name": "topic",
                        "partitions": [
                            {"partition_index": 1, "current_leader_epoch": 4, "timestamp": -1}
                        ],
                    }
                ],
            },
        ),
        (22, 6, {"transactional_id": None, "transaction_timeout": timedelta(seconds=1)}),
    ],
)
def test_requests_are_read_as_kio_reads_them(
    api_key: int, version: int, fields: dict[str, Any]
) -> None:
    request = build(api_key, version, **fields)
    schema: Any = load_request_schema(api_key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, request)
    data = buffer.getvalue()
    theirs, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    assert codec.decode_request(api_key, version, data) == theirs == request
    for length in range(len(data)):
        with pytest.raises(Malformed):
            codec.decode_request(api_key, version, data[:length])


def test_an_array_that_promises_more_than_there_is_costs_nothing() -> None:
    with pytest.raises(Malformed, match="elements"):
        codec.decode_request(3, 1, struct.pack(">i", 2**31 - 1) + bytes(100))
    with pytest.raises(Malformed, match="elements"):
        codec.decode_request(3, 9, b"\xff\xff\xff\xff\x0f" + bytes(100))


def test_all_elements_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_ELEMENTS", 10)
    names = b"".join(struct.pack(">hs", 1, b"t") for _ in range(11))
    with pytest.raises(Malformed, match="more than 10"):
        codec.decode_request(3, 1, struct.pack(">i", 11) + names)


def test_times_and_durations_beyond_pythons_are_cut_or_refused() -> None:
    assert reading._duration(2**63 - 1) == timedelta.max
    assert reading._duration(-(2**63)) == timedelta.min
    assert reading._time(-1) is None
    with pytest.raises(Malformed):
        reading._time(2**63 - 1)


def test_unknown_tags_are_passed_over_and_known_ones_must_fit() -> None:
    # ApiVersions 3: name, version, then a tagged field that nobody knows.
    fine = b"\x02a\x021\x01\x63\x03xyz"
    assert codec.decode_request(18, 3, fine).client_software_name == "a"
    for bad in (b"\x02a\x021\x01\x63\x7fxyz", b"\x02a\x021\x05"):
        with pytest.raises(Malformed):
            codec.decode_request(18, 3, bad)


# --- Headers and answers --------------------------------------------------------------------------


def test_headers_with_and_without_tags_and_client_ids() -> None:
    head = struct.pack(">hhih", 3, 9, 7, 2) + b"me"
    header = codec.parse_header(head + b"\x00rest", flexible=True)
    assert (header.correlation_id, header.client_id, header.size) == (7, "me", 13)
    header = codec.parse_header(head + b"\x01\x05\x02ab", flexible=True)
    assert header.size == 17
    anonymous = codec.parse_header(struct.pack(">hhih", 3, 1, 7, -1), flexible=False)
    assert (anonymous.client_id, anonymous.size) == (None, 10)
    strange = codec.parse_header(struct.pack(">hhih", 3, 1, 7, 2) + b"\xff\xfe", flexible=False)
    assert strange.client_id == "\ufffd\ufffd"
    for bad in (b"", head[:9], head[:11], struct.pack(">hhih", 3, 9, 7, -2)):
        with pytest.raises(Malformed):
            codec.parse_header(bad, flexible=False)
    with pytest.raises(Malformed):
        codec.parse_header(head + b"\x01\x05\x7f", flexible=True)


def test_answers_leave_out_what_a_version_does_not_have() -> None:
    old, new = Answers.of(22, 0), Answers.of(22, 6)
    assert not old.has("InitProducerIdResponse", "ongoing_txn_producer_id")
    assert new.has("InitProducerIdResponse", "ongoing_txn_producer_id")
    assert not new.has("Nothing", "of_the_kind")
    cursor = Answers.of(75, 0)("Cursor", topic_name="t", partition_index=1, name="unknown field")
    assert cursor.topic_name == "t"


# --- Numbers and strings by hand ------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_varints_are_read_as_they_are_written(number: int) -> None:
    data = primitives.varint(number)
    assert primitives.read_varint(memoryview(data), 0) == (number, len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x1f"])
def test_varints_of_more_than_32_bits_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        primitives.read_varint(memoryview(data), 0)


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("text", [None, "", "t", "ü" * 200])
def test_strings_are_read_as_they_are_written(text: str | None, flexible: bool) -> None:
    data = primitives.string(text, flexible)
    assert primitives.read_string(memoryview(data), 0, flexible) == (text, len(data))


def test_tagged_fields_are_in_order_and_can_be_passed_over() -> None:
    data = primitives.tagged({5: b"five", 1: b"one"})
    assert data == b"\x02\x01\x03one\x05\x04five"
    assert primitives.skip_tags(memoryview(data), 0) == len(data)
    assert primitives.tagged({}) == b"\x00"


# --- Complaints -----------------------------------------------------------------------------------


def test_a_hostile_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limited = RateLimited(logging.getLogger("test"), lambda: now)
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            limited.warning("complaint %d", number)
        assert len(caplog.messages) == BURST
        now = 1.0
        limited.warning("complaint %d", 1000)
    assert caplog.messages[-1] == f"complaint 1000 ({1000 - BURST} lines like this were left out)"
