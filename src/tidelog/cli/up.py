"""`tidelog up` and `tidelog down`: a whole cluster on this machine, each node a process."""

from __future__ import annotations

import asyncio
import shlex
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.common import AsJson, emit, format_bytes, note, plural
from tidelog.cli.errors import fail
from tidelog.cli.health import problems, summary

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidelog.server.nodes import LocalCluster

DEFAULT_DATA: Final = Path("tidelog-data")
REFRESH_S: Final = 0.5
# Kept short: a screen that waits for a dead node is worse than one that says so.
STATUS_TIMEOUT_S: Final = 1.5

Data = Annotated[
    Path,
    typer.Option("--data", "-d", help="Directory of the cluster.", file_okay=False),
]


def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            "-n",
            min=1,
            max=31,
            help="Number of nodes of a new cluster. [default: 3]",
            show_default=False,
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_000,
            help="Kafka port of the first node; the others take the ports that follow. 0 chooses "
            "free ones. An existing cluster keeps its ports unless this is given. "
            "[default: 9092]",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Run in the background: return once clients are served."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a cluster on this machine and show its status; Ctrl-C stops it.

    Each node is a process with a directory of its own below `--data`. If that directory holds a
    cluster already, `up` starts the nodes that do not run and leaves the others alone. When it
    finds nodes running it returns as soon as the missing ones serve clients, because the nodes
    belong to another `up`, or run in the background; `tidelog down` stops them.

    A node that ends is not restarted automatically: the screen says so, and another `tidelog up`
    starts it again. Each node logs to `node-N/node.log`.

    The exit status is 0 if every node serves clients, and 1 with the reason if a node cannot be
    started.

    **Examples**

    `tidelog up` runs three nodes at localhost:9092, 9093 and 9094

    `tidelog up --nodes 1 --detach --data /tmp/dev` runs one node in the background

    `tidelog up --detach --data /tmp/dev` starts whatever is missing of it

    `tidelog down --data /tmp/dev` stops it
    """
    from tidelog.server.nodes import ClusterFailed, Interrupted, LocalCluster

    cluster = LocalCluster(data)
    began = time.monotonic()
    asked = _asked_to_stop()
    try:
        with cluster.alone():
            ran = cluster.running
            started = cluster.bring_up(nodes, kafka_port, asked.is_set)
    except Interrupted:
        note("stopped: no node that this command started is left running")
        return
    except (ClusterFailed, OSError) as error:
        fail(error)
    stays = not ran and not detach
    try:
        took = time.monotonic() - began
        if as_json:
            emit(_document(cluster, started, took))
        elif not stays:
            note(_summary(cluster, ran, started, took))
        if stays:
            _watch(cluster, took, asked)
    finally:
        if stays:
            note("stopping")
            _stop_all(cluster)


def _asked_to_stop() -> threading.Event:
    """Return what Ctrl-C and SIGTERM set, from the first moment of this command on.

    An exception out of a handler could come up anywhere, in the middle of an import for example.
    Ctrl-C has to be named: a shell starts what it puts in the background deaf to it.
    """
    asked = threading.Event()
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: asked.set())
    return asked


def _summary(cluster: LocalCluster, ran: list[int], started: list[int], took: float) -> str:
    """Say what `up` found and did, and what to type next."""
    if not ran:
        did = f"{plural(len(started), 'node')} ready in {took:.1f} s"
    elif started:
        did = f"Started {_named(started)} in {took:.1f} s; {_named(ran)} ran already"
    else:
        did = f"The cluster in {cluster.data} runs already: nothing was started"
    lines = [did, f"Kafka clients connect to {cluster.bootstrap or '(no node serves clients yet)'}"]
    silent = [number for number in ran if cluster.node(number).address is None]
    if silent:
        lines.append(
            f"{_named(silent).capitalize()} does not serve clients yet: see"
            f" {cluster.node(silent[0]).directory / 'node.log'}"
        )
    lines.append(f"Stop with: tidelog down --data {shlex.quote(str(cluster.data))}")
    return "\n".join(lines)


def _named(numbers: list[int]) -> str:
    word = "node" if len(numbers) == 1 else "nodes"
    return f"{word} {', '.join(map(str, numbers))}"


def _stop_all(cluster: LocalCluster) -> None:
    from tidelog.server.nodes import ClusterFailed

    try:
        with cluster.alone():
            cluster.stop_all()
    except ClusterFailed as error:
        fail(error)


def down(
    data: Data = DEFAULT_DATA,
    timeout: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds that a node may take to stop before it is killed.",
            metavar="SECONDS",
        ),
    ] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Stop the nodes of a cluster on this machine. The data stays.

    Each node hands its leadership over, flushes and ends. One that has not ended after `--timeout`
    seconds is killed, which loses nothing that was acknowledged: the node recovers at its next
    start. Only a process that holds the lock of a node's directory is signalled.

    The exit status is 0 if every node has stopped by itself or did not run, and 1 if one had to be
    killed or still runs.

    **Examples**

    `tidelog down` stops the cluster in ./tidelog-data

    `tidelog down --data /tmp/dev --timeout 60` gives busy nodes a minute
    """
    from tidelog.server.nodes import ClusterFailed, LocalCluster, Outcome

    cluster = LocalCluster(data)
    if not cluster.nodes:
        fail(f"There is no cluster in {data}: name its directory with --data")
    try:
        with cluster.alone():
            endings = cluster.end([node.id for node in cluster.nodes], timeout)
    except (ClusterFailed, OSError) as error:
        fail(error)
    if as_json:
        emit(
            {
                "nodes": [
                    {"id": each.node, "pid": each.pid, "outcome": each.outcome.name.lower()}
                    for each in endings
                ]
            }
        )
    else:
        for each in endings:
            note(str(each))
    if any(each.outcome not in (Outcome.STOPPED, Outcome.NOT_RUNNING) for each in endings):
        raise typer.Exit(1)


def _document(cluster: LocalCluster, started: list[int], took: float) -> dict[str, Any]:
    return {
        "bootstrap": cluster.bootstrap,
        "ready_seconds": round(took, 3),
        "started": started,
        "nodes": [
            {"id": node.id, "pid": node.pid, "kafka": node.address, "data": str(node.directory)}
            for node in cluster.nodes
        ],
    }


# --- The screen -----------------------------------------------------------------------------------


def _watch(cluster: LocalCluster, took: float, asked: threading.Event) -> None:
    """Show the status of the cluster until it is asked to stop, or until no node runs."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    ended: dict[int, int] = {}
    screen = Screen(cluster, took)
    with Live(screen.draw(ended), console=console, auto_refresh=False) as live:
        while not asked.is_set():
            for number, code in cluster.ended():
                ended[number] = code
                console.print(_obituary(cluster, number, code))
            running = cluster.running
            for number in running:
                ended.pop(number, None)  # another `tidelog up` has started it again
            if not running:
                if not any(ended.values()):
                    return  # `tidelog down` has stopped them
                fail("every node has ended: see the log of each, and start them again")
            screen.look()
            live.update(screen.draw(ended), refresh=True)
            asked.wait(REFRESH_S)


def _obituary(cluster: LocalCluster, number: int, code: int) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
    log = cluster.node(number).directory / "node.log"
    return f"[red]node {number} ended with {how}[/red]; its log is {log}"


class Screen:
    """One status screen: nodes, leaders, throughput, addresses to paste."""

    def __init__(self, cluster: LocalCluster, took: float) -> None:
        self._cluster = cluster
        self._took = took
        self._status: dict[str, Any] | None = None
        self._bytes: dict[int, tuple[float, int, int]] = {}
        self._rates: dict[int, tuple[float, float]] = {}

    def look(self) -> None:
        """Ask the cluster for its status."""
        self._status = asyncio.run(_status(self._cluster.bootstrap))
        now = time.monotonic()
        for node in (self._status or {"nodes": []})["nodes"]:
            stats = node.get("kafka_stats")
            if stats is None:
                self._rates.pop(node["id"], None)
                continue
            current = (now, stats["bytes_in"], stats["bytes_out"])
            before = self._bytes.get(node["id"])
            self._bytes[node["id"]] = current
            if before is not None and now > before[0]:
                passed = now - before[0]
                self._rates[node["id"]] = (
                    max(0, current[1] - before[1]) / passed,
                    max(0, current[2] - before[2]) / passed,
                )

    def draw(self, ended: dict[int, int]) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        known = {node["id"]: node for node in (self._status or {"nodes": []})["nodes"]}
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("node", "kafka", "state"):
            table.add_column(name)
        for name in ("leads", "replicas", "data", "disk free", "in", "out", "clients"):
            table.add_column(name, justify="right")
        for node in self._cluster.nodes:
            found = known.get(node.id, {})
            alive = bool(found.get("alive"))
            state = "[red]down" if node.id in ended or not alive else "[green]up"
            if self._status is not None and self._status["controller"] == node.id:
                state += " [cyan]controller"
            rates = self._rates.get(node.id, (0.0, 0.0))
            table.add_row(
                str(node.id),
                node.address or found.get("kafka", "-"),
                state,
                str(found.get("leaders", "-")),
                str(found.get("replicas", "-")),
                format_bytes(found.get("data_bytes")),
                format_bytes(found.get("disk_free_bytes")),
                f"{format_bytes(int(rates[0]))}/s",
                f"{format_bytes(int(rates[1]))}/s",
                str(found.get("kafka_stats", {}).get("connections", "-")),
            )
        return Group(
            Text(f"Tidelog: {plural(len(self._cluster.nodes), 'node')}", style="bold"),
            Text(f"ready in {self._took:.2f} s, data in {self._cluster.data}", style="dim"),
            Text(""),
            table,
            Text(""),
            Text(self._health()),
            Text(f"bootstrap.servers={self._cluster.bootstrap}", style="bold"),
            Text("Ctrl-C stops the cluster", style="dim"),
        )

    def _health(self) -> str:
        status = self._status
        if status is None:
            return "No node answers."
        found = problems(status)
        counts = f"{plural(status['topics'], 'topic')}, {plural(status['partitions'], 'partition')}"
        return "\n".join((counts, *map(str, found), summary(found)))


async def _status(bootstrap: str) -> dict[str, Any] | None:
    from tidelog.client import ClientError, Cluster, operate

    if not bootstrap:
        return None
    try:
        async with Cluster(bootstrap, client_id="tidelog-up", timeout=STATUS_TIMEOUT_S) as cluster:
            found: dict[str, Any] = await operate(cluster, "status", timeout=STATUS_TIMEOUT_S)
            return found
    except ClientError:
        return None
