"""A node of the simulated world: one disk, one clock, one process that comes and goes.

Theory of operation:
- While the process is up there is one `Replica` for each group and one table of heartbeats, all
  opened from the disk. A crash throws them away, with every timer and every job that was pending;
  a restart opens them again. Nothing but the disk crosses a crash.
- A blocking job takes simulated time. It runs when its time has come; the loop hears of it then, or
  a little later, as from a thread. A crash finds the job at the head of each lane half done: as
  many of its disk operations as chance decides have happened.
- The disk may lose power in the middle of any step (`SimDisk.lose_power_in`); `guard` turns that
  into a crash at that very point.
- A replica that gave up on its disk is opened again while the process goes on, with its jobs done
  and its legacy to live up to; or a supervisor restarts the process.
- A replica whose files are damaged or gone is lost: it hands over what it leads, ends, and another
  takes its place, under a new revision and with nothing. Only on a disk that was harmed (`harm`).
- Heartbeats and election timers of all groups are `raft.beats`, driven here as a real node would:
  it hears of every step, every append and every reply, and says what is due.
- The node's own clock may run at another rate than the world's and jump. All its timers follow it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.legacy import Legacy
from tidelog.cluster.registry import NAME as REGISTRY
from tidelog.cluster.replica import Replica
from tidelog.raft.beats import BeatOptions, Beats
from tidelog.raft.configuration import Configuration
from tidelog.raft.events import (
    BeatDue,
    ElectionTimeout,
    Event,
    QuorumLost,
    StorageLost,
    Transfer,
)
from tidelog.raft.messages import AppendReply, Message
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import NO_OFFSET, Offset
from tidelog.sim import room
from tidelog.sim.disk import PowerLost, SimDisk
from tidelog.sim.host import GroupHost
from tidelog.sim.memory import Memory
from tidelog.sim.observe import observe
from tidelog.sim.scheduler import MS, Timer
from tidelog.sim.world import Failure
from tidelog.storage import BatchCache, DamagedLog

if TYPE_CHECKING:
    from tidelog.sim.world import World

# Elections that begin at once: so few that some wait for others, as where there are thousands.
ELECTIONS_AT_ONCE: Final = 1
# What reaches a stopped process and waits in its sockets; the rest is lost.
MAX_PAUSED: Final = 500
# How long a supervisor takes to start a process again that died by itself.
RESTART_DELAY: Final = (2 * MS, 200 * MS)
# How often a replica that failed takes its process with it, and how often its machines go on from
# where they stood and not from what is on the disk.
SUPERVISED: Final = 0.3
CARRIED: Final = 0.5
# Where the world's wall clock begins, in milliseconds, so that no timestamp is zero.
EPOCH_MS: Final = 1_700_000_000_000


@dataclass(slots=True)
class Harm:
    """What was done to the files of one replica, beyond what a crash does."""

    what: str
    path: str  # of a file, or of a directory that is gone
    configurations: tuple[Configuration, ...]  # that the replica went by
    in_log: bool  # the log may not be read to its end any more
    spare: bool = False  # no replica whose log is whole needs what was harmed
    reopened: bool = False  # the replica has been opened since


@dataclass(frozen=True, slots=True)
class LightBeat:
    """All quiet groups of the sender that the receiver follows, as one message."""

    body: bytes


@dataclass(frozen=True, slots=True)
class LightReply:
    """Which of those groups the receiver does not follow."""

    body: bytes


class SimNode:
    """One node. `alive` and `replicas` say what runs on it now."""

    def __init__(self, world: World, node: NodeId, initial: Configuration | None) -> None:
        self.world = world
        self.id = node
        self.memory = Memory(node, world.groups)
        self.harm: dict[GroupId, Harm] = {}  # of replicas that may be lost, or are
        self.alive = False  # the process exists; it may be paused
        self.paused = False  # alive, and nothing in it moves
        self.replicas: dict[GroupId, Replica] = {}  # empty while the node is down
        self.hosts: dict[GroupId, GroupHost] = {}  # empty while the node is down
        self.beats: Beats | None = None  # None while the node is down
        self.rng = world.random(f"node/{node}")
        self.disk = SimDisk(world.random(f"disk/{node}"), rot=world.knobs.bit_rot)
        self.shipping = world.knobs.shipping  # of the next start: an upgrade changes it
        self.rate = 1.0  # seconds of its own clock in a second of the world
        self.slow = 1  # by how much longer than usual its disk takes
        self.life = 0  # of the process: timers and connections of an earlier one do nothing
        self.crashes = 0
        self._initial = initial  # of a disk that was never wiped
        # What its replicas went by when the process last died.
        first: tuple[Configuration, ...] = (initial,) if initial is not None else ()
        self._last_configurations = dict.fromkeys(world.groups, first)
        self._last_flushed = dict.fromkeys(world.groups, NO_OFFSET)
        self._losing: set[GroupId] = set()  # lost, and not closed yet
        self._local = 0  # its own clock at `_since`
        self._since = 0
        self._skew_ms = 0  # by how much its wall clock was set ahead of its own
        self._waiting: list[Callable[[], None]] = []  # what happens once it is resumed
        self._guarding = False  # the product is running
        self._beat_timer: Timer | None = None  # of the next look at the table of heartbeats
        self._beat_due = 0  # when that is, on the node's own clock

    def vnode_of(self, group: GroupId) -> Vnode:
        """Who this node is in a group since its replica there was last lost."""
        return self.memory.vnode_of(group)

    def configurations(self, group: GroupId) -> tuple[Configuration, ...]:
        """Return every configuration that its replica goes by, or soon may."""
        replica = self.replicas.get(group)
        if replica is None:
            return self._last_configurations[group]
        core = replica.core
        harm = self.harm.get(group)
        if harm is not None:  # to look would be to read, and to find the harm
            known = (core.configuration, *harm.configurations)
        else:
            known = (core.configuration, core.configuration_at(core.committed))
        target = core.leading.changing_to if core.leading is not None else None
        # A leader that holds its learners for caught up makes them voters at any moment.
        return known if target is None else (*known, Configuration(target))

    def _last_words(self, group: GroupId, replica: Replica) -> tuple[Configuration, ...]:
        """Return the same of a replica that ends, perhaps in the middle of removing segments."""
        replica.log.on_damage = lambda _: None
        try:
            return self.configurations(group)
        except DamagedLog:
            return (replica.core.configuration, *self._last_configurations[group])

    def flushed(self, group: GroupId) -> Offset:
        """How far the log of its replica was flushed, now or when its process last died."""
        replica = self.replicas.get(group)
        return self._last_flushed[group] if replica is None else replica.log.flushed

    # --- Clock -----------------------------------------------------------------------------------

    def local_time(self) -> int:
        """Microseconds on the node's own clock, which never goes back."""
        return self._local + int((self.world.now - self._since) * self.rate)

    def wall_ms(self) -> int:
        """Milliseconds since 1970 on the node's wall clock, which may jump."""
        return EPOCH_MS + self.local_time() // MS + self._skew_ms

    def set_clock(self, rate: float, jump_ms: int) -> None:
        """Let the clock run at another rate from now on, and the wall clock jump."""
        self._local, self._since = self.local_time(), self.world.now
        self.rate = rate
        self._skew_ms += jump_ms

    def after(self, delay: int, name: str, callback: Callable[[], None]) -> Timer:
        """Run something of this process after `delay` microseconds of its own clock.

        It does not run if the process dies before, and waits while it is paused. Without a name it
        is no event: the judge does not look at the world after it.
        """
        life = self.life

        def fire() -> None:
            if life == self.life:
                if self.paused:
                    self.on_resume(fire)
                else:
                    self.guard(callback)

        world_delay = math.ceil(delay / self.rate)  # never early on the node's own clock
        return self.world.at(world_delay, f"n{self.id} {name}" if name else "", fire)

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, unless it runs: open everything from the disk."""
        if self.alive:
            return
        self.life += 1
        self.alive = True
        self.world.trace.note(self, None, "starts as " + " ".join(self._names()))
        try:
            self._open()
        except PowerLost:
            self.crash(power=True, downtime=self.world.draw(self.rng, RESTART_DELAY))
        except OSError as error:
            # A full or failing disk: the process ends, and is started again until it works.
            self.world.trace.note(self, None, f"cannot start: {error}")
            self.crash(power=False, downtime=self.world.draw(self.rng, RESTART_DELAY))
        except Failure:
            raise
        except Exception as error:
            raise self._failure("while it started", error) from error
        self._publish()

    def _names(self) -> list[str]:
        return [str(each) for each in dict.fromkeys(map(self.vnode_of, self.world.groups))]

    def _open(self) -> None:
        world = self.world
        knobs = world.knobs
        cache = BatchCache(knobs.cache_bytes)
        beats = BeatOptions(knobs.heartbeat // MS, knobs.election // MS)
        self.beats = Beats(self.id, beats, self.rng)
        self._remember()
        for group in world.groups:
            if self.memory.why_lost(group) is not None:
                self._replace_later(group)
                continue
            try:
                self._open_group(group, cache, None)
            except DamagedLog as damage:
                self._lose(group, str(damage))
                self._replace_later(group)

    def _remember(self) -> None:
        """Read what this node hosts; one that forgot that joins as another."""
        if self.memory.load(self.disk):
            for group in [group for group, harm in self.harm.items() if harm.path == REGISTRY]:
                del self.harm[group]  # it was written anew
            return
        for group in self.world.groups:
            self._lose(group, "its registry is gone")
            self._last_configurations[group] = ()
        self.harm.clear()
        self.memory.is_born()
        self.memory.load(self.disk)

    def _open_group(self, group: GroupId, cache: BatchCache, legacy: Legacy | None) -> None:
        world, knobs = self.world, self.world.knobs
        assert self.beats is not None
        host = GroupHost(self, group)
        known = self.memory.hosts(group)
        replica = Replica.open(
            host,
            self.disk,
            self.memory.directory_of(group),
            group=group,
            vnode=self.vnode_of(group),
            initial=self._initial if self.memory.is_first(group) else None,
            options=knobs.options(self.shipping),
            log_config=knobs.log_config(),
            machines=world.machines,
            cache=cache,
            clock=self.wall_ms,
            known=known,
            legacy=legacy,
        )
        if not known:
            self.memory.add(group)
        if group in self.harm:
            self.harm[group].reopened = True
        self.hosts[group] = host
        self.replicas[group] = replica
        self.beats.add(group, self.vnode_of(group), self._beat_time())
        observe(self, group, replica)
        room.watch(self, group, replica)
        world.judge.on_open(self, group)
        replica.start()

    def _retire(self, group: GroupId) -> None:
        """Close a replica that failed, and open it again when its disk works."""
        legacy = self.replicas[group].legacy(machines=self.rng.random() < CARRIED)
        self._last_configurations[group] = self.configurations(group)
        self._close(group)
        self._reopen_later(group, legacy)

    def _close(self, group: GroupId) -> None:
        self._last_flushed[group] = self.replicas[group].log.flushed
        self.world.judge.on_retire(self, group)
        replica = self.replicas.pop(group)
        assert self.beats is not None
        self.beats.remove(group)
        self.hosts[group].retire()
        replica.close()

    def _reopen_later(self, group: GroupId, legacy: Legacy | None) -> None:
        delay = self.world.draw(self.rng, RESTART_DELAY)
        self.after(delay, f"g{group} opens again", lambda: self._reopen(group, legacy))

    def _reopen(self, group: GroupId, legacy: Legacy | None) -> None:
        """Open a replica that failed, or one that takes the place of another, for which `legacy` is
        None."""
        if legacy is not None and self.hosts[group].is_busy:
            self._reopen_later(group, legacy)
            return
        try:
            self._open_group(group, BatchCache(self.world.knobs.cache_bytes), legacy)
        except DamagedLog as damage:
            self._lose(group, str(damage))
            self._replace_later(group)
        except OSError as error:
            self.world.trace.note(self, group, f"cannot be opened: {error}")
            self._reopen_later(group, legacy)

    # --- Replicas that are lost -------------------------------------------------------------------

    def _lose(self, group: GroupId, why: str) -> None:
        """Count a replica as lost, which only a harmed one may be."""
        harm = self.harm.get(group)
        if harm is None:
            raise Failure(f"n{self.id} found damage that nobody did: {why}")
        self.world.trace.note(self, group, f"is lost: {why}")
        self.world.judge.on_lost(self, group, harm, why)

        def note() -> None:
            if lost != self.vnode_of(group):
                return  # another has its place already
            try:
                self.memory.lose(group, why)
            except OSError as error:
                self.world.trace.note(self, group, f"does not note that it is lost: {error}")

        lost = self.vnode_of(group)
        delay = self.rng.randint(*self.world.knobs.disk_delay)
        self.after(delay, f"g{group} notes a loss", note)

    def _give_up(self, group: GroupId, why: str) -> None:
        """Let a lost replica hand over what it leads, and end it."""
        replica = self.replicas.get(group)
        if replica is None:
            return
        able = [
            (progress.match, voter)
            for voter, progress in replica.core.progress.items()
            if replica.core.configuration.is_voter(voter) and self.world.nodes[voter.id].alive
        ]
        wait = 0
        if able:
            replica.step(Transfer(self.world.next_token(), max(able)[1]))
            wait = self.world.knobs.election
        self.after(wait, f"g{group} is closed", lambda: self._bury(group, why))

    def _bury(self, group: GroupId, why: str) -> None:
        replica = self.replicas.get(group)
        if replica is None:
            return
        replica.step(StorageLost(why))
        self._losing.discard(group)
        self._close(group)
        self._replace_later(group)

    def _replace_later(self, group: GroupId) -> None:
        """Let another replica take the place of one that is lost, once that is granted."""
        self._last_configurations[group] = ()
        delay = self.world.draw(self.rng, RESTART_DELAY)
        self.after(delay, f"g{group} has a successor", lambda: self._replace(group))

    def _replace(self, group: GroupId) -> None:
        self.memory.grant(group)
        self.harm.pop(group, None)
        self._last_flushed[group] = NO_OFFSET
        self._reopen(group, None)

    def crash(self, *, power: bool, downtime: int | None) -> None:
        """End the process; with `power`, the whole machine. Start again after `downtime`."""
        if self.alive:
            self.world.trace.note(self, None, "loses power" if power else "is killed")
            self.crashes += 1
            self.disk.restore_power()
            for group, replica in self.replicas.items():
                self._last_configurations[group] = self._last_words(group, replica)
                self._last_flushed[group] = replica.log.flushed
            self.world.judge.on_crash(self, power=power)
            for host in self.hosts.values():
                host.leave_half_done()
            self.disk.crash(power=power)
            self.alive = self.paused = False
            self.life += 1
            self._waiting.clear()
            self.replicas.clear()
            self.hosts.clear()
            self._losing.clear()
            self.beats = None
            self._beat_timer = None
            self.world.forget(self.id)
        if downtime is not None:
            self.world.at(downtime, f"n{self.id} start", self.start)

    def wipe(self) -> None:
        """Replace the disk of a dead node; whoever it was, it is somebody else from now on."""
        assert not self.alive, "a node is wiped while it runs"
        self.world.trace.note(self, None, "is wiped")
        self.world.judge.on_wipe(self)
        self.disk.wipe()
        self.memory.is_born()
        self.harm.clear()
        self._last_flushed = dict.fromkeys(self.world.groups, NO_OFFSET)
        self._last_configurations = dict.fromkeys(self.world.groups, ())

    def pause(self) -> None:
        """Stop the process where it is, as SIGSTOP does; its clock goes on."""
        if self.alive and not self.paused:
            self.world.trace.note(self, None, "is paused")
            self.paused = True

    def resume(self) -> None:
        """Let the process go on; everything that waited for it happens now, in order."""
        if self.paused:
            self.world.trace.note(self, None, "goes on")
            self.paused = False
            waiting, self._waiting = self._waiting, []
            for number, callback in enumerate(waiting):
                # Events of their own, so that the judge sees each, still in order.
                self.world.at(number, f"n{self.id} catches up", callback)

    def on_resume(self, callback: Callable[[], None]) -> None:
        """Do this when the process goes on; forget it if too much waits already."""
        if len(self._waiting) < MAX_PAUSED:
            self._waiting.append(callback)

    # --- What reaches the process -----------------------------------------------------------------

    def step(self, group: GroupId, event: Event) -> None:
        """Feed an event to a replica, if it runs."""
        replica = self.replicas.get(group)
        if replica is not None:
            self.guard(lambda: replica.step(event))

    def deliver(self, source: NodeId, payload: object) -> None:
        """Take what arrived from another node."""
        if self.paused:
            self.on_resume(lambda: self.deliver(source, payload))
        elif self.beats is None:
            return
        elif isinstance(payload, Message):
            self._note_reply(payload)
            self.step(payload.group, payload)
        elif isinstance(payload, LightBeat):
            reply = self.beats.heard_light(source, payload.body, self._beat_time())
            self.world.network.send(
                self.id, source, f"n{source} gets beat reply from n{self.id}", LightReply(reply)
            )
        elif isinstance(payload, LightReply):
            self.beats.light_reply(source, payload.body, self._beat_time())

    def send(self, message: Message) -> None:
        """Hand a message of a replica to the network."""
        self.world.judge.on_send(self, message)
        name = f"n{message.target.id} gets {type(message).__name__} from n{self.id}"
        self.world.network.send(self.id, message.target.id, name, message)

    def answer(self, token: int, answer: object) -> None:
        """Answer a client's request with something that is no outcome of a replica."""
        self.world.answer(self, token, answer)

    def guard(self, callback: Callable[[], None]) -> None:
        """Run something of the product: a loss of power is a crash, any other error a failure."""
        if self._guarding:
            callback()
            return
        self._guarding = True
        try:
            callback()
        except PowerLost:
            self.crash(power=True, downtime=self.world.draw(self.rng, RESTART_DELAY))
        except Failure:
            raise
        except Exception as error:
            raise self._failure("", error) from error
        finally:
            self._guarding = False
        self._publish()

    # --- Heartbeats -------------------------------------------------------------------------------

    def heard_leader(self, group: GroupId) -> None:
        """Take note of an append of the leader, or of a vote, which has no leader yet."""
        if self.beats is not None and (replica := self.replicas.get(group)) is not None:
            core = replica.core
            self.beats.heard(group, core.leader, core.term, self._beat_time())

    def leader_alive(self, group: GroupId) -> bool:
        """Whether the leader was heard within the base election timeout."""
        return self.beats is not None and self.beats.leader_alive(group, self._beat_time())

    def _beat_time(self) -> int:
        return self.local_time() // MS

    def _note_reply(self, message: Message) -> None:
        """Take note that a follower answered, which is what keeps a leader in its place."""
        if self.beats is None or not isinstance(message, AppendReply):
            return
        replica = self.replicas.get(message.group)
        core = None if replica is None else replica.core
        if core is None or message.target != core.vnode or message.term != core.term:
            return
        self.beats.replied(message.group, message.source, self._beat_time())

    def _publish(self) -> None:
        """Tell the table of heartbeats what the cores are now, and look after failed replicas."""
        if self.beats is None:
            return
        now = self._beat_time()
        for group, replica in tuple(self.replicas.items()):
            if replica.lost is not None:
                self._let_go(group, replica.lost)
            elif replica.failed is not None:
                self.world.trace.note(self, group, f"gave up: {replica.failed}")
                if self.rng.random() < SUPERVISED:
                    self.crash(power=False, downtime=self.world.draw(self.rng, RESTART_DELAY))
                    return
                self._retire(group)
                continue
            core = replica.core
            self.beats.publish(group, core.role, core.term, core.configuration, core.quiet, now)
        self._wait_for_beat()

    def _let_go(self, group: GroupId, why: str) -> None:
        if group not in self._losing:
            self._losing.add(group)
            self._lose(group, why)
            self.after(0, f"g{group} gives up", lambda: self._give_up(group, why))

    def _wait_for_beat(self) -> None:
        """Keep one timer for when the table is due next. Looking at it is no event: no name."""
        assert self.beats is not None
        due = self.beats.next_due(self._beat_time()) * MS
        if self._beat_timer is not None and self._beat_timer.pending:
            if self._beat_due <= due:
                return
            self._beat_timer.cancel()
        self._beat_due = due
        self._beat_timer = self.after(due - self.local_time(), "", self._beat)

    def _beat(self) -> None:
        """Do what is due. Each step is an event of its own, so that the judge sees each."""
        assert self.beats is not None
        now = self._beat_time()
        self.beats.overslept(now - self._beat_due // MS, now)
        due = self.beats.tick(now, ELECTIONS_AT_ONCE)
        for group in due.elections:
            self._due(group, "election timeout", ElectionTimeout())
        for group in due.quorum_lost:
            self._due(group, "quorum lost", QuorumLost())
        for group, peer in due.full:
            self._due(group, f"beat to {peer} due", BeatDue(peer))
        for target, body in due.light.items():
            name = f"n{target} gets beat from n{self.id}"
            self.world.network.send(self.id, target, name, LightBeat(body))

    def _due(self, group: GroupId, name: str, event: Event) -> None:
        self.after(0, f"g{group} {name}", lambda: self.step(group, event))

    # --- Looking at it ----------------------------------------------------------------------------

    def _failure(self, when: str, error: Exception) -> Failure:
        where = "".join(traceback.format_exception(error)).rstrip()
        return Failure(f"n{self.id} raised {type(error).__name__} {when}: {error}\n{where}")

    def __str__(self) -> str:
        state = "paused" if self.paused else "up" if self.alive else "down"
        return f"{' '.join(self._names())} {state}"
