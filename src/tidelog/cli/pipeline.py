"""`tidelog pipeline`: make, check and run pipelines of Spark that read and write topics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    INTERRUPTED,
    AsJson,
    Bootstrap,
    emit,
    emit_table,
    note,
    plural,
    run,
)
from tidelog.cli.errors import fail
from tidelog.cli.spark import Master, need_packages, need_spark, parse_span

if TYPE_CHECKING:
    from tidelog.cli.pipelineview import Report
    from tidelog.client import Cluster
    from tidelog.spark.pipelines.project import Project
    from tidelog.spark.pipelines.runner import Order
    from tidelog.spark.pipelines.sample import Fed

app = typer.Typer(
    help=(
        "Run pipelines on Spark: topics in, topics and a lake out.\n\n"
        "**Examples**\n\n"
        "`tidelog pipeline init shop` makes a project with a sample in it\n\n"
        "`tidelog pipeline feed` writes orders and payments to try it with\n\n"
        "`tidelog pipeline check shop` finds wrong topics, columns and expressions\n\n"
        "`tidelog pipeline run shop` takes in what is there, and ends"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)

Directory = Annotated[Path, typer.Argument(help="Directory of the project.", metavar="DIR")]
# None means as the project says, which a default of the command line would hide.
Cluster_ = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        help="Addresses of nodes; by default as the project says.",
        metavar="ADDRESSES",
    ),
]
LakePlace = Annotated[
    str | None, typer.Option("--lake", help="The lake; by default as the project says.")
]


@app.command("init")
def init(
    directory: Directory,
    name: Annotated[str | None, typer.Option(help="Name of the pipeline.")] = None,
    bootstrap: Cluster_ = None,
) -> None:
    """Make a project: a specification, definitions in Python and SQL, a page that explains them."""
    need_packages()
    from tidelog.spark.pipelines.project import ProjectError, create

    try:
        project = create(directory, name=name, bootstrap=bootstrap)
    except ProjectError as error:
        fail(error)
    typer.echo(
        f"Made {project.directory}.\n\n"
        f"  tidelog pipeline feed            write orders and payments to try it with\n"
        f"  tidelog pipeline check {directory}\n"
        f"  tidelog pipeline run {directory}"
    )


@app.command()
def feed(
    orders: Annotated[int, typer.Option(help="How many orders.", min=1)] = 1_000,
    seed: Annotated[int | None, typer.Option(help="The same seed, the same orders.")] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write orders and payments for the sample, and create its topics if they are missing."""
    need_packages()
    from tidelog.spark.pipelines import sample

    async def work(cluster: Cluster) -> Fed:
        return await sample.feed(cluster, orders, seed=seed)

    fed = run(bootstrap, work)
    assert fed is not None
    if as_json:
        emit({name: getattr(fed, name) for name in fed.__slots__})
    else:
        typer.echo(
            f"Wrote {plural(fed.orders, 'order')} ({fed.bad_orders} of them bad) and "
            f"{plural(fed.payments, 'payment')} ({fed.bad_payments} of them bad)."
        )


@app.command()
def check(
    directory: Directory,
    master: Master = "local[*]",
    bootstrap: Cluster_ = None,
    as_json: AsJson = False,
) -> None:
    """Find wrong topics, columns and expressions before anything runs."""
    need_spark()
    project = _project(directory)
    report = _follow(project, _order(project, master, bootstrap, None, dry=True), as_json=as_json)
    if as_json:
        emit({"ok": report.ok, "problems": report.problems})
    elif report.ok:
        typer.echo(f"{directory} is in order: {plural(len(report.flows), 'flow')}.")
    if not report.ok:
        raise typer.Exit(1)


@app.command("run")
def run_pipeline(
    directory: Directory,
    master: Master = "local[*]",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[str, typer.Option(help="With --continuous: the pause between runs.")] = "5s",
    full_refresh: Annotated[
        list[str] | None,
        typer.Option("--full-refresh", help="A table to compute anew; may be repeated."),
    ] = None,
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="Compute everything anew.")
    ] = False,
    lake: LakePlace = None,
    bootstrap: Cluster_ = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline on what is there, going on where the last run stopped.

    Shows each flow while it runs, and at the end what was read, written and rejected.
    """
    need_spark()
    project = _project(directory)
    order = _order(
        project,
        master,
        bootstrap,
        lake,
        every=parse_span(every).total_seconds() if continuous else None,
        refresh=tuple(full_refresh or ()),
        refresh_all=full_refresh_all,
    )
    report = _follow(project, order, as_json=as_json)
    if as_json:
        emit(report.document())
    else:
        show_report(report)
    if report.interrupted:
        note("Stopped. The next run goes on where this one was.")
        raise typer.Exit(0 if continuous else INTERRUPTED)
    if not report.ok:
        raise typer.Exit(1)


def show_report(report: Report) -> None:
    """Print what a run read, wrote and rejected."""
    rows = report.rows()
    if rows:
        emit_table(("FLOW", "READ", "WRITTEN", "REJECTED", "BATCHES", "SECONDS", "LAG"), rows)
    broken = report.broken()
    if broken:
        typer.echo()
        emit_table(("VIEW", "RULE", "REJECTED"), broken)
    for table, place, count in report.published:
        typer.echo(f"\nPublished {table}: {plural(count, 'row')} in the lake at {place}.")


def _follow(project: Project, order: Order, *, as_json: bool) -> Report:
    """Run an order, show what happens, and return what became of it."""
    from tidelog.cli.pipelineview import watch
    from tidelog.spark.pipelines.launching import launch
    from tidelog.spark.pipelines.project import ProjectError

    try:
        report = watch(launch(project, order), quiet=as_json)
    except ProjectError as error:
        fail(error)
    if not report.ok and not report.interrupted and not as_json:
        _complain(report.problems, project)
    return report


def _complain(problems: Iterable[str], project: Project) -> None:
    for problem in problems:
        typer.echo(f"tidelog: {problem}", err=True)
    typer.echo(f"tidelog: What Spark said is in {project.log}.", err=True)


def _project(directory: Path) -> Project:
    from tidelog.spark.pipelines.project import Project, ProjectError

    project = Project(directory.resolve())
    try:
        project.spec()
    except ProjectError as error:
        fail(error)
    return project


def _order(
    project: Project, master: str, bootstrap: str | None, lake: str | None, **more: Any
) -> Order:
    from tidelog.spark.pipelines.runner import Order

    return Order(
        project=str(project.directory),
        master=master,
        bootstrap=project.bootstrap(bootstrap),
        lake=project.lake(lake),
        events=-1,
        **more,
    )
