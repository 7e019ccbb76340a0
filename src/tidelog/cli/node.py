"""`tidelog node`: take leadership off a node, give it back, or remove the node for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.common import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, emit, fail, run

if TYPE_CHECKING:
    from tidelog.client import Cluster

POLL_SECONDS: Final = 0.25

app = typer.Typer(
    help=(
        "Empty a node, or remove it.\n\n"
        "**Examples**\n\n"
        "`tidelog node drain 2` before a restart of node 2, `tidelog node undrain 2` after it\n\n"
        "`tidelog node decommission 2` moves everything off node 2 and takes it out"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)

NodeId = Annotated[int, typer.Argument(help="Id of the node.", min=0, metavar="ID")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; the cluster goes on by itself.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait for the end.", min=1, metavar="SECONDS")
]


@app.command()
def drain(
    node: NodeId,
    no_wait: NoWait = False,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Hand the leadership of a node's partitions to others; its copies stay.

    Writers do not notice a node that is stopped after it was drained.
    """
    found = _carry_out("drain", node, "leaders_left", no_wait, timeout, bootstrap)
    _report(found, as_json, f"Node {node} leads nothing any more.", f"Node {node} is draining.")


@app.command()
def undrain(
    node: NodeId, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Let a drained node lead partitions again."""
    found = _carry_out("undrain", node, "", True, 1.0, bootstrap)
    _report(found, as_json, "", f"Node {node} may lead partitions again.")


@app.command()
def decommission(
    node: NodeId,
    no_wait: NoWait = False,
    timeout: Timeout = 3600.0,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move everything off a node and take it out of the cluster.

    The other nodes need room for its copies. Ctrl-C stops waiting, not the move:
    `tidelog cluster status` shows how far it is, and `tidelog node undrain` calls it off.
    """
    found = _carry_out("decommission", node, "replicas_left", no_wait, timeout, bootstrap)
    _report(
        found,
        as_json,
        f"Node {node} is out of the cluster: it can be stopped.",
        f"Node {node} is being emptied.",
    )


def _carry_out(
    operation: str, node: int, count: str, no_wait: bool, timeout: float, bootstrap: str
) -> dict[str, Any]:
    """Start an operation and, if asked to, wait until nothing is left of what it counts down."""
    from tidelog.cli.progress import Progress
    from tidelog.client import operate

    async def work(cluster: Cluster) -> dict[str, Any]:
        found: dict[str, Any] = await operate(cluster, operation, node=node)
        if no_wait or _is_over(found, count):
            return found
        total = found[count]
        end = asyncio.get_running_loop().time() + timeout
        with Progress(count.removesuffix("_left"), total) as progress:
            while not _is_over(found, count):
                if asyncio.get_running_loop().time() > end:
                    fail(
                        f"Node {node} still has {found[count]} {count.removesuffix('_left')} after "
                        f"{timeout:g} s. The cluster goes on: `tidelog cluster status` shows how "
                        "far it is, and whether other nodes are there to take over."
                    )
                await asyncio.sleep(POLL_SECONDS)
                found = await operate(cluster, operation, node=node)
                progress.done = max(0, total - found[count])
        return found

    found = run(bootstrap, work)
    assert found is not None
    return found


def _is_over(found: dict[str, Any], count: str) -> bool:
    if count == "replicas_left":
        return bool(found["status"] == "gone")
    return not found[count] if count else True


def _report(found: dict[str, Any], as_json: bool, over: str, running: str) -> None:
    if as_json:
        emit(found)
        return
    if found["status"] == "gone" or (found["status"] == "draining" and not found["leaders_left"]):
        typer.echo(over)
    else:
        typer.echo(running)
