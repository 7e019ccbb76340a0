"""A lake table and the live tail of its topic as one.

`read_lake` is the way to do it: Spark's own Parquet reader for what the lake has, with column
pruning and filters pushed down, and `format("tidelog")` for the records behind it.

`format("tidelog").option("lake", ...)` gives the same rows where only a format will do, such as in
SQL. A Python source cannot hand files to Spark's reader, so there its tasks read Parquet with
Arrow: no filter is pushed down, and columns are pruned only by `.schema(...)`.

Both take one snapshot of the table, and the tail begins at the offsets of that very snapshot: no
record is missing or there twice, however many commits are made meanwhile. Records that retention
has removed from the topic are still in the lake; those it removed before they got there are lost,
and that is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.spark.lake.catalog import Lake, LakeError
from tidelog.spark.lake.committing import data_files
from tidelog.spark.lake.files import fit
from tidelog.spark.lake.job import TOPIC, kept_options
from tidelog.spark.lake.schemas import spark_schema
from tidelog.spark.lake.stamp import last_stamp
from tidelog.spark.options import OptionError, read_options
from tidelog.spark.planning import Planner
from tidelog.spark.ranges import Positions, to_json
from tidelog.spark.reader import TopicReader
from tidelog.spark.rows import arrow_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS: Final = 32_768
_BOOTSTRAP: Final = "kafka.bootstrap.servers"


def read_lake(
    spark: SparkSession,
    lake: Lake | str,
    table: str,
    *,
    bootstrap: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of a lake table and, with `bootstrap`, what its topic has behind them."""
    place = Lake(lake) if isinstance(lake, str) else lake
    found = place.table(table)
    schema = spark_schema(found.schema())
    paths = [each.file_path for each in data_files(found)]
    rows = spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)
    if bootstrap is None:
        return rows
    given = tail_options(found, {**(options or {}), _BOOTSTRAP: bootstrap})
    tail = spark.read.format("tidelog").options(**given).schema(schema).load()
    return rows.unionByName(tail)


def tail_options(table: Table, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that read the records which a table's topic has and the table has not."""
    topic = table.properties.get(TOPIC)
    if topic is None:
        raise LakeError(
            f"Table {table.name()[-1]} has no topic to read on from: leave out the bootstrap "
            "servers."
        )
    options = {**given, **kept_options(table), "subscribe": topic}
    committed = last_stamp(table).offsets
    partitions = Planner(read_options(options, streaming=False)).partitions()
    start: Positions = {each: committed.get(each, -2) for each in partitions}
    return {**options, "startingOffsets": json.dumps(to_json(start))}


class _Parquet(InputPartition):
    """A file that a task reads."""

    def __init__(self, path: str) -> None:
        super().__init__(path)


class LakeReader(DataSourceReader):
    """A batch read of a table, and of its topic's tail if the cluster is named."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = {name.lower(): str(value) for name, value in options.items()}
        self._columns = arrow_schema(schema)
        table = _table(given)
        self._paths = [each.file_path for each in data_files(table)]
        self._tail: TopicReader | None = None
        if _BOOTSTRAP in given:
            plain = {
                name: value
                for name, value in given.items()
                if not name.startswith("lake") and name not in ("table", "path")
            }
            self._tail = TopicReader(
                read_options(tail_options(table, plain), streaming=False), schema
            )

    def partitions(self) -> list[InputPartition]:
        found: list[InputPartition] = [_Parquet(path) for path in self._paths]
        return found + (list(self._tail.partitions()) if self._tail is not None else [])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._tail is not None and not isinstance(partition, _Parquet):
            yield from self._tail.read(partition)
            return
        yield from read_parquet(partition.value, self._columns)


def lake_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of a read without `.schema(...)`."""
    given = {name.lower(): str(value) for name, value in options.items()}
    return spark_schema(_table(given).schema())


def read_parquet(path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a file batch by batch, with exactly these columns."""
    system, inner = fs.FileSystem.from_uri(path)
    with system.open_input_file(inner) as stream:
        parquet = pq.ParquetFile(stream)
        names = [name for name in columns.names if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=names):
            yield fit(batch, columns)


def _table(given: Mapping[str, Any]) -> Table:
    name = given.get("table") or given.get("subscribe")
    if not name:
        raise OptionError("Which table of the lake? Set `subscribe` to a topic, or `table`.")
    return Lake.from_options(given).table(name)
