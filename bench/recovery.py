"""Catching up: a follower that is far behind, with lazy flush and with a flush of every chunk.

The lazy flush paper (seed 1) replaces a recovery in 32 KiB chunks, each flushed before the next is
sent, by one that flushes only at its tail. Both are run here on real files, leader and follower in
this process, with a flush thread each, as a node has. The old way is the same core with a window of
one chunk and the flush bit set on every request.
"""

import dataclasses
import queue
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from tidelog.cluster.host import Job, Outcome
from tidelog.cluster.replica import Replica
from tidelog.raft import events as ev
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.messages import AppendRequest, Message
from tidelog.raft.types import GroupId, Level, NodeId, Role, Vnode
from tidelog.records import Batch, Record, build_batch
from tidelog.storage import LogConfig, RealDisk

NAME = "recovery"
BEHIND = 1024**3
QUICK_BEHIND = 64 * 1024**2
BATCH = 16 * 1024
KIB = 1024

_Done = tuple[Callable[[OSError | None], None], OSError | None]


class Member:
    """A replica on real files, hosted by this thread and one that runs its jobs."""

    def __init__(
        self,
        number: int,
        directory: str,
        options: Options,
        wire: deque[Message],
        *,
        flush_all: bool,
    ) -> None:
        self.wire = wire
        self.flush_all = flush_all
        self.finished: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[tuple[Job, Callable[[OSError | None], None]] | None] = (
            queue.SimpleQueue()
        )
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()
        members = tuple(Vnode(NodeId(node), 0) for node in (1, 2))
        self.replica = Replica.open(
            self,
            RealDisk(directory),
            f"node-{number}",
            group=GroupId(1),
            vnode=members[number - 1],
            initial=Configuration(members[:1]),
            options=options,
            log_config=LogConfig(),
            machines=lambda: (),
            cache=None,
            clock=lambda: int(time.time() * 1000),
        )
        self.replica.start()

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, done = work
            error: OSError | None = None
            rest: Callable[[], None] | None = None
            try:
                rest = job()
            except OSError as caught:
                error = caught
            self.finished.put((done, error))
            if rest is not None:
                rest()

    def close(self) -> None:
        self._jobs.put(None)
        self._worker.join()
        self.replica.close()

    def turn(self) -> bool:
        """Take what jobs ended; say whether any did."""
        busy = False
        while not self.finished.empty():
            done, error = self.finished.get()
            done(error)
            busy = True
        return busy

    def send(self, message: Message) -> None:
        if self.flush_all and isinstance(message, AppendRequest) and message.batches:
            message = dataclasses.replace(message, flush=True)
        self.wire.append(message)

    def submit(self, lane: str, job: Job, done: Callable[[OSError | None], None]) -> None:
        del lane  # one worker keeps all of them in order
        self._jobs.put((job, done))

    def resolved(self, outcome: Outcome) -> None:
        """Nobody waits."""

    def role_changed(self, change: ev.RoleChanged) -> None:
        """Nobody watches."""

    def heard_leader(self) -> None:
        """No election timer."""

    def leader_alive(self) -> bool:
        return True

    def arm_flush(self) -> None:
        """The byte threshold and the tail do it here."""

    def now(self) -> int:
        return time.monotonic_ns() // 1_000_000


def _recover(options: Options, amount: int, *, flush_all: bool) -> float:
    """Seconds until a learner that lacks `amount` bytes has all of it on disk and committed."""
    directory = tempfile.mkdtemp(prefix="tidelog-bench-")
    wire: deque[Message] = deque()
    try:
        leader = Member(1, directory, options, wire, flush_all=flush_all)
        leader.replica.step(ev.ElectionTimeout())
        _until(lambda: leader.replica.core.confirmed, [leader], wire)
        template = bytes(build_batch([Record(0, 0, None, bytes(BATCH), ())]).data)
        for token in range(amount // len(template)):
            batch = Batch.parse(bytearray(template))
            leader.replica.step(ev.Propose(token, (batch,), Level.LEADER))
            leader.turn()
        leader.replica.step(ev.FlushDue())
        core = leader.replica.core
        _until(lambda: core.committed == core.dirty, [leader], wire)

        follower = Member(2, directory, options, wire, flush_all=False)
        began = time.perf_counter()
        leader.replica.step(ev.ChangeConfiguration(-2, (core.vnode, follower.replica.core.vnode)))
        _until(
            lambda: (
                core.configuration.is_voter(follower.replica.core.vnode)
                and not core.configuration.is_joint
                and core.committed == core.dirty
            ),
            [leader, follower],
            wire,
        )
        elapsed = time.perf_counter() - began
        assert follower.replica.log.flushed >= core.committed - 1
        assert core.role is Role.LEADER
        follower.close()
        leader.close()
        return elapsed
    finally:
        shutil.rmtree(directory)


def _until(condition: Callable[[], bool], members: list[Member], wire: deque[Message]) -> None:
    idle = time.perf_counter()
    while not condition():
        busy = [member.turn() for member in members]
        while wire:
            message = wire.popleft()
            if message.target.id <= len(members):
                members[message.target.id - 1].replica.step(message)
            busy.append(True)
        if any(busy):
            idle = time.perf_counter()
        elif time.perf_counter() - idle > 0.15:
            # A heartbeat interval in which nothing moved: the leader asks.
            idle = time.perf_counter()
            for peer in members[0].replica.core.progress:
                members[0].replica.step(ev.BeatDue(peer))
        else:
            time.sleep(0.00005)


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure the new way and the old on the same amount of data."""
    amount = QUICK_BEHIND if quick else BEHIND
    # The old way on a quarter of the data, scaled: it is that much slower.
    old_amount = amount // 4
    lazy = _recover(Options(), amount, flush_all=False) / amount
    eager_options = Options(recovery_chunk=32 * KIB, max_inflight_bytes=1)
    eager = _recover(eager_options, old_amount, flush_all=True) / old_amount
    mib = 1024**2
    yield f"a follower {amount // mib} MiB behind, until all of it is committed on both"
    chunk = Options().recovery_chunk // KIB
    yield f"lazy flush, {chunk} KiB chunks: {lazy * amount:6.2f} s, {1 / lazy / mib:6.0f} MiB/s"
    yield (
        f"a flush every 32 KiB chunk: {eager * amount:6.2f} s, {1 / eager / mib:6.0f} MiB/s"
        f" (measured on {old_amount // mib} MiB)"
    )
    yield f"ratio {eager / lazy:.1f} (goal: at least 3)"
