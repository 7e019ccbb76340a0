"""Blocking work of all replicas of a node, off the event loop, in a few threads.

A lane is a queue and a thread that takes what is queued as one round and reports the whole round to
the loop at once, so that a busy disk costs the loop one wake-up a round and not one a partition.
Flushes have a lane of their own: nothing that takes long may stand before an acknowledgement. They
are handed over once an iteration of the loop, when it is about to wait: the thread is woken once
for all of them, and finds the interpreter free. What of a job nobody waits for, it returns, and
that is done when the round was reported.

Votes have several threads, because file systems join syncs that wait side by side. Flushes do not:
what was appended while one round ran is joined by the next, and more threads cost more processor.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from tidelog.cluster.host import Job

log = logging.getLogger(__name__)

Done = Callable[[OSError | None], None]

FLUSH: Final = "flush"
VOTE: Final = "vote"
# Threads of each lane. Votes are rare and must not wait behind a compaction; neither may a snapshot
# chunk, and compaction may take as long as it likes. Replicas are opened and removed beside all
# that, because a topic of a thousand partitions must not stop those that are there.
THREADS: Final = {
    FLUSH: 1,
    VOTE: 4,
    "snapshot": 1,
    "compact": 1,
    "open": 1,
    "verify": 1,
    "room": 1,
}
# Most jobs of one round, where a round is not one flush. Of a thousand votes the first may be sent
# before the last is on disk: an election that waits for all of them is over before it is counted.
ROUNDS: Final = {VOTE: 4}
YIELD: Final = "apply"  # a lane without work: give the loop a turn


class Lane:
    """Threads that run jobs: one of them in order, several as it comes."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        threads: int = 1,
        most: int | None = None,
    ) -> None:
        """`most` is how many jobs a round may have; None: all that wait."""
        self._loop = loop
        self._most = most
        # None ends the thread that takes it.
        self._queue: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"tidelog-{name}", daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return self._queue.qsize()

    def submit(self, job: Job, done: Done) -> None:
        self._queue.put((job, done))

    def close(self) -> None:
        """Finish what is queued and end the threads; completions that come now are dropped."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            jobs, ends = self._round(first)
            results = [(done, *_run(job)) for job, done in jobs]
            finished = [(done, error) for done, error, _ in results]
            try:
                self._loop.call_soon_threadsafe(_report, finished)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            for _, _, rest in results:
                if rest is not None:
                    _run(rest)
            if ends:
                return

    def _round(self, first: tuple[Job, Done]) -> tuple[list[tuple[Job, Done]], bool]:
        """Take what waits behind the first job; say whether it is the last round."""
        jobs = [first]
        while self._most is None or len(jobs) < self._most:
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
            if following is None:
                return jobs, True
            jobs.append(following)
        return jobs, False


def _run(job: Job) -> tuple[OSError | None, Callable[[], None] | None]:
    """Return what went wrong, and what is left to do."""
    try:
        return None, job()
    except OSError as error:
        return error, None
    except Exception as error:
        # A mistake of ours must not end the thread that everybody's flushes go through. Whoever
        # submitted the job is told that it failed, and acknowledges nothing.
        log.exception("unexpected error in a background job")
        return OSError(f"{type(error).__name__}: {error}"), None


def _report(finished: list[tuple[Done, OSError | None]]) -> None:
    for done, error in finished:
        try:
            done(error)
        except Exception:  # one partition's mistake must not cost another its acknowledgements
            log.exception("the end of a job could not be handled")


class Executor:
    """The lanes of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flushes: list[tuple[Job, Done]] = []  # of this iteration
        self.lanes = {
            name: Lane(name, loop, threads, ROUNDS.get(name)) for name, threads in THREADS.items()
        }

    def submit(self, lane: str, job: Job, done: Done) -> None:
        if lane == YIELD:
            self._loop.call_soon(_report, [(done, _run(job)[0])])
        elif lane == FLUSH:
            self._flushes.append((job, done))
            if len(self._flushes) == 1:
                self._loop.call_soon(self._hand_over)
        else:
            self.lanes[lane].submit(job, done)

    async def run(self, lane: str, job: Job) -> None:
        """Run a job and return when it has ended; raises the `OSError` that it ends with."""
        ended: asyncio.Future[OSError | None] = self._loop.create_future()

        def done(error: OSError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        self.submit(lane, job, done)
        error = await ended
        if error is not None:
            raise error

    def _hand_over(self) -> None:
        flushes, self._flushes = self._flushes, []
        for job, done in flushes:
            self.lanes[FLUSH].submit(job, done)

    def close(self) -> None:
        self._hand_over()
        for lane in self.lanes.values():
            lane.close()
