"""A function over many items, as Spark tasks: one item a task, results back to the driver.

Only the result of the attempt that succeeded comes back, whatever other attempts did. This works
with a session of any kind: in this process, on a cluster, over Spark Connect.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(
    spark: SparkSession, work: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """Run `work` on every item; results are in the order of the items."""
    if not items:
        return []
    packed = [pickle.dumps(item) for item in items]

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            found = [pickle.dumps(work(pickle.loads(packed[number]))) for number in numbers]
            yield pa.RecordBatch.from_pydict(
                {
                    "number": pa.array(numbers, pa.int64()),
                    "result": pa.array(found, pa.binary()),
                }
            )

    frame = spark.range(0, len(items), 1, len(items))
    rows = frame.mapInArrow(each, "number long, result binary").collect()
    return [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.number)]
