"""The table behind a node's heartbeats: one row for each group, and one for each peer of a led one.

Rules:
- Columns are numpy arrays and public: `beats` works on many rows at once, by arrays of slots. The
  table itself only knows which rows are in use and how they are laid out.
- A group keeps its slot until it is removed; then another group may get it. Whoever remembers rows
  for later remembers their `leadership` too, which no two uses of a row share.
- Arrays grow by doubling, within the bounds given by the caller.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidelog.raft.configuration import Configuration
from tidelog.raft.groupset import Bytes, Ints
from tidelog.raft.quorum import majority
from tidelog.raft.types import GroupId, NodeId, Vnode

NEVER: Final = -(2**62)  # a time before all others

# Values of `state`. From FOLLOWER on, the election timer runs.
FREE, LEADER, FOLLOWER, CANDIDATE = range(4)

# Every column: its type, and what a row holds that is not in use.
_GROUP_COLUMNS: Final[dict[str, tuple[Any, int]]] = {
    "group": (np.int64, -1),
    "state": (np.uint8, FREE),
    "revision": (np.int32, 0),
    "term": (np.int64, 0),
    "seen_node": (np.int32, -1),
    "seen_revision": (np.int32, 0),
    "seen_term": (np.int64, -1),
    "heard_at": (np.int64, NEVER),
    "timer": (np.int64, NEVER),
    "patience": (np.int64, 0),
    "leadership": (np.int64, 0),
}
_PEER_COLUMNS: Final[dict[str, tuple[Any, int]]] = {
    "peer": (np.int16, -1),
    "peer_revision": (np.int32, 0),
    "halves": (np.uint8, 0),
    "quiet": (np.bool_, False),
    "refused": (np.bool_, False),
    "replied_at": (np.int64, NEVER),
}
_HALVES: Final = 2
_MAX_NODES: Final = 2**15 - 1  # peers are numbered in 16 bits, which numpy sorts in linear time


class Led(NamedTuple):
    """Where the peers of a group that is led here stand in the table."""

    configuration: Configuration
    columns: dict[Vnode, int]
    # The peers that may be quiet. Of two revisions of one node only the newer: a beat names groups,
    # and there is one replica to answer for it.
    may_be_quiet: list[tuple[Vnode, int]]


class BeatTable:
    # One row for each group, at its slot.
    group: Ints  # -1: free
    state: Bytes
    revision: NDArray[np.int32]  # of this node as a member of the group
    term: Ints
    # Whose append was heard last since this node started, and in which term.
    seen_node: NDArray[np.int32]
    seen_revision: NDArray[np.int32]
    seen_term: Ints
    heard_at: Ints  # when the leader was last heard, by an append or a light beat
    # The election timer: since when it runs and how long; timeout <= patience <= 2 * timeout.
    timer: Ints
    patience: Ints
    leadership: Ints  # another number with every term led here, and every change of the peers

    # One row for each peer of a group that is led here: at (column, slot), so that a sum over the
    # peers of all groups is a sum of a few long arrays.
    peer: NDArray[np.int16]  # its place in `nodes`; -1: no peer
    peer_revision: NDArray[np.int32]
    halves: Bytes  # bit 0: a voter; bit 1: an old voter of a joint configuration
    quiet: NDArray[np.bool_]  # the core has nothing to tell it
    refused: NDArray[np.bool_]  # it refused the last light beat: a full one is owed
    replied_at: Ints  # a time at which it surely followed this node

    needed: Ints  # at (half, slot): how many peers make a majority with this node; 0 if none

    def __init__(self, node_id: NodeId, *, max_groups: int, max_peers: int) -> None:
        self.node_id = node_id
        self.max_groups = max_groups
        self.max_peers = max_peers
        self.slots: dict[GroupId, int] = {}
        self.led: dict[int, Led] = {}
        self.nodes: list[NodeId] = []  # every node that ever was a peer
        self.places: dict[NodeId, int] = {}
        self._free: list[int] = []  # slots that were in use and are free again
        self._leaderships = 0
        # Slots in rising order of group id: all, and those led here. None: to be worked out again.
        self._order: Ints | None = None
        self._led_order: Ints | None = None
        for name, (dtype, fill) in _GROUP_COLUMNS.items():
            setattr(self, name, np.full(1, fill, dtype))
        for name, (dtype, fill) in _PEER_COLUMNS.items():
            setattr(self, name, np.full((1, 1), fill, dtype))
        self.needed = np.zeros((_HALVES, 1), np.int64)

    # --- Rows -------------------------------------------------------------------------------------

    def add(self, group: GroupId, vnode: Vnode) -> int:
        if group in self.slots or group < 0:
            raise ValueError(f"group {group} is in the table already, or is no group id")
        if len(self.slots) == self.max_groups:
            raise ValueError(
                f"{self.max_groups} groups are all this node takes: raise max_groups or add nodes"
            )
        slot = self._free.pop() if self._free else len(self.slots)
        if slot == len(self.group):
            self._grow(columns=len(self.peer), slots=2 * slot)
        self.slots[group] = slot
        self.group[slot] = group
        self.state[slot] = FOLLOWER
        self.revision[slot] = vnode.revision
        self._order = None
        return slot

    def remove(self, group: GroupId) -> None:
        slot = self.slot(group)
        self.stop_leading(slot)
        for name, (_, fill) in _GROUP_COLUMNS.items():
            getattr(self, name)[slot] = fill
        del self.slots[group]
        self._free.append(slot)
        self._order = None

    def slot(self, group: GroupId) -> int:
        slot = self.slots.get(group)
        if slot is None:
            raise ValueError(f"group {group} is not in the table of node {self.node_id}")
        return slot

    def lead(self, slot: int, configuration: Configuration, now: int) -> Led:
        """Lay out the peers of a group. Newcomers have a whole timeout from now to answer."""
        vnode = Vnode(self.node_id, int(self.revision[slot]))
        peers = [node for node in configuration.members if node != vnode]
        if len(peers) > self.max_peers:
            raise ValueError(f"{configuration} has more than {self.max_peers} peers")
        if len(peers) > len(self.peer):
            self._grow(columns=max(len(peers), 2 * len(self.peer)), slots=len(self.group))
        former = self.led[slot].columns if slot in self.led else {}
        kept = {
            peer: (self.replied_at[column, slot], self.refused[column, slot])
            for peer, column in former.items()
        }
        self._clear_peers(slot)
        for column, peer in enumerate(peers):
            self.peer[column, slot] = self._place(peer.id)
            self.peer_revision[column, slot] = peer.revision
            self.halves[column, slot] = sum(
                1 << bit for bit, half in enumerate(configuration.halves) if peer in half
            )
            replied_at, refused = kept.get(peer, (now, False))
            self.replied_at[column, slot] = replied_at
            self.refused[column, slot] = refused
        for bit, half in enumerate(configuration.halves):
            self.needed[bit, slot] = majority(len(half)) - (vnode in half) if half else 0
        newest = {peer.id: peer for peer in sorted(peers)}
        columns = {peer: column for column, peer in enumerate(peers)}
        may_be_quiet = [(peer, columns[peer]) for peer in peers if newest[peer.id] == peer]
        self.led[slot] = Led(configuration, columns, may_be_quiet)
        self._leaderships += 1
        self.leadership[slot] = self._leaderships
        self.state[slot] = LEADER
        self._led_order = None
        return self.led[slot]

    def stop_leading(self, slot: int) -> None:
        if self.led.pop(slot, None) is not None:
            self._clear_peers(slot)
            self.leadership[slot] = 0
            self.state[slot] = FOLLOWER
            self._led_order = None

    # --- Many rows at once ------------------------------------------------------------------------

    def led_slots(self) -> Ints:
        """Slots of the groups that are led here, in rising order of group id."""
        order = self._sorted_slots()
        if self._led_order is None:
            self._led_order = order[self.state[order] == LEADER]
        return self._led_order

    def find(self, groups: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """The slots of these groups, and which of the groups are here; the others get any slot."""
        order = self._sorted_slots()
        if not len(order):
            return np.zeros(len(groups), np.int64), np.zeros(len(groups), np.bool_)
        places = np.searchsorted(self.group[order], groups)
        slots = order[np.minimum(places, len(order) - 1)]
        return slots, self.group[slots] == groups

    def name(self, slots: Ints, columns: Ints) -> list[tuple[GroupId, Vnode]]:
        """Groups and peers of these rows."""
        groups = self.group[slots].tolist()
        peers = self.peer[columns, slots].tolist()
        revisions = self.peer_revision[columns, slots].tolist()
        return [
            (group, Vnode(self.nodes[peer], revision))
            for group, peer, revision in zip(groups, peers, revisions, strict=True)
        ]

    def _sorted_slots(self) -> Ints:
        if self._order is None:
            slots = np.fromiter(self.slots.values(), np.int64, len(self.slots))
            self._order = slots[np.argsort(self.group[slots])]
            self._led_order = None
        return self._order

    # --- Inside -----------------------------------------------------------------------------------

    def _clear_peers(self, slot: int) -> None:
        for name, (_, fill) in _PEER_COLUMNS.items():
            getattr(self, name)[:, slot] = fill
        self.needed[:, slot] = 0

    def _place(self, node: NodeId) -> int:
        place = self.places.get(node)
        if place is None:
            place = len(self.nodes)
            if place == _MAX_NODES:
                raise ValueError(f"more than {_MAX_NODES} nodes have been peers of this one")
            self.places[node] = place
            self.nodes.append(node)
        return place

    def _grow(self, *, columns: int, slots: int) -> None:
        for name, (dtype, fill) in _GROUP_COLUMNS.items():
            old = getattr(self, name)
            new = np.full(slots, fill, dtype)
            new[: len(old)] = old
            setattr(self, name, new)
        for name, (dtype, fill) in _PEER_COLUMNS.items():
            old = getattr(self, name)
            new = np.full((columns, slots), fill, dtype)
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)
        needed = np.zeros((_HALVES, slots), np.int64)
        needed[:, : self.needed.shape[1]] = self.needed
        self.needed = needed

    def check_invariants(self) -> None:
        used = sorted(self.slots.values())
        assert sorted(used + self._free) == list(range(len(used) + len(self._free))), self._free
        assert all(self.group[slot] == group for group, slot in self.slots.items()), self.slots
        assert np.array_equal(np.flatnonzero(self.state != FREE), used), used
        led = sorted(self.led)
        assert np.array_equal(np.flatnonzero(self.state == LEADER), led), led
        assert np.array_equal(np.flatnonzero(self.leadership), led), led
        assert len(np.unique(self.leadership[led])) == len(led), led
        assert np.array_equal(self.group[self._sorted_slots()], sorted(self.slots)), self._order
        assert np.array_equal(self.group[self.led_slots()], np.sort(self.group[led])), led
        is_peer = self.peer >= 0
        assert not (self.quiet & ~is_peer).any(), "a peer that does not exist is quiet"
        assert not (self.refused & ~is_peer).any(), "a peer that does not exist refused"
        assert (is_peer.sum(axis=0)[led] == [len(self.led[slot].columns) for slot in led]).all()
        assert is_peer.sum() == sum(len(led.columns) for led in self.led.values())
