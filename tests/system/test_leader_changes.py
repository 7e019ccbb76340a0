"""Idempotent producers with five batches under way, while leaders change all the time.

Each partition must hold its records once and in the order in which they were produced. The changes
are hand-overs, many a second, because they are what refuses one request of a connection and takes
the next: the moment in which a retry may overtake, or be taken for another record.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from tests import evidence
from tests.system.system import System
from tests.system.wire import Closed
from tests.system.workload import EAGER, Workload

PARTITIONS = 3
RECORDS = 3000
QUICK, MANY = 4, 60
REASSIGN, ELECT_LEADERS, PREFERRED = 45, 43, 0
PEER = os.environ.get("TIDELOG_KAFKA_PEER")
LOG = logging.getLogger("librdkafka")


class Changes:
    """Hands leadership of random partitions to random nodes until told to stop."""

    def __init__(self, cluster: System, topic: str, seed: int) -> None:
        self.done = 0
        self._cluster = cluster
        self._topic = topic
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._chance.choice((0.0, 0.02, 0.1))):
            nodes = list(self._cluster.addresses)
            self._chance.shuffle(nodes)
            partition = self._chance.randrange(PARTITIONS)
            try:
                self._hand_over(partition, nodes)
            except (Closed, OSError):
                continue  # the next one goes to another node

    def _hand_over(self, partition: int, nodes: list[int]) -> None:
        """Make the first of the nodes the preferred leader, and let it lead."""
        with self._cluster.wire(self._chance.choice(nodes)) as wire:
            wire.ask(
                REASSIGN,
                0,
                timeout=timedelta(seconds=5),
                topics=[
                    {
                        "name": self._topic,
                        "partitions": [{"partition_index": partition, "replicas": tuple(nodes)}],
                    }
                ],
            )
            answer = wire.ask(
                ELECT_LEADERS,
                2,
                election_type=PREFERRED,
                topic_partitions=[{"topic": self._topic, "partitions": (partition,)}],
                timeout=timedelta(seconds=5),
            )
        results = answer.replica_election_results[0].partition_result
        self.done += results[0].error_code.value == 0


def in_order(cluster: System, topic: str) -> dict[int, list[int]]:
    """Return the numbers in each partition, in the order of the log."""
    work = Workload(cluster, topic, PARTITIONS)
    return {
        partition: [int(value) for _, value in work.read_records(partition)]
        for partition in range(PARTITIONS)
    }


def produce_all(cluster: System, topic: str) -> list[str]:
    """Produce the numbers from 0 on to all partitions in turn; return what went wrong."""
    failures: list[str] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "max.in.flight": 5,
            "batch.num.messages": 3,
            "linger.ms": 0,
            "message.timeout.ms": 60_000,
            **EAGER,
        },
        logger=LOG,
    )
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=told)
        producer.poll(0)
        if number % 30 == 29:
            time.sleep(0.01)  # a second in all, for some dozens of changes
    assert producer.flush(90) == 0, "some records were never answered"
    return failures


def hold_to_order(cluster: System, seed: int) -> None:
    topic = f"idempotent-{seed}"
    cluster.create(topic, PARTITIONS)
    changes = Changes(cluster, topic, seed)
    began = time.monotonic()
    with changes.going_on():
        failures = produce_all(cluster, topic)
    assert not failures, f"seed {seed}: {failures[:3]}"
    assert changes.done > 0, f"seed {seed}: no leader changed"
    for partition, found in in_order(cluster, topic).items():
        wanted = list(range(partition, RECORDS, PARTITIONS))
        assert found == wanted, f"seed {seed}: {first_difference(found, wanted)}"
    evidence.note(
        "leader changes",
        client="librdkafka",
        changes=changes.done,
        records=RECORDS,
        seconds=round(time.monotonic() - began),
    )


def first_difference(found: list[int], wanted: list[int]) -> str:
    at = next(
        (index for index, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
        min(len(found), len(wanted)),
    )
    return f"{len(found)} records instead of {len(wanted)}; at {at}: {found[at : at + 8]}"


@pytest.mark.parametrize("seed", range(QUICK))
def test_an_idempotent_producer_keeps_order_through_not_leader(calm: System, seed: int) -> None:
    hold_to_order(calm, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_idempotent_producer_keeps_order_with_many_seeds(calm: System) -> None:
    for seed in range(1000, 1000 + MANY):
        hold_to_order(calm, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    PEER is None, reason="set TIDELOG_KAFKA_PEER to a script that runs Kafka's tools"
)
def test_the_java_producer_keeps_order_with_many_seeds(calm: System, tmp_path: Path) -> None:
    for seed in range(2000, 2000 + MANY // 4):
        topic = f"java-{seed}"
        calm.create(topic, PARTITIONS)
        changes = Changes(calm, topic, seed)
        began = time.monotonic()
        with changes.going_on():
            acknowledged = produce_with_java(calm, topic, tmp_path)
        assert changes.done > 0, f"seed {seed}: no leader changed"
        logs = in_order(calm, topic)
        for found in logs.values():
            assert found == sorted(set(found)), f"seed {seed}: doubled or reordered"
        assert sorted(number for found in logs.values() for number in found) == acknowledged
        assert acknowledged == list(range(RECORDS))
        evidence.note(
            "leader changes",
            client="Java",
            changes=changes.done,
            records=len(acknowledged),
            seconds=round(time.monotonic() - began),
        )


def produce_with_java(cluster: System, topic: str, scratch: Path) -> list[int]:
    """Let Kafka's verifiable producer send numbers; return those acknowledged, in their order."""
    assert PEER is not None
    settings = scratch / "producer.properties"
    settings.write_text(
        "enable.idempotence=true\nmax.in.flight.requests.per.connection=5\n"
        "batch.size=64\nlinger.ms=0\nretries=2147483647\n"
    )
    ended = subprocess.run(
        [
            *(PEER, "run", "org.apache.kafka.tools.VerifiableProducer"),
            *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--acks", "-1"),
            *("--max-messages", str(RECORDS), "--throughput", "2000"),
            *("--producer.config", str(settings)),
        ],
        text=True,
        capture_output=True,
        timeout=180,
        check=False,
    )
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    failed = [each for each in said if each["name"] == "producer_send_error"]
    assert ended.returncode == 0, ended.stderr
    assert not failed, failed[:3]
    return sorted(int(each["value"]) for each in said if each["name"] == "producer_send_success")
