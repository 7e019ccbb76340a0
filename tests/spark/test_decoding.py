"""Bytes become columns, and one bad value spoils only its own row."""

from __future__ import annotations

import datetime
import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.decoding import Decoded, check_json, decode_json, decode_strings
from tidelog.spark.options import OptionError

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string())])


def decode(values: list[bytes | None], schema: pa.Schema = SCHEMA) -> Decoded:
    return decode_json(pa.array(values, pa.binary()), schema)


def rows(decoded: Decoded) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in decoded.columns]
    assert all(len(column) == len(decoded.bad) for column in columns)
    return list(zip(*columns, strict=True))


def test_objects_become_rows_and_other_fields_are_passed_over() -> None:
    found = decode([b'{"a": 1, "b": "x", "c": [1, {}]}', b'{"b": "y"}', b"{}"])
    assert rows(found) == [(1, "x"), (None, "y"), (None, None)]
    assert not found.any_bad


def test_a_tombstone_is_a_row_of_nulls_and_not_bad() -> None:
    found = decode([None, b'{"a": 1}', None])
    assert rows(found) == [(None, None), (1, None), (None, None)]
    assert not found.any_bad
    assert rows(decode([None])) == [(None, None)]
    assert rows(decode([])) == []


BAD = {
    "cut off": b'{"a": 1',
    "another type": b'{"a": "1"}',
    "too large": b'{"a": 99999999999}',
    "no whole number": b'{"a": 1.5}',
    "an array": b"[1]",
    "a number": b"5",
    "two objects": b'{"a": 1}{"a": 2}',
    "no object": b'{"a": 1} x',
    "empty": b"",
    "blank": b"  ",
    "no UTF-8": b'{"b": "\xff"}',
    "twice the same": b'{"a": 1, "a": 2}',
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
def test_a_bad_value_is_found_wherever_it_stands(value: bytes) -> None:
    good = b'{"a": 7}'
    assert decode([value]).bad.to_pylist() == [True]
    assert rows(decode([value])) == [(None, None)]
    for place in (0, 3, 9):
        values = [good] * 10
        values[place] = value
        found = decode([*values, None])
        assert found.bad.to_pylist() == [n == place for n in range(11)]
        assert rows(found)[:10] == [(None if n == place else 7, None) for n in range(10)]


@given(st.lists(st.sampled_from([*BAD.values(), None, *[b'{"a": %d}' % n for n in range(5)]])))
def test_any_mix_decodes_row_by_row(values: list[bytes | None]) -> None:
    found = decode(values)
    alone = [decode([value]) for value in values]
    assert found.bad.to_pylist() == [each.bad.to_pylist()[0] for each in alone]
    assert rows(found) == [rows(each)[0] for each in alone]


def test_large_batches_with_many_bad_values_keep_their_order() -> None:
    chance = random.Random(5)
    values = [b'{"a": %d}' % n if chance.random() > 0.05 else b"{" for n in range(20_000)]
    found = decode(list(values))
    assert [row[0] for row in rows(found)] == [
        None if value == b"{" else n for n, value in enumerate(values)
    ]
    assert found.bad.true_count == values.count(b"{")


def test_values_may_be_written_over_several_lines() -> None:
    value = json.dumps({"a": 1, "b": "line\nfeed"}, indent=2).encode()
    assert rows(decode([value, b'{"a": 2}'])) == [(1, "line\nfeed"), (2, None)]


def test_types_are_read_as_the_schema_says() -> None:
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("ratio", pa.float64()),
            ("deep", pa.struct([("list", pa.list_(pa.int64())), ("day", pa.date32())])),
        ]
    )
    value = {
        "at": "2024-01-02T03:04:05+02:00",
        "day": "2024-01-02",
        "price": 12.5,
        "ratio": 3,
        "deep": {"list": [1, None], "day": "2024-01-03"},
    }
    (row,) = rows(decode([json.dumps(value).encode()], schema))
    assert row[0] == datetime.datetime(2024, 1, 2, 1, 4, 5, tzinfo=datetime.UTC)
    assert row[1:4] == (datetime.date(2024, 1, 2), Decimal("12.50"), 3.0)
    assert row[4] == {"list": [1, None], "day": datetime.date(2024, 1, 3)}
    assert decode([b'{"day": "soon"}'], schema).any_bad
    check_json(schema)
    with pytest.raises(OptionError, match=r"Column `deep\.map` is a map"):
        check_json(pa.schema([("deep", pa.struct([("map", pa.map_(pa.string(), pa.int32()))]))]))


def test_slices_of_columns_are_read_where_they_begin() -> None:
    values = pa.array([b"{", b'{"a": 1}', b'{"a": 2}', None], pa.binary())
    assert rows(decode_json(values[1:], SCHEMA)) == [(1, None), (2, None), (None, None)]
    assert decode_strings(pa.array([b"\xff", b"a", b"b"], pa.binary())[1:]).columns[
        0
    ].to_pylist() == ["a", "b"]


def test_text_is_checked() -> None:
    found = decode_strings(pa.array(["ä".encode(), b"\xff", None], pa.binary()))
    assert found.columns[0].to_pylist() == ["ä", None, None]
    assert found.bad.to_pylist() == [False, True, False]
