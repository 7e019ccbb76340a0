"""The clients that put load on a cluster: Kafka's own, or librdkafka where there is no Java.

`ProducerPerformance` and `ConsumerPerformance` come with Kafka and are what its users measure with.
They run in a process of their own and report what they saw. librdkafka does the sending in C, but
each message passes through Python, which is slower than the nodes: with it, throughput says more
about the client than about the cluster, and only the nodes' processor time means something.
"""

import re
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench._clusters import call_peer, peer_script
from bench._machine import MIB, BenchFailed

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
UNLIMITED = -1
QUANTILES = (0.5, 0.95, 0.99, 0.999)
SUMMARY = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec .*?"
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th",
    re.MULTILINE,
)
CONSUME_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Produced:
    rate: float  # messages a second
    quantiles_ms: tuple[float, ...]  # of the time from send to acknowledgement, as `QUANTILES`


class Load(ABC):
    """One kind of client."""

    name: str
    is_bottleneck: bool

    @abstractmethod
    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: int,
        size: int,
        settings: Mapping[str, str],
        throughput: int = UNLIMITED,
    ) -> Produced:
        """Send so many records, as fast as they are taken or at a fixed rate a second."""

    @abstractmethod
    def consume(self, bootstrap: str, topic: str, records: int, consumers: int) -> float:
        """Let each of the consumers read all records at once; returns MiB a second over all."""


class JavaLoad(Load):
    name = "ProducerPerformance and ConsumerPerformance"
    is_bottleneck = False

    def __init__(self, script: Path) -> None:
        self._script = script

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: int,
        size: int,
        settings: Mapping[str, str],
        throughput: int = UNLIMITED,
    ) -> Produced:
        properties = {"bootstrap.servers": bootstrap, **settings}
        printed = call_peer(
            self._script,
            (
                *("run", PRODUCER, "--topic", topic, "--num-records", str(records)),
                *("--record-size", str(size), "--throughput", str(throughput)),
                *("--producer-props", *(f"{name}={value}" for name, value in properties.items())),
            ),
        )
        found = SUMMARY.findall(printed)
        if not found or int(found[-1][0]) != records:
            tail = " / ".join(printed.strip().splitlines()[-3:])
            raise BenchFailed(f"not all of {records} records were taken; the client said: {tail}")
        _, rate, *quantiles = found[-1]
        return Produced(float(rate), tuple(float(each) for each in quantiles))

    def consume(self, bootstrap: str, topic: str, records: int, consumers: int) -> float:
        arguments = (
            *("run", CONSUMER, "--bootstrap-server", bootstrap, "--topic", topic),
            *("--messages", str(records), "--timeout", str(1000 * CONSUME_PATIENCE_S)),
            "--hide-header",
        )
        # A new group each time: one that read before would go on where it stopped.
        groups = [f"bench-{uuid.uuid4().hex}" for _ in range(consumers)]
        with ThreadPoolExecutor(consumers) as pool:
            runs = [
                pool.submit(call_peer, self._script, (*arguments, "--group", group))
                for group in groups
            ]
            rows = [_consumed(run.result(), records) for run in runs]
        began, ended = min(row[0] for row in rows), max(row[1] for row in rows)
        return sum(row[2] for row in rows) / (ended - began)


def _consumed(printed: str, records: int) -> tuple[float, float, float]:
    """When a consumer had its partitions, when it was done, and the MiB that it read."""
    rows = [line.split(", ") for line in printed.splitlines() if line.count(", ") == 9]
    if not rows or int(rows[-1][4]) < records:
        tail = " / ".join(printed.strip().splitlines()[-3:])
        raise BenchFailed(f"not all of {records} records were read; the client said: {tail}")
    began, ended = (
        datetime.strptime(text, "%Y-%m-%d %H:%M:%S:%f").replace(tzinfo=UTC).timestamp()
        for text in rows[-1][:2]
    )
    return began + int(rows[-1][6]) / 1000, ended, float(rows[-1][2])


class LibrdkafkaLoad(Load):
    name = "librdkafka through Python (no Java here): the client is the bottleneck"
    is_bottleneck = True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: int,
        size: int,
        settings: Mapping[str, str],
        throughput: int = UNLIMITED,
    ) -> Produced:
        known = {name: value for name, value in settings.items() if name != "buffer.memory"}
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **known})
        payload = b"x" * size
        latencies: list[float] = []

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                raise BenchFailed(f"a record was refused: {error}")
            latencies.append(message.latency() or 0.0)

        began = time.monotonic()
        for number in range(records):
            if throughput != UNLIMITED:
                ahead = began + number / throughput - time.monotonic()
                if ahead > 0:
                    producer.poll(ahead)
            while True:
                try:
                    producer.produce(topic, payload, on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.01)
            if not number % 100:
                producer.poll(0)
        left = producer.flush(CONSUME_PATIENCE_S)
        elapsed = time.monotonic() - began
        if left or len(latencies) != records:
            raise BenchFailed(f"{records - len(latencies)} of {records} records were not taken")
        latencies.sort()
        return Produced(
            records / elapsed,
            tuple(1000 * latencies[int(share * (records - 1))] for share in QUANTILES),
        )

    def consume(self, bootstrap: str, topic: str, records: int, consumers: int) -> float:
        command = [sys.executable, "-m", "bench._clients", bootstrap, topic, str(records)]
        runs = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(consumers)
        ]
        rows = []
        for run in runs:
            printed, _ = run.communicate()
            if run.returncode:
                raise BenchFailed(f"a consumer did not get all of {records} records")
            rows.append([float(each) for each in printed.split()])
        return sum(row[2] for row in rows) / (
            max(row[1] for row in rows) - min(row[0] for row in rows)
        )


def read_all(bootstrap: str, topic: str, records: int) -> None:
    """Read a topic from its start; prints when that began and ended, and the MiB read."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
    began = last = time.time()
    seen = amount = 0
    while seen < records:
        batch = consumer.consume(10_000, 0.5)
        for message in batch:
            if message.error() is None:
                seen += 1
                amount += len(message.value() or b"")
        if batch:
            last = time.time()
        elif time.time() - last > CONSUME_PATIENCE_S:
            sys.exit(1)
    print(began, time.time(), amount / MIB)
    consumer.close()


def default_load() -> Load:
    script = peer_script()
    return LibrdkafkaLoad() if script is None else JavaLoad(script)


def main(arguments: Sequence[str]) -> None:
    read_all(arguments[0], arguments[1], int(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
