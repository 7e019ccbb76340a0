"""The clients of a world: writers at every level, idempotent or not, and readers of three kinds.

Rules:
- A client behaves like a real one: it guesses who leads, gives up when nobody answers in time, and
  believes only what it was told. What it lived through goes into the `History`.
- A writer that is not idempotent sends a batch once, because it could not tell a retry from a
  second write. An idempotent one has several batches under way, in order, and sends each with the
  same sequence until it is acknowledged, for a long time, whatever happens in between. If that was
  too long, or the store no longer knows its sequence (relaxed writes were lost), it raises its
  epoch and goes on, and the fate of what was under way is unknown.
- What a writer sends to one node arrives in the order in which it was sent; what it sends to two
  nodes, because it has heard of another leader in between, does not.
- Every batch moves money between accounts, and each of its records names the operation.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.replica import Replica
from tidelog.machines import Balances
from tidelog.raft.epochs import NO_EPOCH, Fence, check_epoch
from tidelog.raft.events import Accepted, Barrier, Done, Refusal, Refused
from tidelog.raft.types import GroupId, Level, NodeId
from tidelog.records import NO_OFFSET, NO_TERM, Batch, Codec, Offset, Record, Term, build_batch
from tidelog.sim.history import OPERATION, Balance, Consumed, Fate, History, Operation, Seen
from tidelog.sim.scheduler import MS, Timer
from tidelog.sim.truth import GroupTruth

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode
    from tidelog.sim.world import Line, World

FETCH_BYTES: Final = 2_000
# How often a client asks the cluster who leads, instead of trying somebody.
ASKS_WHO_LEADS: Final = 0.85
TOMBSTONES: Final = 0.05
RETRY: Final = 10 * MS
DELIVERY: Final = 8  # times a writer's patience: when it gives a batch up for good
COMPRESSED: Final = 7  # each so many operations of a writer
# Refusals after which the batch may still be, or become, part of the log.
DOUBTFUL: Final = (Refusal.UNKNOWN, Refusal.TRUNCATED)
# The producer is not known by these numbers any more.
DISOWNED: Final = (Refusal.OUT_OF_ORDER, Refusal.FENCED)


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt to have a batch written."""

    operation: Operation
    level: Level
    data: bytes
    producer: tuple[int, int, int] | None  # id, epoch and base sequence
    first: bool  # nothing that its writer sent before was still under way


class Clients:
    """All clients of a world, as `world.Workload`."""

    def __init__(self) -> None:
        self.history = History()
        self._writers: list[Writer] = []
        self._readers: list[Reader] = []

    def start(self, world: World) -> None:
        """Set every client going."""
        knobs = world.knobs
        for number in range(knobs.writers):
            self._writers.append(Writer(world, self.history, f"writer-{number}", number))
        kinds = (Consumer, Auditor, Checker)
        for number in range(knobs.readers):
            kind = kinds[number % len(kinds)]
            self._readers.append(kind(world, self.history, f"reader-{number}"))
        for client in (*self._writers, *self._readers):
            client.begin()

    def stop(self) -> None:
        """Let every client finish; a last writer of each group writes once more.

        Consumers read on to that write: one that saw what a crash took back afterwards is told so
        at the latest then.
        """
        for reader in self._readers:
            reader.stopped = not isinstance(reader, Consumer)
            reader.hurries = True
        for writer in self._writers:
            writer.stopped = True
        for last in self._last_writers():
            self._writers.append(last)
            last.write_now(Level.QUORUM)

    def _last_writers(self) -> list[Writer]:
        if not self._writers:
            return []
        world, count = self._writers[0].world, len(self._writers)
        last = []
        for number, group in enumerate(world.groups):
            writer = Writer(world, self.history, f"last-{group}", count + number)
            writer.group = group
            writer.idempotent = True
            writer.stopped = True
            last.append(writer)
        return last

    def settled(self) -> bool:
        """Whether every write has an answer, or its client has given up, and all was read."""
        return not any(writer.busy for writer in self._writers) and not any(
            isinstance(reader, Consumer) and reader.behind for reader in self._readers
        )

    def leave(self) -> None:
        """Nobody asks anything any more."""
        for reader in self._readers:
            reader.stopped = True

    def complaints(self, group: GroupId, truth: GroupTruth) -> list[str]:
        """What the clients have to say about a group when all is over."""
        return list(self.history.judge(group, truth))


class _Client(ABC):
    """What all clients have: a name, a group, a guess at who leads, and a timer."""

    def __init__(self, world: World, history: History, name: str) -> None:
        self.world = world
        self.history = history
        self.rng: random.Random = world.random(f"client/{name}")
        self.group = self.rng.choice(world.groups)
        self.stopped = False
        self._name = name
        self._leader: NodeId | None = None
        self._timer: Timer | None = None

    @property
    def name(self) -> str:
        """A name that is unique in the world."""
        return self._name

    def begin(self) -> None:
        """Wait a while, then act."""
        pause = round(self.rng.expovariate(1 / self.world.knobs.think))
        self._after(min(pause, 10 * self.world.knobs.think), "acts", self._act)

    @abstractmethod
    def _act(self) -> None:
        """Do what this kind of client does."""

    def _after(self, delay: int, what: str, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.world.at(delay, f"{self.name} {what}", callback)

    def _target(self) -> NodeId:
        """Whom to ask: the leader as far as this client knows, or anybody."""
        if self._leader is None:
            node = self.world.leader(self.group)
            if node is not None and self.rng.random() < ASKS_WHO_LEADS:
                self._leader = node.id
            else:
                return self.rng.choice(list(self.world.nodes))
        return self._leader


class Sending:
    """A batch of a writer that is under way."""

    def __init__(self, number: int, operation: Operation, batch: Batch, gives_up: int) -> None:
        self.number = number  # of all that its writer wrote
        self.operation = operation
        self.data = bytes(batch.data)
        self.sequence = batch.base_sequence
        self.gives_up = gives_up  # when
        self.sent_to: NodeId | None = None  # None: it has to be sent, or sent again
        self.timer: Timer | None = None  # until its writer loses patience

    def unsend(self) -> None:
        """Nobody will answer, or somebody has."""
        self.sent_to = None
        if self.timer is not None:
            self.timer.cancel()


class Writer(_Client):
    """Writes batches: one at a time, or several under way if it is idempotent."""

    def __init__(self, world: World, history: History, name: str, producer: int) -> None:
        super().__init__(world, history, name)
        self.idempotent = self.rng.random() < world.knobs.idempotent
        self._producer = 1_000 + producer
        self._epoch = 0
        self._sequence = 0  # of the next batch
        self._relaxed = False  # something of this epoch may have been lost, though acknowledged
        self._count = 0
        self._under_way: list[Sending] = []  # in order
        self._lines: dict[NodeId, Line] = {}
        self._writes: dict[int, Write] = {}  # the attempts of those under way, by token
        self._retry: Timer | None = None

    @property
    def busy(self) -> bool:
        """Whether a write is under way."""
        return bool(self._under_way)

    def write(self, token: int) -> Write | None:
        """What this client asked for with a token."""
        return self._writes.get(token)

    def _act(self) -> None:
        if self.stopped:
            return
        weights = self.world.knobs.levels
        if (room := self._room()) > 0:
            for _ in range(self.rng.randint(1, room)):
                self.write_now(self.rng.choices(list(weights), list(weights.values()))[0])
        if self._room() > 0:
            self.begin()

    def _room(self) -> int:
        """How many batches may be sent now: none is further from the first than nodes remember."""
        most = self.world.knobs.under_way if self.idempotent else 1
        first = self._under_way[0].number if self._under_way else self._count + 1
        return first + most - (self._count + 1)

    def write_now(self, level: Level) -> None:
        """Begin an operation."""
        self._count += 1
        name = f"{self.name}-{self._count}"
        floor = self.history.floor(self.group)
        operation = Operation(name, self.group, level, self._transfers(name), floor)
        self.history.operations[name] = operation
        numbers = (self._producer, self._epoch, self._sequence) if self.idempotent else (-1, -1, -1)
        batch = build_batch(
            operation.records,
            codec=Codec.GZIP if self._count % COMPRESSED == 0 else Codec.NONE,
            producer_id=numbers[0],
            producer_epoch=numbers[1],
            base_sequence=numbers[2],
        )
        self._sequence += len(operation.records)
        gives_up = self.world.now + DELIVERY * self.world.knobs.patience
        self._under_way.append(Sending(self._count, operation, batch, gives_up))
        self._send_all()

    def _transfers(self, operation: str) -> list[Record]:
        from tidelog.sim.look import true_ms

        records = []
        for delta in range(self.rng.randint(1, self.world.knobs.records)):
            key = f"account-{self.rng.randrange(self.world.knobs.keys)}".encode()
            amount = f"{self.rng.randint(-100, 100)}".encode()
            value = None if self.rng.random() < TOMBSTONES else amount
            header = (OPERATION, operation.encode())
            records.append(Record(delta, true_ms(self.world), key, value, (header,)))
        return records

    def _send_all(self) -> None:
        """Send what has to be sent, in order; what waits before it is tried again holds up all."""
        if self._retry is not None and self._retry.pending:
            return
        for sending in tuple(self._under_way):
            if sending.sent_to is None:
                self._send(sending)

    def _send(self, sending: Sending) -> None:
        operation, level = sending.operation, sending.operation.level
        operation.attempts += 1
        data = sending.data

        def produce(_: SimNode, replica: Replica, token: int) -> None:
            # A copy: the log stamps the batch in place, and a retry must begin from the original.
            replica.produce(token, Batch.parse(bytearray(data)), level)

        target = self._target()
        line = self._lines.get(target)
        if line is None or line.broken:
            line = self._lines[target] = self.world.connect(target)
        token = self.world.ask(self, target, self.group, produce, line)
        producer = (self._producer, self._epoch, sending.sequence) if self.idempotent else None
        first = sending is self._under_way[0]
        self._writes[token] = Write(operation, level, data, producer, first)
        if level is Level.NONE and not self.idempotent:
            self._finish(sending, Fate.UNKNOWN)  # nobody listens
            return
        sending.sent_to = target
        sending.timer = self.world.at(
            self.world.knobs.patience,
            f"{self.name} gives up {operation.name}",
            lambda: self._lose_patience(target),
        )

    def _lose_patience(self, target: NodeId) -> None:
        """A node does not answer: turn away from it, with all that was sent to it."""
        self._leader = None
        self._lines.pop(target, None)
        for sending in self._under_way:
            if sending.sent_to == target:
                sending.unsend()
        if not self.idempotent:
            self._finish(self._under_way[0], Fate.UNKNOWN)
        elif self._under_way[0].gives_up <= self.world.now:
            self._start_over()
        else:
            self._send_all()

    def answered(self, token: int, answer: object) -> None:
        """An outcome arrived, perhaps of an attempt that was given up long ago."""
        write = self._writes.get(token)
        if write is None:
            return
        sending = next(each for each in self._under_way if each.operation is write.operation)
        match answer:
            case Done(offset=offset):
                self.history.acknowledged(write.operation, offset)
                self._finish(sending, Fate.OK)
            case Refused(why=why):
                self._refused(sending, write, why)
            case Accepted():
                pass

    def _refused(self, sending: Sending, write: Write, why: Refusal) -> None:
        self._leader = None
        sending.unsend()
        if not self.idempotent:
            self._finish(sending, Fate.UNKNOWN if why in DOUBTFUL else Fate.FAILED)
            return
        if why in DISOWNED and write.first:
            if not self._relaxed:
                self.history.complain(
                    self.group,
                    f"{write.operation.name} was refused as {why.value}, though all that was "
                    f"written before it in its epoch was acknowledged by a quorum",
                )
            self._start_over()
        elif self._under_way[0].gives_up <= self.world.now:
            self._start_over()
        elif self._retry is None or not self._retry.pending:
            self._retry = self.world.at(RETRY, f"{self.name} tries again", self._send_all)

    def _start_over(self) -> None:
        """Raise the epoch: what was under way may be written, or not."""
        self._epoch += 1
        self._sequence = 0
        for sending in tuple(self._under_way):
            self._finish(sending, Fate.UNKNOWN)
        self._relaxed = False
        if self.stopped:
            self.write_now(Level.QUORUM)  # the last write has to be written

    def _finish(self, sending: Sending, fate: Fate) -> None:
        operation = sending.operation
        operation.fate = fate
        sending.unsend()
        self._under_way.remove(sending)
        for token, write in tuple(self._writes.items()):
            if write.operation is operation:
                del self._writes[token]
        if operation.level is not Level.QUORUM:
            self._relaxed = True
        if not self.stopped:
            self.begin()
        elif self._timer is not None:
            self._timer.cancel()


class Reader(_Client):
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
            try:
                answer = serve(replica, position, last, epoch, needs_leader=not anywhere)
            except OSError:
                return  # the disk failed: no answer
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
    return Fetched(fence, current, batches, sum(each.is_ghost for each in found))


class Auditor(Reader):
    """Reads all balances on any replica, as far as the replica may be read (seed 3)."""

    def _ask(self) -> int:
        target = self.rng.choice(list(self.world.nodes))

        def audit(node: SimNode, replica: Replica, token: int) -> None:
            offset = replica.machines.applied
            if offset > replica.core.readable:
                node.answer(token, None)
                return
            accounts = next(m for m in replica.machines.machines if isinstance(m, Balances))
            shown = {
                key: (account.balance, account.updates)
                for key, account in accounts.accounts().items()
            }
            node.answer(token, Balance(self.name, str(node.vnode), offset, shown))

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
