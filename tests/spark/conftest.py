"""One Spark and one broker for all of these tests, and topics with known records in them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

import tidelog
import tidelog.spark
from tidelog.client import Admin, Cluster, Producer
from tidelog.records import Codec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
Headers = tuple[tuple[str, bytes | None], ...]
# Small, so that tests are not about how Spark spreads its work.
SETTINGS: Final = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that a test wrote."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: Headers = ()
    time: int | None = None  # milliseconds; None is now


class Topics:
    """Topics of a broker, made and filled with a client that is not the one under test."""

    _names = itertools.count()

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        self.bootstrap = bootstrap
        self._replicas = replicas

    def run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        async def main() -> T:
            async with Cluster(self.bootstrap, timeout=60) as cluster:
                return await work(cluster)

        return asyncio.run(main())

    def create(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        topic = name or f"topic-{next(self._names)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        settings.setdefault("retention.ms", "-1")  # tests choose times, old ones among them

        async def work(cluster: Cluster) -> None:
            await Admin(cluster).create_topic(topic, partitions, self._replicas, settings)

        self.run(work)
        return topic

    def send(self, topic: str, records: Iterable[Sent], codec: Codec = Codec.NONE) -> None:
        async def work(cluster: Cluster) -> None:
            async with Producer(cluster, codec=codec) as producer:
                for each in records:
                    await producer.send(
                        topic,
                        each.value,
                        each.key,
                        each.headers,
                        partition=each.partition,
                        timestamp=each.time,
                    )

        self.run(work)

    def send_values(self, topic: str, values: Iterable[bytes | None], partitions: int = 1) -> None:
        self.send(topic, [Sent(value, partition=n % partitions) for n, value in enumerate(values)])

    def options(self, **more: object) -> dict[str, str]:
        """The options of a read or a write; `kafka_x_y` is written for `kafka.x.y`."""
        named = {
            name.replace("_", ".") if name.startswith("kafka_") else name: str(value)
            for name, value in more.items()
        }
        return {"kafka.bootstrap.servers": self.bootstrap, **named}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Two cores, and a second attempt for a task that fails.
    session = tidelog.spark.session("tests", master="local[2,2]", settings=SETTINGS)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def topics() -> Iterator[Topics]:
    """Topics of a broker of one node, in this process."""
    with tidelog.local() as broker:
        yield Topics(broker.bootstrap)


@pytest.fixture
def read(spark: SparkSession, topics: Topics) -> Callable[..., DataFrame]:
    """Read a topic as a batch, with these options."""

    def run(topic: str, schema: str | None = None, **options: object) -> DataFrame:
        chosen = (
            {} if "assign" in options or "subscribePattern" in options else {"subscribe": topic}
        )
        reader = spark.read.format("tidelog").options(**topics.options(**chosen, **options))
        return (reader.schema(schema) if schema else reader).load()

    return run


class Streams:
    """Streams of one test, with one checkpoint directory each."""

    def __init__(self, spark: SparkSession, topics: Topics, directory: Path) -> None:
        self._spark = spark
        self._topics = topics
        self._directory = directory

    def frame(self, topic: str, **options: object) -> DataFrame:
        chosen = {} if "subscribePattern" in options else {"subscribe": topic}
        begin = {"startingOffsets": "earliest"} | chosen | options
        return (
            self._spark.readStream.format("tidelog").options(**self._topics.options(**begin)).load()
        )

    def to_topic(
        self, frame: DataFrame, topic: str, name: str = "query", **trigger: Any
    ) -> StreamingQuery:
        return (
            frame.writeStream.format("tidelog")
            .options(**self._topics.options(topic=topic))
            .option("checkpointLocation", str(self._directory / name))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def to_batches(
        self,
        frame: DataFrame,
        take: Callable[[DataFrame, int], None],
        name: str = "query",
        **trigger: Any,
    ) -> StreamingQuery:
        return (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._directory / name))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )


@pytest.fixture
def streams(spark: SparkSession, topics: Topics, tmp_path: Path) -> Streams:
    return Streams(spark, topics, tmp_path)
