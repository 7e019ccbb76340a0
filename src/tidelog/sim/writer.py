"""Writers: one batch at a time, or several under way if they are idempotent.

Rules:
- A writer that is not idempotent sends a batch once, because it could not tell a retry from a
  second write. An idempotent one has several batches under way, in order, and sends each with the
  same sequence until it is acknowledged, for a long time, whatever happens in between. If that was
  too long, or the store no longer knows its sequence (relaxed writes were lost), it raises its
  epoch and goes on, and the fate of what was under way is unknown.
- What a writer sends to one node arrives in the order in which it was sent; what it sends to two
  nodes, because it has heard of another leader in between, does not. Some requests of idempotent
  writers arrive once more, much later (`Echo`).
- Every batch moves money between accounts, and each of its records names the operation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.replica import Replica
from tidelog.raft.events import Accepted, Done, Refusal, Refused
from tidelog.raft.types import GroupId, Level, NodeId
from tidelog.records import Batch, Codec, Record, build_batch
from tidelog.sim.history import OPERATION, Fate, History, Operation
from tidelog.sim.scheduler import Timer
from tidelog.sim.world import Action, Phase

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode
    from tidelog.sim.world import Line, World
from tidelog.sim.client import RETRY, Asker

TOMBSTONES: Final = 0.05
DELIVERY: Final = 8  # times a writer's patience: when it gives a batch up for good
COMPRESSED: Final = 7  # each so many operations of a writer
# Refusals after which the batch may still be, or become, part of the log.
DOUBTFUL: Final = (Refusal.UNKNOWN, Refusal.TRUNCATED)
# The producer is no longer known by these numbers.
DISOWNED: Final = (Refusal.OUT_OF_ORDER, Refusal.FENCED)


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt to have a batch written."""

    operation: Operation
    level: Level
    data: bytes
    producer: tuple[int, int, int] | None  # id, epoch and base sequence
    first: bool  # nothing that its writer sent before was still under way


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


class Writer(Asker):
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

        def produce(node: SimNode, replica: Replica, token: int) -> None:
            if replica.lost is not None:  # as `cluster.partition` has it
                node.answer(token, Refused(token, Refusal.NOT_LEADER))
                return
            # A copy: the log stamps the batch in place, and a retry must begin from the original.
            replica.produce(token, Batch.parse(bytearray(data)), level)

        target = self._target()
        line = self._lines.get(target)
        if line is None or line.broken:
            line = self._lines[target] = self.world.connect(target)
        token = self.world.ask(self, target, self.group, produce, line)
        producer = (self._producer, self._epoch, sending.sequence) if self.idempotent else None
        first = sending is self._under_way[0]
        write = self._writes[token] = Write(operation, level, data, producer, first)
        if self.idempotent and not self.stopped:
            Echo(self.world, self.name, write).perhaps(self.group, produce, self.rng)
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


class Echo:
    """A request that arrives once more, after its writer may have turned away from it for good.

    The answer reaches a connection that nothing reads any more.
    """

    def __init__(self, world: World, writer: str, write: Write) -> None:
        self._world = world
        self._write = write
        self.name = f"{writer}-echo"

    def perhaps(self, group: GroupId, produce: Action, rng: random.Random) -> None:
        """Let the request come again, or not, on any node, before the chaos is over."""
        knobs = self._world.knobs
        if rng.random() >= knobs.client_echo:
            return
        target = rng.choice(list(self._world.nodes))
        delay = rng.randint(1, DELIVERY * knobs.patience)

        def arrive() -> None:
            if self._world.phase is Phase.CHAOS:
                self._world.ask(self, target, group, produce)

        self._world.at(delay, f"{self.name} is on its way", arrive)

    def write(self, _: int) -> Write:
        """What this asks for, with whatever token."""
        return self._write

    def answered(self, token: int, answer: object) -> None:
        """Nothing listens."""
