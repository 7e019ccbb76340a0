"""The world of one seed: time, network, nodes, clients, and the judge who watches all of it.

Theory of operation:
- Everything that happens is a callback of the scheduler. After each of them the judge looks at the
  world; nothing changes between two looks.
- The product knows nothing of the judge. What the judge hears through the hooks of `Judge` is
  observed from outside: by the host that the simulator gives each replica, and by wrappers that a
  node puts around its own core and log (see `observe.py`).
- Clients are not nodes: they ask with `ask`, the request travels with the delays and losses of the
  network, runs on the node if that is up, and the answers travel back, or get lost.
- An error that the product raises and that is not the simulated disk's own ends the run: `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Protocol

from tidelog.machines import Balances, Machine, Producers
from tidelog.raft.events import Accepted, Done, Event, Output, Refused
from tidelog.raft.messages import Message
from tidelog.raft.types import GroupId, NodeId, Role
from tidelog.records import Batch, Offset
from tidelog.sim.knobs import Knobs
from tidelog.sim.network import Network
from tidelog.sim.scheduler import Scheduler, Timer, stream
from tidelog.sim.trace import Trace

if TYPE_CHECKING:
    from tidelog.cluster.replica import Replica
    from tidelog.sim.node import Harm, SimNode

Outcome = Accepted | Done | Refused
# Runs on the node when a request arrives: `replica` is up, `token` names the request. What the
# replica resolves with that token goes back to the client, and so does `node.answer(token, ...)`.
Action = Callable[["SimNode", "Replica", int], None]


class Failure(Exception):
    """The run failed: the text says what was expected and what was found."""


class Phase(Enum):
    WARMUP = "warm-up"  # no faults: the groups elect their first leaders
    CHAOS = "chaos"
    HEAL = "heal"  # faults end, all nodes are up, clients finish
    QUIET = "quiet"  # no client, no fault: everything must come to rest, equal


class Judge(Protocol):
    """Who watches. A judge that finds fault raises `Failure` (or a kind of it)."""

    def on_start(self, world: World) -> None:
        """The nodes exist and none is up yet."""

    def on_open(self, node: SimNode, group: GroupId) -> None:
        """A replica was opened from the node's disk; it has not been started yet."""

    def before_step(self, node: SimNode, group: GroupId, event: Event) -> None:
        """The core is about to take this event."""

    def on_step(
        self, node: SimNode, group: GroupId, event: Event, outputs: Sequence[Output]
    ) -> None:
        """The core took this event; the outputs have not been executed yet."""

    def on_send(self, node: SimNode, message: Message) -> None:
        """A message leaves a node, before the network does anything to it."""

    def on_append(self, node: SimNode, group: GroupId, batches: Sequence[Batch]) -> None:
        """The log took these batches, ghosts included."""

    def on_truncate(self, node: SimNode, group: GroupId, first_removed: Offset) -> None:
        """The log is about to lose its suffix; a crash may come before it lost all of it."""

    def on_prefix(self, node: SimNode, group: GroupId, first_kept: Offset) -> None:
        """The log lost its prefix."""

    def before_reset(self, node: SimNode, group: GroupId) -> None:
        """The log is about to be emptied; a crash may come before, or leave any part of it."""

    def on_reset(self, node: SimNode, group: GroupId, start: Offset) -> None:
        """The log was emptied and begins at `start`."""

    def on_flush_started(self, node: SimNode, group: GroupId, job: object) -> None:
        """The log fixed what a flush will cover: a `storage.FlushJob`."""

    def on_flush_finished(self, node: SimNode, group: GroupId, job: object) -> None:
        """The log credited a flush, or decided not to."""

    def on_compacted(self, node: SimNode, group: GroupId, result: object) -> None:
        """The log swapped in segments that were compacted, or merged: what it says of that."""

    def on_apply(self, node: SimNode, group: GroupId, batches: Sequence[Batch]) -> None:
        """The machines took these batches."""

    def on_restore(self, node: SimNode, group: GroupId, offset: Offset) -> None:
        """The machines were put to a snapshot at this offset; `NO_OFFSET`: to their beginning."""

    def on_crash(self, node: SimNode, *, power: bool) -> None:
        """A node is about to lose its process, and with `power` what its disk had not synced.

        `node.replicas` still shows the replicas as they were.
        """

    def on_retire(self, node: SimNode, group: GroupId) -> None:
        """A replica failed and is about to be closed, to be opened again while its node goes on."""

    def on_harm(self, node: SimNode, group: GroupId) -> None:
        """Files of a replica are about to be damaged or lost, beyond what a crash does."""

    def on_lost(self, node: SimNode, group: GroupId, harm: Harm, why: str) -> None:
        """A node holds its replica for lost, and lets it take no part from now on."""

    def on_mended(self, node: SimNode, group: GroupId) -> None:
        """All files of a replica that was harmed were read again, and nothing is wrong."""

    def on_broken_step(self, node: SimNode, group: GroupId) -> None:
        """The core met damage in the middle of a step; the next step is what becomes of it."""

    def on_serve(self, node: SimNode, group: GroupId, batches: Sequence[Batch]) -> None:
        """A replica gave these batches to a reader."""

    def on_wipe(self, node: SimNode) -> None:
        """A dead node is about to lose its whole disk; its replicas get higher revisions."""

    def on_request(self, node: SimNode, group: GroupId, client: Client, token: int) -> None:
        """A client's request arrived at a node that is up."""

    def on_outcome(self, node: SimNode, group: GroupId, client: Client, outcome: Outcome) -> None:
        """A replica resolved a client's request; the client hears of it later, or never."""

    def after_event(self, world: World, event: str) -> None:
        """Something happened; `event` is the name of the timer."""

    def at_end(self, world: World) -> None:
        """The world has come to rest."""


class Client(Protocol):
    """One who asks the nodes for something."""

    @property
    def name(self) -> str:
        """A name that is unique in the world."""

    def answered(self, token: int, answer: object) -> None:
        """An answer arrived: an `Outcome`, or what an action passed to `node.answer`."""


@dataclass(slots=True)
class Line:
    """A connection: what is sent arrives in order, and after something that is lost, nothing."""

    life: int  # of the process at its other end
    arrives: int = 0  # when the last request does
    broken: bool = False


class Workload(Protocol):
    """All clients of a world together."""

    def start(self, world: World) -> None:
        """Begin: schedule what the clients do."""

    def stop(self) -> None:
        """Start nothing new but one last quorum write to each group.

        That write, and whatever is under way, is retried until it is settled.
        """

    def settled(self) -> bool:
        """Whether no client waits for anything any more."""


class World:
    """Everything that exists under one seed."""

    def __init__(
        self, seed: int, knobs: Knobs, judge: Judge, workload: Workload, trace: Trace
    ) -> None:
        self.seed = seed
        self.knobs = knobs
        self.judge = judge
        self.workload = workload
        self.trace = trace
        self.phase = Phase.WARMUP
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, stream(seed, "network"), knobs.network)
        self.nodes: dict[NodeId, SimNode] = {}  # in order of their ids
        self.groups = tuple(GroupId(number) for number in range(1, knobs.groups + 1))
        self.clients = stream(seed, "clients")  # delays and losses between clients and nodes
        # Requests that reached a node and may still be answered: token -> who asked. Dropped when
        # the node crashes, so there are never more than the clients have outstanding.
        self._asked: dict[int, tuple[Client, NodeId]] = {}
        self._token = 0

    @staticmethod
    def machines() -> Sequence[Machine]:
        """Return new machines, as every replica carries them."""
        return (Producers(), Balances())

    def random(self, concern: str) -> Random:
        """Return a generator of its own for a concern of this world."""
        return stream(self.seed, concern)

    @property
    def now(self) -> int:
        """Microseconds since the world began."""
        return self.scheduler.now

    def at(self, delay: int, name: str, callback: Callable[[], None]) -> Timer:
        """Schedule something that is nobody's own timer."""
        return self.scheduler.at(delay, name, callback)

    def live_replicas(self, group: GroupId) -> list[tuple[SimNode, Replica]]:
        """Return the replicas of a group that are up, in order of node ids."""
        return [
            (node, node.replicas[group]) for node in self.nodes.values() if group in node.replicas
        ]

    def leader(self, group: GroupId) -> SimNode | None:
        """Return the node that leads in the highest term, if any does."""
        leaders = [
            (replica.core.term, node)
            for node, replica in self.live_replicas(group)
            if replica.core.role is Role.LEADER
        ]
        return max(leaders, key=lambda pair: pair[0])[1] if leaders else None

    # --- Clients ---------------------------------------------------------------------------------

    def connect(self, target: NodeId) -> Line:
        """Open a connection to a node, for requests that must not overtake each other."""
        return Line(self.nodes[target].life)

    def ask(
        self,
        client: Client,
        target: NodeId,
        group: GroupId,
        action: Action,
        line: Line | None = None,
    ) -> int:
        """Send a request to a node and return the token that its answers will carry.

        Nothing is promised: the request may be lost, the node may be down, the answer may be lost.
        A client that wants to go on needs a timer of its own.
        """
        self._token += 1
        token = self._token
        if line is None:
            line = self.connect(target)
        if self._client_loss():
            line.broken = True
        if not line.broken:
            line.arrives = max(self.now + self._client_delay(), line.arrives)
            self.at(
                line.arrives - self.now,
                f"n{target} request {token} from {client.name}",
                lambda: self._request(client, target, group, token, action, line),
            )
        return token

    def answer(self, node: SimNode, token: int, answer: object) -> None:
        """Carry an answer back to whoever asked with this token."""
        client = self.asked(token)
        if client is None:
            return  # asked by the nemesis, which looks at the world instead
        if not isinstance(answer, Accepted):
            del self._asked[token]
        if not self._client_loss():
            name = f"{client.name} answer {token} from n{node.id}"
            self.at(self._client_delay(), name, lambda: client.answered(token, answer))

    def next_token(self) -> int:
        """Return a token for a request that nobody waits for."""
        self._token += 1
        return self._token

    def asked(self, token: int) -> Client | None:
        """Return who waits for this token, if anybody does."""
        asked = self._asked.get(token)
        return asked[0] if asked is not None else None

    def forget(self, node: NodeId) -> None:
        """Drop the requests of a node that died: they will never be answered."""
        self._asked = {token: asked for token, asked in self._asked.items() if asked[1] != node}

    def _request(
        self,
        client: Client,
        target: NodeId,
        group: GroupId,
        token: int,
        action: Action,
        line: Line,
    ) -> None:
        node = self.nodes[target]
        if line.life != node.life:
            line.broken = True
        elif node.paused:
            # A stopped process still has a socket that takes bytes: it answers when it wakes up.
            node.on_resume(lambda: self._request(client, target, group, token, action, line))
        elif (replica := node.replicas.get(group)) is not None:
            self._asked[token] = (client, target)
            self.trace.note(node, group, f"request {token} from {client.name}")
            self.judge.on_request(node, group, client, token)
            node.guard(lambda: action(node, replica, token))

    @staticmethod
    def draw(rng: Random, bounds: tuple[int, int]) -> int:
        """Draw a duration between two, so that short ones are as likely as long ones."""
        low, high = bounds
        return int(low * (high / low) ** rng.random())

    def _client_loss(self) -> bool:
        return self.phase is Phase.CHAOS and self.clients.random() < self.knobs.client_loss

    def _client_delay(self) -> int:
        return self.clients.randint(*self.knobs.client_delay)
