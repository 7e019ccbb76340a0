"""The workload of `workload.py` with kafka-python, whose producer, retries and fetches are its own.

Ends of partitions and the last reading of all are left to librdkafka.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import closing
from typing import Any

from tests.system.system import PATIENCE, System
from tests.system.workload import IN_FLIGHT, PAUSE, Workload

import kafka

EAGER = {
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 500,
    "retry_backoff_ms": 50,
    "request_timeout_ms": 6_000,
}
POLL_MS = 100
# It leaves sockets to the collector if it could not connect.
UNCLOSED = "ignore:unclosed <socket:ResourceWarning"


class PythonWorkload(Workload):
    client = "kafka-python"

    def __init__(self, system: System, topic: str, partitions: int) -> None:
        super().__init__(system, topic, partitions)
        self._servers = system.bootstrap.split(",")

    def _write(self, name: str) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._servers,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            delivery_timeout_ms=int(1000 * PATIENCE),
            max_block_ms=int(1000 * PATIENCE),
            **EAGER,
        )
        flying = threading.Semaphore(IN_FLIGHT)
        with closing(producer):
            for number in itertools.count():
                while not flying.acquire(timeout=0.05) and not self._stop_reading.is_set():
                    pass
                if self._stop_writing.is_set():
                    break
                self._send(producer, flying, name, number)
                time.sleep(PAUSE)
            if not self._stop_reading.is_set():  # else the test has failed already
                producer.flush(2 * PATIENCE)

    def _send(self, producer: Any, flying: threading.Semaphore, name: str, number: int) -> None:
        value = f"{name}-{number}".encode()
        partition = number % self.partitions

        def written(place: Any) -> None:
            flying.release()
            self.history.acknowledge(value, place.offset)

        def refused(error: BaseException) -> None:
            flying.release()
            self.history.fail(value, repr(error))

        self.history.begin(name, partition, value)
        future = producer.send(self.topic, value, b"%d" % (number % 7), partition=partition)
        future.add_callback(written)
        future.add_errback(refused)

    def _read(self, name: str) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=None,
            # An offset that is not there any more would be a loss, so say so.
            auto_offset_reset="none",
            fetch_max_wait_ms=POLL_MS,
            **EAGER,
        )
        places = [kafka.TopicPartition(self.topic, index) for index in range(self.partitions)]
        with closing(consumer):
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while not self._stop_reading.is_set():
                for place, records in consumer.poll(POLL_MS).items():
                    for each in records:
                        self.history.read(name, place.partition, each.offset, each.value)
