"""`tidelog demo`: three nodes, a producer, a group, a leader that is killed, a pipeline on Spark.

Everything shown is measured while it happens. At the end every record that was acknowledged is
looked for among those that the group read: nothing may be missing, and nothing may be there twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.errors import fail

if TYPE_CHECKING:
    from rich.console import Console

    from tidelog.client import Cluster, Producer
    from tidelog.server.nodes import LocalCluster

TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 3
CONSUMERS: Final = 2
PACE_S: Final = 0.004  # between two records: 250 a second, so that a pause is seen
DRAWN: Final = 0  # the partition that is drawn, and whose leader is killed
CALM_S: Final = 6.0  # how long everything is well before the kill, and again after the return
DOWN_S: Final = 4.0
CATCH_UP_S: Final = 30.0
WIDTH: Final = 96
YOUR_TURN: Final = """
Your turn:
  tidelog up                     three nodes at localhost:9092 to 9094
  tidelog topic create orders -p 3
  tidelog log show orders/0 --follow
  tidelog pipeline init shop     the pipeline, to change it
Any Kafka client works as it is: bootstrap.servers=localhost:9092"""


def demo(
    data: Annotated[
        Path | None,
        typer.Option(help="Where to keep the nodes' data; by default it is removed at the end."),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Whether a pipeline on Spark ends it.")
    ] = True,
) -> None:
    """Run a 90-second guided demo.

    Three nodes, a topic, a producer, a group of two consumers. The log is drawn as it grows. Then
    the leader is killed with `kill -9`: the pause is measured, the node comes back, and every
    acknowledged record is accounted for. At last a pipeline on Spark reads topics and writes a
    topic and a table in a lake; without Java it is left out.
    """
    from rich.console import Console

    from tidelog.cli.demopipeline import show_pipeline
    from tidelog.client import ClientError
    from tidelog.server.nodes import ClusterFailed, LocalCluster

    console = Console(highlight=False)
    directory = data or Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    nodes = LocalCluster(directory)
    try:
        began = time.monotonic()
        nodes.prepare(3, 0)
        nodes.start_all()
        nodes.wait()
        console.print(
            f"[bold]Three nodes[/bold] ready in {time.monotonic() - began:.1f} s, each a process,"
            f" at {nodes.bootstrap}\n"
        )
        asyncio.run(Story(nodes, console).tell())
        if spark:
            show_pipeline(nodes.bootstrap, directory / "pipeline", TOPIC, console)
        console.print(YOUR_TURN)
    except (ClusterFailed, ClientError) as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        with contextlib.suppress(ClusterFailed):
            nodes.stop_all()
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)


class Story:
    def __init__(self, nodes: LocalCluster, console: Console) -> None:
        self._nodes = nodes
        self._console = console
        self._acknowledged: dict[bytes, tuple[int, int]] = {}  # record: partition and offset
        self._read: Counter[bytes] = Counter()
        self._last: dict[int, float] = {}  # when a partition last acknowledged
        self._writing = True
        self._reading = True

    async def tell(self) -> None:
        from tidelog.client import Admin, Cluster, Producer

        async with Cluster(self._nodes.bootstrap, client_id="demo") as cluster:
            await Admin(cluster).create_topic(TOPIC, PARTITIONS, 3)
            self._console.print(
                f"Topic [bold]{TOPIC}[/bold]: {PARTITIONS} partitions with three replicas each."
                f" One producer with acks=all, a group of {CONSUMERS} consumers.\n"
            )
            readers = [asyncio.create_task(self._consume()) for _ in range(CONSUMERS)]
            async with Producer(cluster) as producer:
                writers = [
                    asyncio.create_task(self._produce(producer, index))
                    for index in range(PARTITIONS)
                ]
                try:
                    await self._show(cluster)
                finally:
                    self._writing = False
                    await asyncio.gather(*writers)
            await self._settle(readers)
        self._conclude()

    # --- Writing and reading --------------------------------------------------------------------

    async def _produce(self, producer: Producer, index: int) -> None:
        number = 0
        while self._writing:
            value = b"%d-%d" % (index, number)
            key = b"customer-%d" % (number % 50)
            written = await producer.write(TOPIC, value, key, partition=index)
            self._acknowledged[value] = (index, written.offset)
            self._last[index] = time.monotonic()
            number += 1
            await asyncio.sleep(PACE_S)

    async def _consume(self) -> None:
        from tidelog.client import Cluster, GroupConsumer

        async with (
            Cluster(self._nodes.bootstrap, client_id="demo") as cluster,
            GroupConsumer(cluster, GROUP, [TOPIC]) as consumer,
        ):
            while self._reading:
                part = await consumer.next(0.2)
                for record in part.records() if part is not None else ():
                    self._read[record.value or b""] += 1

    async def _settle(self, readers: list[asyncio.Task[None]]) -> None:
        """Let the group read to the end, then let its members go."""
        end = time.monotonic() + CATCH_UP_S
        while len(self._read) < len(self._acknowledged) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        self._reading = False
        await asyncio.gather(*readers)

    # --- What is shown --------------------------------------------------------------------------

    async def _show(self, cluster: Cluster) -> None:
        await self._watch(cluster, CALM_S, "everything is well")
        leader = (await cluster.topic(TOPIC, fresh=True)).partitions[DRAWN].leader
        if leader is None:
            fail(f"{TOPIC}/{DRAWN} has no leader, although no node was killed yet")
        killed = time.monotonic()
        self._nodes.kill(leader)
        pause = await self._pause_after(killed)
        self._console.print(
            f"[bold red]kill -9[/bold red] of node {leader}, which led {TOPIC}/{DRAWN}: the next"
            f" write was acknowledged [bold]{pause * 1000:.0f} ms[/bold] later\n"
        )
        await self._watch(cluster, DOWN_S, f"node {leader} is gone, two of three go on")
        began = time.monotonic()
        self._nodes.start(leader)
        await asyncio.to_thread(self._nodes.wait, [leader])
        self._console.print(
            f"[bold green]node {leader} is back[/bold green] after"
            f" {time.monotonic() - began:.1f} s, and catches up with what it missed\n"
        )
        await self._watch(cluster, CALM_S, "everything is well again")

    async def _pause_after(self, killed: float) -> float:
        while self._last.get(DRAWN, 0.0) <= killed:
            await asyncio.sleep(0.001)
        return self._last[DRAWN] - killed

    async def _watch(self, cluster: Cluster, seconds: float, stage: str) -> None:
        """Draw the log for a while: on a terminal as it grows, elsewhere once."""
        from rich.live import Live

        end = time.monotonic() + seconds
        if not self._console.is_terminal:
            await asyncio.sleep(seconds)
            self._console.print(await self._picture(cluster, stage))
            return
        with Live(console=self._console, auto_refresh=False) as live:
            while time.monotonic() < end:
                live.update(await self._picture(cluster, stage), refresh=True)
                await asyncio.sleep(0.2)

    async def _picture(self, cluster: Cluster, stage: str) -> Any:
        from rich.text import Text

        from tidelog.cli.drawing import draw
        from tidelog.cli.log import styled
        from tidelog.client import operate

        found = await operate(cluster, "log", topic=TOPIC, partition=DRAWN)
        text = Text(f"{stage}: {len(self._acknowledged):,} acknowledged,")
        text.append(f" {sum(self._read.values()):,} read by the group\n\n")
        text.append(styled(draw(found, min(WIDTH, self._console.width))))
        text.append("\n")
        return text

    def _conclude(self) -> None:
        lost = self._acknowledged.keys() - self._read.keys()
        places = Counter(self._acknowledged.values())
        doubled = [place for place, count in places.items() if count > 1]
        self._console.print(
            f"[bold]{len(self._acknowledged):,} records acknowledged,"
            f" {len(lost)} lost, {len(doubled)} doubled.[/bold]"
        )
        if lost or doubled:
            fail("acknowledged records are missing or doubled: please report this")
