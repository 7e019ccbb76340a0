"""The network: every directed link delays, loses, doubles and reorders on its own.

Rules:
- What is sent is copied first, so that no two nodes ever share a buffer: a message is what it was
  when it left, whatever the sender does to its log afterwards.
- A link that is cut drops what is sent; a link that is clogged keeps it and lets all of it go at
  once when it opens. Both are one-way, and faults that overlap are counted, so that the end of one
  does not end the other.
- Links are unordered unless the knobs say that they are pipes, as a connection would be.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from tidelog.raft.messages import AppendRequest
from tidelog.raft.types import NodeId
from tidelog.records import Batch
from tidelog.sim.scheduler import Scheduler

# What one link holds while it is clogged or slow; the rest is lost, as in a full socket buffer.
MAX_ON_LINK: Final = 2_000

Deliver = Callable[[NodeId, NodeId, object], None]


@dataclass(frozen=True, slots=True)
class NetworkKnobs:
    delay: tuple[int, int] = (200, 2_000)  # microseconds, at least and at most
    straggler: float = 0.0  # share of messages that take `straggler_delay` more
    straggler_delay: tuple[int, int] = (5_000, 100_000)
    loss: float = 0.0  # share of messages that never arrive
    duplication: float = 0.0  # share of messages that arrive twice
    pipes: bool = True  # messages of a link arrive in the order in which they were sent


CALM: Final = NetworkKnobs()


@dataclass(slots=True)
class _Link:
    cuts: int = 0  # faults that cut it now
    clogs: int = 0  # faults that clog it now
    held: list[tuple[str, object]] | None = None  # what waits for the last clog to end
    on_the_way: int = 0  # scheduled deliveries; <= MAX_ON_LINK
    last_arrival: int = 0  # of a pipe: nothing may arrive before this time


class Network:
    """Carries copies of messages between nodes; `deliver` is called when one arrives."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, knobs: NetworkKnobs) -> None:
        self.knobs = knobs  # replaced as a whole by storms and by the healing at the end
        self.deliver: Deliver = _nobody
        self.sent = 0
        self.lost = 0
        self._scheduler = scheduler
        self._rng = rng
        self._links: dict[tuple[NodeId, NodeId], _Link] = {}

    def send(self, source: NodeId, target: NodeId, name: str, payload: object) -> None:
        """Send a copy of `payload`; `name` is what the trace calls its arrival."""
        self.sent += 1
        link = self._link(source, target)
        if link.cuts or self._rng.random() < self.knobs.loss:
            self.lost += 1
            return
        copies = 2 if self._rng.random() < self.knobs.duplication else 1
        payload = isolated(payload)
        for _ in range(copies):
            if link.held is not None:
                if len(link.held) < MAX_ON_LINK:
                    link.held.append((name, payload))
                else:
                    self.lost += 1
            else:
                self._schedule(link, source, target, name, payload)

    def cut(self, links: Iterable[tuple[NodeId, NodeId]]) -> None:
        """Cut these directed links; what is already on its way still arrives."""
        for source, target in links:
            self._link(source, target).cuts += 1

    def mend(self, links: Iterable[tuple[NodeId, NodeId]]) -> None:
        """Take one cut off each of these links."""
        for source, target in links:
            link = self._link(source, target)
            link.cuts = max(0, link.cuts - 1)

    def clog(self, links: Iterable[tuple[NodeId, NodeId]]) -> None:
        """Hold back what is sent over these directed links from now on."""
        for source, target in links:
            link = self._link(source, target)
            link.clogs += 1
            if link.held is None:
                link.held = []

    def unclog(self, links: Iterable[tuple[NodeId, NodeId]]) -> None:
        """Take one clog off each of these links; the last one lets go of all that was held."""
        for source, target in links:
            link = self._link(source, target)
            link.clogs = max(0, link.clogs - 1)
            if link.clogs == 0 and link.held is not None:
                held, link.held = link.held, None
                for name, payload in held:
                    self._schedule(link, source, target, name, payload)

    def heal(self) -> None:
        """End every cut and clog, and lose, double and delay nothing any more."""
        self.knobs = replace(CALM, delay=self.knobs.delay)
        for (source, target), link in list(self._links.items()):
            link.cuts = 0
            link.clogs = min(link.clogs, 1)
            self.unclog([(source, target)])

    def is_cut(self, source: NodeId, target: NodeId) -> bool:
        """Whether nothing that is sent now from `source` arrives at `target`."""
        return self._link(source, target).cuts > 0

    def _link(self, source: NodeId, target: NodeId) -> _Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = _Link()
        return link

    def _schedule(
        self, link: _Link, source: NodeId, target: NodeId, name: str, payload: object
    ) -> None:
        if link.on_the_way >= MAX_ON_LINK:
            self.lost += 1
            return
        rng, knobs = self._rng, self.knobs
        delay = rng.randint(*knobs.delay)
        if knobs.straggler and rng.random() < knobs.straggler:
            delay += rng.randint(*knobs.straggler_delay)
        arrival = self._scheduler.now + delay
        if knobs.pipes:
            arrival = link.last_arrival = max(arrival, link.last_arrival)
        link.on_the_way += 1

        def arrive() -> None:
            link.on_the_way -= 1
            self.deliver(source, target, payload)

        self._scheduler.at(arrival - self._scheduler.now, name, arrive)


def isolated(payload: object) -> object:
    """Return the payload as the other side would decode it: with batch bytes of its own."""
    if isinstance(payload, AppendRequest) and payload.batches:
        copies = tuple(Batch.parse(bytes(batch.data)) for batch in payload.batches)
        return replace(payload, batches=copies)
    return payload


def _nobody(source: NodeId, target: NodeId, payload: object) -> None:
    raise AssertionError(f"nobody listens to what n{source} sends to n{target}: {payload}")
