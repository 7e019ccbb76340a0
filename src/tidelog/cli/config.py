"""`tidelog config`: settings of the whole cluster, changed while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    emit,
    emit_table,
    parse_settings,
    run,
)
from tidelog.cli.errors import fail

if TYPE_CHECKING:
    from tidelog.client import Cluster, Setting

app = typer.Typer(
    help=(
        "See and change cluster settings.\n\n"
        "Settings of a topic are in `tidelog topic describe` and `tidelog topic alter`.\n\n"
        "**Examples**\n\n"
        "`tidelog config list --all` shows every setting and where its value comes from\n\n"
        "`tidelog config set num.partitions=6`"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)

Node = Annotated[int | None, typer.Option("--node", help="Ask this node.", min=0, metavar="ID")]


@app.command("list")
def list_settings(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include settings that still have their defaults.")
    ] = False,
    node: Node = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the settings that were changed, or all of them."""
    settings = [each for each in _settings(bootstrap, node) if everything or not each.is_default]
    if as_json:
        emit({each.name: {"value": each.value, "source": each.source} for each in settings})
    else:
        emit_table(
            ("SETTING", "VALUE", "FROM"),
            ((each.name, each.value, each.source) for each in settings),
        )


@app.command()
def get(
    key: Annotated[str, typer.Argument(help="Name of the setting.", metavar="KEY")],
    node: Node = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the value of a setting."""
    for each in _settings(bootstrap, node):
        if each.name == key:
            if as_json:
                emit({"name": each.name, "value": each.value, "source": each.source})
            else:
                typer.echo(each.value or "")
            return
    fail(f"There is no setting {key}. `tidelog config list --all` lists the settings.")


@app.command("set")
def set_settings(
    settings: Annotated[list[str], typer.Argument(help="New values.", metavar="KEY=VALUE")],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change settings on all nodes.

    **Examples**

    `tidelog config set num.partitions=6 default.replication.factor=3`
    """
    changes: dict[str, str | None] = dict(parse_settings(settings, "set"))
    _change(bootstrap, changes)
    if as_json:
        emit(changes)
    else:
        typer.echo("\n".join(f"{key} is now {value}." for key, value in changes.items()))


@app.command()
def unset(
    keys: Annotated[list[str], typer.Argument(help="Names of settings.", metavar="KEY")],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Reset settings to their defaults."""
    _change(bootstrap, dict.fromkeys(keys))
    if as_json:
        emit(dict.fromkeys(keys))
    else:
        typer.echo("\n".join(f"{key} is back to its default." for key in keys))


def _settings(bootstrap: str, node: int | None) -> list[Setting]:
    from tidelog.client import Admin, ClientError, Resource

    async def work(cluster: Cluster) -> list[Setting]:
        # The cluster's own list has only what was set; a node's has the defaults as well.
        wanted = node
        if wanted is None:
            wanted = cluster.controller if cluster.controller is not None else min(cluster.nodes)
        elif wanted not in cluster.nodes:
            raise ClientError(
                f"There is no node {wanted} in this cluster: its nodes are {sorted(cluster.nodes)}."
            )
        return await Admin(cluster).settings(Resource.BROKER, str(wanted))

    return run(bootstrap, work) or []


def _change(bootstrap: str, changes: dict[str, str | None]) -> None:
    from tidelog.client import WHOLE_CLUSTER, Admin, Resource

    async def work(cluster: Cluster) -> None:
        await Admin(cluster).change_settings(Resource.BROKER, WHOLE_CLUSTER, changes)

    run(bootstrap, work)
