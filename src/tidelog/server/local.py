"""A real broker for as long as a `with` block lasts.

    with tidelog.local() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

One node runs in this process, on a thread and an event loop of its own; more nodes are processes.
Either way it is the broker that serves production: the same log, the same Raft, the same front.
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.server.nodes import LocalCluster
    from tidelog.server.process import Server


class Local:
    """A broker that is running."""

    def __init__(self, bootstrap: str, data: Path, cluster: "LocalCluster | None" = None) -> None:
        self.bootstrap = bootstrap  # for `bootstrap.servers`
        self.data = data
        self.cluster = cluster  # the node processes, if there are any

    def __str__(self) -> str:
        return self.bootstrap


@contextlib.contextmanager
def local(nodes: int = 1, *, data: Path | None = None, port: int = 0) -> Iterator[Local]:
    """Run a broker on this machine and stop it at the end of the block.

    `data` is kept if it is given, and found again by the next block that names it; without it there
    is a temporary directory. `port` is the Kafka port of the first node; 0 means any that is free.
    """
    if nodes < 1:
        raise ValueError(f"a cluster of {nodes} nodes: use at least one")
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(tempfile.mkdtemp(prefix="tidelog-"))
            stack.callback(shutil.rmtree, data, ignore_errors=True)
        if nodes == 1:
            yield stack.enter_context(_in_thread(data, port))
        else:
            yield stack.enter_context(_in_processes(nodes, data, port))


@contextlib.contextmanager
def _in_thread(data: Path, port: int) -> Iterator[Local]:
    from tidelog.cluster.config import Listener, NodeConfig
    from tidelog.server.process import Server

    config = NodeConfig(id=1, data=data / "node-1", kafka=Listener(port=port))
    server = Server(config)
    runner = _Runner(server)
    runner.start()
    try:
        yield Local(str(server.address), data)
    finally:
        runner.stop()


class _Runner:
    """A server on a thread."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._thread = threading.Thread(target=self._main, name="tidelog", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        import uvloop

        try:
            uvloop.run(self._run())
        except BaseException as error:  # noqa: BLE001  # raised again where the block is
            self._error = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self._server.start()
        self._ready.set()
        await self._stopping.wait()
        await self._server.stop()


@contextlib.contextmanager
def _in_processes(nodes: int, data: Path, port: int) -> Iterator[Local]:
    from tidelog.server.nodes import LocalCluster

    cluster = LocalCluster(data)
    cluster.prepare(nodes, port)
    try:
        cluster.start_all()
        cluster.wait()
        yield Local(cluster.bootstrap, data, cluster)
    finally:
        cluster.stop_all()
