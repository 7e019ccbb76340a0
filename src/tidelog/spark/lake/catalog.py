"""Where lake tables are: a directory with an SQLite catalog in it, or any Iceberg REST catalog.

A lake is a directory (or the address of an object store), and a table in it has the name of its
topic. With the SQLite catalog everything is in the directory:

    catalog.db                      the names of the tables, and which metadata is current
    tidelog/orders/metadata/...     Iceberg's metadata
    tidelog/orders/data/...         Parquet

Any engine that knows Iceberg reads these tables; the SQLite catalog is the one of PyIceberg.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.lake.schemas import to_iceberg
from tidelog.spark.options import OptionError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql.types import StructType

NAMESPACE: Final = "tidelog"
_CATALOG_FILE: Final = "catalog.db"
_PARTITION: Final = re.compile(r"(year|month|day|hour)\(\s*([^)]+?)\s*\)")
# Settings of every table. A commit that lost a race is repeated by us, after we have looked whether
# its rows are there already; PyIceberg would repeat it unseen. Old metadata files go with commits.
_SETTINGS: Final = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class LakeError(Exception):
    """A lake cannot be read or written as asked."""


@dataclass(frozen=True, slots=True)
class Lake:
    """A place for tables. Cheap, and can be sent to Spark's tasks."""

    place: str  # a directory, or the address of one
    catalog: str | None = None  # the address of a REST catalog; None: SQLite, in the directory
    settings: Mapping[str, str] = field(default_factory=dict)  # passed on to the catalog

    @property
    def address(self) -> str:
        """The place as an address."""
        if "://" in self.place:
            return self.place.rstrip("/")
        return Path(self.place).resolve().as_uri()

    def open(self) -> Catalog:
        """Open the catalog, and make it if it is the first time."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise LakeError(
                "The lake needs PyIceberg: pip install 'tidelog[spark]', and run this again."
            ) from None

        if self.catalog is not None:
            return self._open_rest(self.catalog)
        if not self.address.startswith("file://"):
            raise LakeError(
                f"{self.place} is no local directory, and the catalog of SQLite is a local file: "
                "give the address of a REST catalog."
            )
        directory = Path(self.address.removeprefix("file://"))
        directory.mkdir(parents=True, exist_ok=True)
        return load_catalog(
            "tidelog",
            type="sql",
            uri=f"sqlite:///{directory / _CATALOG_FILE}",
            warehouse=self.address,
            **self.settings,
        )

    def _open_rest(self, address: str) -> Catalog:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import RESTError

        try:
            return load_catalog(
                "tidelog", type="rest", uri=address, warehouse=self.address, **self.settings
            )
        except (OSError, RESTError) as error:
            raise LakeError(f"The catalog at {address} does not serve this lake: {error}") from None

    def exists(self) -> bool:
        """Tell whether there is a lake; a REST catalog always is."""
        if self.catalog is not None or not self.address.startswith("file://"):
            return True
        return (Path(self.address.removeprefix("file://")) / _CATALOG_FILE).exists()

    def tables(self) -> list[str]:
        """Return the names of the tables; raises `LakeError` if there is no lake."""
        self._must_exist()
        catalog = self.open()
        if not catalog.namespace_exists(NAMESPACE):
            return []
        return sorted(identifier[-1] for identifier in catalog.list_tables(NAMESPACE))

    def table(self, name: str) -> Table:
        """Return a table; raises `LakeError` if it is not there."""
        found = self.find(name)
        if found is None:
            known = ", ".join(self.tables()) or "none"
            raise LakeError(f"The lake at {self.place} has no table {name!r}; it has {known}.")
        return found

    def find(self, name: str) -> Table | None:
        """Return a table, or None."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        self._must_exist()
        try:
            return self.open().load_table((NAMESPACE, name))
        except (NoSuchNamespaceError, NoSuchTableError):
            return None

    def create(
        self,
        name: str,
        columns: StructType,
        partition_by: str | None,
        properties: Mapping[str, str],
    ) -> Table:
        """Create a table, or return the one that somebody else has just created."""
        schema = to_iceberg(columns)
        catalog = self.open()
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog.create_table_if_not_exists(
            (NAMESPACE, name),
            schema,
            partition_spec=partition_spec(schema, partition_by),
            properties={**_SETTINGS, **properties},
        )

    def _must_exist(self) -> None:
        if not self.exists():
            raise LakeError(
                f"There is no lake at {self.place}: `tidelog lake TOPIC --to {self.place}` "
                "makes one."
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Lake:
        """Read `lake`, `lakeCatalog` and `lakeCatalog.*` options of a read or a write."""
        given = {name.lower(): str(value) for name, value in options.items()}
        settings = {
            name.removeprefix("lakecatalog."): value
            for name, value in given.items()
            if name.startswith("lakecatalog.")
        }
        return cls(given["lake"], given.get("lakecatalog"), settings)


def partition_spec(schema: Schema, partition_by: str | None) -> PartitionSpec:
    """Read `day(timestamp)` and the like; raises `OptionError`."""
    from pyiceberg import transforms
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
    from pyiceberg.types import DateType, TimestampType, TimestamptzType

    if partition_by is None or partition_by.strip().lower() in ("", "none"):
        return UNPARTITIONED_PARTITION_SPEC
    found = _PARTITION.fullmatch(partition_by.strip())
    if found is None:
        raise OptionError(
            f"Partitioning by {partition_by!r}: give year(c), month(c), day(c) or hour(c) of a "
            "column, or none."
        )
    unit, column = found[1], found[2]
    names = [each.name for each in schema.fields]
    if column not in names:
        raise OptionError(f"Partitioning by {column!r}: the columns are {', '.join(names)}.")
    source = schema.find_field(column)
    kinds: tuple[type[Any], ...] = (TimestampType, TimestamptzType)
    if unit != "hour":
        kinds = (*kinds, DateType)
    if not isinstance(source.field_type, kinds):
        raise OptionError(f"Partitioning by {unit} of {column!r}, which is {source.field_type}.")
    transform: Any = getattr(transforms, f"{unit.capitalize()}Transform")()
    return PartitionSpec(PartitionField(source.field_id, 1000, transform, f"{column}_{unit}"))
