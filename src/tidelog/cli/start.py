"""`tidelog start`: one node of a cluster, in this process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from tidelog.cluster.config import NodeConfig

LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def start(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", help="The node's TOML file.", exists=True, dir_okay=False),
    ],
    log_level: Annotated[
        str, typer.Option(help="How much to say: debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run one node until it is told to stop (SIGTERM or Ctrl-C).

    A node needs an id, a directory and the addresses of the nodes that found the cluster:

        id = 1
        data = "/var/lib/tidelog"

        [rpc]
        host = "10.0.0.1"
        port = 9192

        [kafka]
        host = "10.0.0.1"
        port = 9092

        [[seeds]]
        id = 1
        host = "10.0.0.1"
        port = 9192

    Every founder has the same list of seeds. A node that is not in it joins their cluster. On a
    laptop, `tidelog up` writes such files and starts three nodes.
    """
    from tidelog.cluster.config import InvalidNodeConfig, load_node_config
    from tidelog.cluster.node import StartFailed
    from tidelog.server.process import run

    level = getattr(logging, log_level.upper(), None)
    if not isinstance(level, int):
        raise typer.BadParameter(f"{log_level!r}: use debug, info, warning or error")
    try:
        settings = load_node_config(config)
        with _logging(settings, level):
            run(settings)
    except (InvalidNodeConfig, StartFailed, OSError) as error:
        typer.echo(f"tidelog: this node cannot start: {error}", err=True)
        raise typer.Exit(1) from None


@contextlib.contextmanager
def _logging(settings: NodeConfig, level: int) -> Iterator[None]:
    """Send log lines where the node's file wants them, the last ones included."""
    if settings.log.file is None:
        logging.basicConfig(level=level, format=LINE)
        yield
        return
    from tidelog.server.logfile import log_to

    path = settings.data / settings.log.file
    handler = log_to(path, settings.log.max_bytes, settings.log.files, level, LINE)
    try:
        yield
    finally:
        handler.close()
