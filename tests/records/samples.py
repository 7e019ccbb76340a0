"""Records and batches for tests: by hand, and by chance."""

from dataclasses import replace

from hypothesis import strategies as st

from tidelog.records import Batch, Codec, Record, TimestampType, build_batch

# Far enough from the ends of 64 bits that no difference of two overflows.
TIMES = st.one_of(st.just(-1), st.integers(0, 2**41), st.integers(-(2**62) + 1, 2**62 - 1))
RUNS = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=200))
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=70)), max_size=3)


@st.composite
def records(draw: st.DrawFn, *, min_size: int = 1, max_size: int = 12) -> list[Record]:
    """Draw the records of one batch; offsets may have gaps, as after compaction."""
    count = draw(st.integers(min_size, max_size))
    deltas = sorted(draw(st.sets(st.integers(0, 300), min_size=count, max_size=count)))
    return [
        Record(delta, draw(TIMES), draw(RUNS), draw(RUNS), tuple(draw(HEADERS))) for delta in deltas
    ]


def some_records(count: int = 3) -> list[Record]:
    """Return records with everything in them that a record can have."""
    return [
        Record(
            index,
            1_700_000_000_000 + index,
            None if index % 3 == 2 else b"key-%d" % index,
            None if index % 4 == 1 else b"value-%d" % index * 3,
            (("trace", b"\x00\xff"), ("größe", None)) if index % 2 == 0 else (),
        )
        for index in range(count)
    ]


def some_batch(count: int = 3, codec: Codec = Codec.NONE) -> Batch:
    """Return a batch of `some_records`."""
    return build_batch(some_records(count), codec=codec)


def as_read(batch: Batch, written: list[Record]) -> list[Record]:
    """Return what a reader sees of records that were written: one time for all, if the broker's."""
    if batch.timestamp_type is TimestampType.CREATE:
        return written
    return [replace(record, timestamp=batch.max_timestamp) for record in written]
