"""Readers of four kinds: of the log in order or anywhere, of balances, of linearizable points."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.replica import Replica
from tidelog.machines import Balances
from tidelog.raft.epochs import NO_EPOCH, Fence, check_epoch
from tidelog.raft.events import Barrier, Done
from tidelog.records import NO_OFFSET, NO_TERM, Batch, Offset, Term
from tidelog.sim.history import Balance, Consumed, History, Seen

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode
    from tidelog.sim.world import World
from tidelog.sim.client import RETRY, Asker

FETCH_BYTES: Final = 2_000


class Reader(Asker):
    """Asks, and notes the answer; an answer that does not come is asked for again."""

    def __init__(self, world: World, history: History, name: str) -> None:
        super().__init__(world, history, name)
        self._waiting: int | None = None  # for the answer to this token
        self.hurries = False  # asks again at once

    def begin(self) -> None:
        if self.hurries:
            self._after(RETRY, "reads on", self._act)
        else:
            super().begin()

    def _act(self) -> None:
        if not self.stopped:
            self._after(self.world.knobs.patience, "gives up", self._give_up)
            self._waiting = self._ask()

    @abstractmethod
    def _ask(self) -> int:
        """Ask a node something; return the token of the question."""

    @abstractmethod
    def _hear(self, answer: object) -> None:
        """Take the answer."""

    def answered(self, token: int, answer: object) -> None:
        """Only the answer to the newest question counts."""
        if token == self._waiting:
            self._waiting = None
            self._hear(answer)
            self.begin()

    def _give_up(self) -> None:
        self._waiting = None
        self._leader = None
        self.begin()


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a consumer."""

    fence: Fence
    epoch: Term
    batches: tuple[Seen, ...] = ()
    ghosts: int = 0
    diverged: Offset | None = None  # where the log parts from what the consumer saw
    start: Offset | None = None  # the log begins here, after what was asked for
    found: tuple[Batch, ...] = ()  # the batches themselves


class Consumer(Reader):
    """Follows the log from its beginning, on the leader or on a follower (seeds 3 and 5)."""

    def __init__(self, world: World, history: History, name: str) -> None:
        super().__init__(world, history, name)
        self._consumed = Consumed(name, self.group)
        history.consumed.append(self._consumed)
        self._position = Offset(0)
        self._epoch = NO_EPOCH

    @property
    def behind(self) -> bool:
        """Whether this consumer has to hear more: of an acknowledged quorum write, or that relaxed
        writes that it read were lost, which shows while it is ahead of a leader.
        """
        return self._position <= self.history.floor(self.group) or any(
            replica.core.confirmed and self._position > replica.core.visible + 1
            for _, replica in self.world.live_replicas(self.group)
        )

    def _ask(self) -> int:
        anywhere = self.rng.random() < 0.3
        target = self.rng.choice(list(self.world.nodes)) if anywhere else self._target()
        position, epoch = self._position, self._epoch
        last = self._consumed.seen[-1] if self._consumed.seen else None

        def fetch(node: SimNode, replica: Replica, token: int) -> None:
            if replica.lost is not None:
                return
            try:
                answer = serve(replica, position, last, epoch, needs_leader=not anywhere)
            except OSError:
                return  # the disk failed: no answer
            self.world.judge.on_serve(node, self.group, answer.found)
            node.answer(token, answer)

        return self.world.ask(self, target, self.group, fetch)

    def _hear(self, answer: object) -> None:
        assert isinstance(answer, Fetched)
        if answer.fence is not Fence.PASS:
            self._leader = None
            if answer.fence is Fence.FENCED:
                self._epoch = max(self._epoch, answer.epoch)
            return
        self._epoch = max(self._epoch, answer.epoch)
        if answer.ghosts:
            self.history.complain(self.group, f"{self.name} was given a ghost")
        if answer.start is not None:
            self._lose_track()
            self._position = max(self._position, answer.start)
        elif answer.diverged is not None:
            self._forget(answer.diverged)
        else:
            self._consumed.seen += answer.batches
            if answer.batches:
                self._position = Offset(answer.batches[-1].last + 1)

    def _lose_track(self) -> None:
        """The log begins later than this consumer has read: nobody can tell it any more what of
        the last term it saw was taken back. What came before that term was committed with it.
        """
        seen = self._consumed.seen
        unsure = seen[-1].term if seen else None
        while seen and seen[-1].term == unsure:
            seen.pop()

    def _forget(self, end: Offset) -> None:
        seen = self._consumed.seen
        while seen and seen[-1].last >= end:
            self._consumed.dropped.append(seen.pop())
        self._position = Offset(seen[-1].last + 1) if seen else Offset(0)


def serve(
    replica: Replica, position: Offset, last: Seen | None, epoch: int, *, needs_leader: bool
) -> Fetched:
    """What a broker answers to a fetch: epoch, then leadership, then divergence, then data."""
    core, log = replica.core, replica.log
    current = core.epoch
    fence = check_epoch(epoch, current, needs_leader=needs_leader, is_leader=core.confirmed)
    if fence is not Fence.PASS:
        return Fetched(fence, current)
    bound = min(core.visible, core.readable)
    if position > bound + 1 and not core.confirmed:
        return Fetched(fence, current)  # not there yet; a leader that is not has lost something
    if position < log.start:
        return Fetched(fence, current, start=log.start)
    if last is not None and last.last == position - 1:
        term, end = log.term_end(last.term)
        if NO_TERM < term < last.term or end < position:
            # A follower may be the one whose log will be cut: only the leader's word counts.
            diverged = min(end, position) if core.confirmed else None
            return Fetched(fence, current, diverged=diverged)
    if position > bound:
        return Fetched(fence, current)
    found = log.read(position, FETCH_BYTES, upto=bound)
    batches = tuple(Seen(each.base_offset, each.last_offset, each.term) for each in found)
    ghosts = sum(each.is_ghost for each in found)
    return Fetched(fence, current, batches, ghosts, found=tuple(found))


class Browser(Reader):
    """Reads somewhere in the log of any replica, as whoever begins to read does.

    What it is given is judged at once, by its content.
    """

    def _ask(self) -> int:
        target = self.rng.choice(list(self.world.nodes))
        place = self.rng.random()

        def browse(node: SimNode, replica: Replica, token: int) -> None:
            core, log = replica.core, replica.log
            bound = min(core.visible, core.readable)
            position = Offset(log.start + int(place * (bound + 1 - log.start)))
            if replica.lost is None and position <= bound:
                try:
                    found = log.read(position, FETCH_BYTES, upto=bound)
                except OSError:
                    return
                self.world.judge.on_serve(node, self.group, found)
            node.answer(token, None)

        return self.world.ask(self, target, self.group, browse)

    def _hear(self, answer: object) -> None:
        """Nothing is made of it."""


class Auditor(Reader):
    """Reads all balances on any replica, as far as the replica may be read (seed 3)."""

    def _ask(self) -> int:
        target = self.rng.choice(list(self.world.nodes))

        def audit(node: SimNode, replica: Replica, token: int) -> None:
            offset = replica.machines.applied
            if offset > replica.core.readable or replica.lost is not None:
                node.answer(token, None)
                return
            accounts = next(m for m in replica.machines.machines if isinstance(m, Balances))
            shown = {
                key: (account.balance, account.updates)
                for key, account in accounts.accounts().items()
            }
            node.answer(token, Balance(self.name, str(node.vnode_of(self.group)), offset, shown))

        return self.world.ask(self, target, self.group, audit)

    def _hear(self, answer: object) -> None:
        if isinstance(answer, Balance):
            self.history.balances.setdefault(self.group, []).append(answer)


class Checker(Reader):
    """Asks for a linearizable read point: it covers every write acknowledged before."""

    def __init__(self, world: World, history: History, name: str) -> None:
        super().__init__(world, history, name)
        self._floor = NO_OFFSET

    def _ask(self) -> int:
        self._floor = self.history.floor(self.group)

        def confirm(_: SimNode, replica: Replica, token: int) -> None:
            replica.step(Barrier(token))

        return self.world.ask(self, self._target(), self.group, confirm)

    def _hear(self, answer: object) -> None:
        if isinstance(answer, Done):
            if answer.offset < self._floor:
                self.history.complain(
                    self.group,
                    f"{self.name} was promised everything up to {answer.offset} after "
                    f"{self._floor} was acknowledged",
                )
        else:
            self._leader = None
