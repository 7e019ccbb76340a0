"""Topics in Spark: `format("tidelog")` for batches and streams, and a session that is ready.

options    what a user asked for, checked
ranges     offsets, and how they are cut into tasks
planning   options to offsets, by asking the cluster
schema     the columns of a read
decoding   JSON, Avro and text to columns
rows       records to rows
reader     batch and stream reads
sink       batch and stream writes
source     the data source itself
workers    the processes in which Spark runs Python
session    a SparkSession with the settings that matter
lag        how far streams are behind
lake       topics as Iceberg tables, and reading them with the live tail
pipelines  projects of Spark Declarative Pipelines
"""

from typing import TYPE_CHECKING, Any

from tidelog.spark.lag import Lag, LagListener, lag_of
from tidelog.spark.session import package_zip, session

if TYPE_CHECKING:
    from tidelog.spark.lake import read_lake

__all__ = ["Lag", "LagListener", "lag_of", "package_zip", "read_lake", "session"]


def __getattr__(name: str) -> Any:
    """Import the lake only when somebody wants it: tasks import this package too."""
    if name == "read_lake":
        from tidelog.spark.lake import read_lake

        return read_lake
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
