from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.forms import Form, using
from tests.records.samples import RUNS, records, some_batch, some_records

from tidelog.records import (
    Batch,
    BatchType,
    Codec,
    CorruptBatch,
    MarkerType,
    Offset,
    Record,
    Term,
    TimestampType,
    build_batch,
    columns,
    empty_like,
    ghost,
    internal_batch,
    parse_batches,
    read_records,
    transaction_marker,
)
from tidelog.records.arrow import (
    COLUMNS,
    SCHEMA,
    from_arrow,
    read_arrow,
    to_arrow,
    write_arrow,
)


def rows(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Return the records of batches as Arrow should show them, the slow way."""
    return [
        {
            "offset": batch.base_offset + record.offset_delta,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for batch in batches
        for record in read_records(batch)
    ]


def shown(table: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a table, with times as the numbers they are."""
    index = table.schema.names.index("timestamp")
    numbers = table.column("timestamp").view(pa.int64())
    listed: list[dict[str, Any]] = table.set_column(index, "timestamp", numbers).to_pylist()
    return listed


def read_all(batches: Sequence[Batch]) -> list[Record]:
    """Return the records of batches, each with its place in the whole."""
    found = [record for batch in batches for record in read_records(batch)]
    return placed(found)


def table_of(written: Sequence[Record]) -> pa.RecordBatch:
    """Return records as columns, made by Arrow itself."""
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([record.timestamp for record in written], pa.int64()),
            "key": pa.array([record.key for record in written], pa.binary()),
            "value": pa.array([record.value for record in written], pa.binary()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in record.headers] for record in written],
                SCHEMA.field("headers").type,
            ),
        }
    )


def placed(written: Sequence[Record]) -> list[Record]:
    """Return records as a broker would place them: one offset after the other."""
    return [replace(record, offset_delta=place) for place, record in enumerate(written)]


@given(
    parts=st.lists(
        st.tuples(records(), st.sampled_from(Codec), st.sampled_from(TimestampType)), max_size=4
    )
)
def test_arrow_shows_what_reading_record_by_record_shows(
    form: Form, parts: list[tuple[list[Record], Codec, TimestampType]]
) -> None:
    batches = [
        build_batch(written, codec=codec, timestamp_type=kind, base_offset=Offset(1000 * place))
        for place, (written, codec, kind) in enumerate(parts)
    ]
    with using(form):
        table = to_arrow(batches)
        assert read_arrow(b"".join(batch.data for batch in batches)) == table
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert shown(table) == rows(batches)


@given(
    written=records(max_size=30),
    codec=st.sampled_from(Codec),
    max_batch_bytes=st.integers(1, 2000),
    cut=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_what_came_from_arrow_is_what_was_there(
    form: Form,
    written: list[Record],
    codec: Codec,
    max_batch_bytes: int,
    cut: tuple[int, int],
) -> None:
    start, stop = cut[0], max(cut[0], len(written) - cut[1])
    table = table_of(written).slice(start, stop - start)
    with using(form):
        batches = from_arrow(table, codec=codec, max_batch_bytes=max_batch_bytes)
        data = b"".join(batch.data for batch in batches)
        assert list(parse_batches(data)) == batches
        if codec is Codec.NONE:
            assert write_arrow(table, max_batch_bytes=max_batch_bytes) == data
        assert read_all(batches) == placed(written[start:stop])
    for batch in batches:
        batch.check_crc()
        assert batch.codec is codec
        assert batch.last_offset_delta == batch.count - 1
        assert batch.max_timestamp == max(record.timestamp for record in read_records(batch))
        if codec is Codec.NONE:
            assert batch.size <= max_batch_bytes or batch.count == 1


@given(written=records(max_size=20))
def test_a_round_trip_through_arrow_changes_nothing(form: Form, written: list[Record]) -> None:
    with using(form):
        (batch,) = from_arrow(to_arrow([build_batch(written)]))
    assert list(read_records(batch)) == placed(written)


@given(order=st.permutations(COLUMNS), count=st.integers(0, len(COLUMNS)))
def test_only_the_columns_that_were_asked_for_are_there(
    form: Form, order: list[str], count: int
) -> None:
    batches = [some_batch(7), some_batch(3, Codec.LZ4)]
    with using(form):
        some = to_arrow(batches, columns=order[:count])
        assert some.equals(to_arrow(batches).select(order[:count]))
    assert some.num_rows == 10


def test_markers_and_batches_of_ours_are_left_out_unless_kept(form: Form) -> None:
    marker = transaction_marker(
        MarkerType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )
    batches = [
        some_batch(2).stamp(Offset(0), Term(1)),
        marker.stamp(Offset(2), Term(1)),
        internal_batch(BatchType.CONFIGURATION, b"nodes").stamp(Offset(3), Term(1)),
        ghost(Offset(4), Offset(9), Term(1)),
        empty_like(some_batch(3)).stamp(Offset(10), Term(1)),
        some_batch(1).stamp(Offset(13), Term(1)),
    ]
    with using(form):
        assert to_arrow(batches).column("offset").to_pylist() == [0, 1, 13]
        everything = to_arrow(batches, keep=lambda _: True)
        assert everything.column("offset").to_pylist() == [0, 1, 2, 3, 13]
        ours = to_arrow(batches, keep=lambda batch: batch.type is BatchType.CONFIGURATION)
        assert ours.column("value").to_pylist() == [b"nodes"]


def test_no_batches_are_an_empty_table(form: Form) -> None:
    with using(form):
        assert to_arrow([]).num_rows == 0
        assert to_arrow([]).schema == SCHEMA
        assert from_arrow(to_arrow([])) == []


def test_a_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"no column 'topic'; there are offset, timestamp"):
        to_arrow([some_batch()], columns=("offset", "topic"))


def test_damage_in_any_of_the_batches_is_found(form: Form) -> None:
    broken = some_batch(3).stamp(Offset(500), Term(1))
    broken.data[61] ^= 0x7F
    with using(form), pytest.raises(CorruptBatch, match=r"data \[500, 502\]"):
        to_arrow([some_batch(3), broken], columns=("offset",))


def test_a_buffer_with_more_batches_than_anybody_expects_is_read_in_order(form: Form) -> None:
    codecs = (Codec.NONE, Codec.NONE, Codec.LZ4)
    batches = [
        build_batch(some_records(3), codec=codecs[place % 3], base_offset=Offset(place * 3))
        for place in range(200)
    ]
    with using(form):
        table = read_arrow(b"".join(batch.data for batch in batches))
    assert table.column("offset").to_pylist() == list(range(600))
    assert shown(table) == rows(batches)


def test_a_buffer_of_bytes_gives_the_columns_that_were_asked_for(form: Form) -> None:
    data = bytes(some_batch(4).data)
    with using(form):
        assert read_arrow(data, columns=("value", "offset")) == to_arrow(
            [some_batch(4)], columns=("value", "offset")
        )
        assert read_arrow(data, columns=()).num_rows == 4
        assert read_arrow(b"") == to_arrow([])
        with pytest.raises(ValueError, match="no column 'topic'"):
            read_arrow(data, columns=("topic",))


def test_what_clients_skip_is_left_out_of_a_buffer_but_its_crc_is_checked(form: Form) -> None:
    marker = transaction_marker(
        MarkerType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5
    )
    gap = ghost(Offset(7), Offset(2**40), Term(1))
    hidden = [internal_batch(BatchType.CONFIGURATION, b"x"), gap, empty_like(some_batch())]
    with using(form):
        for batch in (marker, *hidden):
            data = bytearray(some_batch().data) + batch.data
            assert read_arrow(data) == to_arrow([some_batch()])
            data[-1 if batch.count else -20] ^= 1
            with pytest.raises(CorruptBatch, match="the CRC says") as raised:
                read_arrow(data)
            assert raised.value.position == some_batch().size


@pytest.mark.parametrize("codec", Codec)
def test_a_wrong_crc_is_told_with_the_position_of_its_batch(form: Form, codec: Codec) -> None:
    data = bytearray(some_batch(3, codec).data) * 3
    position = 2 * some_batch(3, codec).size
    data[-3] ^= 0x10
    with using(form), pytest.raises(CorruptBatch, match="the CRC says") as raised:
        read_arrow(data)
    assert raised.value.position == position


def test_damage_behind_a_right_crc_is_told_with_the_batch_it_is_in(form: Form) -> None:
    broken = some_batch(3).stamp(Offset(500), Term(1))
    broken.data[61] ^= 0x7F
    broken.set_time(broken.max_timestamp, broken.timestamp_type)  # makes the CRC anew
    with using(form), pytest.raises(CorruptBatch, match=r"data \[500, 502\]"):
        read_arrow(bytes(some_batch(3).data) + bytes(broken.data))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_count_that_lies_allocates_nothing(
    form: Form, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = bytearray(some_batch(3, codec).data)
    liar[23:27] = (2**31 - 1).to_bytes(4, "big")
    liar[57:61] = (2**31 - 1).to_bytes(4, "big")
    batch = Batch.parse(liar)
    batch.set_time(batch.max_timestamp, batch.timestamp_type)  # makes the CRC anew
    asked: list[int] = []
    real = columns.allocate

    def allocate(size: int) -> memoryview:
        asked.append(size)
        return real(size)

    monkeypatch.setattr(columns, "allocate", allocate)
    steps: list[Callable[[], object]] = [lambda: to_arrow([batch]), lambda: read_arrow(liar)]
    for step in steps:
        with using(form), pytest.raises(CorruptBatch, match="2147483647 records do not fit"):
            step()
    assert asked
    assert max(asked) < 10_000


def test_no_batch_may_unpack_to_more_than_the_limit(form: Form) -> None:
    large = build_batch([Record(0, 0, None, bytes(5000))], codec=Codec.ZSTD)
    with using(form):
        assert to_arrow([large], limit=5020).num_rows == 1
        with pytest.raises(CorruptBatch, match="more than the 5000"):
            to_arrow([large], limit=5000)
        plain = build_batch([Record(0, 0, None, bytes(5000))])
        with pytest.raises(CorruptBatch, match="more than the 5000"):
            to_arrow([plain], limit=5000)
        for batch in (large, plain):
            assert read_arrow(batch.data, limit=5020).num_rows == 1
            with pytest.raises(CorruptBatch, match="more than the 5000"):
                read_arrow(batch.data, limit=5000)


def test_more_than_arrow_holds_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.records.columns.MAX_COLUMN_BYTES", 9_000)
    for codec in (Codec.NONE, Codec.ZSTD):
        large = build_batch([Record(0, 0, None, bytes(4000))], codec=codec)
        assert to_arrow([large] * 2) == read_arrow(bytes(large.data) * 2)
        with pytest.raises(ValueError, match="convert fewer at a time"):
            to_arrow([large] * 3)
        with pytest.raises(ValueError, match="convert fewer at a time"):
            read_arrow(bytes(large.data) * 3)


def test_only_the_value_is_needed(form: Form) -> None:
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"a", None], pa.binary())})
    with using(form):
        (batch,) = from_arrow(table, default_timestamp=77)
        assert read_all([batch]) == [Record(0, 77, None, b"a"), Record(1, 77, None, None)]


def test_a_record_without_a_time_gets_the_time_of_now(form: Form) -> None:
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"a"], pa.binary())})
    with using(form):
        (batch,) = from_arrow(table)
    assert 1_700_000_000_000 < batch.max_timestamp < 2**45


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view()],
    ids=str,
)
def test_any_kind_of_bytes_or_text_will_do(form: Form, kind: pa.DataType) -> None:
    texts = ["a", None, "größe", ""]
    expected = [None if text is None else text.encode() for text in texts]
    column = pa.array(texts if "string" in str(kind) else expected, kind)
    with using(form):
        batches = from_arrow(pa.RecordBatch.from_pydict({"key": column, "value": column}))
    assert [record.value for record in read_all(batches)] == expected
    assert [record.key for record in read_all(batches)] == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_become_milliseconds(form: Form, unit: str) -> None:
    seconds = 1_700_000_000
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = pa.array([seconds * scale, None], pa.timestamp(unit, tz="UTC"))
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"]), "timestamp": times})
    with using(form):
        batches = from_arrow(table, default_timestamp=5)
    assert [record.timestamp for record in read_all(batches)] == [seconds * 1000, 5]


def test_a_null_list_of_headers_is_an_empty_one(form: Form) -> None:
    kind = SCHEMA.field("headers").type
    headers = pa.array([None, [], [{"key": "a", "value": None}], None], kind)
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"x"] * 4), "headers": headers})
    with using(form):
        found = read_all(from_arrow(table))
        sliced = read_all(from_arrow(table.slice(2)))
    assert [record.headers for record in found] == [(), (), (("a", None),), ()]
    assert [record.headers for record in sliced] == [(("a", None),), ()]


def test_headers_may_be_nullable_and_large_as_spark_makes_them(form: Form) -> None:
    kind = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    headers = pa.array([[{"key": "a", "value": b"1"}], []], kind)
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"x", b"y"]), "headers": headers})
    with using(form):
        found = read_all(from_arrow(table))
    assert [record.headers for record in found] == [(("a", b"1"),), ()]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"key": pa.array([b"a"])}, "no column 'value'"),
        ({"value": pa.array([b"a"]), "topic": pa.array(["t"])}, "column 'topic' has no place"),
        ({"value": pa.array([1.5])}, "column 'value' is double and cannot be binary"),
        ({"value": pa.array([b"a"]), "timestamp": pa.array(["noon"])}, "column 'timestamp'"),
        ({"value": pa.array([b"a"]), "headers": pa.array([1])}, "column 'headers'"),
        (
            {
                "value": pa.array([b"a"]),
                "headers": pa.array([[None]], pa.list_(SCHEMA.field("headers").type.value_type)),
            },
            "a header is null",
        ),
    ],
)
def test_a_table_that_makes_no_records_is_refused(
    columns: dict[str, pa.Array], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        from_arrow(pa.RecordBatch.from_pydict(columns))


def test_a_header_without_a_key_is_refused(form: Form) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": None, "value": b"1"}]], kind)
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"x"]), "headers": headers})
    with using(form), pytest.raises(ValueError, match="header"):
        from_arrow(table)


def test_sequences_go_on_from_batch_to_batch_and_wrap(form: Form) -> None:
    table = pa.RecordBatch.from_pydict({"value": pa.array([bytes(100)] * 6)})
    with using(form):
        batches = from_arrow(
            table,
            max_batch_bytes=300,
            producer_id=9,
            producer_epoch=1,
            base_sequence=2**31 - 3,
            transactional=True,
        )
    assert [batch.count for batch in batches] == [2, 2, 2]
    assert [batch.base_sequence for batch in batches] == [2**31 - 3, 2**31 - 1, 1]
    assert {(batch.producer_id, batch.producer_epoch) for batch in batches} == {(9, 1)}
    assert all(batch.is_transactional for batch in batches)
    unsequenced = from_arrow(table, max_batch_bytes=300)
    assert {batch.base_sequence for batch in unsequenced} == {-1}


def test_a_record_larger_than_a_batch_has_a_batch_of_its_own(form: Form) -> None:
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"a", bytes(10_000), b"b", b"c"])})
    with using(form):
        batches = from_arrow(table, max_batch_bytes=1000)
    assert [batch.count for batch in batches] == [1, 1, 2]


def test_batches_from_arrow_can_be_stamped_in_place_without_touching_each_other() -> None:
    table = pa.RecordBatch.from_pydict({"value": pa.array([bytes(100)] * 6)})
    batches = from_arrow(table, max_batch_bytes=300)
    for place, batch in enumerate(batches):
        assert batch.stamp(Offset(place * 2), Term(3)) is batch
    for batch in batches:
        batch.check_crc()
    assert to_arrow(batches).column("offset").to_pylist() == list(range(6))


@given(values=st.lists(RUNS, max_size=40))
def test_nulls_are_counted(form: Form, values: list[bytes | None]) -> None:
    written = [Record(place, 0, value, None) for place, value in enumerate(values)]
    with using(form):
        table = to_arrow([build_batch(written)])
    assert table.column("key").null_count == values.count(None)
    assert table.column("value").null_count == len(values)
    assert table.column("key").to_pylist() == values


def test_the_sample_has_everything_a_record_can_have() -> None:
    sample = some_records(8)
    assert {record.key is None for record in sample} == {True, False}
    assert {record.value is None for record in sample} == {True, False}
    assert {bool(record.headers) for record in sample} == {True, False}
