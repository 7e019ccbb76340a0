"""Which partition each row of a column of keys goes to, for all rows at once.

The same function as `partitioner.partition_of`, with one pass of numpy for every four bytes of the
longest key. Rows without a key go in runs to one partition after the other: a run makes a batch
that is worth sending, and over many runs every partition gets its share.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

# Rows without a key that go to one partition before the next one's turn.
RUN: Final = 1024

_SEED: Final = np.uint32(0x9747B28C)
_FACTOR: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)

Ints = np.ndarray[Any, np.dtype[Any]]


def murmur2_all(keys: pa.Array) -> Ints:
    """Return the murmur2 hash of every key; what a null gets means nothing."""
    _, offset_buffer, data_buffer = keys.buffers()
    rows = len(keys)
    if not rows or offset_buffer is None:
        return np.zeros(rows, np.uint32)
    offsets = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + rows + 1]
    data = b"" if data_buffer is None else memoryview(data_buffer).cast("B")
    # Padded, so that the last words can be read whole.
    padded = np.zeros(len(data) + 4, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    words: Ints = np.ndarray((len(data) + 1,), "<u4", padded.data, 0, (1,))
    starts = offsets[:-1].astype(np.int64)
    sizes = np.diff(offsets)
    value = _SEED ^ sizes.astype(np.uint32)
    whole = sizes >> 2
    for place in range(int(whole.max(initial=0))):
        active = np.flatnonzero(whole > place)
        part = words[starts[active] + 4 * place] * _FACTOR
        part = (part ^ part >> np.uint32(24)) * _FACTOR
        value[active] = value[active] * _FACTOR ^ part
    rest = sizes & 3
    active = np.flatnonzero(rest)
    if len(active):
        masks = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
        tail = words[starts[active] + 4 * whole[active].astype(np.int64)] & masks[rest[active]]
        value[active] = (value[active] ^ tail) * _FACTOR
    value = (value ^ value >> np.uint32(13)) * _FACTOR
    return value ^ value >> np.uint32(15)


def partitions_of(keys: pa.Array | None, rows: int, count: int, first: int) -> Ints:
    """Return the partition of every row; those without a key take turns, from `first` on."""
    if keys is None or keys.null_count == rows:
        return _turns(rows, count, first)
    chosen = ((murmur2_all(keys) & _POSITIVE) % np.uint32(count)).astype(np.int32)
    if keys.null_count:
        missing = keys.is_null().to_numpy(zero_copy_only=False)
        chosen[missing] = _turns(int(missing.sum()), count, first)
    return chosen


def _turns(rows: int, count: int, first: int) -> Ints:
    return ((first + np.arange(rows, dtype=np.int64) // RUN) % count).astype(np.int32)
