"""Power cuts under load: what was acknowledged at quorum was synced, and so it is still there.

`tests.system.power` takes away what no sync made durable. The last tests show that it does: a disk
whose syncs lie loses acknowledged writes, and cached writes are lost as documented.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from tests import evidence
from tests.system.power import Power, PoweredCluster
from tests.system.system import PATIENCE, System, system, until
from tests.system.workload import EAGER, IN_FLIGHT, LOG, Workload

PARTITIONS = 3
SEED = 20261118
MINUTES = 3  # of the long test
LONGER_THAN_AN_ELECTION = 2.0
FLUSH_MS = 100  # flush.ms, by default
# By default nodes look every ten seconds whether a log is to be compacted, and compact it once a
# minute: no node lives as long as that here. Now they are at it all the time.
HOUSEKEEPING_S = 0.2
TIDY = f"housekeeping_s = {HOUSEKEEPING_S}\n"
COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": "16384",
    "max_compaction_lag_ms": "200",
}
KEYS = 50
COMPACTION_ROUNDS = 4
SURVIVING = [
    pytest.param(None, id="nothing-survives"),
    pytest.param(SEED, id="some-survives", marks=pytest.mark.slow),
]


@pytest.fixture(params=SURVIVING)
def power(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Power]:
    """Three nodes whose disks keep what was synced, and by chance some of what was not."""
    with _powered(tmp_path) as running:
        yield Power(running, _chance(request))


@pytest.fixture(params=SURVIVING)
def tidy_power(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Power]:
    """The same, and the nodes compact several times a second."""
    with _powered(tmp_path, TIDY) as running:
        yield Power(running, _chance(request))


def _chance(request: pytest.FixtureRequest) -> random.Random | None:
    return None if request.param is None else random.Random(request.param)


def _powered(data: Path, settings: str = "") -> Any:
    cluster = PoweredCluster(data)
    cluster.prepare(3, 0, settings=settings)
    return system(data, prepared=cluster)


def under_load(power: Power, work: Workload, hurt: Callable[[Workload], None]) -> None:
    try:
        with work.running():
            hurt(work)
            assert not work.history.failures()
    finally:  # a history with an anomaly counts as well
        evidence.note(
            "power cuts",
            cuts=power.cuts,
            bytes_lost=power.bytes_lost,
            acknowledged=work.history.acknowledged(),
        )


def test_all_nodes_lose_power_at_once(power: Power) -> None:
    cluster = power.system
    cluster.create("t", PARTITIONS)

    def hurt(work: Workload) -> None:
        for _ in range(3):
            power.cycle(*cluster.addresses)
            work.progress()

    under_load(power, Workload(cluster, "t", PARTITIONS), hurt)


def test_nodes_lose_power_one_after_the_other(power: Power) -> None:
    cluster = power.system
    cluster.create("t", PARTITIONS)

    def hurt(work: Workload) -> None:
        for number in (*cluster.addresses, *cluster.addresses):
            power.cycle(number)
            work.progress()

    under_load(power, Workload(cluster, "t", PARTITIONS), hurt)


def test_power_fails_while_leaders_are_elected(power: Power) -> None:
    """One node goes, and the other two while they vote: terms and votes must have been durable."""
    cluster = power.system
    cluster.create("t", PARTITIONS)

    def hurt(work: Workload) -> None:
        for turn in range(4):
            leader, _ = cluster.leader("t", turn % PARTITIONS)
            others = [number for number in cluster.addresses if number != leader]
            power.cut(leader)
            time.sleep(0.05 * turn)  # before, during and after the election
            power.cut(*others)
            cluster.start(*cluster.addresses)
            work.progress()

    under_load(power, Workload(cluster, "t", PARTITIONS), hurt)


def test_one_node_loses_power_while_the_others_are_paused(power: Power) -> None:
    """The node that comes back must not make a majority with what the paused ones promised."""
    cluster = power.system
    cluster.create("t", PARTITIONS)

    def hurt(work: Workload) -> None:
        for turn in range(PARTITIONS):
            leader, _ = cluster.leader("t", turn)
            others = [number for number in cluster.addresses if number != leader]
            for number in others:
                cluster.pause(number)
            power.cut(leader)
            cluster.cluster.start(leader)  # it finds no majority yet, and serves no clients
            time.sleep(LONGER_THAN_AN_ELECTION)
            for number in others:
                cluster.resume(number)
            cluster.cluster.wait([leader])
            work.progress()

    under_load(power, Workload(cluster, "t", PARTITIONS), hurt)


@pytest.mark.slow
def test_power_fails_again_and_again(power: Power) -> None:
    cluster = power.system
    cluster.create("t", PARTITIONS)
    chance = random.Random(SEED)
    began = time.monotonic()

    def hurt(work: Workload) -> None:
        while time.monotonic() - began < MINUTES * 60:
            several = chance.sample(list(cluster.addresses), chance.randint(1, 3))
            for number in several:
                power.cut(number)
                time.sleep(chance.choice((0, 0, 0.05, 0.5)))
            cluster.start(*several)
            work.progress(chance.choice((1, 100, 500)))

    under_load(power, Workload(cluster, "t", PARTITIONS), hurt)


def test_power_fails_while_logs_are_compacted(tidy_power: Power) -> None:
    """A compacted log has snapshots and merges as well; a last value per key must survive all.

    Records are written all the time, so that snapshots and compactions never end. Power is cut
    after each node that loses it has done both since it started, at any moment of the next two.
    """
    power = tidy_power
    cluster = power.system
    cluster.create("compacted", 1, **COMPACTED)
    cluster.create("t", PARTITIONS)
    told = _Values(cluster, "compacted")
    chance = random.Random(SEED)
    seen = [0, 0]

    def hurt(work: Workload) -> None:
        with told.writing():
            for turn in range(COMPACTION_ROUNDS):
                hit = [turn % 3 + 1] if turn % 2 else list(cluster.addresses)
                for number in hit:
                    snapshots, shrunk = _see_compaction(cluster, number, "compacted")
                    seen[0] += snapshots
                    seen[1] += shrunk
                time.sleep(chance.uniform(0, 2 * HOUSEKEEPING_S))
                power.cycle(*hit)
                work.progress()
                told.progress()
        told.check()

    under_load(power, Workload(cluster, "t", PARTITIONS), hurt)
    evidence.note("power cuts during compaction", snapshots=seen[0], compacted_segments=seen[1])


def _see_compaction(cluster: System, number: int, topic: str) -> tuple[int, int]:
    """Watch a node until it has taken a snapshot and compacted a segment; return how many of each.

    A closed segment never loses bytes but by compaction.
    """
    root = cluster.cluster.node(number).directory
    before = _files(root, topic, "snapshot").keys()
    sizes: dict[str, int] = {}
    snapshots: set[str] = set()
    shrunk: set[str] = set()

    def both() -> bool:
        now = _files(root, topic, "log")
        closed = sorted(now, key=lambda name: int(name.split("-")[0]))[:-1]
        shrunk.update(name for name in closed if now[name] < sizes.get(name, 0))
        sizes.update(now)
        snapshots.update(_files(root, topic, "snapshot").keys() - before)
        return bool(shrunk and snapshots)

    until(both, f"a snapshot and a compaction of {topic} on node {number}")
    return len(snapshots), len(shrunk)


def _files(root: Path, topic: str, kind: str) -> dict[str, int]:
    """Return name and size of the files of one kind of a topic of one partition."""
    found: dict[str, int] = {}
    for path in root.glob(f"topics/{topic}/*/*/*.{kind}"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_size
    return found


class _Values:
    """Writes values to a few keys, and knows which value of each was acknowledged last."""

    def __init__(self, system: System, topic: str) -> None:
        self._system = system
        self._topic = topic
        self._acknowledged: dict[bytes, int] = {}
        self._count = 0
        self._stop = threading.Event()
        self._failed: list[str] = []

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write while the block lasts; then all that was written is acknowledged."""
        thread = threading.Thread(target=self._write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(2 * PATIENCE)
        assert not thread.is_alive(), "the writer of values never ends"
        assert not self._failed, self._failed[:5]

    def _write(self) -> None:
        producer = _producer(self._system)
        for number in itertools.count(1):
            if self._stop.is_set():
                break
            key = b"key-%d" % (number % KEYS)
            value = b"%d %s" % (number, b"x" * 200)
            producer.produce(self._topic, value, key, on_delivery=self._told(key, number))
            producer.poll(0)
            while len(producer) > IN_FLIGHT and not self._stop.is_set():
                producer.poll(0.05)
            time.sleep(0.001)
        if producer.flush(PATIENCE):
            self._failed.append("values were never acknowledged")

    def _told(self, key: bytes, number: int) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failed.append(str(error))
                return
            self._acknowledged[key] = max(number, self._acknowledged.get(key, 0))
            self._count += 1

        return told

    def progress(self, writes: int = 100) -> None:
        goal = self._count + writes
        until(lambda: self._failed or self._count >= goal, f"{writes} more values")

    def check(self) -> None:
        """Read the topic: the newest value of each key is the newest that was acknowledged."""
        found: dict[bytes, int] = {}
        work = Workload(self._system, self._topic, 1)
        records = work.read_records(0)
        for key, value in records:
            found[key] = int(value.split()[0])
        assert found == self._acknowledged
        assert len(records) < self._count, "nothing was compacted"


def _producer(running: System, **settings: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": running.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "message.timeout.ms": 60_000,
            **EAGER,
            **settings,
        },
        logger=LOG,
    )


def _write_until_cut(power: Power, topic: str, cut: Callable[[], None]) -> dict[int, float]:
    """Write numbers to one partition until a cut of all nodes; return which were acknowledged when.

    What was under way at the cut is given up: it was not acknowledged.
    """
    acknowledged: dict[int, float] = {}
    producer = _producer(power.system, retries=0, **{"enable.idempotence": False, "acks": "all"})

    def told(number: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acknowledged[number] = time.monotonic()

        return note

    for number in range(2000):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=told(number))
        producer.poll(0)
        time.sleep(0.001)
    cut()
    producer.purge()
    producer.flush(5)
    return acknowledged


def _lost(power: Power, topic: str, acknowledged: dict[int, float]) -> list[int]:
    """Return the acknowledged numbers that are not in the log."""
    found = {int(value) for _, value in Workload(power.system, topic, 1).read_records(0)}
    return sorted(acknowledged.keys() - found)


def test_cached_writes_are_lost_from_the_end_alone(tmp_path: Path) -> None:
    """`write.caching` acknowledges from memory: a cut of all nodes takes the newest, and no others.

    How long before the cut the oldest lost write was acknowledged is noted beside the documented
    window, not judged: how long a flush takes depends on the machine.
    """
    with _powered(tmp_path) as running:
        power = Power(running, None)
        running.create("cached", 1, write_caching="true")
        when: list[float] = []

        def cut() -> None:
            when.append(time.monotonic())
            power.cut(*running.addresses)

        acknowledged = _write_until_cut(power, "cached", cut)
        running.start(*running.addresses)
        lost = _lost(power, "cached", acknowledged)
    kept = acknowledged.keys() - set(lost)
    assert kept, "flushes in the background should have saved most of them"
    assert not lost or min(lost) > max(kept)
    ages_ms = [1000 * (when[0] - acknowledged[number]) for number in lost]
    evidence.note(
        "power cut with write.caching",
        acknowledged=len(acknowledged),
        lost=len(lost),
        oldest_ms=round(max(ages_ms, default=0.0)),
        flush_ms=FLUSH_MS,
        older=sum(age_ms > FLUSH_MS for age_ms in ages_ms),
    )


def test_a_disk_that_lies_about_syncs_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """Without this the tests above could pass because nothing is ever taken away."""
    with _powered(tmp_path) as running:
        power = Power(running, None)
        running.create("t", 1)
        cluster = running.cluster
        assert isinstance(cluster, PoweredCluster)
        for number in running.addresses:
            cluster.lie(number)
        acknowledged = _write_until_cut(power, "t", lambda: power.cut(*running.addresses))
        assert len(acknowledged) > 1000
        running.start(*running.addresses)
        assert _lost(power, "t", acknowledged) == sorted(acknowledged)
