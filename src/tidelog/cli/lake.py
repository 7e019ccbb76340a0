"""`tidelog lake`: topics as Iceberg tables of Parquet files, and care for these tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    TopicName,
    emit,
    emit_line,
    emit_table,
    format_bytes,
    note,
    parse_settings,
    plural,
)
from tidelog.cli.errors import fail
from tidelog.cli.spark import Master, need_packages, need_spark, parse_span

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from tidelog.spark.lake import Lake, LakeJob, Moved

_WRITE: Final = "write"
_FORMATS: Final = ("binary", "string", "json", "avro")
_UNITS: Final = ("year", "month", "day", "hour", "none")


class Topics(TyperGroup):
    """Takes a word that is not a command for the name of a topic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in front that people leave out."""
        if args and args[0] not in (*self.commands, "--help"):
            args = [_WRITE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Topics,
    help=(
        "Move topics to Iceberg tables of Parquet files, and care for these tables.\n\n"
        "**Examples**\n\n"
        "`tidelog lake orders --to /data/lake --format json` takes over all there is, and ends\n\n"
        "`tidelog lake orders --to /data/lake --follow` goes on until Ctrl-C\n\n"
        "`tidelog lake show /data/lake` shows tables, rows, and up to which offsets they go\n\n"
        "A topic whose name is that of a command: `tidelog lake write clean --to /data/lake`"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)

Place = Annotated[str, typer.Argument(help="Directory or address of the lake.", metavar="LAKE")]
Tables = Annotated[
    list[str] | None, typer.Argument(help="Tables; all of them by default.", metavar="TABLE")
]
Catalog = Annotated[
    str | None,
    typer.Option(help="A REST catalog; by default SQLite, in the lake.", metavar="ADDRESS"),
]
CatalogOptions = Annotated[
    list[str] | None,
    typer.Option("--catalog-option", help="Passed on to the catalog.", metavar="KEY=VALUE"),
]


@app.command(_WRITE)
def write(
    topic: TopicName,
    to: Annotated[str, typer.Option(help="Directory or address of the lake.", metavar="LAKE")],
    kind: Annotated[
        str, typer.Option("--format", help="What values are: binary, string, json or avro.")
    ] = "binary",
    schema: Annotated[
        str | None,
        typer.Option(
            help='Fields of JSON values, as in "id long, name string"; learned otherwise.',
            metavar="COLUMNS",
        ),
    ] = None,
    avro_schema: Annotated[
        Path | None, typer.Option(help="A file with the schema of Avro values.", exists=True)
    ] = None,
    confluent: Annotated[
        bool, typer.Option("--confluent", help="Avro values begin with a registry's five bytes.")
    ] = False,
    partition_by: Annotated[
        str, typer.Option(help="Unit of the records' time: year, month, day, hour or none.")
    ] = "day",
    headers: Annotated[
        bool, typer.Option("--headers", help="Keep the headers of records.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Run until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option(help="With --follow: how often to commit.")] = "10s",
    max_offsets: Annotated[
        int, typer.Option(help="Maximum number of offsets in one commit.", min=1)
    ] = 5_000_000,
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="Continue if retention deleted records before they were read."
        ),
    ] = False,
    catalog: Catalog = None,
    catalog_option: CatalogOptions = None,
    master: Master = "local[*]",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Take over a topic; `write` may be left out.

    The table says itself up to which offsets it goes, so this can be stopped, killed and started
    again at any time: no record is lost, and none is there twice.
    """
    if kind not in _FORMATS:
        raise typer.BadParameter(f"--format takes one of {', '.join(_FORMATS)}.")
    if partition_by not in _UNITS:
        raise typer.BadParameter(f"--partition-by takes one of {', '.join(_UNITS)}.")
    if (kind == "avro") != (avro_schema is not None):
        raise typer.BadParameter("--format avro and --avro-schema belong together.")
    pause = parse_span(every).total_seconds()
    need_spark()
    lake = _lake(to, catalog, catalog_option)
    options = {} if kind == "binary" else {"valueFormat": kind}
    if avro_schema is not None:
        options["avroSchema"] = avro_schema.read_text()
        options["avroFraming"] = "confluent" if confluent else "none"
    if skip_lost:
        options["failOnDataLoss"] = "false"
    with _told():
        from tidelog.spark.lake import LakeJob
        from tidelog.spark.lake.schemas import parse_columns
        from tidelog.spark.session import session

        spark = session("tidelog-lake", master=master)
        try:
            job = LakeJob(
                spark,
                lake,
                topic,
                bootstrap,
                schema=None if schema is None else parse_columns(schema),
                options=options,
                partition_by=partition_by,
                headers=headers,
                max_offsets=max_offsets,
            )
            _move(job, topic, pause if follow else None, as_json=as_json)
        finally:
            spark.stop()


@app.command()
def show(
    place: Place,
    catalog: Catalog = None,
    catalog_option: CatalogOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show the tables of a lake."""
    need_packages()
    with _told():
        from tidelog.spark.lake.committing import data_files
        from tidelog.spark.lake.stamp import last_stamp
        from tidelog.spark.ranges import to_json

        lake = _lake(place, catalog, catalog_option)
        found = []
        for name in lake.tables():
            table = lake.table(name)
            files = data_files(table)
            stamp = last_stamp(table)
            found.append(
                {
                    "table": name,
                    "rows": sum(each.record_count for each in files),
                    "files": len(files),
                    "bytes": sum(each.file_size_in_bytes for each in files),
                    "snapshots": len(table.snapshots()),
                    "epoch": stamp.epoch,
                    "offsets": to_json(stamp.offsets),
                }
            )
    if as_json:
        emit(found)
        return
    emit_table(
        ("TABLE", "ROWS", "FILES", "SIZE", "SNAPSHOTS", "EPOCH", "OFFSETS"),
        (
            (
                *(each[name] for name in ("table", "rows", "files")),
                format_bytes(int(str(each["bytes"]))),
                each["snapshots"],
                each["epoch"],
                _shown(each["offsets"]),
            )
            for each in found
        ),
    )


@app.command()
def compact(
    place: Place,
    tables: Tables = None,
    master: Annotated[
        str | None, typer.Option(help="A Spark master to do it; by default this process.")
    ] = None,
    catalog: Catalog = None,
    catalog_option: CatalogOptions = None,
    as_json: AsJson = False,
) -> None:
    """Write small files again as large ones."""
    need_packages()
    from tidelog.spark.lake import care

    spark = None
    if master is not None:
        need_spark()
        from tidelog.spark.session import session

        spark = session("tidelog-lake", master=master)

    def work(table: Table) -> dict[str, Any]:
        done = care.compact(table, spark=spark)
        return {"files_before": done.before, "files_after": done.after, "rows": done.rows}

    try:
        _each(place, tables, catalog, catalog_option, work, as_json=as_json)
    finally:
        if spark is not None:
            spark.stop()


@app.command()
def expire(
    place: Place,
    tables: Tables = None,
    older_than: Annotated[str, typer.Option(help="Expire snapshots older than this.")] = "7d",
    keep: Annotated[int, typer.Option(help="Always keep the N newest snapshots.", min=1)] = 1,
    catalog: Catalog = None,
    catalog_option: CatalogOptions = None,
    as_json: AsJson = False,
) -> None:
    """Expire old snapshots; the next `clean` removes their files."""
    need_packages()
    from tidelog.spark.lake import care

    age = parse_span(older_than)

    def work(table: Table) -> dict[str, Any]:
        return {"expired_snapshots": care.expire(table, older_than=age, keep=keep)}

    _each(place, tables, catalog, catalog_option, work, as_json=as_json)


@app.command()
def clean(
    place: Place,
    tables: Tables = None,
    older_than: Annotated[
        str, typer.Option(help="Keep files newer than this; a running job may still commit them.")
    ] = "1d",
    catalog: Catalog = None,
    catalog_option: CatalogOptions = None,
    as_json: AsJson = False,
) -> None:
    """Remove files that no snapshot refers to."""
    need_packages()
    from tidelog.spark.lake import care

    age = parse_span(older_than)

    def work(table: Table) -> dict[str, Any]:
        done = care.clean(table, older_than=age)
        return {"removed_files": done.files, "removed_bytes": done.size}

    _each(place, tables, catalog, catalog_option, work, as_json=as_json)


def _move(job: LakeJob, topic: str, pause: float | None, *, as_json: bool) -> None:
    """Take over what is there; with a pause, again and again until Ctrl-C."""
    rows = commits = 0
    began = time.monotonic()
    try:
        while True:
            for moved in job.run():
                rows += moved.rows
                commits += 1
                _tell(moved, as_json=as_json)
            if pause is None:
                break
            time.sleep(pause)
    except KeyboardInterrupt:
        if pause is None:
            raise typer.Exit(130) from None
    if not as_json:
        took = time.monotonic() - began
        note(f"{rows:,} rows of {topic} in {plural(commits, 'commit')}, {took:.1f} s.")


def _tell(moved: Moved, *, as_json: bool) -> None:
    from tidelog.spark.ranges import to_json

    if as_json:
        emit_line(
            {
                "epoch": moved.epoch,
                "rows": moved.rows,
                "files": moved.files,
                "bytes": moved.size,
                "offsets": to_json(moved.offsets),
                "behind": moved.behind,
            }
        )
        return
    typer.echo(
        f"epoch {moved.epoch}: {moved.rows:,} rows, {plural(moved.files, 'file')}, "
        f"{format_bytes(moved.size)}; {moved.behind:,} behind"
    )


def _each(
    place: str,
    tables: list[str] | None,
    catalog: str | None,
    catalog_option: list[str] | None,
    work: Callable[[Table], dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Do something to tables, and say what became of it."""
    with _told():
        lake = _lake(place, catalog, catalog_option)
        found = [{"table": name, **work(lake.table(name))} for name in tables or lake.tables()]
    if as_json:
        emit(found)
    elif found:
        titles = list(found[0])
        emit_table(
            [title.replace("_", " ").upper() for title in titles],
            ([each[title] for title in titles] for each in found),
        )


def _lake(place: str, catalog: str | None, options: list[str] | None) -> Lake:
    from tidelog.spark.lake import Lake

    return Lake(place, catalog, parse_settings(options or (), "--catalog-option"))


@contextmanager
def _told() -> Iterator[None]:
    """End the process with a sentence if the work goes wrong in a way that people can mend."""
    from tidelog.client import ClientError
    from tidelog.spark.lake import LakeError
    from tidelog.spark.options import OptionError

    try:
        yield
    except (ClientError, LakeError, OptionError) as error:
        fail(error)


def _shown(offsets: Any) -> str:
    return " ".join(
        f"{topic}/{index}:{offset}"
        for topic, places in offsets.items()
        for index, offset in places.items()
    )
