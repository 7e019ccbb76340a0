"""Spark: topics to rows and rows to topics, next to ceilings and to Spark's own connector.

    arrow source  a Python source that hands out one prepared Arrow batch again and again: what the
                  transport between Python and Spark allows
    parquet       the same rows from Parquet files in the page cache, read by Spark itself
    read          a topic to nowhere
    json          a topic to nowhere, with the four fields of its values as columns
    sink          the rows of the Parquet files to a topic
    to lake       a topic to a new table of a lake; the connector's rows go to Parquet files
    from lake     that table to a topic
    connector     the same through `format("kafka")`, on the same topic of the same broker. Without
                  its jars (bench/_connector.py says where they come from) the figures are missing

One broker, Spark and its workers share the machine. Figures are the best of several rounds in one
warm session, and the sides take turns in each round.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench._connector import MISSING, connector_jars
from tidelog.client import Admin, TopicPartition, bounds
from tidelog.client.arrowwrite import ArrowWriter
from tidelog.client.blocking import Blocking
from tidelog.server.nodes import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "spark"
ROWS = 2_000_000
QUICK_ROWS = 200_000
ROUNDS = 2
PARTITIONS = 4
FILL_ROWS = 50_000  # of the batch that is written again and again
SMALL_BATCH = 1000
SMALL_BATCHES = 40
QUICK_SMALL_BATCHES = 12
WARM_BATCHES = 5  # of a stream, before its latency counts
FIELDS = "id long, customer string, amount double, at timestamp"
# Goals: of the ceiling, and of the connector.
GOALS = {"read": (0.6, 2.0), "json": (None, 1.5), "sink": (None, 1.0), "latency": (None, 1.0)}


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure and yield lines."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-spark-") as name:
        directory = Path(name)
        cluster = LocalCluster(directory / "nodes")
        cluster.prepare(1, 0)
        jars = connector_jars()
        try:
            cluster.start_all()
            cluster.wait()
            yield from Bench(cluster.bootstrap, directory, jars, quick=quick).lines()
        finally:
            cluster.stop_all()


class Bench:
    """One session, one broker, the same rows in a topic and in Parquet files."""

    def __init__(self, bootstrap: str, directory: Path, jars: list[Path], *, quick: bool) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._jars = jars
        self._rows = QUICK_ROWS if quick else ROWS
        self._small = QUICK_SMALL_BATCHES if quick else SMALL_BATCHES
        self._rounds = 1 if quick else ROUNDS
        self._spark: SparkSession
        self._row_bytes = 0.0
        self._targets = 0
        self._lakes = 0

    def lines(self) -> Iterator[str]:
        from tidelog.spark import session

        settings = {"spark.jars": ",".join(map(str, self._jars))} if self._jars else {}
        self._spark = session("bench", master="local[2]", settings=settings)
        try:
            self._fill()
            yield f"{self._rows:,} rows of {self._row_bytes:.0f} B, {PARTITIONS} partitions"
            if not self._jars:
                yield MISSING
            yield "                          rows/s      MB/s    of ceiling   of connector   goal"
            yield from self._throughput()
            yield from self._latency()
        finally:
            self._spark.stop()

    def _fill(self) -> None:
        """Write the rows to a topic, to Parquet, and to the file that the Arrow source repeats."""
        values = [
            json.dumps(
                {
                    "id": number,
                    "customer": f"customer-{number % 5000:06d}",
                    "amount": number % 977 * 1.25,
                    "at": "2026-01-02T03:04:05Z",
                    "note": "x" * 60,
                }
            ).encode()
            for number in range(FILL_ROWS)
        ]
        keys = [b"%08d" % number for number in range(FILL_ROWS)]
        batch = pa.record_batch({"key": keys, "value": values})
        self._row_bytes = batch.nbytes / FILL_ROWS
        parquet = self._directory / "rows.parquet"
        parquet.mkdir()
        table = pa.Table.from_batches([batch] * (self._rows // FILL_ROWS // PARTITIONS))
        for part in range(PARTITIONS):
            pq.write_table(table, parquet / f"{part}.parquet", compression="none")
        with Blocking(self._bootstrap) as blocking:
            blocking.run(Admin(blocking.cluster).create_topic("rows", PARTITIONS, 1))
            with ArrowWriter(blocking) as writer:
                for _ in range(self._rows // FILL_ROWS):
                    writer.write("rows", batch)

    # --- Throughput -------------------------------------------------------------------------------

    def _throughput(self) -> Iterator[str]:
        self._spark.dataSource.register(prepared_source())
        sides: dict[str, Callable[[], None]] = {
            "arrow source": lambda: _drain(self._prepared()),
            "parquet": lambda: _drain(self._parquet()),
            "read": lambda: _drain(self._topic("tidelog")),
            "json": lambda: _drain(self._decoded()),
            "sink": lambda: self._write("tidelog", self._parquet()),
            "to lake": self._fill_lake,
            "from lake": lambda: self._write("tidelog", self._lake_rows()),
        }
        if self._jars:
            sides |= {
                "read, connector": lambda: _drain(self._topic("kafka")),
                "json, connector": lambda: _drain(self._decoded_by_spark()),
                "sink, connector": lambda: self._write("kafka", self._parquet()),
                "to lake, connector": self._fill_parquet,
                "from lake, connector": lambda: self._write("kafka", self._lake_rows()),
            }
        best = dict.fromkeys(sides, float("inf"))
        for number in range(self._rounds + 1):
            for side, work in sides.items():
                began = time.perf_counter()
                work()
                if number:  # the first round warms up
                    best[side] = min(best[side], time.perf_counter() - began)
        rates = {side: self._rows / seconds for side, seconds in best.items()}
        for side, rate in rates.items():
            of_ceiling = rate / rates["arrow source"] if side in ("read", "json") else None
            theirs = rates.get(f"{side}, connector")
            yield self._line(side, rate, of_ceiling, None if theirs is None else rate / theirs)

    def _line(
        self, side: str, rate: float, of_ceiling: float | None, of_connector: float | None
    ) -> str:
        goals = GOALS.get(side, (None, None))
        words = [
            f"{goal:g} of {what}"
            for goal, what in zip(goals, ("ceiling", "connector"), strict=True)
            if goal is not None
        ]
        return (
            f"{side:<20}{rate:12,.0f}{rate * self._row_bytes / 1e6:10.0f}"
            f"{'' if of_ceiling is None else f'{of_ceiling:.2f}':>14}"
            f"{'' if of_connector is None else f'{of_connector:.2f}x':>15}   {', '.join(words)}"
        )

    def _options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap, **more}

    def _topic(self, source: str) -> DataFrame:
        options = self._options(subscribe="rows")
        return self._spark.read.format(source).options(**options).load()

    def _decoded(self) -> DataFrame:
        options = self._options(subscribe="rows", valueFormat="json")
        return self._spark.read.format("tidelog").schema(FIELDS).options(**options).load()

    def _decoded_by_spark(self) -> DataFrame:
        parsed = f"from_json(CAST(value AS string), '{FIELDS}') AS row"
        return self._topic("kafka").selectExpr(parsed).select("row.*")

    def _parquet(self) -> DataFrame:
        return self._spark.read.parquet(str(self._directory / "rows.parquet"))

    def _prepared(self) -> DataFrame:
        return self._spark.read.format("prepared").option("rows", str(self._rows)).load()

    def _fill_lake(self) -> None:
        from tidelog.spark.lake import Lake, LakeJob

        self._lakes += 1
        lake = Lake(str(self._lake_place))
        job = LakeJob(self._spark, lake, "rows", self._bootstrap)
        written = sum(moved.rows for moved in job.run())
        assert written == self._rows, f"the lake has {written} of {self._rows} rows"

    def _lake_rows(self) -> DataFrame:
        from tidelog.spark import read_lake

        return read_lake(self._spark, str(self._lake_place), "rows").select("key", "value")

    @property
    def _lake_place(self) -> Path:
        return self._directory / f"lake-{self._lakes}"

    def _fill_parquet(self) -> None:
        columns = ("value", "key", "partition", "offset", "timestamp")  # as in the lake
        writer = self._topic("kafka").select(*columns).write.option("compression", "zstd")
        writer.mode("overwrite").parquet(str(self._directory / "connector.parquet"))

    def _write(self, sink: str, rows: DataFrame) -> None:
        self._targets += 1
        topic = f"target-{self._targets}"
        with Blocking(self._bootstrap) as blocking:
            blocking.run(Admin(blocking.cluster).create_topic(topic, PARTITIONS, 1))
            options = self._options(topic=topic)
            rows.write.format(sink).mode("append").options(**options).save()
            parts = [TopicPartition(topic, index) for index in range(PARTITIONS)]
            limits = blocking.run(bounds(blocking.cluster, parts))
            written = sum(end - first for first, end in limits.values())
            assert written == self._rows, f"{sink} wrote {written} of {self._rows} rows"
            blocking.run(Admin(blocking.cluster).delete_topic(topic))

    # --- Latency ----------------------------------------------------------------------------------

    def _latency(self) -> Iterator[str]:
        yield f"batches of {SMALL_BATCH:,} rows, ms     p50       p95"
        sources = ("tidelog", "kafka") if self._jars else ("tidelog",)
        best: dict[str, list[float]] = {}
        for number in range(self._rounds + 1):
            for source in sources:
                times = sorted(self._batch_times(source, number))
                if number:  # the first round warms up
                    best[source] = min(best.get(source, times), times, key=statistics.median)
        found = {source: statistics.median(times) for source, times in best.items()}
        for source, times in best.items():
            late = times[int(0.95 * (len(times) - 1))]
            yield f"{source:<22}{found[source]:12.0f}{late:10.0f}"
        if "kafka" in found:
            ratio = found["tidelog"] / found["kafka"]
            yield f"{'of connector':<22}{ratio:12.2f}   goal: at most {GOALS['latency'][1]}"

    def _batch_times(self, source: str, number: int) -> list[float]:
        options = self._options(
            subscribe="rows", startingOffsets="earliest", maxOffsetsPerTrigger=str(SMALL_BATCH)
        )
        query = (
            self._spark.readStream.format(source)
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._directory / f"checkpoint-{source}-{number}"))
            .start()
        )
        try:
            times: dict[int, float] = {}
            while len(times) < self._small + WARM_BATCHES:
                time.sleep(0.2)
                failure = query.exception()
                if failure is not None:
                    raise failure
                times |= {
                    each.batchId: each.durationMs["triggerExecution"]
                    for each in query.recentProgress
                    if each.numInputRows
                }
        finally:
            query.stop()
        return [times[batch] for batch in sorted(times)[WARM_BATCHES:]]


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def prepared_source() -> Any:
    """Return a data source with the columns of a topic that decodes nothing."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class PreparedReader(DataSourceReader):
        def __init__(self, rows: int) -> None:
            self._rows = rows

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(index) for index in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            size = 25_000
            at = pa.array([0] * size, pa.timestamp("us", "UTC"))
            batch = pa.record_batch(
                {
                    "key": pa.array([b"12345678"] * size, pa.binary()),
                    "value": pa.array([b"x" * 165] * size, pa.binary()),
                    "topic": pa.array(["rows"] * size, pa.string()),
                    "partition": pa.array([partition.value] * size, pa.int32()),
                    "offset": pa.array(range(size), pa.int64()),
                    "timestamp": at,
                    "timestampType": pa.array([0] * size, pa.int32()),
                }
            )
            for _ in range(self._rows // PARTITIONS // size):
                yield batch

    class Prepared(DataSource):
        @classmethod
        def name(cls) -> str:
            return "prepared"

        def schema(self) -> str:
            return (
                "key binary, value binary, topic string, partition int, offset long, "
                "timestamp timestamp, timestampType int"
            )

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
            return PreparedReader(int(self.options["rows"]))

    return Prepared
