"""Where Spark finds Tidelog: a `DefaultSource` in a top-level `pyspark_*` module."""

from tidelog.spark.source import TidelogSource as DefaultSource

__all__ = ["DefaultSource"]
