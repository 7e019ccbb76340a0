"""Files become part of a table, once.

Every change goes through `commit`: it looks at the last stamp, decides from it whether the change
is still to be made, and makes it only if the table has not changed since. When it has, everything
is looked at again. When the answer of a catalog is lost, the name of the commit tells whether it is
there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.client import TopicPartition
from tidelog.spark.lake.catalog import LakeError
from tidelog.spark.lake.files import Target
from tidelog.spark.lake.schemas import arrow_schema
from tidelog.spark.lake.stamp import Stamp, last_stamp, stamp_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

# Others that commit to the same table are few: a compaction, a second driver. Half a minute.
MAX_ATTEMPTS: Final = 30
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

Change = Callable[["Transaction", Mapping[str, str]], None]
Decide = Callable[[Stamp], Stamp | None]


class Overtaken(LakeError):
    """Somebody else has committed what this work began from."""


def commit(table: Table, change: Change, decide: Decide) -> bool:
    """Make a change; tell whether it was made, or `decide` found that there is nothing to do."""
    from pyiceberg.exceptions import CommitFailedException

    for attempt in range(MAX_ATTEMPTS):
        table.refresh()
        stamp = decide(_stamp(table))
        if stamp is None:
            return False
        transaction = table.transaction()
        change(transaction, stamp.properties())
        try:
            transaction.commit_transaction()
            return True
        except CommitFailedException:
            pause = min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            time.sleep(pause * random.uniform(0.5, 1.0))
        except Exception:
            if _is_there(table, stamp):
                return True
            raise
    raise LakeError(
        f"Others changed table {'.'.join(table.name())} {MAX_ATTEMPTS} times in a row while this "
        "commit was tried. Nothing is lost: run it again when they are done."
    )


def adding(paths: Sequence[str]) -> Change:
    """Return the change that adds files."""

    def change(transaction: Transaction, properties: Mapping[str, str]) -> None:
        if paths:
            # Names are ours alone, so there is no need to read all manifests for doubles.
            transaction.add_files(list(paths), dict(properties), check_duplicate_files=False)
            return
        with transaction.update_snapshot(snapshot_properties=dict(properties)).fast_append():
            pass  # no rows, but offsets that move on

    return change


def replacing(table: Table, paths: Sequence[str], old: Iterable[DataFile] | None = None) -> Change:
    """Return the change that puts new files in the place of old ones, or of all there are."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    chosen = None if old is None else list(old)

    def change(transaction: Transaction, properties: Mapping[str, str]) -> None:
        gone = data_files(table) if chosen is None else chosen
        metadata, io = transaction.table_metadata, table.io
        update = transaction.update_snapshot(snapshot_properties=dict(properties))
        with update.overwrite() as overwrite:
            for each in gone:
                overwrite.delete_data_file(each)
            for path in paths:
                overwrite.append_data_file(parquet_file_to_data_file(io, metadata, path))

    return change


def from_offsets(began: Stamp, end: Mapping[TopicPartition, int]) -> Decide:
    """Return the rule for records of a topic: only on top of the offsets where reading began."""

    def decide(stamp: Stamp) -> Stamp | None:
        if dict(stamp.offsets) != dict(began.offsets):
            raise Overtaken(
                "Another writer has taken over records of this topic since: is a second "
                "`tidelog lake` running?"
            )
        return stamp.moved(dict(end))

    return decide


def from_query(query: str, batch: int) -> Decide:
    """Return the rule for a batch of a streaming query: once."""

    def decide(stamp: Stamp) -> Stamp | None:
        return None if stamp.queries.get(query, -1) >= batch else stamp.wrote(query, batch)

    return decide


def target_of(table: Table) -> Target:
    """Return how tasks write files for a table."""
    spec = table.spec()
    location = f"{table.location().rstrip('/')}/data"
    schema = arrow_schema(table.schema())
    if spec.is_unpartitioned():
        return Target(location, schema)
    partition = spec.fields[0]
    column = table.schema().find_column_name(partition.source_id)
    return Target(location, schema, str(partition.transform), column)


def data_files(table: Table) -> list[DataFile]:
    """Return the files of the current snapshot."""
    return [task.file for task in table.scan().plan_files()]


def _stamp(table: Table) -> Stamp:
    try:
        return last_stamp(table)
    except ValueError as error:
        raise LakeError(str(error)) from None


def _is_there(table: Table, stamp: Stamp) -> bool:
    table.refresh()
    return any(
        found is not None and found.commit == stamp.commit
        for found in map(stamp_of, table.snapshots())
    )
