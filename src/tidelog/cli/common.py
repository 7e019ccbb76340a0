"""What the commands that talk to a cluster share: options, errors, tables, and running to the end.

Rules:
- Results go to standard output, everything else to the error stream. With `--json` the output is
  one JSON document, or one per line where there is no end, and errors are JSON too (`errors.py`).
- An error is a sentence that says what to do, and exit status 1. A wrong command line is status 2.
- Ctrl-C ends a command that follows something in the regular way, with code 0.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from tidelog.cli.errors import fail, wants_json

if TYPE_CHECKING:
    from tidelog.client import Cluster

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
# Seconds in which some node must answer before a command says that the cluster is not there.
CONTACT_SECONDS: Final = 3.0
CALL_SECONDS: Final = 20.0
COMPLETION_SECONDS: Final = 1.0
INTERRUPTED: Final = 130  # what a shell expects of a program that Ctrl-C ended

T = TypeVar("T")

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIDELOG_BOOTSTRAP",
        help="Addresses of one or more nodes: host:port,host:port.",
        metavar="ADDRESSES",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return topics for the shell to complete; none if the cluster does not answer at once."""

    async def names(cluster: Cluster) -> list[str]:
        return sorted((await cluster.metadata(timeout=COMPLETION_SECONDS)).topics)

    return _complete(ctx, names, incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return groups for the shell to complete; none if the cluster does not answer at once."""
    from tidelog.client import GroupAdmin

    async def names(cluster: Cluster) -> list[str]:
        found = await GroupAdmin(cluster).groups(timeout=COMPLETION_SECONDS)
        return [group.name for group in found]

    return _complete(ctx, names, incomplete)


def _complete(
    ctx: typer.Context, names: Callable[[Cluster], Awaitable[list[str]]], incomplete: str
) -> list[str]:
    from tidelog.client import ClientError, Cluster

    async def main() -> list[str]:
        async with Cluster(ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP) as cluster:
            return await names(cluster)

    try:
        found = asyncio.run(main())
    except ClientError:
        return []  # an error message in the middle of a prompt would only spoil the prompt
    return [name for name in found if name.startswith(incomplete)]


TopicName = Annotated[
    str, typer.Argument(help="Name of the topic.", autocompletion=complete_topics, metavar="TOPIC")
]


def run(
    bootstrap: str, work: Callable[[Cluster], Awaitable[T]], *, endless: bool = False
) -> T | None:
    """Run `work` on a connected cluster; end the process with a sentence if that goes wrong.

    `endless` work ends tidily at Ctrl-C or SIGTERM, and then returns no result.
    """
    from tidelog.client import ClientError, Cluster, UnknownTopic

    async def main() -> T:
        async with Cluster(bootstrap, client_id="tidelog-cli", timeout=CALL_SECONDS) as cluster:
            await cluster.metadata((), timeout=CONTACT_SECONDS)
            return await work(cluster)

    try:
        return asyncio.run(_until_told(main()) if endless else main())
    except UnknownTopic as error:
        fail(error, "`tidelog topic list` shows what there is.")
    except ClientError as error:
        fail(error)
    except (KeyboardInterrupt, asyncio.CancelledError):
        if endless:
            return None
        raise typer.Exit(INTERRUPTED) from None


async def _until_told(work: Awaitable[T]) -> T:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    except (ValueError, RuntimeError):
        return await task  # only the main thread receives signals
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def note(message: str) -> None:
    """Say something to people that programs do not want to read."""
    if not wants_json():
        typer.echo(message, err=True)


def emit(document: object) -> None:
    """Print a JSON document."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def emit_line(document: object) -> None:
    """Print a JSON document on one line, for outputs without an end."""
    typer.echo(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def emit_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns as wide as they need to be; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [
        bool(cells) and all(_is_number(row[index]) for row in cells)
        for index in range(len(headers))
    ]
    widths = [
        max(len(header), *(len(row[index]) for row in cells)) if cells else len(header)
        for index, header in enumerate(headers)
    ]
    heading = _align(headers, widths, numeric)
    typer.echo(typer.style(heading, bold=True) if sys.stdout.isatty() else heading)
    for row in cells:
        typer.echo(_align(row, widths, numeric))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "-"
    return str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdigit()


def _align(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = (
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(row, widths, numeric, strict=True)
    )
    return "  ".join(cells).rstrip()


def parse_settings(settings: Iterable[str], option: str) -> dict[str, str]:
    """Read `key=value` settings; a wrong one is a wrong command line."""
    found: dict[str, str] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise typer.BadParameter(f"{option} takes key=value, not {setting!r}.")
        found[key.strip()] = value.strip()
    return found


def parse_time(text: str) -> int:
    """Read a time as milliseconds since 1970: a number of them, or a date as ISO 8601 has it."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00:00, or milliseconds since 1970."
        ) from None
    if moment.tzinfo is None:
        moment = moment.astimezone()  # what people write is their own time
    return int(moment.timestamp() * 1000)


def format_time(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_bytes(size: int | None) -> str:
    """Return a size as people read it: 1.5 MiB."""
    if size is None:
        return "-"
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def plural(count: int, one: str) -> str:
    """Return a count and its noun: `1 partition`, `3 partitions`."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def as_document(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with its keys in order, for JSON that does not change from run to run."""
    return dict(sorted(settings.items()))
