"""A topic to a lake table, commit by commit.

Theory of operation. One step: look at the table's last stamp, look at the ends of the topic's
partitions, let Spark's tasks write what is between as Parquet, and commit the files together with
the new offsets. There is no other state. A driver that dies leaves files that no snapshot names;
the next one begins at the same stamp and writes the same rows to other files. A driver that was
thought dead and commits late finds the stamp changed, and its work is dropped.

Tasks read their part of the topic and write it without a detour through the JVM: rows are Arrow
from the bytes of the topic to the bytes of the file.

How a topic is read (format, schema, mode) is kept in the table's properties when it is created, and
whoever goes on with the table reads the topic in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from tidelog.client import TopicPartition, bounds
from tidelog.client.arrowread import DataLost
from tidelog.spark.lake.catalog import Lake, LakeError
from tidelog.spark.lake.committing import Overtaken, adding, commit, from_offsets, target_of
from tidelog.spark.lake.files import File, Target, remove_files, write_files
from tidelog.spark.lake.schemas import SAMPLE_ROWS, infer, record_columns, spark_schema
from tidelog.spark.lake.stamp import Stamp, last_stamp
from tidelog.spark.lake.tasks import run_tasks
from tidelog.spark.options import Format, ReadOptions, read_options
from tidelog.spark.planning import Planner, connect
from tidelog.spark.ranges import Positions, Slice, share, slices, split
from tidelog.spark.reader import SliceOfWork, TopicReader
from tidelog.spark.schema import KAFKA, default_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

# Offsets that one commit takes over at most: a crash costs at most that much work.
MAX_OFFSETS: Final = 5_000_000
TOPIC: Final = "tidelog.topic"
TOPIC_ID: Final = "tidelog.topic-id"
# Options of a read that say what the bytes are; a table keeps them.
_KEPT: Final = ("valueformat", "avroschema", "avroframing", "mode")
_READ: Final = "tidelog.read."


@dataclass(frozen=True, slots=True)
class Moved:
    """What one commit did."""

    epoch: int
    rows: int
    files: int
    size: int
    offsets: Mapping[TopicPartition, int]  # the next to take over
    behind: int  # offsets that were there and were not taken over yet


@dataclass(frozen=True, slots=True)
class _Work:
    """What one task does."""

    options: ReadOptions
    schema: StructType
    slice: Slice
    target: Target


class LakeJob:
    """Moves one topic to one table."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        topic: str,
        bootstrap: str,
        *,
        schema: StructType | None = None,
        options: Mapping[str, str] | None = None,
        partition_by: str = "day",
        headers: bool = False,
        max_offsets: int = MAX_OFFSETS,
        tasks: int | None = None,
    ) -> None:
        """Open the table, or create it; raises `LakeError`, `OptionError` and `ClientError`.

        `options` are those of a read that say how values are decoded (`valueFormat`, `avroSchema`,
        `avroFraming`, `mode`, and `failOnDataLoss`); `schema` names the fields of JSON values,
        which are learned from the first records otherwise. `partition_by` is a unit of time, of
        the records' timestamps, or none.
        """
        self._spark = spark
        self._max_offsets = max_offsets
        self._tasks = tasks
        given = {name.lower(): value for name, value in (options or {}).items()}
        base = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        table = lake.find(topic) if lake.exists() else None
        if table is None:
            self._options = read_options({**base, **given}, streaming=False)
            columns = self._columns(schema, topic, headers=headers)
            table = self._create(lake, topic, columns, partition_by, given)
        else:
            kept = kept_options(table)
            changed = [name for name in given if name in _KEPT and given[name] != kept.get(name)]
            if changed:
                name, was = changed[0], kept.get(changed[0], "unset")
                raise LakeError(
                    f"Table {topic} was made with {name} {was}, and now it is to be {given[name]}: "
                    "use another lake, or leave it out."
                )
            self._options = read_options({**base, **given, **kept}, streaming=False)
        self.table = table
        self._planner = Planner(self._options)
        self._check_topic(topic)

    def run(self) -> Iterator[Moved]:
        """Take over everything that is there now, commit by commit."""
        goal = self._planner.latest(self._planner.partitions())
        while True:
            moved = self.step(goal)
            if moved is None:
                return
            yield moved

    def step(self, goal: Positions | None = None) -> Moved | None:
        """Make one commit; None if there is nothing to take over. Does not go past `goal`."""
        self.table.refresh()
        began = last_stamp(self.table)
        start, end = self._range(began, goal)
        until = share(start, end, self._max_offsets)
        work = slices(start, until)
        if not work:
            return None
        files = self._write(work)
        stamp = dict(began.offsets) | until
        try:
            commit(self.table, adding([each.path for each in files]), from_offsets(began, stamp))
        except Overtaken:
            remove_files(each.path for each in files)
            raise
        return Moved(
            epoch=began.epoch + 1,
            rows=sum(each.rows for each in files),
            files=len(files),
            size=sum(each.size for each in files),
            offsets=until,
            behind=sum(end[p] - until[p] for p in until),
        )

    # --- Inside -----------------------------------------------------------------------------------

    def _range(self, began: Stamp, goal: Positions | None) -> tuple[Positions, Positions]:
        """Return from where to where there is something to take over."""
        partitions = self._planner.partitions()
        blocking = connect(self._options.client)
        limits = blocking.run(bounds(blocking.cluster, partitions))
        start: Positions = {}
        end: Positions = {}
        for partition, (first, last) in limits.items():
            begin = began.offsets.get(partition, first)
            if begin < first:
                self._lost(
                    f"The table goes up to offset {begin - 1} of {partition}, and the topic begins "
                    f"at {first}: retention removed what is between."
                )
            if begin > last:
                self._lost(
                    f"The table goes up to offset {begin - 1} of {partition}, and the topic ends "
                    f"before {last}."
                )
            start[partition] = max(begin, first) if begin <= last else last
            reach = last if goal is None else min(last, goal.get(partition, first))
            end[partition] = max(start[partition], reach)
        return start, end

    def _lost(self, what: str) -> None:
        if self._options.fail_on_loss:
            raise DataLost(f"{what} To go on with what is there, give --skip-lost.")

    def _write(self, work: list[Slice]) -> list[File]:
        schema = spark_schema(self.table.schema())
        target = target_of(self.table)
        items = [
            _Work(self._options, schema, each, target) for each in split(work, self._tasks, None)
        ]
        return [file for files in run_tasks(self._spark, _write_slice, items) for file in files]

    def _columns(self, schema: StructType | None, topic: str, *, headers: bool) -> StructType:
        formats = self._options.formats
        if formats.value is Format.JSON:
            fields = schema if schema is not None else infer(self._sample(), topic)
            return record_columns(fields, headers=headers)
        if formats.value is Format.AVRO:
            fields = schema if schema is not None else default_schema(self._options)
            return record_columns(fields, headers=headers)
        columns = record_columns(None, headers=headers)
        if formats.value is Format.STRING:
            columns["value"].dataType = default_schema(self._options)["value"].dataType
        return columns

    def _sample(self) -> Iterator[bytes | None]:
        """Read some values from the beginning of every partition."""
        options = self._plain_options()
        planner = Planner(options)
        partitions = planner.partitions()
        first, last = planner.earliest(partitions), planner.latest(partitions)
        some = max(1, SAMPLE_ROWS // len(partitions))
        until = {each: min(last[each], first[each] + some) for each in partitions}
        reader = TopicReader(options, StructType().add("value", KAFKA["value"]))
        for each in slices(first, until):
            for batch in reader.read(SliceOfWork(each)):
                yield from batch.column(0).to_pylist()

    def _plain_options(self) -> ReadOptions:
        client = self._options.client
        return read_options(
            {
                "kafka.bootstrap.servers": client.bootstrap,
                "subscribe": self._options.topics.names[0],
            },
            streaming=False,
        )

    def _create(
        self,
        lake: Lake,
        topic: str,
        columns: StructType,
        partition_by: str,
        given: Mapping[str, str],
    ) -> Table:
        decoded = self._options.formats.value in (Format.JSON, Format.AVRO)
        time = "_timestamp" if decoded else "timestamp"
        by = None if partition_by == "none" else f"{partition_by}({time})"
        properties = {TOPIC: topic, TOPIC_ID: self._topic_id(topic)}
        properties |= {f"{_READ}{name}": given[name] for name in _KEPT if name in given}
        return lake.create(topic, columns, by, properties)

    def _check_topic(self, topic: str) -> None:
        """A topic that was deleted and made again has other records at the same offsets."""
        known = self.table.properties.get(TOPIC_ID, "")
        if known and known != self._topic_id(topic):
            raise LakeError(
                f"Topic {topic} is not the one that this table was made from: it was deleted and "
                "created again. Use another lake for the new one."
            )

    def _topic_id(self, topic: str) -> str:
        blocking = connect(self._options.client)
        info = blocking.run(blocking.cluster.topic(topic, fresh=True))
        return "" if info.id is None else str(info.id)


def kept_options(table: Table) -> dict[str, str]:
    """Return the options with which a table's topic is read."""
    found: dict[str, Any] = table.properties
    return {
        name.removeprefix(_READ): value for name, value in found.items() if name.startswith(_READ)
    }


def _write_slice(work: _Work) -> list[File]:
    reader = TopicReader(work.options, work.schema)
    return write_files(reader.read(SliceOfWork(work.slice)), work.target)
