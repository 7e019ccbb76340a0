"""Tail reading: 100 consumers that follow one topic of 12 partitions while it is written.

Every consumer reads everything, so a record is delivered a hundred times. Once at a rate that both
clusters hold (2,000 records of 1 KiB a second), where the cost of a delivery and the delay from the
write to its arrival matter, and once as fast as it goes, where the client on the same cores has its
share in what is reached. Consumers are raw fetch sessions with a long poll (`_flow.py`).
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
from bench._flow import Sender, Tail, check_senders, leaders, open_all, quantile, settle
from bench._machine import BenchFailed, Meter
from bench._patterns import PARTITIONS

NAME = "tail"
CONSUMERS = 100
SIZE = 1024
RATE = 2000
BATCH = 10  # records a request at the fixed rate
FULL_BATCH = 64
FULL_IN_FLIGHT = 2  # requests a partition, as fast as they are answered
WARM_S = 5.0
SECONDS = 20.0
QUICK_SECONDS = 6.0


@dataclass(frozen=True)
class TailRead:
    """Consumers first, then the load; what comes in the first seconds is left out."""

    full: bool
    consumers: int = CONSUMERS

    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        del load  # it would be the bottleneck
        topic = cluster.create_topic(PARTITIONS, {})
        try:
            seconds = QUICK_SECONDS if quick else SECONDS
            return uvloop.run(self._measure(cluster, topic, seconds))
        finally:
            cluster.delete_topic(topic)

    async def _measure(self, cluster: Cluster, topic: str, seconds: float) -> Values:
        where = leaders(cluster, topic)
        await settle(topic, where)
        tails = await self._follow(topic, where)
        batch = FULL_BATCH if self.full else BATCH
        senders = [Sender(topic, index, batch, SIZE) for index in where]
        await open_all(senders, list(where.values()))
        clients: list[Tail | Sender] = [*tails, *senders]
        task = asyncio.create_task(self._write(senders))
        try:
            await asyncio.sleep(WARM_S)
            for each in clients:
                each.forget()
            began, own = time.monotonic(), time.process_time()
            meter = Meter(cluster.pids)
            await asyncio.sleep(seconds)
            cost = meter.read()
            elapsed, own = time.monotonic() - began, time.process_time() - own
            delivered = sum(tail.records for tail in tails)
            delays = sorted(itertools.chain.from_iterable(tail.delays for tail in tails))
            written = sum(sender.done for sender in senders)
            check_senders(senders)
        finally:
            task.cancel()
            for each in clients:
                each.close()
        refused = {tail.failure for tail in tails if tail.failure}
        if refused or not delivered:
            raise BenchFailed(f"consumers got nothing, or error codes: {sorted(refused)}")
        return {
            "delivered_k": delivered / elapsed / 1000,
            "written": written / elapsed,
            "p50": 1000 * quantile(delays, 0.5),
            "p99": 1000 * quantile(delays, 0.99),
            "cpu_us": MILLION * cost.cpu_s / delivered,
            "peak_mib": cost.peak_mib,
            "client_cores": own / elapsed,
        }

    async def _follow(self, topic: str, where: dict[int, str]) -> list[Tail]:
        """The topic is all but new, so everybody begins at its beginning."""
        tails = []
        for _ in range(self.consumers):
            for address in sorted(set(where.values())):
                led = {index: 0 for index, leader in where.items() if leader == address}
                tail = Tail(topic, led)
                await tail.open(address)
                tails.append(tail)
        return tails

    async def _write(self, senders: Sequence[Sender]) -> None:
        if self.full:
            for sender in senders:
                sender.more = sender.send
                for _ in range(FULL_IN_FLIGHT):
                    sender.send()
            return
        due = time.monotonic()
        for sender in itertools.cycle(senders):
            sender.send()
            due += BATCH / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def rows() -> Iterator[Row]:
    steady, full = TailRead(full=False), TailRead(full=True)
    what = f"{CONSUMERS} consumers, {RATE:,} msg/s of 1 KiB"
    yield Row(f"{what}, delivered", "delivered_k", "k msg/s", steady, steady)
    for name in ("p50", "p99"):
        label = f"{what}, write to arrival, {name}"
        yield Row(label, name, "ms", steady, steady, digits=1, suffix=NO_COSTS)
    yield _client(what, steady)
    what = f"{CONSUMERS} consumers, full speed"
    yield Row(f"{what}, delivered", "delivered_k", "k msg/s", full, full)
    yield Row(f"{what}, written", "written", "msg/s", full, full, suffix=NO_COSTS)
    yield _client(what, full)


def _client(what: str, probe: TailRead) -> Row:
    """How busy the client was: near 1 it would have been the bottleneck."""
    label = f"{what}, client"
    return Row(label, "client_cores", "cores", probe, probe, digits=2, suffix=NO_COSTS)


def run(*, quick: bool = False) -> Iterator[str]:
    """Measure on both sides."""
    yield from compare(list(rows()), quick=quick)
