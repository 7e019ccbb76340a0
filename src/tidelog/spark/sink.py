"""Writes rows to topics, as a batch and as a stream.

Columns, as in Spark's own Kafka sink: `value` (binary or string; must be there), `key`, `headers`,
`topic` (unless the option says which), `partition`. Others are left alone.

What is written once. Each task writes under an identity (`tidelog.client.identity`) made of

    a stream             its query id, the number of the batch, and the task
    txnAppId, txnVersion these two, and the task
    any other write      this very write, and the task

An attempt that finds rows of an earlier one with the same identity leaves them out. So a task that
is tried again, a batch that is run again after a crash of the driver, and a write with the same
`txnVersion` put every row into the topic once. docs/spark.md says what that rests on, and what it
does not promise: a batch is not invisible until it is whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from tidelog.client.arrowwrite import ArrowWriter
from tidelog.client.identity import Identity, identity_of
from tidelog.records import Codec
from tidelog.spark.options import OptionError, WriteOptions
from tidelog.spark.planning import connect
from tidelog.spark.schema import HEADERS
from tidelog.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# What the columns of a write may be.
_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "value": (BinaryType(), StringType()),
    "key": (BinaryType(), StringType()),
    "headers": (HEADERS,),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}
_ALL: Final = -1


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """What one task did."""

    rows: int
    resumed: int  # rows that an earlier attempt had written


class _Writing:
    """What batch and stream have in common."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._columns = _check(options, schema)
        self._job = uuid.uuid4().hex  # the same in all tasks of this write and all their attempts

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        settle()
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        options = self._options
        writer = ArrowWriter(
            connect(options.client),
            acks=options.acks,
            codec=Codec[options.codec.upper()],
            identity=self._identity(context, task) if options.acks == _ALL else None,
            first=task,
            batch_bytes=options.batch_bytes,
            max_buffered=options.max_buffered,
            delivery_seconds=options.delivery_seconds,
        )
        with writer:
            for batch in iterator:
                self._write_batch(writer, batch)
        return TaskWritten(writer.rows, writer.resumed)

    def _identity(self, context: TaskContext | None, task: int) -> Identity:
        options = self._options
        if options.app is not None and options.version is not None:
            return identity_of(f"app/{options.app}", options.version, task)
        return identity_of(f"write/{self._job}", 0, task)

    def _write_batch(self, writer: ArrowWriter, batch: pa.RecordBatch) -> None:
        records = batch.select(
            [name for name in self._columns if name not in ("topic", "partition")]
        )
        partitions = batch.column("partition") if "partition" in self._columns else None
        if self._options.topic is not None:
            writer.write(self._options.topic, records, partitions)
            return
        topics = batch.column("topic").dictionary_encode()
        if topics.null_count:
            raise OptionError(
                "Column `topic` is null in a row: fill it, or set the option `topic`."
            )
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            rows = pc.equal(topics.indices, number)
            writer.write(
                topic,
                records.filter(rows),
                None if partitions is None else partitions.filter(rows),
            )


class TopicWriter(_Writing, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                'A topic is not overwritten: use .mode("append"), and delete the topic first if it '
                "is to begin anew."
            )
        super().__init__(options, schema, overwrite=overwrite)

    def commit(self, messages: Sequence[Any]) -> None:
        """What is written stays: there is nothing to do."""

    def abort(self, messages: Sequence[Any]) -> None:
        """What is written stays: the next attempt leaves it out."""


class TopicStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The sink of a stream. In `complete` mode every batch appends the whole result."""

    def _identity(self, context: TaskContext | None, task: int) -> Identity:
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            return super()._identity(context, task)
        return identity_of(f"query/{query}", int(batch), task)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """What is written stays: there is nothing to do."""

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """What is written stays: the next attempt at this batch leaves it out."""


def _check(options: WriteOptions, schema: StructType) -> tuple[str, ...]:
    """Return the columns that are written; raises `OptionError`."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise OptionError(
            f"There is no column `value` among {', '.join(types)}: a record needs one. Put several "
            'columns into one with to_json(struct("*")) AS value.'
        )
    if options.topic is None and "topic" not in types:
        raise OptionError("Write where? Set the option `topic`, or give a column `topic`.")
    wanted = [name for name in _TYPES if name in types]
    if options.topic is not None and "topic" in wanted:
        wanted.remove("topic")
    if not options.headers and "headers" in wanted:
        wanted.remove("headers")
    for name in wanted:
        kinds = [kind.simpleString() for kind in _TYPES[name]]
        if types[name].simpleString() not in kinds:
            raise OptionError(
                f"Column `{name}` is {types[name].simpleString()}: cast it to {' or '.join(kinds)}."
            )
    return tuple(wanted)
