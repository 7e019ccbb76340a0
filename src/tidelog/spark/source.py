"""`format("tidelog")`: the data source that Spark finds by itself, through `pyspark_tidelog`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidelog.spark.options import OptionError, read_options, write_options
from tidelog.spark.reader import TopicReader, TopicStreamReader
from tidelog.spark.schema import default_schema
from tidelog.spark.sink import TopicStreamWriter, TopicWriter
from tidelog.spark.workers import settle

if TYPE_CHECKING:
    from tidelog.spark.lake.reading import LakeReader
    from tidelog.spark.lake.sink import LakeStreamWriter, LakeWriter


class TidelogSource(DataSource):
    """Topics as tables and streams, for reading and writing."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        if self._of_a_lake:
            from tidelog.spark.lake.reading import lake_schema

            return lake_schema(self.options)
        # Spark does not say whether this is for a batch or a stream; `reader` checks the rest.
        return default_schema(read_options(_without_ends(dict(self.options)), streaming=True))

    def reader(self, schema: StructType) -> TopicReader | LakeReader:
        if self._of_a_lake:
            from tidelog.spark.lake.reading import LakeReader

            return LakeReader(self.options, schema)
        return TopicReader(read_options(dict(self.options), streaming=False), schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        if self._of_a_lake:
            raise OptionError("`lake` is for batch reads: stream the topic itself.")
        return TopicStreamReader(read_options(dict(self.options), streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter | LakeWriter:
        if self._of_a_lake:
            from tidelog.spark.lake.sink import LakeWriter

            return LakeWriter(self.options, schema, overwrite=overwrite)
        return TopicWriter(write_options(dict(self.options)), schema, overwrite=overwrite)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> TopicStreamWriter | LakeStreamWriter:
        settle()  # Spark asks for a writer in every batch, and once more to commit it
        if self._of_a_lake:
            from tidelog.spark.lake.sink import LakeStreamWriter

            return LakeStreamWriter(self.options, schema, overwrite=overwrite)
        return TopicStreamWriter(write_options(dict(self.options)), schema, overwrite=overwrite)

    @property
    def _of_a_lake(self) -> bool:
        return "lake" in self.options


def _without_ends(options: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in options.items()
        if not name.lower().startswith("ending") and name.lower() != "rowlimit"
    }
