"""Sessions: settings that are there from the start, and clusters that get the package."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.conftest import Topics

import tidelog
from tidelog.spark import package_zip
from tidelog.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def test_only_processes_of_spark_keep_what_is_loaded_from_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    settle.__wrapped__()
    assert gc.get_freeze_count() == 0
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    settle.__wrapped__()
    try:
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


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
