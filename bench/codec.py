"""Records to Arrow columns and back, against the compiled codec of aiokafka, in one run.

Both sides start from the same records and the same bytes, check or compute the CRC, and use no
compression. What they make of the bytes differs, so decoding is measured against aiokafka twice:
its iterator alone, which makes one object a record, and its records gathered into the same Arrow
columns, which is what somebody with only aiokafka would have to do. Each figure is the best of
several rounds, and the two sides take turns in each round.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from aiokafka.record import default_records
from aiokafka.record.memory_records import MemoryRecords

from tidelog.records import kernels
from tidelog.records.arrow import SCHEMA, read_arrow, write_arrow

NAME = "codec"
VALUE_SIZES = (100, 1024)
# Kafka's producer fills 16 KiB by default; 1 MiB is what a broker takes at most by default.
BATCH_SIZES = (16 * 1024, 1024 * 1024)
CALL_BYTES = 1024 * 1024  # handed over at a time: what a consumer fetches of a partition at most
CALLS = 8  # one after the other, each with bytes of its own
ROUNDS = 30
QUICK_ROUNDS = 5
GOAL = 5.0


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; rates are records a second."""

    direction: str
    value_size: int
    batch_size: int
    ours: float
    theirs: float  # aiokafka's codec alone
    theirs_to_arrow: float | None  # and its records gathered into columns

    def __str__(self) -> str:
        other = f"{self.theirs_to_arrow / 1e6:10.2f}" if self.theirs_to_arrow else " " * 10
        ratio = f"{self.ours / self.theirs_to_arrow:6.1f}x" if self.theirs_to_arrow else ""
        return (
            f"{self.direction:<7}{self.value_size:>7} B{self.batch_size // 1024:>8} KiB"
            f"{self.ours / 1e6:11.2f}{self.theirs / 1e6:11.2f}{self.ours / self.theirs:8.1f}x"
            f"{other}{ratio}"
        )


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure both directions and yield a table."""
    compiled = "compiled" if kernels.__file__.endswith(".so") else "NOT COMPILED"
    yield f"kernels: {compiled}; aiokafka: {default_records.DefaultRecordBatch.__module__}"
    if "_crecords" not in default_records.DefaultRecordBatch.__module__:
        yield "aiokafka runs without its compiled codec here: the ratios mean nothing"
    yield "million records a second            tidelog   aiokafka   ratio   and to Arrow"
    rows = [
        row for size in VALUE_SIZES for batch in BATCH_SIZES for row in measure(size, batch, quick)
    ]
    yield from map(str, rows)
    worst = min(rows, key=lambda row: row.ours / row.theirs)
    yield f"goal: {GOAL:.0f}x; lowest ratio {worst.ours / worst.theirs:.1f}x ({worst.direction})"


def measure(value_size: int, batch_size: int, quick: bool) -> list[Row]:
    """Measure one size of values in one size of batches."""
    count = CALL_BYTES // (value_size + 20)
    columns = [_columns(count, value_size) for _ in range(CALLS)]
    rows = [
        list(zip(*(part.column(name).to_pylist() for name in ("key", "value")), strict=True))
        for part in columns
    ]
    data = [bytes(write_arrow(part, max_batch_bytes=batch_size)) for part in columns]
    best = _best(
        {
            "encode": lambda: _each(columns, lambda part: _encode(part, batch_size)),
            "encode theirs": lambda: _each(rows, lambda part: _encode_theirs(part, batch_size)),
            "decode": lambda: _each(data, _decode),
            "decode theirs": lambda: _each(data, _decode_theirs),
            "decode theirs to Arrow": lambda: _each(data, _decode_theirs_to_arrow),
        },
        QUICK_ROUNDS if quick else ROUNDS,
    )
    rate = {name: CALLS * count / seconds for name, seconds in best.items()}
    return [
        Row("encode", value_size, batch_size, rate["encode"], rate["encode theirs"], None),
        Row(
            "decode",
            value_size,
            batch_size,
            rate["decode"],
            rate["decode theirs"],
            rate["decode theirs to Arrow"],
        ),
    ]


def _columns(count: int, value_size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(range(count), pa.timestamp("ms", tz="UTC")),
            "key": [b"key-%08d" % row for row in range(count)],
            "value": [os.urandom(value_size) for _ in range(count)],
        }
    )


def _each(parts: list[T], step: Callable[[T], object]) -> None:
    for part in parts:
        step(part)


def _best(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            step()  # what the other side left in caches and allocators is not ours to pay for
            began = time.perf_counter()
            step()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def _encode(columns: pa.RecordBatch, batch_size: int) -> object:
    return write_arrow(columns, max_batch_bytes=batch_size)


def _decode(data: bytes) -> object:
    return read_arrow(data)


def _encode_theirs(rows: list[tuple[bytes, bytes]], batch_size: int) -> object:
    def builder() -> Any:
        return default_records.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_size)

    batches = []
    batch = builder()
    delta = 0
    for timestamp, (key, value) in enumerate(rows):
        if batch.append(delta, timestamp, key, value, []) is None:
            batches.append(batch.build())
            batch = builder()
            batch.append(0, timestamp, key, value, [])
            delta = 0
        delta += 1
    batches.append(batch.build())
    return batches


def _decode_theirs(data: bytes) -> object:
    records = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for _ in batch:
            pass
    return None


def _decode_theirs_to_arrow(data: bytes) -> object:
    rows: list[tuple[Any, ...]] = []
    records = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        rows.extend((r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch)
    columns = zip(*rows, strict=True)
    return [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
