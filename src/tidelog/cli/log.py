"""`tidelog log`: a partition's replicas, drawn (`drawing.py`) or verified (`verify.py`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    complete_topics,
    emit,
    emit_line,
    run,
)
from tidelog.cli.drawing import Line, Style, draw, plain
from tidelog.cli.verify import verify

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tidelog.client import Cluster

PLAIN_WIDTH: Final = 100  # columns when the width of the output is unknown
LOOKS: Final = {
    Style.PLAIN: "",
    Style.TITLE: "bold",
    Style.COMMITTED: "green",
    Style.FLUSHED: "cyan",
    Style.DIRTY: "yellow",
    Style.GAP: "magenta",
    Style.MARK: "",
    Style.FAINT: "dim",
    Style.BAD: "bold red",
}

app = typer.Typer(
    help="Draw the log of a partition, or verify what its replicas hold.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)


app.command()(verify)


@app.command()
def show(
    partition: Annotated[
        str,
        typer.Argument(
            help="Topic and partition: orders/0.",
            autocompletion=complete_topics,
            metavar="TOPIC/P",
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Draw again as it changes, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.05, metavar="SECONDS")
    ] = 0.5,
    width: Annotated[
        int | None,
        typer.Option(help="Columns to draw in.", min=40, show_default="the terminal's"),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Draw every replica of a partition, the leader first.

    Offsets are those of the replicated log: they also count what clients never see. The drawing is
    not to scale; what is above one another is at the same offset.

    **dirty** is the last offset that was appended, **flushed** the last on this replica's disk,
    **committed** the last on the disks of a majority, **visible** the last that readers may see,
    **applied** the last that this replica's state holds. A gap is what compaction removed.

    **Examples**

    `tidelog log show orders/0`

    `tidelog log show orders/0 --follow` while something writes to it
    """
    from tidelog.client import operate

    topic, index = parse_partition(partition)

    async def look(cluster: Cluster) -> dict[str, Any]:
        found: dict[str, Any] = await operate(cluster, "log", topic=topic, partition=index)
        return found

    async def watch(cluster: Cluster) -> None:
        screen = _Screen(width, as_json)
        with screen:
            while True:
                screen.show(await look(cluster))
                await asyncio.sleep(interval)

    if follow:
        run(bootstrap, watch, endless=True)
        return
    found = run(bootstrap, look)
    assert found is not None
    if as_json:
        emit(found)
    else:
        _print(_console(width), draw(found, _width(width)))


class _Screen:
    """Shows one drawing after the other: in place on a terminal, one below the other elsewhere."""

    def __init__(self, width: int | None, as_json: bool) -> None:
        self._as_json = as_json
        self._width = width
        self._console = _console(width)
        self._last: dict[str, Any] | None = None
        self._live: Any = None
        if self._console.is_terminal and not as_json:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: dict[str, Any]) -> None:
        if found == self._last:
            return
        self._last = found
        if self._as_json:
            emit_line(found)
            return
        lines = draw(found, _width(self._width))
        if self._live is not None:
            self._live.update(styled(lines), refresh=True)
        else:
            _print(self._console, lines)
            typer.echo()


def _console(width: int | None) -> Console:
    from rich.console import Console

    return Console(width=width, highlight=False)


def _width(width: int | None) -> int:
    if width is not None:
        return width
    console = _console(None)
    return console.width if console.is_terminal else PLAIN_WIDTH


def _print(console: Console, lines: list[Line]) -> None:
    if console.is_terminal:
        console.print(styled(lines), soft_wrap=True)
    else:
        typer.echo(plain(lines))


def styled(lines: list[Line]) -> Text:
    """Return a drawing in colour."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for span, style in line:
            text.append(span, LOOKS[style])
    return text


def parse_partition(text: str) -> tuple[str, int]:
    """Read TOPIC/P; anything else is a wrong command line."""
    topic, separator, index = text.rpartition("/")
    if not separator or not topic or not index.isdigit():
        raise typer.BadParameter(f"{text!r} names no partition: write topic/number, as orders/0.")
    return topic, int(index)
