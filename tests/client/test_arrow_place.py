"""Rows find the partitions that Kafka's own clients would choose, all at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.arrowplace import RUN, murmur2_all, partitions_of
from tidelog.client.partitioner import murmur2, partition_of


@given(st.lists(st.binary(max_size=40)), st.integers(0, 5))
def test_the_hash_of_a_column_is_the_hash_of_each_key(keys: list[bytes], skipped: int) -> None:
    column = pa.array(keys, pa.binary())[skipped:]
    assert murmur2_all(column).tolist() == [murmur2(key) for key in keys[skipped:]]


def test_keys_go_where_the_partitioner_says_and_rows_without_one_take_turns() -> None:
    keys: list[bytes | None] = [None if row % 3 else b"key-%d" % row for row in range(9000)]
    chosen = partitions_of(pa.array(keys, pa.binary()), len(keys), 7, first=5)
    for row, key in enumerate(keys):
        if key is not None:
            assert chosen[row] == partition_of(key, 7)
    without = chosen[[key is None for key in keys]]
    assert without.tolist() == [(5 + place // RUN) % 7 for place in range(len(without))]


def test_rows_without_any_key_make_runs_over_all_partitions() -> None:
    chosen = partitions_of(None, 10 * RUN, 4, first=2)
    assert sorted(set(chosen.tolist())) == [0, 1, 2, 3]
    assert np.count_nonzero(np.diff(chosen)) == 9
