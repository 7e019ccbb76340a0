"""What happens to the nodes of a soak run: once a minute something, in turn.

    leader        kill -9 of the node that leads a partition; it starts again some seconds later
    pause         a leader stops for longer than an election takes, and wakes up as a follower
    controller    kill -9 of the node that leads the cluster
    rolling       a restart in peace, node by node
    coordinator   kill -9 of the node that coordinates a group
    follower      a node that leads little stops for a while

The first of all is a rolling restart of every node. From then on one node, the *witness*, is paused
like the others but neither killed nor restarted: memory that grows slowly can only be seen in a
process that lives long. Whoever would be killed next and is the witness is paused instead.
"""

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench._clusters import REQUEST_TIMEOUT_S, Tidelog
from bench._machine import BenchFailed

AWAY_S = 5.0
PAUSE_S = 4.0  # more than any election timeout
GROUPS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class Fault:
    at: float  # seconds after the start of the run
    what: str
    node: int  # 0: all
    healed_s: float  # until every replica was in sync again


class Faults:
    """Hurts a cluster, and waits until it has healed."""

    def __init__(self, cluster: Tidelog, topics: Sequence[str], groups: Sequence[str]) -> None:
        self._cluster = cluster
        self._topics = topics
        self._groups = itertools.cycle(groups)
        self._place = 0
        self.witness = 0
        self._turn: Iterator[Callable[[], tuple[str, int]]] = itertools.cycle(
            (
                self._leader,
                self._pause,
                self._controller,
                self._rolling,
                self._coordinator,
                self._follower,
            )
        )

    def next(self, since: float) -> Fault:
        """Do what is next, and return once the cluster has healed; raises `BenchFailed`."""
        began = time.monotonic()
        if not self.witness:
            what, node = self._rolling()
            self.witness = self._quiet_node()
        else:
            what, node = next(self._turn)()
        self.heal()
        return Fault(began - since, what, node, time.monotonic() - began)

    def heal(self) -> None:
        for topic in (*self._topics, GROUPS_TOPIC):
            self._cluster.wait_in_sync(topic)

    # --- The faults ---------------------------------------------------------------------------

    def _leader(self) -> tuple[str, int]:
        return "leader killed", self._kill(self._some_leader(besides=self.witness))

    def _controller(self) -> tuple[str, int]:
        node = self._cluster.controller()
        if node == self.witness:
            return "controller paused", self._stop_for(node)
        return "controller killed", self._kill(node)

    def _coordinator(self) -> tuple[str, int]:
        node = self._cluster.coordinator(next(self._groups))
        if node == self.witness:
            return "coordinator paused", self._stop_for(node)
        return "coordinator killed", self._kill(node)

    def _pause(self) -> tuple[str, int]:
        return "leader paused", self._stop_for(self._some_leader())

    def _follower(self) -> tuple[str, int]:
        return "follower paused", self._stop_for(self._quiet_node())

    def _rolling(self) -> tuple[str, int]:
        for node in range(1, self._cluster.nodes + 1):
            if node != self.witness:
                self._cluster.local.stop(node)
                self._cluster.restart(node)
                self.heal()
        return "rolling restart", 0

    # --- How ----------------------------------------------------------------------------------

    def _kill(self, node: int) -> int:
        self._cluster.kill(node)
        time.sleep(AWAY_S)
        self._cluster.restart(node)
        return node

    def _stop_for(self, node: int) -> int:
        self._cluster.local.signal(node, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        self._cluster.local.signal(node, signal.SIGCONT)
        return node

    # --- Who ----------------------------------------------------------------------------------

    def _leaders(self) -> list[int]:
        """Who leads each partition, in the order of topics and partitions."""
        found = self._cluster.admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        return [
            int(each.leader) for topic in self._topics for each in found[topic].partitions.values()
        ]

    def _some_leader(self, *, besides: int = 0) -> int:
        """A node that leads some partition: of another partition each time."""
        leaders = self._leaders()
        self._place += 1
        for step in range(len(leaders)):
            node = leaders[(self._place + step) % len(leaders)]
            if node > 0 and node != besides:
                return node
        raise BenchFailed("only the witness leads anything, so no leader can be killed")

    def _quiet_node(self) -> int:
        """The node that leads least and is not the controller."""
        led = Counter(self._leaders())
        controller = self._cluster.controller()
        others = [node for node in range(1, self._cluster.nodes + 1) if node != controller]
        return min(others, key=lambda node: led[node])
