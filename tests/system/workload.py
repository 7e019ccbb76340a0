"""Writers and readers with a client that people use, noting all they do in a history.

Writers are idempotent producers unless told otherwise; each spreads its records over all
partitions and keeps a bounded number of them in flight. Readers begin at the first offset of every
partition and follow. One thread asks for the ends all the time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from tests import evidence
from tests.system.history import History, Logs, complain, count_kinds, find_faults
from tests.system.system import PATIENCE, System, until

LOG = logging.getLogger("librdkafka")
# Records that a writer has not heard of; it waits beyond.
IN_FLIGHT = 200
# Seconds between two records of a writer: some hundred a second leave the nodes time for faults.
PAUSE = 0.004
# What makes these clients come back sooner than after their usual second or more.
EAGER = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 300,
    "socket.timeout.ms": 6_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
    # Nodes that are gone are what these tests are about, so nobody need complain of them.
    "log_level": 2,
}


class Workload:
    """What goes on while a test hurts the cluster."""

    client = "librdkafka"

    def __init__(
        self,
        system: System,
        topic: str,
        partitions: int,
        *,
        writers: int = 2,
        readers: int = 2,
        leaders_die: bool = False,
        **producer: Any,
    ) -> None:
        self.system = system
        self.topic = topic
        self.partitions = partitions
        names = [f"r{each}" for each in range(readers)]
        self.history = History(str(producer.get("acks")) == "1", leaders_die, names)
        self._producer = {
            "bootstrap.servers": system.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": 60_000,
            "request.timeout.ms": 5_000,
            **EAGER,
            **{name.replace("_", "."): value for name, value in producer.items()},
        }
        self._stop_writing = threading.Event()
        self._stop_reading = threading.Event()
        self._errors: list[BaseException] = []
        self._writers = [
            threading.Thread(target=self._run, args=(self._write, f"w{each}"), daemon=True)
            for each in range(writers)
        ]
        self._readers = [
            threading.Thread(target=self._run, args=(self._read, name), daemon=True)
            for name in names
        ]
        self._asker = threading.Thread(target=self._run, args=(self._ask, "asker"), daemon=True)

    def _run(self, work: Any, name: str) -> None:
        try:
            work(name)
        except BaseException as error:  # noqa: BLE001  # raised again on the test's thread
            self._errors.append(error)

    # --- Its life -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[Workload]:
        """Write and read while the block lasts, then check everything."""
        began = time.monotonic()
        for thread in (*self._writers, *self._readers, self._asker):
            thread.start()
        try:
            self.progress()
            yield self
            self.progress()
            self._stop_writing.set()
            self._join(self._writers)
            logs = self.read_all()
            self._catch_up({partition: len(log) for partition, log in logs.items()})
        finally:
            self._stop_reading.set()
            self._stop_writing.set()
        self._join([*self._readers, self._asker])
        self._judge(logs, time.monotonic() - began)

    def _judge(self, logs: Logs, seconds: float) -> None:
        """Note what this history was and what is wrong with it, then raise if anything is."""
        history = self.history
        faults = list(find_faults(history, logs))
        evidence.note(
            "history",
            client=f"{self.client}, acks={self._producer['acks']}",
            seconds=round(seconds),
            acknowledged=history.acknowledged(),
            failed=len(history.failures()),
            read=sum(map(len, history.reads.values())),
            ends=sum(map(len, history.ends.values())),
            anomalies=count_kinds(faults),
        )
        complain(faults)

    def progress(self, writes: int = 100) -> None:
        """Wait until this many more writes are acknowledged."""
        goal = self.history.acknowledged() + writes
        try:
            until(
                lambda: self._errors or self.history.acknowledged() >= goal, f"{writes} more writes"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._stuck()}") from None
        self._raise()

    def _stuck(self) -> str:
        """Say where writes wait, and whom the nodes believe to lead there."""
        waiting = Counter(
            (write.writer, write.partition)
            for write in tuple(self.history.writes.values())
            if write.offset is None and write.failure is None
        )
        beliefs = {
            number: [
                self.system.belief(number, self.topic, index) for index in range(self.partitions)
            ]
            for number in self.system.running()
        }
        return f"waiting, by writer and partition: {dict(waiting)}; leaders, by node: {beliefs}"

    def _raise(self) -> None:
        if self._errors:
            raise self._errors[0]

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(4 * PATIENCE)
            assert not thread.is_alive(), f"{thread.name} never ends"
        self._raise()

    def _catch_up(self, ends: dict[int, int]) -> None:
        """Give the readers time to read to the end; what they have not seen then is a fault."""

        def done() -> bool:
            return bool(self._errors) or all(
                len(self.history.reads[name, partition]) >= end
                for name in self.history.readers
                for partition, end in ends.items()
            )

        deadline = time.monotonic() + PATIENCE
        while not done() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._raise()

    # --- Writing --------------------------------------------------------------------------------

    def _write(self, name: str) -> None:
        producer = Producer(self._producer, logger=LOG)
        flying = threading.Semaphore(IN_FLIGHT)

        def told(error: KafkaError | None, message: Message) -> None:
            flying.release()
            value = message.value()
            assert isinstance(value, bytes)
            if error is not None:
                self.history.fail(value, str(error))
                return
            offset = message.offset()
            assert offset is not None
            if offset >= 0:  # none is told with acks=0
                self.history.acknowledge(value, offset)

        for number in itertools.count():
            if self._stop_writing.is_set():
                break
            while not flying.acquire(blocking=False) and not self._stop_reading.is_set():
                producer.poll(0.05)
            value = f"{name}-{number}".encode()
            partition = number % self.partitions
            self.history.begin(name, partition, value)
            producer.produce(
                self.topic,
                value,
                key=str(number % 7).encode(),
                partition=partition,
                on_delivery=told,
            )
            producer.poll(0)
            time.sleep(PAUSE)
        if self._stop_reading.is_set():  # the test has failed already
            producer.purge()
            return
        left = producer.flush(2 * PATIENCE)
        assert left == 0, f"{name} never heard of {left} writes"

    # --- Reading --------------------------------------------------------------------------------

    def _consumer(self, **config: Any) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.system.bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                # An offset that is not there any more would be a loss, so say so.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                **EAGER,
                **config,
            },
            logger=LOG,
        )

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign(
            [
                TopicPartition(self.topic, partition, OFFSET_BEGINNING)
                for partition in range(self.partitions)
            ]
        )

    def _read(self, name: str) -> None:
        consumer = self._consumer()
        self._assign(consumer)
        while not self._stop_reading.is_set():
            for message in consumer.consume(500, 0.1):
                partition, offset, value = _content(message)
                self.history.read(name, partition, offset, value)
        consumer.close()

    def _ask(self, _: str) -> None:
        """Ask where partitions end, as often as it is answered."""
        consumer = self._consumer()
        while not self._stop_reading.is_set():
            for partition in range(self.partitions):
                floor = self.history.known(partition)
                with contextlib.suppress(KafkaException):
                    place = TopicPartition(self.topic, partition)
                    bounds = consumer.get_watermark_offsets(place, 1.0)
                    self.history.end(partition, floor, bounds[1])
            time.sleep(0.1)
        consumer.close()

    def read_records(self, partition: int) -> list[tuple[bytes, bytes]]:
        """Read key and value of every record of a partition; its offsets may have gaps."""
        consumer = self._consumer(**{"enable.partition.eof": True})
        consumer.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING)])
        records: list[tuple[bytes, bytes]] = []

        def ended() -> bool:
            for message in consumer.consume(2000, 0.1):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return True
                _, _, value = _content(message)
                records.append((message.key() or b"", value))
            return False

        until(ended, f"the end of {self.topic}/{partition}")
        consumer.close()
        return records

    def read_all(self) -> dict[int, list[tuple[int, bytes]]]:
        """Read every partition from its beginning to its end."""
        consumer = self._consumer()

        def end(partition: int) -> tuple[int, int] | None:
            # librdkafka does not wait for a partition whose leader is being elected.
            with contextlib.suppress(KafkaException):
                place = TopicPartition(self.topic, partition)
                return consumer.get_watermark_offsets(place, PATIENCE)
            return None

        ends = {
            partition: until(lambda: end(partition), f"an end of {partition}")[1]  # noqa: B023
            for partition in range(self.partitions)
        }
        self._assign(consumer)
        logs: dict[int, list[tuple[int, bytes]]] = defaultdict(list)

        def whole() -> bool:
            for message in consumer.consume(2000, 0.1):
                partition, offset, value = _content(message)
                logs[partition].append((offset, value))
            return all(len(logs[partition]) >= end for partition, end in ends.items())

        until(whole, f"the logs to be read to their ends {ends}")
        consumer.close()
        return {partition: logs[partition] for partition in range(self.partitions)}


def _content(message: Message) -> tuple[int, int, bytes]:
    """Return partition, offset and value; raises for what a reader is never told."""
    error = message.error()
    assert error is None, f"a reader was told: {error}"
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return partition, offset, value
