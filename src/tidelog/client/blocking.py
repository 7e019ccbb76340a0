"""The client for plain code: the asyncio client on an event loop and a thread of its own.

    with Blocking("localhost:9092") as blocking:
        offsets = blocking.run(list_offsets(blocking.cluster, {partition: LATEST}))

The thread moves bytes while the caller computes, and the client's deadlines hold however long the
caller is away. Several threads may call `run`.

`shared` keeps clients for the whole life of a process: a Spark worker runs many short tasks, and
opening connections would take longer than some of them. A process that was forked off begins with
none, since a thread does not live through a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

import uvloop

from tidelog.client.cluster import DEFAULT_TIMEOUT, Cluster
from tidelog.client.errors import ClientError

T = TypeVar("T")

# Clients that a process keeps. Each has a thread and a connection or two to every node.
MAX_SHARED: Final = 8


class Blocking:
    """A cluster, and a thread that runs its client; a context manager."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tidelog",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.cluster = Cluster(bootstrap, client_id=client_id, timeout=timeout)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="tidelog-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether nobody runs anything any more."""
        return not self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the client's loop, and wait until it is done."""
        if self.closed:
            work.close()
            raise ClientError("This client is closed.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # an interrupt, too: nobody waits for the work any more
            future.cancel()
            raise

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self.closed:
            return
        self.run(self.cluster.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_all())
            self._loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class _Shared:
    """The clients of this process, by what they were opened with; the last used is last."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._clients: OrderedDict[tuple[str, str, float], Blocking] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, bootstrap: str, client_id: str, timeout: float) -> Blocking:
        if self._process != os.getpid():
            self.__init__()  # type: ignore[misc]
        key = (bootstrap, client_id, timeout)
        with self._lock:
            found = self._clients.pop(key, None)
            if found is None or found.closed:
                found = Blocking(bootstrap, client_id=client_id, timeout=timeout)
            self._clients[key] = found
            spare = [
                self._clients.popitem(last=False)[1] for _ in range(len(self._clients) - MAX_SHARED)
            ]
        for client in spare:
            client.close()
        return found


_SHARED: Final = _Shared()


def shared(
    bootstrap: str, *, client_id: str = "tidelog", timeout: float = DEFAULT_TIMEOUT
) -> Blocking:
    """Return this process's client of a cluster, which lives as long as the process does."""
    return _SHARED.get(bootstrap, client_id, timeout)
