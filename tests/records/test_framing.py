import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.forms import Form

from tidelog.records import Batch, Record, build_batch, empty_like, parse_batches
from tidelog.records.columns import BinaryColumn, ListColumn, Source

TEMPLATE = empty_like(build_batch([Record(0, 0, None, None)], producer_id=7, producer_epoch=1)).data


def source(
    values: list[bytes | None], timestamps: list[int], offsets: list[int] | None = None
) -> Source:
    """Return columns to encode, with the true offsets of the values or with others."""
    runs = [value or b"" for value in values]
    if offsets is None:
        offsets = [sum(map(len, runs[:index])) for index in range(len(runs) + 1)]
    validity = sum((value is not None) << index for index, value in enumerate(values))
    column = BinaryColumn(
        memoryview(
            b"".join(offset.to_bytes(4, sys.byteorder, signed=True) for offset in offsets)
        ).cast("i"),
        memoryview(validity.to_bytes(len(values) // 8 + 1, "little")),
        memoryview(b"".join(runs)),
    )
    return Source(memoryview(array("q", timestamps)), None, column, None, None, None)


def encode(form: Form, columns: Source, buffer: bytearray, limit: int = 1000) -> int:
    """Write columns into a buffer; return where they end there."""
    end: int = form.framing.encode(columns, limit, TEMPLATE, -1, memoryview(buffer))
    return end


def framed(form: Form, columns: Source) -> list[Batch]:
    """Return columns as batches."""
    buffer = bytearray(1000)
    batches = list(parse_batches(bytes(buffer[: encode(form, columns, buffer)])))
    for batch in batches:
        batch.check_crc()
    return batches


@given(
    values=st.lists(st.none() | st.binary(max_size=100), min_size=1, max_size=20),
    limit=st.integers(1, 400),
    data=st.data(),
)
def test_both_forms_write_the_same_bytes(
    plain: Form,
    compiled: Form,
    values: list[bytes | None],
    limit: int,
    data: st.DataObject,
) -> None:
    times = data.draw(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=len(values), max_size=len(values))
    )
    columns = source(values, times)
    written = []
    for form in (plain, compiled):
        buffer = bytearray(20_000)
        written.append((encode(form, columns, buffer, limit), buffer))
    assert written[0] == written[1]


def test_times_too_far_apart_go_to_batches_of_their_own(form: Form) -> None:
    columns = source([b"a", b"b", b"c"], [2**63 - 1, -2, 0])
    assert [(b.count, b.base_timestamp, b.max_timestamp) for b in framed(form, columns)] == [
        (1, 2**63 - 1, 2**63 - 1),
        (2, -2, 0),
    ]


@pytest.mark.parametrize("offsets", [[0, 5], [-1, 1], [1, 0], [2**31 - 1, 2**31 - 1], [3, 4]])
def test_a_column_whose_offsets_lie_is_not_read_outside_its_bytes(
    form: Form, offsets: list[int]
) -> None:
    with pytest.raises(IndexError, match="outside the column's bytes"):
        framed(form, source([b"abc"], [0], offsets))


def test_a_column_shorter_than_the_others_is_refused(form: Form) -> None:
    with pytest.raises(IndexError, match="entry 1 of a column of 1"):
        framed(form, source([b"abc"], [0, 0]))


def test_a_buffer_without_room_is_not_written_past_its_end(form: Form) -> None:
    with pytest.raises(IndexError, match="row 0 takes"):
        encode(form, source([b"abc"], [0]), bytearray(61 + 9))
    exact = bytearray(61 + 10)
    assert encode(form, source([b"abc"], [0]), exact) == len(exact)
    for room in range(61):
        with pytest.raises(IndexError, match="row 0 takes"):
            encode(form, source([b"abc"], [0]), bytearray(room))


def test_lists_that_lie_about_their_entries_are_refused(form: Form) -> None:
    columns = source([b"abc"], [0])
    lists = ListColumn(memoryview(array("i", [0, 5])), None, 0, 1)
    broken = Source(columns.timestamps, None, columns.values, lists, columns.values, None)
    with pytest.raises(IndexError, match="outside"):
        framed(form, broken)
