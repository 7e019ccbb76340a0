"""`write` and `writeStream` to a lake table: format("tidelog") with the option `lake`.

    .option("lake", "/data/lake").option("table", "daily_revenue")
    .option("partitionBy", "day(paid_at)")          # also year, month, hour; none without it

Tasks write files, and the driver adds them to the table in one commit. A batch of a stream is
committed once: the snapshot says up to which batch of which query the table goes. A plain write
with `txnAppId` and `txnVersion` is committed once as well; without them, every write appends. Mode
`overwrite` replaces all rows, in one commit too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelog.spark.lake.catalog import Lake
from tidelog.spark.lake.committing import (
    adding,
    commit,
    from_query,
    replacing,
    target_of,
)
from tidelog.spark.lake.files import File, remove_files, write_files
from tidelog.spark.lake.stamp import Stamp
from tidelog.spark.options import OptionError

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class TaskFiles(WriterCommitMessage):
    """What one task wrote, for which query."""

    files: tuple[File, ...]
    query: str | None


class _LakeWriting:
    """What batch and stream have in common."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = {name.lower(): str(value) for name, value in options.items()}
        name = given.get("table") or given.get("topic")
        if not name:
            raise OptionError("Which table of the lake? Set the option `table`.")
        self._lake = Lake.from_options(given)
        self._name = name
        self._app = given.get("txnappid")
        self._version = int(given.get("txnversion", "0"))
        found = self._lake.find(name) if self._lake.exists() else None
        table = found or self._lake.create(name, schema, given.get("partitionby"), {})
        columns = [field.name for field in table.schema().fields]
        unknown = [column for column in schema.names if column not in columns]
        if unknown:
            raise OptionError(
                f"Table {name} has no column `{unknown[0]}`; it has {', '.join(columns)}."
            )
        self._target = target_of(table)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return TaskFiles(tuple(write_files(iterator, self._target)), query)

    def _table(self) -> Table:
        return self._lake.table(self._name)


class LakeWriter(_LakeWriting, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema)
        self._overwrite = overwrite

    def commit(self, messages: Sequence[Any]) -> None:
        paths = _paths(messages)
        table = self._table()
        change = replacing(table, paths) if self._overwrite else adding(paths)
        made = commit(table, change, self._decide)
        if not made:
            remove_files(paths)

    def abort(self, messages: Sequence[Any]) -> None:
        remove_files(_paths(messages))

    def _decide(self, stamp: Stamp) -> Stamp | None:
        if self._app is None:
            return stamp.added()
        return from_query(f"app/{self._app}", self._version)(stamp)


class LakeStreamWriter(_LakeWriting, DataSourceStreamArrowWriter):
    """The sink of a stream. In `complete` mode every batch replaces the rows."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema)
        self._overwrite = overwrite

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        paths = _paths(messages)
        query = next((each.query for each in messages if each is not None and each.query), None)
        if query is None:
            raise OptionError("A stream without a query id cannot be committed once.")
        table = self._table()
        change = replacing(table, paths) if self._overwrite else adding(paths)
        if not commit(table, change, from_query(query, batchId)):
            remove_files(paths)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Leave the files: Spark also calls this after a commit whose answer was lost.

        Those of a batch that failed are in no snapshot, and `tidelog lake clean` removes them.
        """


def _paths(messages: Sequence[Any]) -> list[str]:
    return [file.path for each in messages if each is not None for file in each.files]
