"""`tidelog node`: drain a node, remove it for good, print a token, recover what is left."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.common import (
    CONTACT_SECONDS,
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    emit,
    note,
    run,
)
from tidelog.cli.errors import fail
from tidelog.cli.recover import recover

if TYPE_CHECKING:
    from tidelog.client import Cluster
    from tidelog.cluster.jointoken import Kept, Place

POLL_SECONDS: Final = 0.25

app = typer.Typer(
    help=(
        "Drain a node, remove it for good, let another one join, or recover what is left.\n\n"
        "*drain* is for a restart: the node gives up leadership and keeps its replicas, so clients "
        "notice nothing when it stops. It leads again after it has been restarted, or at *undrain*."
        "\n\n"
        "*decommission* is for good: the other nodes take over the replicas, then the node leaves "
        "the cluster. Its directory is not let in again; empty it to reuse the id.\n\n"
        "`tidelog cluster status` shows how far either of them is.\n\n"
        "*recover* is for disks that are gone: it goes on with what a minority has.\n\n"
        "**Examples**\n\n"
        "`tidelog node drain 2` before node 2 is restarted\n\n"
        "`tidelog node decommission 2` moves all replicas off node 2 and removes it\n\n"
        "`tidelog node token --data /var/lib/tidelog` prints what a new node needs to join\n\n"
        "`tidelog node recover --data /var/lib/tidelog` after the majority of the nodes is lost"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)

app.command()(recover)

NodeId = Annotated[int, typer.Argument(help="Id of the node.", min=0, metavar="ID")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; the cluster finishes on its own.")
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", help="Seconds to wait until it is done.", min=1, metavar="SECONDS"),
]


@app.command()
def drain(
    node: NodeId,
    no_wait: NoWait = False,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Hand the leadership of a node's partitions to other nodes; its replicas stay.

    Waits until the node leads nothing, then it can be stopped without a pause for clients. The node
    leads again once it has been restarted, or after `tidelog node undrain`.
    """
    found = _carry_out("drain", node, "leaders_left", no_wait, timeout, bootstrap)
    _report(found, as_json, f"Node {node} leads no partitions.", f"Node {node} is draining.")


@app.command()
def undrain(
    node: NodeId, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Let a drained node lead partitions again, or call off a decommission."""
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
    """Move all replicas off a node and remove it from the cluster.

    The other nodes need disk space for its replicas. Ctrl-C stops waiting, not the move:
    `tidelog cluster status` shows how far it is, and `tidelog node undrain` calls it off.

    A removed node may be stopped. It is refused if it is started again, because its data now
    belongs to other nodes. To use its id for a new member, empty its data directory first.
    """
    found = _carry_out("decommission", node, "replicas_left", no_wait, timeout, bootstrap)
    _report(
        found,
        as_json,
        f"Node {node} has left the cluster: stop it. Its directory can be deleted.",
        f"Node {node} is moving its replicas to other nodes.",
    )


@app.command()
def token(
    new: Annotated[
        bool,
        typer.Option("--new", help="Make a token for a cluster that is yet to be founded."),
    ] = False,
    data: Annotated[
        Path,
        typer.Option(
            "--data", "-d", help="Data directory of a member, on this machine.", file_okay=False
        ),
    ] = Path("tidelog-data"),
    as_json: AsJson = False,
) -> None:
    """Print the join token: one word that a node needs when it starts for the first time.

    It carries the secret that the nodes of a cluster prove to each other, and the addresses of the
    members if the node is running. Keep it like a password. Run this command on the machine of a
    member, as the user that runs the node: the secret is in a file of its data directory, and no
    node hands it out over the network.

    **Examples**

    `tidelog node token --new > token` before several nodes found a cluster; start all of them with
    `tidelog start --token-file token`

    `tidelog node token --data /var/lib/tidelog` on a member, to add a node
    """
    from tidelog.cluster.jointoken import JoinToken, SecretTrouble
    from tidelog.rpc import Secret

    if new:
        made = JoinToken(Secret.new())
    else:
        try:
            directory, kept = _secret_below(data)
        except SecretTrouble as error:
            fail(error)
        made = JoinToken(kept.secret, kept.cluster_id, _members(directory))
        if not made.seeds:
            note(
                f"The node in {directory} does not answer, so the token names no member: give the"
                " new node seeds in its configuration file."
            )
    if as_json:
        seeds = [each._asdict() for each in made.seeds]
        emit({"token": made.encode(), "cluster_id": made.cluster_id or None, "seeds": seeds})
    else:
        typer.echo(made.encode())


def _secret_below(data: Path) -> tuple[Path, Kept]:
    """Find the secret in a node's directory, or in one of a cluster of `tidelog up`."""
    from tidelog.cluster.jointoken import SECRET_FILE, read_secret

    found = ((each, read_secret(each)) for each in (data, *sorted(data.glob("node-*"))))
    directory, kept = next(((each, kept) for each, kept in found if kept is not None), (data, None))
    if kept is None:
        fail(
            f"there is no {SECRET_FILE} in {data}. It is in the data directory of each member, on"
            " the machine of that member: say where with --data. Before the founding, use --new"
        )
    return directory, kept


def _members(directory: Path) -> tuple[Place, ...]:
    """Ask the node that uses this directory where the members are; nothing if it is not there."""
    from tidelog.client import ClientError, Cluster, operate
    from tidelog.cluster.jointoken import Place
    from tidelog.server.nodes import LocalNode

    async def ask(bootstrap: str) -> list[dict[str, Any]]:
        async with Cluster(bootstrap, client_id="tidelog-cli", timeout=CONTACT_SECONDS) as cluster:
            found: dict[str, Any] = await operate(cluster, "status")
            nodes: list[dict[str, Any]] = found["nodes"]
            return nodes

    address = LocalNode(0, directory).address
    if address is None:
        return ()
    with contextlib.suppress(ClientError):
        nodes = asyncio.run(ask(address))
        split = [(each["id"], each["rpc"].rpartition(":")) for each in nodes]
        return tuple(Place(number, host, int(port)) for number, (host, _, port) in split)
    return ()


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
                        f"{timeout:g} s. The cluster goes on with it: `tidelog cluster status` "
                        "shows how far it is, and whether other nodes can take over."
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
