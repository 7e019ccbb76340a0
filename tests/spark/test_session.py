"""Sessions: settings that are there from the start, and clusters that get the package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from tests.spark.conftest import Topics

import tidelog
from tidelog.spark import package_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def test_a_session_has_the_settings_that_matter(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert str(spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")).endswith(
        "FileSystemBasedCheckpointFileManager"
    )
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    # What a caller asks for beats what is set here. The context has it from its start; the session
    # takes over what later callers ask for.
    assert spark.sparkContext.getConf().get("spark.driver.memory") == "1g"


def test_what_travels_is_what_tasks_import() -> None:
    names = set(zipfile.ZipFile(package_zip()).namelist())
    assert {
        "tidelog/__init__.py",
        "tidelog/records/kernels.py",
        "tidelog/client/arrowread.py",
        "tidelog/spark/source.py",
        "pyspark_tidelog/__init__.py",
    } <= names
    assert not [name for name in names if name.startswith("tidelog/server")]


def test_what_travels_is_enough_to_be_imported(tmp_path: Path) -> None:
    # Without the installed package: only the zip and what is installed beside it.
    code = (
        "import sys; sys.path = [p for p in sys.path if not p.endswith('/src')];"
        "sys.path.insert(0, sys.argv[1]);"
        "import pyspark_tidelog; source = pyspark_tidelog.DefaultSource;"
        "import tidelog; print(source.name(), tidelog.__file__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(package_zip())],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    name, place = found.stdout.split()
    assert name == "tidelog"
    assert "tidelog.zip" in place


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


@pytest.mark.slow
def test_a_standalone_cluster_reads_and_writes(standalone: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with tidelog.local() as broker:
        topics = Topics(broker.bootstrap)
        source, target = topics.create(4), topics.create(4)
        topics.send_values(source, [b"%d" % number for number in range(1000)], partitions=4)
        # In a process of its own, since this one has a session already.
        found = subprocess.run(
            [sys.executable, str(script), standalone, broker.bootstrap, source, target],
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.split() == ["2", "1000", "499500"]


JOB = """
import sys
from tidelog.spark import session

master, bootstrap, source, target = sys.argv[1:]
settings = {"spark.executor.memory": "512m"}
spark = session("job", master=master, settings=settings, ship=True)
options = {"kafka.bootstrap.servers": bootstrap}

def read(topic):
    reader = spark.read.format("tidelog").options(**options, subscribe=topic)
    return reader.option("valueFormat", "string").load()

executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
read(source).select("value").write.format("tidelog").mode("append").options(
    **options, topic=target).save()
found = read(target).selectExpr("count(*) AS count", "sum(CAST(value AS long)) AS total").first()
print(executors, found["count"], found["total"])
spark.stop()
"""


@pytest.mark.slow
def test_spark_connect_reads_and_writes(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB_CONNECTED)
    with tidelog.local() as broker:
        topics = Topics(broker.bootstrap)
        source, target = topics.create(2), topics.create(2)
        topics.send_values(source, [b"%d" % number for number in range(100)], partitions=2)
        found = subprocess.run(
            [sys.executable, str(script), broker.bootstrap, source, target],
            cwd=tmp_path,
            env={**os.environ, "SPARK_TESTING": "1"},  # any port that is free
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.split() == ["100", "4950"]


JOB_CONNECTED = """
import sys
from tidelog.spark import session

bootstrap, source, target = sys.argv[1:]
spark = session("job", remote="local[2]", ship=True)
options = {"kafka.bootstrap.servers": bootstrap}

def read(topic):
    reader = spark.read.format("tidelog").options(**options, subscribe=topic)
    return reader.option("valueFormat", "string").load()

read(source).select("value").write.format("tidelog").mode("append").options(
    **options, topic=target).save()
found = read(target).selectExpr("count(*) AS count", "sum(CAST(value AS long)) AS total").first()
print(found["count"], found["total"])
spark.stop()
"""
