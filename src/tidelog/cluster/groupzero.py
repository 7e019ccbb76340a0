"""The replica of group 0 of a running node, when its disk fails or its files are damaged.

    failed   opened again once the disk works (`healing.py`): it has forgotten nothing
    lost     handed over if it leads, closed, and never opened again; a majority of group 0 grants
             this node a new revision, under which it begins empty and learns from the others

What this node knows of the cluster stays in use meanwhile. A replica that is opened anew folds its
log into a state of its own, which takes the old one's place as soon as it is as new.
"""

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.cluster.errors import StartFailed, reason_of
from tidelog.cluster.groups import Hosted
from tidelog.cluster.healing import Failed
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.cluster.state import ClusterState
from tidelog.raft import events as ev
from tidelog.raft.types import Vnode
from tidelog.storage import DamagedLog

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

LANE: Final = "open"
HANDOVER_S: Final = 2.0  # how long a lost leader may take to hand over
ASK_S: Final = 1.0  # one attempt to be granted a new revision
# Pauses after an attempt that failed.
PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class GroupZero:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self.why_lost: str | None = None  # until its successor knows what this node knew
        self._learning: ClusterState | None = None  # of a replica that was opened anew
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # --- Failed ----------------------------------------------------------------------------------

    def reopen(self, failed: Failed) -> None:
        """Open the failed replica again, now or later."""
        if failed.hosted is not None:
            failed.legacy = failed.hosted.replica.legacy(machines=True)
            self._close(failed.hosted)
            failed.hosted = None
        node, legacy, state = self._node, failed.legacy, ClusterState()
        loaded: list[Hosted] = []

        def load() -> None:
            loaded.append(
                node.load_group_0(failed.vnode.revision, known=True, state=state, legacy=legacy)
            )

        def done(error: OSError | None) -> None:
            if isinstance(error, DamagedLog):
                self._lose(failed.vnode, str(error), None)
            elif error is not None:
                node.hosting.healing.add(CONTROLLER_GROUP, failed.vnode, reason_of(error), None)
            else:
                node.hosting.healing.opened(CONTROLLER_GROUP)
                self._admit(loaded[0], state)

        node.executor.submit(LANE, load, done)

    def _close(self, hosted: Hosted) -> None:
        if self._node.groups.get(CONTROLLER_GROUP) is hosted:
            self._node.groups.close(CONTROLLER_GROUP)
            self._node.leads_the_cluster_no_more()

    # --- Lost ------------------------------------------------------------------------------------

    def lose(self, hosted: Hosted, why: str) -> None:
        """The open replica forgot, or holds what is damaged: build another one."""
        self._lose(hosted.replica.core.vnode, why, hosted)

    def _lose(self, vnode: Vnode, why: str, hosted: Hosted | None) -> None:
        node = self._node
        node.hosting.healing.forget(CONTROLLER_GROUP)
        node.hosting.lost.total += 1
        self.why_lost = why
        self._learning = None
        log.error("the controller replica of this node is lost and will be rebuilt: %s", why)
        task = node.loop.create_task(self._replace(vnode, why, hosted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self, lost: Vnode, why: str, hosted: Hosted | None) -> None:
        if hosted is not None:
            await self._give_up(hosted, why)
        failures = 0
        while True:
            try:
                successor = await self._succeed(lost, why)
            except StartFailed as refused:
                log.error("the controller replica of this node is not rebuilt: %s", refused)
                return
            except DamagedLog as damage:  # the successor's own files, of an earlier attempt
                lost, why = self._me(), str(damage)
                successor = None
            except OSError as error:
                log.warning("the controller replica of this node is rebuilt later: %s", error)
                successor = None
            if successor is not None:
                self._admit(*successor)
                return
            await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1

    async def _give_up(self, hosted: Hosted, why: str) -> None:
        """Hand over if this replica leads; then close it."""
        node, core = self._node, hosted.replica.core
        if set(core.configuration.voters) == {core.vnode}:
            log.error(
                "no other node has a copy of the controller's log, so topics and members cannot be"
                " changed until `tidelog node recover` goes on with what is left"
            )
        heir = hosted.heir(node.presence.is_alive)
        if heir is not None:
            await node.groups.transfer(hosted, heir, HANDOVER_S)
        if node.groups.get(CONTROLLER_GROUP) is hosted:
            hosted.step(ev.StorageLost(why))
            self._close(hosted)

    async def _succeed(self, lost: Vnode, why: str) -> tuple[Hosted, ClusterState] | None:
        """Return a replica under a new revision; None if nobody grants one for now."""
        node, joining = self._node, self._node.joining
        registry = joining.registry
        if registry.why_lost(CONTROLLER_GROUP, lost.revision) is None:
            await node.executor.run(
                LANE, lambda: registry.lose(CONTROLLER_GROUP, lost.revision, why)
            )
        if joining.identity.revision == lost.revision:
            application = replace(node.application(), lost=True)
            admission = await joining.apply(application, ASK_S)
            if admission is None:
                return None
            await node.executor.run(LANE, lambda: joining.become(admission))
        revision, state = self._me().revision, ClusterState()
        known = registry.hosts(CONTROLLER_GROUP, revision)
        loaded: list[Hosted] = []

        def load() -> None:
            loaded.append(node.load_group_0(revision, known=known, state=state))
            if not known:
                registry.add([(CONTROLLER_GROUP, revision)])

        try:
            await node.executor.run(LANE, load)
        except BaseException:
            for hosted in loaded:
                hosted.replica.close()
            raise
        return loaded[0], state

    def _me(self) -> Vnode:
        revision = self._node.joining.identity.revision
        assert revision is not None
        return Vnode(self._node.id, revision)

    # --- Back ------------------------------------------------------------------------------------

    def _admit(self, hosted: Hosted, state: ClusterState) -> None:
        self._learning = state
        self.catch_up(hosted)
        self._node.admit_group_0(hosted)

    def catch_up(self, hosted: Hosted) -> None:
        """Something moved: let the replica carry the node's own state, once it is as new."""
        learnt, state = self._learning, self._node.state
        if learnt is None or learnt.version < state.version:
            return
        self._learning = None
        if learnt.version > state.version:
            state.restore(learnt.snapshot())
        hosted.replica.machines.hand_on(state)
        if self.why_lost is not None:
            self.why_lost = None
            vnode = hosted.replica.core.vnode
            log.warning("the controller replica of this node was rebuilt, as %s", vnode)
