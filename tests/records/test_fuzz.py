"""Bytes that were damaged, cut or made to hurt: whatever they are, the answer is `CorruptBatch`.

The CRC would catch nearly all of this, so these tests do not check it, or make it anew: the point
is what happens behind it.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.forms import Form, using
from tests.records.samples import records, some_batch

from tidelog.records import (
    HEADER_SIZE,
    Batch,
    Codec,
    CorruptBatch,
    Record,
    RefusedBatch,
    accept_batch,
    build_batch,
    parse_batches,
    read_marker,
    read_records,
    survey_records,
)
from tidelog.records.arrow import read_arrow, to_arrow
from tidelog.records.batch import CRC_START

LIMIT = 1 << 20
# Numbers that make trouble: zero, minus one, the ends of 32 and 64 bits, and too many bytes.
HOSTILE = [
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80" * 12,
]


def fault(step: Callable[[], object]) -> CorruptBatch | None:
    """Return how a step failed, if it did. Any other exception fails the test."""
    try:
        step()
    except CorruptBatch as error:
        return error
    return None


def swallow(data: bytes) -> int:
    """Do with bytes all that can be done with them; return how many records came out."""
    batches: list[Batch] = []
    faults = [fault(lambda: batches.extend(parse_batches(data)))]
    records = 0
    for batch in batches:
        found: list[Record] = []
        faults.append(fault(partial(_read, batch, found)))
        faults.append(fault(partial(_convert, batch)))
        assert (faults[-1] is None) == (faults[-2] is None)
        if batch.count:
            faults.append(fault(partial(survey_records, batch, LIMIT)))
            assert (faults[-1] is None) == (faults[-2] is None)
        records += len(found)
    faults.append(fault(partial(_accept, data)))
    faults.append(fault(partial(read_arrow, data, limit=LIMIT)))
    sealed = resealed(data)
    one_by_one = converted(partial(_convert_all, sealed))
    at_once = converted(partial(read_arrow, sealed, limit=LIMIT))
    if len(batches) == 1 and batches[0].size == len(data):
        assert at_once == one_by_one
    elif isinstance(at_once, tuple):  # of two faults, either may be told
        assert isinstance(one_by_one, tuple)
    else:
        assert at_once == one_by_one
    for raised in filter(None, faults):
        assert raised.reason
        assert 0 <= raised.position <= LIMIT
    return records


def _read(batch: Batch, found: list[Record]) -> None:
    found.extend(read_records(batch, LIMIT))


def _accept(data: bytes) -> None:
    with suppress(RefusedBatch):
        accept_batch(data)


def _convert(batch: Batch) -> None:
    to_arrow([batch], keep=lambda _: True, limit=LIMIT).validate(full=True)


def _convert_all(data: bytes) -> pa.RecordBatch:
    return to_arrow(list(parse_batches(data)), limit=LIMIT)


def converted(step: Callable[[], pa.RecordBatch]) -> object:
    """Return the columns that a step makes, or what it says is wrong, and where."""
    try:
        table = step()
    except CorruptBatch as error:
        return error.position, error.reason
    table.validate(full=True)
    return table


def resealed(data: bytes) -> bytes:
    """Make the CRC of every batch true again, so that damage gets past it."""
    sealed = bytearray(data)
    with suppress(CorruptBatch):
        for batch in parse_batches(sealed):
            crc = crc32c(batch.data[CRC_START:])
            batch.data[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
    return bytes(sealed)


def framed(data: bytearray) -> bytes:
    """Make the length of a batch true again, so that damage gets past the header."""
    data[8:12] = (len(data) - 12).to_bytes(4, "big", signed=True)
    return bytes(data)


@given(data=st.binary(max_size=300))
def test_noise_is_no_batch(form: Form, data: bytes) -> None:
    with using(form):
        assert swallow(data) == 0


@settings(max_examples=300)
@given(written=records(max_size=5), codec=st.sampled_from(Codec), data=st.data())
def test_flipped_bytes_raise_nothing_else(
    form: Form, written: list[Record], codec: Codec, data: st.DataObject
) -> None:
    damaged = bytearray(build_batch(written, codec=codec).data)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with using(form):
        swallow(bytes(damaged))
        swallow(framed(damaged))


@settings(max_examples=200)
@given(written=records(max_size=5), codec=st.sampled_from(Codec), data=st.data())
def test_cut_bytes_raise_nothing_else(
    form: Form, written: list[Record], codec: Codec, data: st.DataObject
) -> None:
    whole = bytes(build_batch(written, codec=codec).data)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with using(form):
        assert swallow(whole[:cut]) == 0
        if cut >= HEADER_SIZE:
            # A codec may make sense of less; then the records are too few, which is found as well.
            batch = Batch.parse(framed(bytearray(whole[:cut])))
            with pytest.raises(CorruptBatch):
                list(read_records(batch, LIMIT))


@settings(max_examples=300)
@given(written=records(max_size=5), data=st.data())
def test_hostile_lengths_raise_nothing_else(
    form: Form, written: list[Record], data: st.DataObject
) -> None:
    damaged = bytearray(build_batch(written).data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_SIZE, len(damaged)))
        number = data.draw(st.sampled_from(HOSTILE))
        damaged[at : at + data.draw(st.integers(0, 3))] = number
    with using(form):
        swallow(framed(damaged))


@settings(max_examples=200)
@given(data=st.data(), codec=st.sampled_from(Codec))
def test_hostile_headers_raise_nothing_else(form: Form, data: st.DataObject, codec: Codec) -> None:
    damaged = bytearray(some_batch(4, codec).data)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, HEADER_SIZE - 4))
        damaged[at : at + 4] = data.draw(
            st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x80\0\0\0"])
        )
    damaged[16] = 2
    with using(form):
        swallow(bytes(damaged))
        swallow(framed(damaged))


@given(key=st.binary(max_size=8), value=st.binary(max_size=8), control=st.booleans())
def test_markers_of_any_content_raise_nothing_else(key: bytes, value: bytes, control: bool) -> None:
    batch = build_batch([Record(0, 0, key, value)], control=control)
    found = fault(lambda: read_marker(batch))
    whole = control and len(key) >= 4 and len(value) >= 6 and key[2:4] in {b"\0\0", b"\0\1"}
    assert (found is None) == whole


@settings(max_examples=200)
@given(
    parts=st.lists(st.tuples(records(max_size=4), st.sampled_from(Codec)), min_size=2, max_size=4),
    data=st.data(),
)
def test_damage_in_one_of_many_batches_raises_nothing_else(
    form: Form, parts: list[tuple[list[Record], Codec]], data: st.DataObject
) -> None:
    damaged = bytearray().join(build_batch(written, codec=codec).data for written, codec in parts)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with using(form):
        swallow(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
        swallow(bytes(damaged))


def test_what_is_whole_comes_out_whole(form: Form) -> None:
    with using(form):
        assert swallow(b"".join(some_batch(5, codec).data for codec in Codec)) == 25
