"""The command line as a whole: the list of subcommands, the version, and how the process ends.

A subcommand is imported when it runs, and imports the room it drives then too, so that
`tidelog --help` answers at once.
Exit codes: 0 it went well, 1 it ran and the answer is bad news, 2 the command line was wrong.
"""

from typing import Annotated

import typer

import tidelog
from tidelog.cli.lazy import Entry, LazyGroup

RUN, USE, OPERATE, PROVE = "Run", "Use", "Operate", "Prove"


class Commands(LazyGroup):
    """Every command there is, in the order in which they are shown."""

    table = (
        Entry("up", "tidelog.cli.up:up", "Start a cluster on this machine.", RUN),
        Entry("down", "tidelog.cli.up:down", "Stop that cluster.", RUN),
        Entry("demo", "tidelog.cli.demo:demo", "Run a 90-second guided demo.", RUN),
        Entry("start", "tidelog.cli.start:start", "Run one node of a cluster.", RUN),
        Entry("topic", "tidelog.cli.topic:app", "Create, describe, change and delete topics.", USE),
        Entry("produce", "tidelog.cli.produce:produce", "Write records to a topic.", USE),
        Entry("consume", "tidelog.cli.consume:consume", "Read records from topics.", USE),
        Entry(
            "group",
            "tidelog.cli.group:app",
            "List and describe consumer groups; reset offsets.",
            USE,
        ),
        Entry("lake", "tidelog.cli.lake:app", "Move topics to Iceberg tables.", USE),
        Entry("pipeline", "tidelog.cli.pipeline:app", "Run pipelines on Spark.", USE),
        Entry("cluster", "tidelog.cli.cluster:app", "Show cluster health.", OPERATE),
        Entry(
            "node", "tidelog.cli.node:app", "Drain, decommission, add or recover nodes.", OPERATE
        ),
        Entry("config", "tidelog.cli.config:app", "Show and change cluster settings.", OPERATE),
        Entry("log", "tidelog.cli.log:app", "Draw or verify the log of a partition.", OPERATE),
        Entry("sim", "tidelog.cli.sim:sim", "Run the deterministic simulator.", PROVE),
    )


app = typer.Typer(
    name="tidelog",
    cls=Commands,
    help=(
        "Tidelog: replicated logs, and the tide mark up to which they are safe.\n\n"
        "Commands talk to the cluster at `--bootstrap`, or at `$TIDELOG_BOOTSTRAP`, or at "
        "localhost:9092. Those under *Use* work with any Kafka cluster. "
        "`tidelog COMMAND --help` explains a command with examples.\n\n"
        "The exit status is 0 if all went well, 1 for bad news and 2 for a wrong command line. "
        "With `--json`, results are JSON on standard output, and an error is one line on the error "
        'stream: `{"error": {"kind": "unknown_node", "message": "..."}}`.'
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A traceback with every local variable buries the one line that matters.
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidelog {tidelog.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Hold the options that belong to no subcommand."""


def main() -> None:
    """Run the command line: the entry point of the `tidelog` script."""
    app(prog_name="tidelog")  # also under `python -m tidelog`
