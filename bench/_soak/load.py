"""Producers and consumers of a soak run, with the client that most people use (librdkafka).

A producer numbers its records and notes which were acknowledged. It is idempotent, so the topic
must hold its records in order, and none twice. Now and then it is replaced by a new one, as
programs are, so that what nodes remember of producers must be forgotten some time.

The members of a group note what they were given, then commit. They leave and come back now and
then, and go on from what was committed: everything is seen, some of it perhaps twice.
"""

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from bench._soak.topics import PARTITIONS, Numbers, Shape, number_of, value_of

LOG = logging.getLogger("librdkafka")
LOG.setLevel(logging.CRITICAL)  # nodes that are gone are what this is about
TICK_S = 0.05
IN_FLIGHT = 4000  # records of a producer; it waits beyond
RENEW_PRODUCER_S = 150.0
RENEW_MEMBER_S = 210.0
COMMIT_S = 1.0
PATIENCE_S = 120.0
COMPLAINTS_KEPT = 20
NOTHING_TO_COMMIT = -168  # as librdkafka counts
COMMON = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}


class Worker(ABC):
    """A thread that works until it is told to stop, and whose failure is not lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: str | None = None
        self.complaints: Counter[str] = Counter()  # what the client said, by kind
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        self._thread.join(2 * PATIENCE_S)
        if self._thread.is_alive():
            self.failure = f"{self.name} does not end"

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  # it is told at the end of the run
            self.failure = f"{self.name} gave up: {type(error).__name__}: {error}"

    def complain(self, error: object) -> None:
        text = str(error)
        if len(self.complaints) < COMPLAINTS_KEPT or text in self.complaints:
            self.complaints[text] += 1

    @abstractmethod
    def _work(self) -> None: ...


class Writer(Worker):
    """The producer of one topic."""

    def __init__(self, bootstrap: str, shape: Shape) -> None:
        super().__init__(f"producer of {shape.name}")
        self.shape = shape
        self.next = 0  # number of the next record
        self.acknowledged = Numbers()
        self.failed = Numbers()
        # The highest number that was acknowledged, for each key.
        self.newest: dict[int, int] = {}
        self._flying = 0
        self._settings = {
            **COMMON,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 10,
            "compression.type": shape.compression,
            "message.timeout.ms": int(1000 * PATIENCE_S),
            "request.timeout.ms": 5000,
        }

    def _work(self) -> None:
        while not self._stopping.is_set():
            producer = Producer(self._settings, logger=LOG)
            self._write(producer, time.monotonic() + RENEW_PRODUCER_S)
            if producer.flush(PATIENCE_S + 10):
                raise RuntimeError("it never heard what became of some records")

    def _write(self, producer: Producer, until: float) -> None:
        due = time.monotonic()
        while not self._stopping.is_set() and time.monotonic() < until:
            for _ in range(int(self.shape.rate * TICK_S)):
                self._write_one(producer)
            due = max(due + TICK_S, time.monotonic() - 1)
            while (left := due - time.monotonic()) > 0 or self._flying > IN_FLIGHT:
                producer.poll(min(max(left, 0.0), TICK_S) or TICK_S)
                if self._stopping.is_set():
                    return

    def _write_one(self, producer: Producer) -> None:
        number = self.next
        key = str(number % self.shape.keys).encode() if self.shape.keys else None
        producer.produce(
            self.shape.name,
            value_of(number, self.shape.size),
            key,
            number % PARTITIONS,
            on_delivery=self._told,
        )
        self.next += 1
        self._flying += 1

    def _told(self, error: KafkaError | None, message: Message) -> None:
        self._flying -= 1
        number = number_of(message.value() or b"")
        if error is not None:
            self.failed.add(number)
            self.complain(error)
            return
        self.acknowledged.add(number)
        if self.shape.keys:
            key = number % self.shape.keys
            self.newest[key] = max(number, self.newest.get(key, -1))


class Member(Worker):
    """One member of a group."""

    def __init__(
        self, bootstrap: str, group: str, protocol: str, topics: list[str], place: int
    ) -> None:
        super().__init__(f"member {place} of {group}")
        self.seen = {topic: Numbers() for topic in topics}
        self.read = 0
        self._place = place
        self._settings = {
            **COMMON,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 200,
            "max.poll.interval.ms": 60_000,
            **({"session.timeout.ms": 10_000} if protocol == "classic" else {}),
        }

    def _work(self) -> None:
        # Members leave at different times.
        life = RENEW_MEMBER_S * (1 + 0.4 * self._place)
        while not self._stopping.is_set():
            consumer = Consumer(self._settings, logger=LOG)
            try:
                consumer.subscribe(list(self.seen), on_revoke=self._commit)
                self._read(consumer, time.monotonic() + life)
                self._commit(consumer)
            finally:
                consumer.close()

    def _read(self, consumer: Consumer, until: float) -> None:
        committed = time.monotonic()
        while not self._stopping.is_set() and time.monotonic() < until:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    self.complain(error)
                    if error.fatal():
                        return
                    continue
                self.read += 1
                self.seen[message.topic() or ""].add(number_of(message.value() or b""))
            if time.monotonic() - committed > COMMIT_S:
                committed = time.monotonic()
                with contextlib.suppress(KafkaException):
                    consumer.commit(asynchronous=True)

    def _commit(self, consumer: Consumer, _: Any = None) -> None:
        """Commit all that was noted, if there is anything and it still may."""
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != NOTHING_TO_COMMIT:
                self.complain(error.args[0])


class Group:
    """Two members that share some topics."""

    def __init__(self, bootstrap: str, protocol: str, topics: list[str]) -> None:
        self.name = f"soak-{protocol}"
        self.topics = topics
        self.members = [Member(bootstrap, self.name, protocol, topics, place) for place in range(2)]

    def seen(self, topic: str, size: int) -> npt.NDArray[np.bool_]:
        """Whether each number below `size` was seen by some member."""
        first, *others = (member.seen[topic].array(size) for member in self.members)
        for each in others:
            first |= each
        return first

    def again(self, sizes: Mapping[str, int]) -> int:
        """How many records came a second time, to whichever member; `sizes` are of the topics."""
        once = sum(int(self.seen(topic, sizes[topic]).sum()) for topic in self.topics)
        return sum(member.read for member in self.members) - once
