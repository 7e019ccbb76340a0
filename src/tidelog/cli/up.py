"""`tidelog up` and `tidelog down`: a whole cluster on this machine, each node a process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.common import AsJson, emit, fail, format_bytes, note, plural

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
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=31, help="How many.")] = 3,
    data: Data = DEFAULT_DATA,
    kafka_port: Annotated[
        int,
        typer.Option(
            min=0, max=65_000, help="Kafka port of the first node; the others follow. 0: any free."
        ),
    ] = 9092,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the cluster takes writes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a cluster on this machine: three nodes, each a process, with a status screen.

    Ctrl-C stops it. Started again on the same directory it goes on where it stopped. A node that
    ends is not started again behind your back: the screen says so.

    **Examples**

    `tidelog up` three nodes at localhost:9092, 9093 and 9094

    `tidelog up --nodes 1 --detach --data /tmp/dev` one node, in the background

    `tidelog down --data /tmp/dev` and its end
    """
    from tidelog.server.nodes import ClusterFailed, LocalCluster

    cluster = LocalCluster(data)
    began = time.monotonic()
    try:
        cluster.prepare(nodes, kafka_port)
        cluster.start_all()
        cluster.wait()
    except (ClusterFailed, OSError) as error:
        with contextlib.suppress(ClusterFailed):
            cluster.stop_all()
        fail(str(error))
    except KeyboardInterrupt:
        cluster.stop_all()
        raise typer.Exit(130) from None
    took = time.monotonic() - began
    if as_json:
        emit(_document(cluster, took))
    if detach:
        if not as_json:
            note(
                f"{plural(nodes, 'node')} ready in {took:.1f} s at {cluster.bootstrap}\n"
                f"Stop with: tidelog down --data {data}"
            )
        return
    try:
        _watch(cluster, took)
    finally:
        note("stopping")
        cluster.stop_all()


def down(data: Data = DEFAULT_DATA) -> None:
    """Stop the nodes of a cluster that `tidelog up` started.

    They hand over what they lead, flush and end. The data stays; `tidelog up` goes on with it.
    """
    from tidelog.server.nodes import ClusterFailed, LocalCluster

    cluster = LocalCluster(data)
    if not cluster.nodes:
        fail(f"there is no cluster in {data}: say where it is with --data")
    running = [node.id for node in cluster.nodes if node.pid is not None]
    try:
        cluster.stop_all()
    except ClusterFailed as error:
        fail(str(error))
    note(f"stopped {plural(len(running), 'node')}" if running else "no node was running")


def _document(cluster: LocalCluster, took: float) -> dict[str, Any]:
    return {
        "bootstrap": cluster.bootstrap,
        "ready_seconds": round(took, 3),
        "nodes": [
            {"id": node.id, "pid": node.pid, "kafka": node.address, "data": str(node.directory)}
            for node in cluster.nodes
        ],
    }


# --- The screen -----------------------------------------------------------------------------------


def _watch(cluster: LocalCluster, took: float) -> None:
    """Show how the cluster is until Ctrl-C, or until no node is left."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    ended: dict[int, int] = {}
    screen = Screen(cluster, took)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(screen.draw(ended), console=console, auto_refresh=False) as live,
    ):
        while True:
            for number, code in cluster.ended():
                ended[number] = code
                console.print(_obituary(cluster, number, code))
            if len(ended) == len(cluster.nodes):
                fail("no node is left")
            screen.look()
            live.update(screen.draw(ended), refresh=True)
            time.sleep(REFRESH_S)


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
        """Ask the cluster how it is; None if nobody answers."""
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
        for name in ("leads", "replicas", "data", "in", "out", "clients"):
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
            Text(self._summary()),
            Text(f"bootstrap.servers={self._cluster.bootstrap}", style="bold"),
            Text("Ctrl-C stops the cluster", style="dim"),
        )

    def _summary(self) -> str:
        status = self._status
        if status is None:
            return "nobody answers"
        parts = [plural(status["topics"], "topic"), plural(status["partitions"], "partition")]
        for key, what in (
            ("leaderless", "without a leader"),
            ("under_replicated", "not fully replicated"),
            ("moving", "moving"),
        ):
            if status[key]:
                parts.append(f"{len(status[key])} {what}")
        return ", ".join(parts)


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
