"""A thousand connections that write a little each, against ten that write a lot.

The requests are the same, one record of 100 B at acks=all, and so are their number a second and, at
full speed, the number under way: a thousand connections with one request each, ten with a hundred.
What differs is what a connection costs: memory, and a wake-up for every request.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvloop

from bench._clients import Load
from bench._clusters import Cluster
from bench._compare import MILLION, NO_COSTS, Row, Values, compare
from bench._flow import Sender, check_senders, leaders, open_all, quantile, settle
from bench._machine import Meter, resident_mib
from bench._patterns import PARTITIONS

NAME = "connections"
MANY, FEW = 1000, 10
SIZE = 100
RATE = 2000
WARM_S = 5.0
SECONDS = 20.0
QUICK_SECONDS = 6.0


@dataclass(frozen=True)
class Connections:
    """Requests over so many connections, at a fixed rate over all or as fast as answers come."""

    count: int
    full: bool

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        del load  # it has one connection a node
        topic = cluster.create_topic(PARTITIONS, {})
        try:
            seconds = QUICK_SECONDS if quick else SECONDS
            return uvloop.run(self._measure(cluster, topic, seconds))
        finally:
            cluster.delete_topic(topic)

    async def _measure(self, cluster: Cluster, topic: str, seconds: float) -> Values:
        before = resident_mib(cluster.pids)
        where = leaders(cluster, topic)
        await settle(topic, where)
        places = [number % PARTITIONS for number in range(self.count)]
        senders = [Sender(topic, place, 1, SIZE) for place in places]
        await open_all(senders, [where[place] for place in places])
        task = asyncio.create_task(self._write(senders))
        try:
            await asyncio.sleep(WARM_S)
            for sender in senders:
                sender.forget()
            began, own = time.monotonic(), time.process_time()
            meter = Meter(cluster.pids)
            await asyncio.sleep(seconds)
            cost = meter.read()
            elapsed, own = time.monotonic() - began, time.process_time() - own
            done = sum(sender.done for sender in senders)
            took = sorted(itertools.chain.from_iterable(sender.took for sender in senders))
            check_senders(senders)
        finally:
            task.cancel()
            for sender in senders:
                sender.close()
        return {
            "rate": done / elapsed,
            "p50": 1000 * quantile(took, 0.5),
            "p99": 1000 * quantile(took, 0.99),
            "cpu_us": MILLION * cost.cpu_s / max(1, done),
            "peak_mib": cost.peak_mib,
            "grew_mib": cost.peak_mib - before,
            "client_cores": own / elapsed,
        }

    async def _write(self, senders: Sequence[Sender]) -> None:
        if self.full:
            for sender in senders:
                sender.more = sender.send
                for _ in range(MANY // self.count):
                    sender.send()
            return
        due = time.monotonic()
        for sender in itertools.cycle(senders):
            sender.send()
            due += 1 / RATE
            if (ahead := due - time.monotonic()) > 0:
                await asyncio.sleep(ahead)


def rows() -> Iterator[Row]:
    for full, what in ((False, f"{RATE:,} msg/s"), (True, "full speed")):
        for count in (FEW, MANY):
            probe = Connections(count, full)
            label = f"{count:,} connections, {what}"
            yield Row(f"{label}, taken", "rate", "msg/s", probe, probe)
            for name in ("p50", "p99"):
                yield Row(f"{label}, {name}", name, "ms", probe, probe, digits=1, suffix=NO_COSTS)
            grew = f"{label}, memory above before"
            yield Row(grew, "grew_mib", "MiB", probe, probe, suffix=NO_COSTS)


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure on both sides."""
    yield from compare(list(rows()), quick=quick)
