import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.forms import NAMES, Form, sources
from tests.records.samples import records, some_batch, some_records

from tidelog.records import Batch, CorruptBatch, Record, TimestampType, build_batch
from tidelog.records.columns import Columns, Spans


def number(value: int) -> bytes:
    """Encode a zigzag varint, of any size."""
    value = value << 1 if value >= 0 else ~value << 1 | 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def record(*fields: bytes) -> bytes:
    """Frame the fields of a record, attributes included."""
    body = b"".join(fields)
    return number(len(body)) + body


def section_of(*parts: bytes, count: int = 1, last_delta: int = 10, **header: Any) -> Batch:
    """Return a batch whose records section is what is given, however wrong that is."""
    model = build_batch([Record(last_delta, 0, None, None)], **header)
    data = bytearray(model.data[:61]) + b"".join(parts)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    return Batch.parse(data)


def filled(form: Form, batch: Batch, **wanted: bool) -> Columns:
    """Decode one batch that is not compressed."""
    asked = {"keys": True, "values": True, "headers": True} | wanted
    spans = Spans()
    spans.add(batch, batch.records)
    columns = Columns(spans.rows, spans.size, **asked)
    form.kernels.decode(spans, columns)
    return columns


def outcome(form: Form, batch: Batch) -> object:
    """Return what a form reads of a batch, or how it fails."""
    try:
        return list(form.kernels.read(batch, batch.records))
    except CorruptBatch as error:
        return error.position, error.reason


def contents(columns: Columns) -> object:
    """Return all that is in columns, for comparison."""
    runs = [
        (bytes(c.validity or b""), list(c.offsets[: entries + 1]), bytes(c.data), c.nulls)
        for c, entries in (
            (columns.keys, columns.rows),
            (columns.values, columns.rows),
            (columns.header_keys, columns.headers),
            (columns.header_values, columns.headers),
        )
        if c is not None
    ]
    lists = columns.header_offsets
    return (
        list(columns.offsets),
        list(columns.timestamps),
        runs,
        None if lists is None else list(lists),
    )


def test_one_form_is_plain_and_the_other_is_compiled(plain: Form, compiled: Form) -> None:
    for name in NAMES:
        assert str(getattr(plain, name).__file__).endswith(f"{name}.py")
        assert not str(getattr(compiled, name).__file__).endswith(".py")
    assert type(plain.kernels.decode) is not type(compiled.kernels.decode)
    assert type(plain.framing.encode) is not type(compiled.framing.encode)
    assert type(plain.scanning.scan) is not type(compiled.scanning.scan)


def test_the_source_runs_with_cythons_own_names_as_well() -> None:
    pytest.importorskip("cython")
    form = Form.load(sources(), "shadowed_")
    assert form.kernels.cython is sys.modules["cython"]
    assert list(form.kernels.read(some_batch(), some_batch().records)) == some_records()


@given(written=records(max_size=30), appended=st.sampled_from(TimestampType))
def test_both_forms_read_the_same_records(
    plain: Form, compiled: Form, written: list[Record], appended: TimestampType
) -> None:
    batch = build_batch(written, timestamp_type=appended)
    assert outcome(plain, batch) == outcome(compiled, batch)
    assert contents(filled(plain, batch)) == contents(filled(compiled, batch))


@given(written=records(max_size=6), data=st.data())
def test_both_forms_find_the_same_fault_at_the_same_position(
    plain: Form, compiled: Form, written: list[Record], data: st.DataObject
) -> None:
    bytes_ = bytearray(build_batch(written).data)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(61, len(bytes_) - 1))
        bytes_[position] = data.draw(st.integers(0, 255))
    batch = Batch.parse(bytes_)
    assert outcome(plain, batch) == outcome(compiled, batch)
    columns = []
    for form in (plain, compiled):
        try:
            columns.append(contents(filled(form, batch)))
        except CorruptBatch as error:
            columns.append((error.position, error.reason))
    assert columns[0] == columns[1]


FIELDS = (b"\0", number(0), number(0), number(-1), number(-1), number(0))
BIG = number(2**63 - 1)
BAD_SECTIONS = {
    "a count without bytes": ((), {"count": 1}, "1 records do not fit in 0 bytes", 0),
    "a count that bytes cannot hold": (
        (record(*FIELDS),),
        {"count": 2, "last_delta": 5},
        "2 records do not fit in 7 bytes",
        0,
    ),
    "a record of no length": ((b"\xff" * 7,), {}, "a number that does not end", 7),
    "a record longer than the section": (
        (number(8), *FIELDS),
        {},
        "a record of 8 bytes where 6 are left",
        0,
    ),
    "a record of the longest length": (
        (BIG, *FIELDS),
        {},
        f"a record of {2**63 - 1} bytes",
        0,
    ),
    "a record of negative length": ((number(-1), *FIELDS), {}, "a record of -1 bytes", 0),
    "a record of nothing": ((number(0), bytes(6)), {}, "does not end where its record does", 1),
    "a number of eleven bytes": (
        (record(b"\0", b"\x80" * 10 + b"\0", *FIELDS[2:]),),
        {},
        "a number that does not end",
        17,
    ),
    "a number of more than 64 bits": (
        (record(b"\0", b"\xff" * 9 + b"\x02", *FIELDS[2:]),),
        {},
        "a number that does not end",
        16,
    ),
    "an offset delta past the last": (
        (record(b"\0", number(0), number(11), *FIELDS[3:]),),
        {},
        "offset delta 11 after -1, where 10 is the last",
        0,
    ),
    "a negative offset delta": (
        (record(b"\0", number(0), number(-1), *FIELDS[3:]),),
        {},
        "offset delta -1 after -1",
        0,
    ),
    "an offset delta twice": (
        (record(*FIELDS), record(*FIELDS)),
        {"count": 2},
        "offset delta 0 after 0",
        7,
    ),
    "a key that swallows the rest of its record": (
        (record(b"\0", number(0), number(0), number(3), b"a", number(-1), number(0)),),
        {},
        "a number that does not end",
        8,
    ),
    "a key of the longest length": (
        (record(b"\0", number(0), number(0), BIG, number(-1), number(0)),),
        {},
        f"a length of {2**63 - 1} where 2 bytes are left",
        14,
    ),
    "a key of length -2": (
        (record(b"\0", number(0), number(0), number(-2), number(-1), number(0)),),
        {},
        "a length of -2",
        5,
    ),
    "a value of the most negative length": (
        (record(b"\0", number(0), number(0), number(-1), number(-(2**63)), number(0)),),
        {},
        f"a length of {-(2**63)}",
        15,
    ),
    "a value that reaches into the next record": (
        (record(*FIELDS[:4], number(2), number(0)), record(*FIELDS)),
        {"count": 2},
        "a length of 2 where 1 bytes are left",
        6,
    ),
    "more headers than bytes": (
        (record(*FIELDS[:5], number(2**40)),),
        {},
        f"{2**40} headers where 0 bytes are left",
        12,
    ),
    "negative headers": ((record(*FIELDS[:5], number(-1)),), {}, "-1 headers", 7),
    "a header without a key": (
        (record(*FIELDS[:5], number(1), number(-1), number(-1)),),
        {},
        "a header without a key",
        8,
    ),
    "a header key that is no text": (
        (record(*FIELDS[:5], number(1), number(1), b"\xff", number(-1)),),
        {},
        "a header key that is no UTF-8",
        8,
    ),
    "a header key that is half a letter": (
        (record(*FIELDS[:5], number(2), number(1), b"\xc3", number(-1), number(1), b"\xb6\0"),),
        {},
        "a header key that is no UTF-8",
        8,
    ),
    "a header value that is too long": (
        (record(*FIELDS[:5], number(1), number(0), number(9)),),
        {},
        "a length of 9 where 0 bytes are left",
        9,
    ),
    "bytes left in a record": (
        (record(*FIELDS, b"x"),),
        {},
        "1 bytes too many in a record",
        7,
    ),
    "bytes left in the section": (
        (record(*FIELDS), b"xyz"),
        {},
        "3 bytes after the last record",
        7,
    ),
}


@pytest.mark.parametrize(
    ("parts", "header", "reason", "position"), BAD_SECTIONS.values(), ids=BAD_SECTIONS
)
def test_a_hostile_section_is_refused_with_its_position(
    form: Form, parts: tuple[bytes, ...], header: dict[str, int], reason: str, position: int
) -> None:
    batch = section_of(*parts, **header)
    read = form.kernels.read
    for attempt in (lambda: list(read(batch, batch.records)), lambda: filled(form, batch)):
        with pytest.raises(CorruptBatch) as raised:
            attempt()
        assert reason in raised.value.reason
        assert "in the unpacked records of data [0, " in raised.value.reason
        assert raised.value.position == position


@pytest.mark.parametrize(
    ("base", "delta"), [(1, 2**63 - 1), (2**63 - 1, 1), (-1, -(2**63)), (-(2**63), -1)]
)
def test_a_timestamp_past_64_bits_is_refused(form: Form, base: int, delta: int) -> None:
    batch = section_of(record(b"\0", number(delta), *FIELDS[2:]))
    batch.base_timestamp = base
    with pytest.raises(CorruptBatch, match="overflows"):
        list(form.kernels.read(batch, batch.records))


@pytest.mark.parametrize(
    ("base", "delta"),
    [(0, 2**63 - 1), (2**63 - 1, -(2**63)), (-1, -(2**63) + 1), (-(2**63), 2**63 - 1)],
)
def test_a_timestamp_may_be_anything_within_64_bits(form: Form, base: int, delta: int) -> None:
    batch = section_of(record(b"\0", number(delta), *FIELDS[2:]))
    batch.base_timestamp = base
    (read,) = form.kernels.read(batch, batch.records)
    assert read.timestamp == base + delta
    assert list(filled(form, batch).timestamps) == [base + delta]


def test_a_column_that_is_not_wanted_is_not_copied_but_still_checked(form: Form) -> None:
    columns = filled(form, some_batch(), keys=False, values=False, headers=False)
    assert (columns.keys, columns.values, columns.header_offsets) == (None, None, None)
    assert list(columns.offsets) == [0, 1, 2]
    bad = section_of(record(*FIELDS[:5], number(1), number(1), b"\xff", number(-1)))
    with pytest.raises(CorruptBatch, match="UTF-8"):
        filled(form, bad, keys=False, values=False, headers=False)


def test_headers_grow_beyond_their_first_room(form: Form) -> None:
    headers = tuple((f"key-{index}", None if index % 3 else b"%d" % index) for index in range(500))
    batch = build_batch([Record(0, 0, None, None, headers), Record(1, 0, None, None, headers[:7])])
    columns = filled(form, batch)
    assert columns.headers == 507
    assert list(columns.header_offsets or ()) == [0, 500, 507]
    names = columns.header_keys
    assert bytes(names.data[names.offsets[506] : names.offsets[507]]) == b"key-6"
    assert columns.header_values.nulls == sum(
        1 for key, value in headers + headers[:7] if value is None
    )
    validity = columns.header_values.validity
    assert validity is not None
    assert [validity[i >> 3] >> (i & 7) & 1 for i in (0, 1, 498, 499, 500, 506)] == [
        1,
        0,
        1,
        0,
        1,
        1,
    ]
