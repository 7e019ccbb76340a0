"""Replicas of this node that failed, or could not be opened: opened again once the disk works.

A failed replica has forgotten nothing that it knew to be on its disk, so it need not be rebuilt.
It is closed when its last job has ended, and opened again with what it leaves to its next life
(`legacy.py`), off the event loop, after pauses that grow. If less than that is left, it is lost.

    failed --jobs have ended--> closed --opened--> takes part, reluctant to lead for a while
                                  |  ^
                                  |  | the disk refuses: again after a longer pause
                                  v  |
                                opening --DamagedLog--> lost (`lost.py`)

One line is logged when a replica fails and one when it is back, however many attempts lie between.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.groups import Hosted
from tidelog.cluster.legacy import Legacy
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.raft.types import GroupId, Vnode

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

LOOK_S: Final = 0.05
# Pauses before attempts: the first comes soon, and a disk that stays broken costs little.
PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Replicas that are being opened at a time; the others wait for their turn in the same thread.
AT_ONCE: Final = 8
# A disk that failed once may fail again, and every failure of a leader is a pause for its clients.
RELUCTANT_S: Final = 30.0


@dataclass(slots=True)
class Failed:
    """One replica that takes no part."""

    vnode: Vnode
    why: str
    hosted: Hosted | None  # until its jobs have ended and it is closed
    due: float  # when to try next
    legacy: Legacy | None = None
    attempts: int = 0
    opening: bool = False


class Healing:
    def __init__(self, node: "Node", reopen: Callable[[GroupId, Failed], None]) -> None:
        """`reopen` closes what is open and opens the replica again, now or later, and then calls
        `opened` or `add`; for a replica that is no longer wanted it calls `forget`."""
        self._node = node
        self._reopen = reopen
        self._failed: dict[GroupId, Failed] = {}
        self._reluctant: dict[GroupId, float] = {}  # until when
        self._task: asyncio.Task[None] | None = None
        self.total = 0  # failures since this process started

    def __iter__(self) -> Iterator[tuple[GroupId, Failed]]:
        return iter(tuple(self._failed.items()))

    def __len__(self) -> int:
        return len(self._failed)

    def get(self, group: GroupId) -> Failed | None:
        return self._failed.get(group)

    def holds(self, group: GroupId, vnode: Vnode) -> bool:
        """Whether this very replica is opened from here, and by nobody else."""
        found = self._failed.get(group)
        return found is not None and found.vnode == vnode

    def is_reluctant(self, group: GroupId) -> bool:
        return group in self._reluctant

    def add(self, group: GroupId, vnode: Vnode, why: str, hosted: Hosted | None) -> None:
        """A replica failed, could not be opened, or could not be opened again."""
        found = self._failed.get(group)
        now = self._node.loop.time()
        if found is not None and found.vnode == vnode:
            found.attempts += 1
            found.why = why
            found.opening = False
            found.due = now + _pause(found.attempts)
            return
        self._failed[group] = Failed(vnode, why, hosted, now + _pause(0))
        self.total += 1
        log.error(
            "the replica of %s on this node failed and takes no part until its disk works: %s",
            self._name(group),
            why,
        )
        if self._task is None or self._task.done():
            self._task = self._node.loop.create_task(self._run())

    def opened(self, group: GroupId) -> None:
        """A replica takes part again, or for the first time."""
        found = self._failed.pop(group, None)
        if found is not None:
            self._reluctant[group] = self._node.loop.time() + RELUCTANT_S
            log.warning(
                "the replica of %s on this node is back after %d attempts",
                self._name(group),
                found.attempts + 1,
            )

    def forget(self, group: GroupId) -> None:
        """A replica is lost, or no longer wanted here."""
        self._failed.pop(group, None)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._failed or self._reluctant:
            now = self._node.loop.time()
            for group, until in tuple(self._reluctant.items()):
                if until < now:
                    del self._reluctant[group]
                    self._node.settle_reluctance(group)
            room = AT_ONCE - sum(each.opening for each in self._failed.values())
            for group, failed in self:
                idle = failed.hosted is None or failed.hosted.idle
                if room > 0 and idle and not failed.opening and failed.due <= now:
                    failed.opening = True
                    room -= 1
                    self._reopen(group, failed)
            await asyncio.sleep(LOOK_S)

    def _name(self, group: GroupId) -> str:
        if group == CONTROLLER_GROUP:
            return "the controller"
        place = self._node.state.partition_of(group)
        return f"group {group}" if place is None else f"{place[0]}/{place[1]}"


def _pause(attempts: int) -> float:
    return PAUSES_S[min(attempts, len(PAUSES_S) - 1)] * random.uniform(0.8, 1.2)
