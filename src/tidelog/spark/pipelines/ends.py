"""The ends of a pipeline: topics in, topics and lake tables out.

Where the cluster and the lake are, a project's files need not say: `tidelog pipeline run` puts it
into the environment, from the project's specification or from its command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BOOTSTRAP: Final = "TIDELOG_BOOTSTRAP"
LAKE: Final = "TIDELOG_LAKE"
CATALOG: Final = "TIDELOG_LAKE_CATALOG"
DEFAULT_BOOTSTRAP: Final = "localhost:9092"
# Names of observed figures, which the progress of a flow carries: rows that were written.
WRITTEN: Final = "written"

Query = Callable[[], "DataFrame"]


def bootstrap() -> str:
    """Return the addresses of the cluster that this pipeline reads and writes."""
    return os.environ.get(BOOTSTRAP, DEFAULT_BOOTSTRAP)


def lake() -> str:
    """Return the place of the lake that this pipeline writes."""
    return os.environ.get(LAKE, "lake")


def lake_options(table: str) -> dict[str, str]:
    """Return the options of a write to a table of the lake."""
    options = {"lake": lake(), "table": table}
    catalog = os.environ.get(CATALOG)
    return options if catalog is None else {**options, "lakeCatalog": catalog}


def from_topic(topic: str, schema: StructType | str | None = None, **options: str) -> DataFrame:
    """Return a topic as a stream, from its first record on.

    With a schema, values are JSON and the columns are their fields, beside `_key`, `_offset` and
    the like if the schema names them; without one, they are those of Spark's Kafka source.
    `options` are those of format("tidelog").
    """
    from pyspark.sql import SparkSession

    reader = (
        SparkSession.active()
        .readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap())
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    if schema is not None:
        reader = reader.option("valueFormat", "json").schema(schema)
    return reader.options(**options).load()


def to_topic(
    topic: str, *, key: str | None = None, value: str | None = None, **options: str
) -> Callable[[Query], Query]:
    """Write the rows of the decorated query to a topic.

    `key` and `value` are columns, of text or bytes; without a value, all columns are, as JSON.
    """

    def decorate(query: Query) -> Query:
        name = _name(query)
        sink_to_topic(name, topic, lambda: as_records(query(), key, value), options)
        return query

    return decorate


def to_lake(
    table: str, *, partition_by: str | None = None, **options: str
) -> Callable[[Query], Query]:
    """Append the rows of the decorated query to a table of the lake.

    `partition_by` is a unit of time of a column: day(paid_at), and also year, month and hour.
    """

    def decorate(query: Query) -> Query:
        from pyspark import pipelines as dp

        name = _name(query)
        given = {**lake_options(table), **options}
        if partition_by is not None:
            given["partitionBy"] = partition_by
        dp.create_sink(name, "tidelog", given)
        dp.append_flow(target=name, name=name)(lambda: counted(query(), name))
        return query

    return decorate


def sink_to_topic(name: str, topic: str, query: Query, options: dict[str, str]) -> None:
    """Define a sink and the flow into it."""
    from pyspark import pipelines as dp

    given = {"kafka.bootstrap.servers": bootstrap(), "topic": topic, **options}
    dp.create_sink(name, "tidelog", given)
    dp.append_flow(target=name, name=name)(lambda: counted(query(), name))


def as_records(rows: DataFrame, key: str | None, value: str | None) -> DataFrame:
    """Return rows as records."""
    # The columns are not asked for: a definition must not make Spark analyse anything.
    whole = sql.to_json(sql.struct("*")) if value is None else sql.col(value)
    columns = [whole.alias("value")]
    if key is not None:
        columns.append(sql.col(key).alias("key"))
    return rows.select(*columns)


def counted(rows: DataFrame, flow: str) -> DataFrame:
    """Let Spark count the rows that a flow writes."""
    return rows.observe(f"{WRITTEN}:{flow}", sql.count(sql.lit(1)).alias("rows"))


def _name(query: Any) -> str:
    name: str = query.__name__
    return name
