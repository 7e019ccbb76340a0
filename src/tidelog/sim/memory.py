"""Who a node is in each group: what group 0 granted, and what the node noted on its own disk.

A real node asks the controller for revisions (`cluster.joining`, `cluster.lost`); here they are
granted at once. What a node hosts is written to the product's own `Registry` before a replica takes
part, so that files that are gone are missed at the next start.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.cluster.registry import Registry
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.sim.disk import SimDisk


class Memory:
    """What is remembered of one node."""

    def __init__(self, node: NodeId, groups: Iterable[GroupId]) -> None:
        self._node = node
        self._revisions = dict.fromkeys(groups, 0)  # of its replicas, as group 0 has them
        self._granted = 0
        self._births = 0
        self._began = False  # the registry of this birth was written
        self.registry: Registry  # while the node is up

    def vnode_of(self, group: GroupId) -> Vnode:
        """Return who this node is in a group since its replica there was last lost."""
        return Vnode(self._node, self._revisions[group])

    def directory_of(self, group: GroupId) -> str:
        """Return where the replica lives; the files of those that were lost stay beside it."""
        return directory_of(group, self._revisions[group])

    def is_first(self, group: GroupId) -> bool:
        """Whether this is the replica that the group was founded with."""
        return self._revisions[group] == 0

    def load(self, disk: SimDisk) -> bool:
        """Read the registry, or begin that of a new birth; False if one that was there is gone."""
        registry = Registry.load(disk, self._birth) if self._began else None
        if registry is None and self._began:
            return False
        if registry is None:
            registry = Registry.begin(disk, self._birth)
            self._began = True
        self.registry = registry
        return True

    def is_born(self) -> None:
        """The node forgot everything: it joins as another one, whose replicas are all new."""
        self._births += 1
        self._began = False
        self.grant(*self._revisions)

    def grant(self, *groups: GroupId) -> None:
        """Give its replicas in these groups a revision that none ever had."""
        self._granted += 1
        self._revisions.update(dict.fromkeys(groups, self._granted))

    # --- The registry ----------------------------------------------------------------------------

    def hosts(self, group: GroupId) -> bool:
        """Whether the replica of a group may have taken part before."""
        return self.registry.hosts(group, self._revisions[group])

    def why_lost(self, group: GroupId) -> str | None:
        return self.registry.why_lost(group, self._revisions[group])

    def add(self, group: GroupId) -> None:
        """Note a replica that is about to take part."""
        self.registry.add([(group, self._revisions[group])])

    def lose(self, group: GroupId, why: str) -> None:
        """Note that a replica must not take part again."""
        self.registry.lose(group, self._revisions[group], why)

    @property
    def _birth(self) -> str:
        return f"n{self._node}.{self._births}"


def directory_of(group: GroupId, revision: int) -> str:
    """Return the directory of a replica."""
    return f"group-{group}" if revision == 0 else f"group-{group}-r{revision}"
