"""The stage of a script: real replicas on simulated disks, and the commands that move them.

Nothing moves by itself. A message lies on the wire until it is delivered or lost, a flush waits
until the script lets it end; votes, snapshot files and compaction are done at once, as far as they
do not wait for a flush. Every line of output is something that happened, in the order it did; after
`quietly`, only what matters most is told: who leads, what clients hear, snapshots, compaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from tests.cluster.hands import FLUSH, Hands, Puppet, vnode
from tests.scripts.words import (
    batch_in_words,
    drawing,
    machines_line,
    message_in_words,
    outcome_in_words,
    role_in_words,
)

from tidelog.cluster.host import Job, Outcome
from tidelog.machines import Balances, Producers
from tidelog.raft import events as ev
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.messages import Message
from tidelog.raft.types import Level, Role, ShippingMode, Vnode
from tidelog.records import Batch, BatchType, Offset, Record, build_batch
from tidelog.storage import LogConfig

MANY = 100  # rounds after which a group that does not come to rest never will


class Actor(Hands):
    """The host of one replica, which tells the stage what the replica does."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__()
        self.stage = stage
        self.name = name

    def send(self, message: Message) -> None:
        self.stage.look(self.name)
        self.stage.sent(message)

    def submit(self, lane: str, job: Job, done: Callable[[OSError | None], None]) -> None:
        replica = self.stage.puppets[self.name].running
        self.stage.look(self.name)
        if lane == FLUSH:
            upto = replica.log.dirty
            self.stage.tell(f"{self.name} begins to flush up to {upto}")

            def ended(error: OSError | None) -> None:
                self.stage.tell(f"{self.name} ends the flush up to {upto}")
                done(error)

            super().submit(lane, job, ended)
            return
        if lane == "compact":
            self.stage.tell(f"{self.name} compacts up to {replica.core.collectible}", aloud=True)
        super().submit(lane, job, done)

    def resolved(self, outcome: Outcome) -> None:
        self.stage.look(self.name)
        ends = not isinstance(outcome, ev.Accepted)
        self.stage.tell(outcome_in_words(self.stage.names[outcome.token], outcome), aloud=ends)
        super().resolved(outcome)

    def role_changed(self, change: ev.RoleChanged) -> None:
        leads = change.role is Role.LEADER
        self.stage.tell(role_in_words(self.name, change), aloud=leads)


class Accounts(Balances):
    """The accounts of one replica, which tell when they are put back and fed again."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self._furthest = -1

    def restore(self, state: bytes) -> None:
        super().restore(state)
        sums = " ".join(f"{key.decode()}={each.balance}" for key, each in self.accounts().items())
        self._tell(f"restores its accounts: ({sums})")

    def apply(self, batch: Batch) -> None:
        super().apply(batch)
        if batch.base_offset <= self._furthest:
            self._tell(f"folds in {batch_in_words(batch)} again")
        self._furthest = max(self._furthest, batch.last_offset)


@dataclasses.dataclass(slots=True)
class _Seen:
    """What was known of a replica when the stage looked last."""

    truncations: int
    start: Offset
    snapshot: Offset | None


class Stage:
    """A group of replicas; call it with a command to get the lines that tell what happened."""

    def __init__(self) -> None:
        self.puppets: dict[str, Puppet] = {}
        self.wire: list[Message] = []
        self.names: dict[int, str] = {}  # what the script calls a request, by token
        self._lines: list[str] = []
        self._whispering = False  # only what matters most is told
        self._cut_off: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        self._options = Options()
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "group": self._group,
            "newcomer": self._newcomer,
            "elect": self._elect,
            "stand": self._stand,
            "write": self._write,
            "compact": self._compact,
            "change": self._change,
            "roll": self._roll,
            "truncate-prefix": self._truncate_prefix,
            "deliver": self._deliver,
            "lose": self._lose,
            "settle": self._settle,
            "beat": self._beat,
            "flush": self._flush,
            "cut-off": self._isolate,
            "heal": self._heal,
            "crash": self._crash,
            "restart": self._restart,
            "log": self._log,
            "files": self._files,
            "machines": self._machines,
            "fold": self._fold,
            "read": self._read,
            "progress": self._progress,
        }

    def __call__(self, command: str) -> list[str]:
        verb, *words = command.removeprefix("quietly ").split()
        if verb not in self._commands:
            raise ValueError(f"no command {verb}; there are {', '.join(self._commands)}")
        self._lines = []
        self._whispering = command.startswith("quietly ")
        self._commands[verb](words)
        return self._lines

    # --- What the replicas tell -----------------------------------------------------------------

    def tell(self, line: str, *, aloud: bool = False) -> None:
        if aloud or not self._whispering:
            self._lines.append(line)

    def sent(self, message: Message) -> None:
        ends = {str(message.source), str(message.target)}
        lost = bool(ends & self._cut_off)
        self.tell(message_in_words(message) + (" (lost)" if lost else ""))
        if not lost:
            self.wire.append(message)

    def look(self, name: str) -> None:
        """Tell what happened to the disk of a replica since the last look."""
        replica = self.puppets[name].running
        core, log = replica.core, replica.log
        snapshot = core.snapshot.offset if core.snapshot is not None else None
        now = _Seen(log.truncations, log.start, snapshot)
        before = self._seen.get(name, now)
        if now.truncations > before.truncations and now.start == before.start:
            self.tell(f"{name} truncated its log", aloud=True)
        if now.snapshot is not None and now.snapshot != before.snapshot:
            self.tell(f"{name} has snapshot@{now.snapshot} on disk", aloud=True)
        if now.start > before.start:
            self.tell(f"{name}'s log begins at {now.start}", aloud=True)
        self._seen[name] = now

    def _step(self, name: str, event: ev.Event) -> None:
        self.puppets[name].step(event)
        self.look(name)

    # --- Who is there ---------------------------------------------------------------------------

    def _group(self, words: list[str]) -> None:
        """`group n1 n2 n3 [shipping=log] [chunk=BYTES] [snapshot-chunk=BYTES]`."""
        settings = dict(word.split("=") for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        self._options = Options(
            shipping=ShippingMode(settings.pop("shipping", "side")),
            recovery_chunk=int(settings.pop("chunk", Options().recovery_chunk)),
            snapshot_chunk=int(settings.pop("snapshot-chunk", Options().snapshot_chunk)),
        )
        if settings:
            raise ValueError(f"a group has no setting {', '.join(settings)}")
        initial = Configuration(tuple(map(_vnode, names)))
        for name in names:
            self._begin(name, initial)

    def _newcomer(self, words: list[str]) -> None:
        """`newcomer n4`: a node with an empty disk, which is a member of nothing yet."""
        for name in words:
            self._begin(name, None)

    def _begin(self, name: str, initial: Configuration | None) -> None:
        def tell(line: str) -> None:
            self.tell(f"{name} {line}", aloud=True)

        self.puppets[name] = Puppet(
            _vnode(name).id,
            initial=initial,
            options=self._options,
            log_config=LogConfig(),
            carries=lambda: (Producers(), Accounts(tell)),
        )
        self._open(name)

    def _open(self, name: str) -> None:
        actor = Actor(self, name)
        self.puppets[name].open(actor).start()
        actor.do_all(FLUSH)
        self._seen.pop(name, None)
        self.look(name)

    def _running(self) -> list[str]:
        return [name for name, puppet in self.puppets.items() if puppet.replica is not None]

    def _reachable(self) -> list[str]:
        return [name for name in self._running() if name not in self._cut_off]

    # --- What is asked of them ------------------------------------------------------------------

    def _elect(self, words: list[str]) -> None:
        """`elect n1`: whoever leads loses its quorum, n1 stands, and everything comes to rest."""
        self._whispering = True
        for _ in range(MANY):
            self._stand(words)
            self._settle([])
            if self.puppets[words[0]].running.core.role is Role.LEADER:
                return
        raise AssertionError(f"{words[0]} is not elected")

    def _stand(self, words: list[str]) -> None:
        """`stand n1`: n1 hears no leader for so long that it stands for election."""
        (name,) = words
        for other in self._reachable():
            self.puppets[other].hands.hears_leader = False
            if self.puppets[other].running.core.role is Role.LEADER:
                self._step(other, ev.QuorumLost())
        for _ in range(MANY):  # others are preferred at first
            if self.puppets[name].running.core.role is not Role.FOLLOWER:
                return
            self._step(name, ev.ElectionTimeout())
        raise AssertionError(f"{name} does not stand")

    def _write(self, words: list[str]) -> None:
        """`write n1 a quorum k:1 3*k:-2`: one batch, called a, with these deposits."""
        name, request, level, *deposits = words
        batch = build_batch(list(_records(deposits)))
        self._step(name, ev.Propose(self._token(request), (batch,), Level[level.upper()]))

    def _compact(self, words: list[str]) -> None:
        """`compact n1 x`: take a snapshot, ship it, and compact up to it."""
        name, request = words
        self._step(name, ev.Compact(self._token(request)))

    def _change(self, words: list[str]) -> None:
        """`change n1 x n1 n2 n4`: let these be the voters."""
        name, request, *voters = words
        token = self._token(request)
        self._step(name, ev.ChangeConfiguration(token, tuple(map(_vnode, voters))))

    def _roll(self, words: list[str]) -> None:
        """`roll n1 ...`: the active segment is closed, as it is when it is full or old."""
        for name in words:
            self.puppets[name].running.log.roll()

    def _token(self, request: str) -> int:
        token = len(self.names)
        self.names[token] = request
        return token

    def _truncate_prefix(self, words: list[str]) -> None:
        """`truncate-prefix n1 6`: retention removes everything below an offset."""
        name, first_kept = words
        if not self.puppets[name].running.truncate_prefix(Offset(int(first_kept))):
            self.tell(f"{name} refuses: no snapshot covers what would be gone")
        self.look(name)

    # --- What moves -----------------------------------------------------------------------------

    def _deliver(self, words: list[str]) -> None:
        """`deliver [n1 n2]`: what is on the wire now arrives, or what n1 sent to n2."""
        for message in self._take(words):
            self._arrive(message)

    def _arrive(self, message: Message) -> None:
        target = self.puppets[str(message.target)]
        if target.replica is not None:
            self._step(str(message.target), message)

    def _lose(self, words: list[str]) -> None:
        """`lose [n1 n2]`: the same does not arrive."""
        for message in self._take(words):
            self.tell(f"lost: {message_in_words(message)}")

    def _take(self, words: list[str]) -> list[Message]:
        ends = tuple(map(_vnode, words))
        taken = [each for each in self.wire if not ends or (each.source, each.target) == ends]
        self.wire = [each for each in self.wire if each not in taken]
        return taken

    def _settle(self, words: list[str]) -> None:
        """`settle`: messages arrive, flushes end and leaders beat until nothing is left to say.

        Whoever is cut off takes no part in it, and its flush stays under way.
        """
        assert not words
        self._whispering = True
        for _ in range(MANY):
            self._rest()
            taking_part = self._reachable()
            before = [str(self.puppets[name].running) for name in taking_part]
            for name in taking_part:
                if self.puppets[name].running.core.role is Role.LEADER:
                    self._beat([name])
            self._rest()
            if before == [str(self.puppets[name].running) for name in taking_part]:
                break
        else:
            raise AssertionError("the group does not come to rest")

    def _rest(self) -> None:
        taking_part = self._reachable()
        for _ in range(MANY):
            for message in self._take([]):
                self._arrive(message)
            for name in taking_part:
                if self._flushes(name):
                    self._flush([name])
            if not self.wire and not any(self._flushes(name) for name in taking_part):
                return
        raise AssertionError("messages go round and round")

    def _flushes(self, name: str) -> bool:
        return self.puppets[name].hands.waits(FLUSH)

    def _beat(self, words: list[str]) -> None:
        """`beat n1 [n2]`: a heartbeat is due, to all followers or to one."""
        name, *peers = words
        for peer in map(_vnode, peers) if peers else list(self.puppets[name].running.core.progress):
            self._step(name, ev.BeatDue(peer))

    def _flush(self, words: list[str]) -> None:
        """`flush n1 ...`: the flush under way ends; without one, the timer asks for one."""
        for name in words:
            hands = self.puppets[name].hands
            if not hands.waits(FLUSH):
                self._step(name, ev.FlushDue())
            if hands.waits(FLUSH):
                before = self.puppets[name].running.core.flushed
                hands.do(FLUSH)
                hands.do_all(FLUSH)
                self.puppets[name].running.check_invariants()
                if self.puppets[name].running.core.flushed == before:
                    self.tell(f"{name} is credited nothing for it", aloud=True)
                self.look(name)

    def _isolate(self, words: list[str]) -> None:
        """`cut-off n3`: nothing reaches n3, and nothing it says is heard."""
        self._cut_off.update(words)
        self.wire = [
            each for each in self.wire if not {str(each.source), str(each.target)} & self._cut_off
        ]

    def _heal(self, words: list[str]) -> None:
        self._cut_off.difference_update(words)

    def _crash(self, words: list[str]) -> None:
        """`crash n2`: the power goes, and with it all that was not flushed."""
        for name in words:
            self.puppets[name].lose_power()
            self.wire = [each for each in self.wire if str(each.target) != name]

    def _restart(self, words: list[str]) -> None:
        for name in words:
            self._open(name)

    # --- What can be looked at ------------------------------------------------------------------

    def _log(self, words: list[str]) -> None:
        """`log [n1 ...]`: the logs, with the marks below them."""
        for name in words or self._running():
            self._lines += drawing(self.puppets[name].running)

    def _files(self, words: list[str]) -> None:
        """`files n1`: what the files of the log hold, batch by batch."""
        for name in words:
            for segment in self.puppets[name].running.log.describe().segments:
                self._lines.append(f"{name} segment {segment}")

    def _machines(self, words: list[str]) -> None:
        """`machines [n1 ...]`: what the machines know, and how far they may be read."""
        for name in words or self._running():
            self._lines.append(machines_line(self.puppets[name].running))

    def _fold(self, words: list[str]) -> None:
        """`fold n1`: the accounts as somebody would have them who read this log from its start."""
        for name in words:
            log = self.puppets[name].running.log
            accounts = Balances()
            for batch in log.read(log.start, log.config.segment_bytes):
                accounts.apply(batch)
            sums = [f"{key.decode()}={each.balance}" for key, each in accounts.accounts().items()]
            self._lines.append(f"the log of {name} adds up to ({' '.join(sums)})")

    def _read(self, words: list[str]) -> None:
        """`read n1 11`: the log from an offset as recovery reads it, gaps filled with ghosts."""
        name, start = words
        log = self.puppets[name].running.log
        chunk = self._options.recovery_chunk
        for batch in log.read(Offset(int(start)), chunk, fill_gaps=True):
            size = f", {batch.size} bytes" if batch.type is BatchType.GHOST else ""
            self._lines.append(f"{batch_in_words(batch)}{size}")

    def _progress(self, words: list[str]) -> None:
        """`progress n1`: what a leader knows of its followers."""
        (name,) = words
        for node, progress in self.puppets[name].running.core.progress.items():
            self._lines.append(f"{name} of {node}: {progress}")


def _vnode(name: str) -> Vnode:
    return vnode(int(name.removeprefix("n")))


def _records(deposits: Iterable[str]) -> Iterable[Record]:
    delta = 0
    for deposit in deposits:
        times, _, rest = deposit.rpartition("*")
        key, amount = rest.split(":")
        for _ in range(int(times or 1)):
            yield Record(delta, 0, key.encode(), amount.encode())
            delta += 1
