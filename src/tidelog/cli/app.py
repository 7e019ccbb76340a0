"""The command line as a whole: the list of subcommands, the version, and how the process ends.

A subcommand imports the room it drives when it runs, so that `tidelog --help` answers at once.
Exit codes: 0 it went well, 1 it ran and the answer is bad news, 2 the command line was wrong.
"""

from typing import Annotated

import typer

import tidelog
from tidelog.cli.sim import sim

app = typer.Typer(
    name="tidelog",
    help=(
        "Tidelog: replicated logs, and the tide mark up to which they are safe.\n\n"
        "Begin with `tidelog sim`: it runs the real consensus core, log and machines in simulated "
        "worlds full of crashes, lost messages and failing disks, and checks every invariant after "
        "every event. `tidelog COMMAND --help` explains a command with examples."
    ),
    no_args_is_help=True,
    add_completion=False,
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


app.command()(sim)


def main() -> None:
    """Run the command line: the entry point of the `tidelog` script."""
    app()
