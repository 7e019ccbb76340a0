"""Blocking work of all replicas of a node, off the event loop, in a few threads.

A lane is a queue and a thread that takes what is queued as one round and reports the whole round to
the loop at once, so that a busy disk costs the loop one wake-up a round and not one a partition.
Flushes have a lane of their own: nothing that takes long may stand before an acknowledgement.

Votes have several threads, because file systems join syncs that wait side by side. Flushes do not:
what was appended while one round ran is joined by the next, and more threads cost more processor.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

Job = Callable[[], None]
Done = Callable[[OSError | None], None]

# Threads of each lane. Votes are rare and must not wait behind a compaction; neither may a snapshot
# chunk, and compaction may take as long as it likes. Replicas are opened and removed beside all
# that, because a topic of a thousand partitions must not stop those that are there.
THREADS: Final = {"flush": 1, "vote": 4, "snapshot": 1, "compact": 1, "open": 1}
# Most jobs of one round, where a round is not one flush. Of a thousand votes the first may be sent
# before the last is on disk: an election that waits for all of them is over before it is counted.
ROUNDS: Final = {"vote": 4}
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
        self._queue: deque[tuple[Job, Done]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tidelog-{name}", daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, job: Job, done: Done) -> None:
        with self._wake:
            self._queue.append((job, done))
            self._wake.notify()

    def close(self) -> None:
        """Finish what is queued and end the threads; completions that come now are dropped."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closed:
                    self._wake.wait()
                if not self._queue:
                    return
                taken = len(self._queue) if self._most is None else self._most
                jobs = [self._queue.popleft() for _ in range(min(taken, len(self._queue)))]
            finished = [(done, _run(job)) for job, done in jobs]
            try:
                self._loop.call_soon_threadsafe(_report, finished)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more


def _run(job: Job) -> OSError | None:
    try:
        job()
    except OSError as error:
        return error
    except Exception as error:
        # A mistake of ours must not end the thread that everybody's flushes go through. Whoever
        # submitted the job is told that it failed, and acknowledges nothing.
        log.exception("a job failed in a way that it should not")
        return OSError(f"{type(error).__name__}: {error}")
    return None


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
        self.lanes = {
            name: Lane(name, loop, threads, ROUNDS.get(name)) for name, threads in THREADS.items()
        }

    def submit(self, lane: str, job: Job, done: Done) -> None:
        if lane == YIELD:
            self._loop.call_soon(_report, [(done, _run(job))])
        else:
            self.lanes[lane].submit(job, done)

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
