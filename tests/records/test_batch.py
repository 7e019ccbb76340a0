import struct

import pyarrow as pa
import pytest
from tests.records.samples import some_batch

from tidelog.records import (
    HEADER_SIZE,
    Batch,
    BatchType,
    Codec,
    CorruptBatch,
    Offset,
    OldFormat,
    Record,
    Term,
    TimestampType,
    build_batch,
    ghost,
    internal_batch,
    parse_batches,
    placeholder,
    read_records,
)

# Worked out by hand from Kafka's description of the record batch, field by field.
GOLDEN = bytes.fromhex(
    "0000000000000005"  # base offset 5
    "00000049"  # length: 49 bytes of header are left, and 24 of records
    "00000007"  # leader epoch 7
    "02"  # magic
    "b715340f"  # CRC32C of all that follows
    "0000"  # attributes: none
    "00000001"  # last offset delta
    "0000018bcfe56800"  # base timestamp 1,700,000,000,000
    "0000018bcfe56bed"  # maximum timestamp, 1,005 later
    "ffffffffffffffff"  # no producer id
    "ffff"  # no producer epoch
    "ffffffff"  # no sequence
    "00000002"  # two records
    # The first, 15 bytes (zigzag 0x1e): attributes, timestamp delta 0, offset delta 0, key "k",
    # value "value", one header "h" without a value (zigzag of -1 is 01)
    "1e 00 00 00 02 6b 0a 76616c7565 02 02 68 01"
    # The second, 7 bytes: attributes, timestamp delta 1,005 (zigzag 2,010 = da 0f), offset delta 1,
    # no key, no value, no headers
    "0e 00 da0f 02 01 01 00"
)
GOLDEN_RECORDS = [
    Record(0, 1_700_000_000_000, b"k", b"value", (("h", None),)),
    Record(1, 1_700_000_001_005, None, None),
]

# Where the fields of the header are, for patching one at a time.
FIELDS = {
    "base offset": (0, ">q"),
    "length": (8, ">i"),
    "term": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "delta": (23, ">i"),
    "base timestamp": (27, ">q"),
    "count": (57, ">i"),
}


def crc32c_bit_by_bit(data: bytes) -> int:
    """Compute CRC32C from its polynomial alone."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def patched(data: bytes | memoryview, **fields: int) -> bytes:
    """Return a batch with some fields of its header replaced."""
    copy = bytearray(data)
    for name, number in fields.items():
        position, form = FIELDS[name.replace("_", " ")]
        struct.pack_into(form, copy, position, number)
    return bytes(copy)


def test_the_crc_is_the_one_that_kafka_means() -> None:
    assert crc32c_bit_by_bit(b"123456789") == 0xE3069283
    assert crc32c_bit_by_bit(GOLDEN[21:]) == Batch.parse(GOLDEN).crc


def test_a_batch_written_down_by_hand_is_read() -> None:
    batch = Batch.parse(GOLDEN)
    batch.check_crc()
    assert (batch.base_offset, batch.last_offset, batch.term, batch.size) == (5, 6, 7, 85)
    assert (batch.base_timestamp, batch.max_timestamp) == (1_700_000_000_000, 1_700_000_001_005)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert (batch.count, batch.type, batch.codec) == (2, BatchType.DATA, Codec.NONE)
    assert not batch.is_control
    assert not batch.is_transactional
    assert not batch.has_delete_horizon
    assert not batch.is_ghost
    assert batch.timestamp_type is TimestampType.CREATE
    assert list(read_records(batch)) == GOLDEN_RECORDS


def test_a_batch_is_built_as_it_was_written_down_by_hand() -> None:
    assert bytes(build_batch(GOLDEN_RECORDS, base_offset=Offset(5), term=Term(7)).data) == GOLDEN


def test_parsing_copies_nothing() -> None:
    buffer = bytearray(b"before" + GOLDEN + b"after")
    batch = Batch.parse(buffer, 6)
    assert batch.data.obj is buffer
    assert bytes(batch.data) == GOLDEN


def test_any_buffer_of_bytes_can_be_parsed() -> None:
    for buffer in (bytearray(GOLDEN), memoryview(GOLDEN), memoryview(pa.py_buffer(GOLDEN))):
        batch = Batch.parse(buffer)
        assert batch.data == GOLDEN
        assert batch.data[16] == 2
        assert list(read_records(batch)) == GOLDEN_RECORDS


def test_a_stamp_changes_place_and_term_and_nothing_that_the_crc_covers() -> None:
    batch = Batch.parse(GOLDEN).stamp(Offset(1000), Term(9))
    batch.check_crc()
    assert (batch.base_offset, batch.last_offset, batch.term) == (1000, 1001, 9)
    assert bytes(batch.data[8:12]) == GOLDEN[8:12]
    assert bytes(batch.data[16:]) == GOLDEN[16:]
    assert Batch.parse(batch.data) == batch


def test_a_stamp_is_made_in_place_where_it_can_be() -> None:
    buffer = bytearray(GOLDEN)
    batch = Batch.parse(buffer)
    assert batch.stamp(Offset(1000), Term(9)) is batch
    assert Batch.parse(buffer).base_offset == 1000


def test_a_stamp_leaves_bytes_alone_that_cannot_change() -> None:
    batch = Batch.parse(GOLDEN)
    moved = batch.stamp(Offset(1000), Term(9))
    assert (batch.base_offset, batch.term) == (5, 7)
    assert (moved.base_offset, moved.term) == (1000, 9)


@pytest.mark.parametrize(("offset", "term"), [(-1, 1), (2**63 - 1, 1), (2**63, 1), (0, 2**31)])
def test_a_stamp_that_does_not_fit_is_refused(offset: int, term: int) -> None:
    with pytest.raises(ValueError, match="cannot move"):
        Batch.parse(bytearray(GOLDEN)).stamp(Offset(offset), Term(term))


def test_a_changed_byte_fails_the_crc() -> None:
    for position in range(21, len(GOLDEN)):
        data = bytearray(GOLDEN)
        batch = Batch.parse(data)
        data[position] ^= 0x40
        with pytest.raises(CorruptBatch, match="CRC") as raised:
            batch.check_crc(4096)
        assert raised.value.position == 4096


HOSTILE = {
    "shorter than a header": (patched(GOLDEN, length=48), "length of 48"),
    "of negative length": (patched(GOLDEN, length=-1), "length of -1"),
    "longer than the buffer": (patched(GOLDEN, length=0x4A), "goes past the 85 bytes left"),
    "of the longest length": (patched(GOLDEN, length=2**31 - 1), "goes past"),
    "of another version": (patched(GOLDEN, magic=1), "magic byte is 1"),
    "of negative count": (patched(GOLDEN, count=-1), "count of records is -1"),
    "of more records than offsets": (patched(GOLDEN, count=3), "3 records do not fit"),
    "of negative delta": (patched(GOLDEN, delta=-1), "last offset delta is -1"),
    "before the first offset": (patched(GOLDEN, base_offset=-1), "base offset is -1"),
    "past the last offset": (patched(GOLDEN, base_offset=2**63 - 1), "overflows"),
    "of no term": (patched(GOLDEN, term=-2), "leader epoch is -2"),
    "of codec 5": (patched(GOLDEN, attributes=5), "codec 5 does not exist"),
    "of codec 7": (patched(GOLDEN, attributes=7), "codec 7 does not exist"),
    "of type 6": (patched(GOLDEN, attributes=6 << 8 | 32), "batch type 6 does not exist"),
    "of type 127": (patched(GOLDEN, attributes=127 << 8 | 32), "batch type 127 does not exist"),
    "internal without the control bit": (patched(GOLDEN, attributes=1 << 8), "control bit"),
    "with an unused bit": (patched(GOLDEN, attributes=1 << 7), "bits that mean nothing"),
    "with the sign bit": (patched(GOLDEN, attributes=-(2**15)), "bits that mean nothing"),
    "a ghost with records": (patched(GOLDEN, attributes=3 << 8 | 32), "ghost with 2 records"),
    "with bytes but no records": (patched(GOLDEN, count=0), "24 bytes of no records"),
    "a ghost with bytes": (patched(GOLDEN, attributes=3 << 8 | 32, count=0), "24 bytes of no"),
    "a ghost back in time": (
        patched(ghost(Offset(5), Offset(9), Term(1)).data, base_timestamp=4),
        "from offset 5 back to 4",
    ),
}


@pytest.mark.parametrize(("data", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_refused_with_its_position(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatch, match=reason) as raised:
        Batch.parse(b"x" * 10 + data, 10)
    assert raised.value.position == 10
    assert "position 10" in str(raised.value)


def test_a_header_that_is_cut_is_refused() -> None:
    for size in range(HEADER_SIZE):
        with pytest.raises(CorruptBatch, match="61 bytes"):
            Batch.parse(GOLDEN[:size])
    for position in (-1, 25, 85, 1000):
        with pytest.raises(CorruptBatch, match="61 bytes"):
            Batch.parse(GOLDEN, position)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [17, 34, 60, 61, 85])
def test_messages_of_old_formats_are_told_from_damage(magic: int, size: int) -> None:
    data = b"x" * 10 + patched(GOLDEN, magic=magic)[:size]
    with pytest.raises(OldFormat, match=f"magic byte is {magic}") as raised:
        Batch.parse(data, 10)
    assert raised.value.position == 10


@pytest.mark.parametrize("magic", [-1, 3, 127, -128])
def test_a_version_that_never_was_is_damage(magic: int) -> None:
    with pytest.raises(CorruptBatch, match=f"magic byte is {magic}") as raised:
        Batch.parse(patched(GOLDEN, magic=magic))
    assert not isinstance(raised.value, OldFormat)


@pytest.mark.parametrize("kind", TimestampType)
def test_a_new_time_changes_the_header_and_no_record(kind: TimestampType) -> None:
    buffer = bytearray(GOLDEN)
    batch = Batch.parse(buffer)
    assert batch.set_time(1_900_000_000_000, kind) is batch
    again = Batch.parse(bytes(buffer))
    again.check_crc()
    assert (again.max_timestamp, again.timestamp_type) == (1_900_000_000_000, kind)
    assert (batch.max_timestamp, batch.timestamp_type, batch.crc) == (
        again.max_timestamp,
        again.timestamp_type,
        again.crc,
    )
    assert again.records == GOLDEN[HEADER_SIZE:]
    times = [record.timestamp for record in read_records(again)]
    if kind is TimestampType.LOG_APPEND:
        assert times == [1_900_000_000_000] * 2
    else:
        assert times == [record.timestamp for record in GOLDEN_RECORDS]


def test_the_time_of_the_broker_can_be_taken_back() -> None:
    batch = Batch.parse(bytearray(GOLDEN))
    batch.set_time(1_900_000_000_000, TimestampType.LOG_APPEND)
    batch.set_time(1_700_000_001_005, TimestampType.CREATE)
    assert batch.data == GOLDEN


def test_a_new_time_leaves_bytes_alone_that_cannot_change() -> None:
    batch = Batch.parse(GOLDEN)
    timed = batch.set_time(5, TimestampType.LOG_APPEND)
    timed.check_crc()
    batch.check_crc()
    assert (batch.max_timestamp, timed.max_timestamp) == (1_700_000_001_005, 5)


def test_a_time_that_does_not_fit_is_refused() -> None:
    for time in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="cannot have the time"):
            Batch.parse(bytearray(GOLDEN)).set_time(time, TimestampType.CREATE)
    with pytest.raises(ValueError, match="ghost"):
        ghost(Offset(5), Offset(9), Term(1)).set_time(7, TimestampType.CREATE)


def test_batches_are_parsed_one_after_the_other() -> None:
    batches = [some_batch(count) for count in (1, 2, 3)]
    data = b"".join(batch.data for batch in batches)
    assert list(parse_batches(data)) == batches
    assert list(parse_batches(data, batches[0].size)) == batches[1:]
    assert list(parse_batches(b"")) == []


def test_a_buffer_of_batches_must_end_with_a_batch() -> None:
    data = bytes(GOLDEN) * 2
    parsed = parse_batches(data[:-1])
    next(parsed)
    with pytest.raises(CorruptBatch) as raised:
        next(parsed)
    assert raised.value.position == len(GOLDEN)


@pytest.mark.parametrize("last", [7, 8, 2**31 + 7, 2**62, 2**63 - 1])
def test_a_ghost_of_any_length_takes_61_bytes(last: int) -> None:
    batch = ghost(Offset(7), Offset(last), Term(3))
    batch.check_crc()
    again = Batch.parse(bytes(batch.data))
    assert again.size == 61
    assert (again.base_offset, again.last_offset, again.term) == (7, last, 3)
    assert again.is_ghost
    assert again.is_control
    assert list(read_records(again)) == []


def test_a_gap_that_ends_before_it_begins_is_no_ghost() -> None:
    with pytest.raises(ValueError, match="no batch"):
        ghost(Offset(7), Offset(6), Term(3))


def test_a_ghost_keeps_its_end_when_it_is_stamped() -> None:
    batch = ghost(Offset(7), Offset(2**40), Term(3)).stamp(Offset(9), Term(4))
    assert (batch.base_offset, batch.last_offset, batch.term) == (9, 2**40, 4)
    with pytest.raises(ValueError, match="cannot move"):
        batch.stamp(Offset(2**40 + 1), Term(4))


def test_a_placeholder_is_one_offset_and_a_header() -> None:
    batch = placeholder(Offset(41), Term(3), 1_700_000_000_000)
    batch.check_crc()
    assert (batch.base_offset, batch.last_offset, batch.term) == (41, 41, 3)
    assert (batch.size, batch.count, batch.type) == (61, 0, BatchType.PLACEHOLDER)
    assert batch.max_timestamp == 1_700_000_000_000
    assert batch.is_control


@pytest.mark.parametrize("kind", set(BatchType) - {BatchType.DATA, BatchType.GHOST})
def test_kafka_skips_the_batches_that_are_ours(kind: BatchType) -> None:
    batch = internal_batch(kind, b"payload")
    assert batch.type is kind
    assert batch.is_control


def test_a_batch_prints_itself_in_one_line() -> None:
    assert str(Batch.parse(GOLDEN)) == "data [5, 6] term 7: 2 records, 85 bytes"
