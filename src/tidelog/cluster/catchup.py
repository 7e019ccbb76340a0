"""Knowing what the controller knows: whether a node has heard of every change made so far.

A client may change the cluster at one node and ask another about it a moment later. That node has
not heard of the change before the next heartbeat, so what it does not know may exist all the same.
It asks the leader of group 0 how far the cluster's state has got, and waits until its own has got
there. That is one small call, and a wait only where there is news.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.cluster.calls import Call
from tidelog.cluster.controller import wait_for
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.model import CONTROLLER_GROUP

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

_QUESTION = b'{"operation":"version","arguments":{}}'


class CatchUp:
    """Asks one question at a time; requests that come meanwhile share the next one."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._asking: asyncio.Task[int | None] | None = None
        self._next: asyncio.Task[int | None] | None = None

    async def wait(self, holds: Callable[[], bool], timeout: float) -> None:
        """Wait until something holds, or cannot because this node knows every change so far.

        If the leader of group 0 does not say how far it has got, the whole time is waited.
        """
        if holds() or self._node.leaders.get(CONTROLLER_GROUP) == self._node.id:
            return
        state = self._node.state
        version = await self._version(timeout)
        with contextlib.suppress(ClusterError):
            await wait_for(
                state.on_change,
                lambda: holds() or (version is not None and state.version >= version),
                timeout,
            )

    async def _version(self, timeout: float) -> int | None:
        """Ask anew: the answer to a question that is under way may be too old by now."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask(self._asking, timeout))
        return await asyncio.shield(self._next)

    async def _ask(self, before: "asyncio.Task[int | None] | None", timeout: float) -> int | None:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        self._asking, self._next = self._next, None
        leader = self._node.controller_id()
        if leader is None:
            return None
        try:
            answer = json.loads(await self._node.ask(leader, Call.OPERATE, _QUESTION, timeout))
        except (ClusterError, ValueError):
            return None
        known = isinstance(answer, dict) and answer.get("leads") is True
        version = answer.get("version") if known else None
        return version if type(version) is int else None
