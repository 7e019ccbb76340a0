"""Care for lake tables: small files become large ones, old snapshots and lost files go away.

    compact   files of one partition that are small are written again as one; the rows are the same
    expire    snapshots of long ago are forgotten, and with them what only they still name
    clean     files that no snapshot names are removed

A compaction is a commit like any other. Rows that are added meanwhile stay, and it carries the
stamp on, so whoever fills the table goes on where it was. Files are removed only by `clean`, and
only when they are old enough that nobody can be about to commit them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyarrow import fs

from tidelog.spark.lake.committing import commit, data_files, replacing, target_of
from tidelog.spark.lake.files import FILE_BYTES, File, Target, remove_files, write_files
from tidelog.spark.lake.reading import read_parquet
from tidelog.spark.lake.stamp import Stamp, stamped_snapshot
from tidelog.spark.lake.tasks import run_tasks

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

# Files below this are worth joining with others.
SMALL_BYTES: Final = FILE_BYTES * 3 // 4
# A task that writes longer than this before it commits does not exist.
GRACE: Final = timedelta(days=1)
_THREADS: Final = 2


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    before: int  # files
    after: int
    rows: int
    size: int  # bytes, afterwards


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleaning removed."""

    files: int
    size: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Files that become one."""

    paths: tuple[str, ...]
    target: Target


def compact(
    table: Table, *, spark: SparkSession | None = None, small: int = SMALL_BYTES
) -> Compacted:
    """Write small files again as large ones: in this process, or as tasks of Spark."""
    table.refresh()
    target = target_of(table)
    chosen = list(_bins(data_files(table), small))
    groups = [_Group(tuple(each.file_path for each in group), target) for group in chosen]
    if spark is not None:
        written = run_tasks(spark, _rewrite, groups)
    else:
        with ThreadPoolExecutor(_THREADS) as threads:
            written = list(threads.map(_rewrite, groups))
    old = [each for group in chosen for each in group]
    new = [file for files in written for file in files]
    rows = sum(file.rows for file in new)
    if rows != sum(each.record_count for each in old):
        remove_files(file.path for file in new)
        raise RuntimeError("A compaction did not keep all rows, and was not committed.")
    if old:
        try:
            commit(table, replacing(table, [file.path for file in new], old), Stamp.rearranged)
        except BaseException:
            # If the commit is there in spite of the error, the files are in a snapshot: look first.
            table.refresh()
            known = {each.file_path for each in data_files(table)}
            remove_files(file.path for file in new if file.path not in known)
            raise
    return Compacted(len(old), len(new), rows, sum(file.size for file in new))


def expire(table: Table, *, older_than: timedelta, keep: int = 1) -> int:
    """Forget snapshots; the current one, the last stamped one and the newest `keep` stay."""
    table.refresh()
    limit = (datetime.now(UTC) - older_than).timestamp() * 1000
    newest = sorted(table.snapshots(), key=lambda each: each.timestamp_ms, reverse=True)
    protected = {ref.snapshot_id for ref in table.refs().values()}
    protected |= {each.snapshot_id for each in newest[: max(1, keep)]}
    stamped = stamped_snapshot(table)
    if stamped is not None:
        protected.add(stamped.snapshot_id)
    gone = [
        each.snapshot_id
        for each in newest
        if each.timestamp_ms < limit and each.snapshot_id not in protected
    ]
    if gone:
        table.maintenance.expire_snapshots().by_ids(gone).commit()
    return len(gone)


def clean(table: Table, *, older_than: timedelta = GRACE) -> Cleaned:
    """Remove files of the table's directory that no snapshot names."""
    # The files first: one that is written and committed after this is in neither list.
    present = list(_present(table))
    table.refresh()
    named = {_plain(path) for path in _named(table)}
    limit = datetime.now(UTC) - older_than
    gone = [
        each for each in present if each.path not in named and each.mtime.astimezone(UTC) < limit
    ]
    system, _ = fs.FileSystem.from_uri(table.location())
    for each in gone:
        system.delete_file(each.path)
    return Cleaned(len(gone), sum(each.size or 0 for each in gone))


# --- Inside ---------------------------------------------------------------------------------------


def _bins(files: Iterable[DataFile], small: int) -> Iterator[list[DataFile]]:
    """Return groups of small files of one partition that are together as large as a file may be."""
    by_partition: defaultdict[Any, list[DataFile]] = defaultdict(list)
    for each in files:
        if each.file_size_in_bytes < small:
            by_partition[each.partition].append(each)
    for group in by_partition.values():
        bin_: list[DataFile] = []
        size = 0
        for each in sorted(group, key=lambda file: file.file_size_in_bytes):
            if bin_ and size + each.file_size_in_bytes > FILE_BYTES:
                yield bin_
                bin_, size = [], 0
            bin_.append(each)
            size += each.file_size_in_bytes
        if len(bin_) > 1:
            yield bin_


def _rewrite(group: _Group) -> list[File]:
    def rows() -> Iterator[pa.RecordBatch]:
        for path in group.paths:
            yield from read_parquet(path, group.target.schema)

    return write_files(rows(), group.target)


def _present(table: Table) -> Iterator[Any]:
    system, directory = fs.FileSystem.from_uri(table.location())
    selector = fs.FileSelector(directory, allow_not_found=True, recursive=True)
    for each in system.get_file_info(selector):
        if each.type is fs.FileType.File:
            yield each


def _named(table: Table) -> Iterator[str]:
    """Return every file that the table's metadata names: data, manifests, lists, metadata."""
    yield table.metadata_location
    for logged in table.metadata.metadata_log:
        yield logged.metadata_file
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


def _plain(path: str) -> str:
    """Return a path as file systems list it, without the scheme."""
    parts = urlparse(path)
    if not parts.scheme:
        return path
    return unquote(parts.path) if parts.scheme == "file" else f"{parts.netloc}{parts.path}"
