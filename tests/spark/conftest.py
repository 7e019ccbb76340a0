"""One Spark and one broker for all of these tests, and topics with known records in them.

Claims about `format("tidelog")` that hold for Spark's own connector as well are marked `BOTH`, and
checked through both; through the connector only with --slow, since its jars are fetched.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyspark
import pytest
from tests.spark import lake_driver

import tidelog
import tidelog.spark
from bench._connector import MISSING, connector_jars
from tidelog.client import Admin, Cluster, Producer
from tidelog.records import Codec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
Headers = tuple[tuple[str, bytes | None], ...]
# Small, so that tests are not about how Spark spreads its work.
SETTINGS: Final = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
BOTH: Final = pytest.mark.parametrize(
    "wanted", ["tidelog", pytest.param("kafka", marks=pytest.mark.slow)]
)


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
def connector(request: pytest.FixtureRequest) -> list[Path]:
    """The jars of Spark's own connector; none if nobody wants them, or they are not to be had."""
    return connector_jars() if request.config.getoption("--slow") else []


@pytest.fixture(scope="session")
def spark(connector: list[Path]) -> Iterator[SparkSession]:
    settings = {"spark.jars": ",".join(map(str, connector))} if connector else {}
    # Two cores, and a second attempt for a task that fails.
    session = tidelog.spark.session("tests", master="local[2,2]", settings=SETTINGS | settings)
    yield session
    session.stop()


@pytest.fixture
def wanted() -> str:
    """The format under test, unless `BOTH` says otherwise."""
    return "tidelog"


@pytest.fixture
def source(wanted: str, connector: list[Path]) -> str:
    """The format under test, which is there."""
    if wanted == "kafka" and not connector:
        pytest.skip(MISSING)
    return wanted


@pytest.fixture(scope="session")
def topics() -> Iterator[Topics]:
    """Topics of a broker of one node, in this process."""
    with tidelog.local() as broker:
        yield Topics(broker.bootstrap)


@pytest.fixture
def read(spark: SparkSession, topics: Topics, source: str) -> Callable[..., DataFrame]:
    """Read a topic as a batch, with these options."""

    def run(topic: str, schema: str | None = None, **options: object) -> DataFrame:
        chosen = (
            {} if "assign" in options or "subscribePattern" in options else {"subscribe": topic}
        )
        reader = spark.read.format(source).options(**topics.options(**chosen, **options))
        return (reader.schema(schema) if schema else reader).load()

    return run


class Streams:
    """Streams of one test, with one checkpoint directory each."""

    def __init__(
        self, spark: SparkSession, topics: Topics, directory: Path, source: str = "tidelog"
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._directory = directory
        self._source = source

    def frame(self, topic: str, **options: object) -> DataFrame:
        chosen = {} if "subscribePattern" in options else {"subscribe": topic}
        begin = {"startingOffsets": "earliest"} | chosen | options
        return (
            self._spark.readStream.format(self._source)
            .options(**self._topics.options(**begin))
            .load()
        )

    def to_topic(
        self, frame: DataFrame, topic: str, name: str = "query", **trigger: Any
    ) -> StreamingQuery:
        return (
            frame.writeStream.format(self._source)
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
def streams(spark: SparkSession, topics: Topics, tmp_path: Path, source: str) -> Streams:
    return Streams(spark, topics, tmp_path, source)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of a lake's job in this process: what is tested is not Spark."""
    monkeypatch.setattr("tidelog.spark.lake.job.run_tasks", lake_driver.run_here)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """The address of a standalone cluster of two workers, on this machine."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_CLASS.parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> Path:
        log = tmp_path / f"process-{len(processes)}.log"
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen(
                    [str(SPARK_CLASS), *arguments],
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        return log

    def wait(log: Path, words: str) -> str:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for line in log.read_text(errors="replace").splitlines():
                if words in line:
                    return line
            time.sleep(0.2)
        raise AssertionError(f"no {words!r} in:\n{log.read_text(errors='replace')[-3000:]}")

    try:
        log = start(
            *("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"),
            *("--port", "0", "--webui-port", "0"),
        )
        address = wait(log, "Starting Spark master at").rpartition(" ")[2]
        for number in range(2):
            directory = tmp_path / f"worker-{number}"
            log = start(
                *("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1"),
                *("--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(directory), address),
            )
            wait(log, "Successfully registered with master")
        yield address
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait()
