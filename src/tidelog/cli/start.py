"""`tidelog start`: one node of a cluster, in this process."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.errors import fail
from tidelog.server.names import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from tidelog.cluster.config import NodeConfig

LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def start(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", help="The node's TOML file.", exists=True, dir_okay=False),
    ],
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            show_envvar=True,
            help="Join token, for the first start. Other users of the machine can read a command"
            " line: prefer the file or the environment.",
            metavar="TOKEN",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar=TOKEN_FILE_VARIABLE, show_envvar=True, help="File that holds the join token."
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="Lowest level of log lines: debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run one node until SIGTERM or Ctrl-C.

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

        [log]
        file = "node.log"
        max_bytes = 10485760
        files = 5

    Every founder has the same list of seeds. A node that is not in it joins their cluster. On a
    laptop, `tidelog up` writes such files and starts three nodes.

    Choose ports outside the range that the system gives to outgoing connections
    (`sysctl net.ipv4.ip_local_port_range`), or one of those may take a port while the node is down.

    Log lines go to the error stream, or to `file` if there is a [log] section: a path below the
    data directory unless it is absolute. The file is renamed to node.log.1 when it reaches
    `max_bytes`, and at most `files` of them are kept.

    The nodes of a cluster share a secret, which a join token carries. Before several nodes found a
    cluster, run `tidelog node token --new` once; to add a node, run `tidelog node token` on the
    machine of a member. Start each node with that token. It is needed for the first start only:
    after that the secret is in the data directory. A node that founds a cluster alone makes the
    secret itself.
    """
    from tidelog.cluster.config import InvalidNodeConfig, load_node_config
    from tidelog.cluster.errors import StartFailed
    from tidelog.server.process import run

    level = getattr(logging, log_level.upper(), None)
    if not isinstance(level, int):
        raise typer.BadParameter(f"{log_level!r}: use debug, info, warning or error")
    try:
        settings = _with_token(load_node_config(config), token, token_file)
        with _logging(settings, level):
            run(settings)
    except (InvalidNodeConfig, StartFailed, OSError) as error:
        fail(f"this node cannot start: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"its disk is full ({error}). Remove something that is not the node's own, or give it"
            " more space: a few MiB are enough to start it and to delete topics or records"
        )
    return str(error)


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


def _with_token(config: NodeConfig, token: str | None, token_file: Path | None) -> NodeConfig:
    """Let what the command line or the environment says take the place of the file's."""
    if token is not None:
        return config.model_copy(update={"token": token, "token_file": None})
    if token_file is not None:
        return config.model_copy(update={"token": None, "token_file": token_file})
    return config
