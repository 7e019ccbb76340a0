"""The lake: topics and tables of pipelines as Iceberg tables of Parquet files.

    schemas      Spark's types, Iceberg's types, and what JSON looks like
    stamp        what a snapshot says: up to which offsets, which epoch, which batches
    catalog      where the tables are: a directory with an SQLite catalog, or a REST catalog
    files        rows to Parquet files, inside a task
    committing   files become part of a table, once
    tasks        a function over many items, as Spark tasks
    job          a topic to a table, commit by commit
    sink         `writeStream.format("tidelog").option("lake", ...)`
    reading      a table and the live tail of its topic as one
    care         compaction, expiry, cleaning

A table is the only truth about what it holds. Its last snapshot says up to which offsets the topic
has been taken over, and files that no snapshot names are nothing; so a crash at any point leaves
either the state before a commit or the state after it.
"""

from tidelog.spark.lake.catalog import Lake, LakeError
from tidelog.spark.lake.job import LakeJob, Moved
from tidelog.spark.lake.reading import read_lake

__all__ = ["Lake", "LakeError", "LakeJob", "Moved", "read_lake"]
