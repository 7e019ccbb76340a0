"""How records are read from lines and written as lines."""

from __future__ import annotations

import pytest
import typer

from tidelog.cli.common import (
    emit_table,
    format_bytes,
    format_time,
    parse_settings,
    parse_time,
    plural,
)
from tidelog.cli.consume import Start, parse_start
from tidelog.cli.formats import InputFormat, InputRecord, Mismatch, OutputFormat, as_document
from tidelog.client import FetchedRecord, TopicPartition

RECORD = FetchedRecord(
    TopicPartition("orders", 3), 42, 1_700_000_000_123, b"k", b"v", (("a", b"1"), ("b", None))
)


@pytest.mark.parametrize(
    ("format", "piece", "record"),
    [
        (r"%v\n", b"hello world", InputRecord(b"hello world")),
        (r"%k %v\n", b"k v w", InputRecord(b"v w", b"k")),
        (r"%k\t%v\n", b"a b\tc", InputRecord(b"c", b"a b")),
        (r"%v;%k\n", b"v;k", InputRecord(b"v", b"k")),
        (r"%p:%k=%v", b"2:a=b=c", InputRecord(b"b=c", b"a", (), 2)),
        (r"%h|%v\n", b"a=1,b=2|x", InputRecord(b"x", None, (("a", b"1"), ("b", b"2")))),
        (r"100%%%v\n", b"100%x", InputRecord(b"x")),
        (r"%k\n", b"only", InputRecord(None, b"only")),
    ],
)
def test_a_line_is_read_as_its_format_says(format: str, piece: bytes, record: InputRecord) -> None:
    assert InputFormat(format).read(piece) == record


def test_what_ends_a_format_ends_a_record() -> None:
    assert InputFormat(r"%v\n").end == b"\n"
    assert InputFormat(r"%v\n---\n").end == b"\n---\n"
    assert InputFormat("%v").end == b"\n"


@pytest.mark.parametrize(
    ("format", "piece"),
    [(r"%k %v\n", b"nospace"), (r"%p %v\n", b"x v"), (r"%h %v\n", b"novalue v")],
)
def test_a_line_that_is_not_like_its_format_is_a_sentence(format: str, piece: bytes) -> None:
    with pytest.raises(Mismatch):
        InputFormat(format).read(piece)


@pytest.mark.parametrize("format", ["%x", "%", r"\q", "%p\n", "%v %v", "%o %v"])
def test_a_wrong_input_format_is_a_wrong_command_line(format: str) -> None:
    with pytest.raises(typer.BadParameter):
        InputFormat(format)


def test_every_verb_writes_its_part_of_a_record() -> None:
    written = OutputFormat(r"%t/%p@%o %k=%v [%h] %d 100%%\n").write(RECORD)
    assert written == b"orders/3@42 k=v [a=1,b=] 1700000000123 100%\n"


def test_json_tells_nothing_from_empty_and_text_from_bytes() -> None:
    record = FetchedRecord(TopicPartition("t", 0), 0, 5, None, b"\xff\x00", ())
    assert as_document(record) == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 5,
        "key": None,
        "value": {"base64": "/wA="},
        "headers": [],
    }


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("start", Start(time=-2)),
        ("end", Start(time=-1)),
        ("7", Start(offset=7)),
        ("-7", Start(before_end=7)),
        ("@1700000000000", Start(time=1_700_000_000_000)),
        ("@2023-11-14T22:13:20Z", Start(time=1_700_000_000_000)),
    ],
)
def test_a_place_to_begin_is_read(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "middle", "--7", "@", "@tomorrow", "1.5"])
def test_a_wrong_place_to_begin_is_a_wrong_command_line(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_start(text)


def test_an_hour_ago_is_an_hour_before_now() -> None:
    hour, two = parse_start("@-1h").time, parse_start("@-2h").time
    assert hour is not None
    assert two is not None
    assert 3_590_000 < hour - two < 3_610_000


def test_settings_are_key_and_value() -> None:
    assert parse_settings(["a=b", " c = d=e "], "-c") == {"a": "b", "c": "d=e"}
    for wrong in ("a", "=b"):
        with pytest.raises(typer.BadParameter, match="key=value"):
            parse_settings([wrong], "-c")


def test_times_sizes_and_counts_are_written_as_people_read_them() -> None:
    assert format_time(parse_time("2023-11-14T22:13:20Z")) == "2023-11-14T22:13:20.000Z"
    assert [format_bytes(n) for n in (None, 5, 1536, 5 << 30, 3 << 40)] == [
        "-",
        "5 B",
        "1.5 KiB",
        "5.0 GiB",
        "3.0 TiB",
    ]
    assert (plural(1, "node"), plural(2, "node")) == ("1 node", "2 nodes")


def test_tables_align_text_to_the_left_and_numbers_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emit_table(("NAME", "COUNT", "ON"), [("a", 5, (1, 2)), ("longer", None, ())])
    assert capsys.readouterr().out == "NAME    COUNT  ON\na           5  1,2\nlonger      -  -\n"
