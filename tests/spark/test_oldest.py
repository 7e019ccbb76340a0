"""The oldest Spark that works, as pyproject.toml says: a job runs on it, and does what it should.

Before 4.2, Python sources have no say in how much a batch takes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.spark import oldest_job
from tests.spark.conftest import Topics

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
CACHE = Path("~/.cache/tidelog").expanduser()


@pytest.fixture
def oldest() -> tuple[str, Path]:
    """The version, and a directory with it: all else is what is installed here."""
    found = re.search(r'"pyspark\[\w+\]>=([\d.]+)"', PROJECT.read_text())
    assert found is not None
    version = f"{found[1]}.0"
    place = CACHE / f"pyspark-{version}"
    if not place.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            whole = Path(directory) / "whole"
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            subprocess.run([*install, "--target", whole, f"pyspark=={version}"], check=True)
            whole.rename(place)  # so that nobody finds half of it
    return version, place


@pytest.mark.slow
@pytest.mark.timeout(900)  # it is some 400 MB, the first time
def test_the_oldest_spark_reads_writes_streams_and_fills_a_lake(
    oldest: tuple[str, Path], topics: Topics, tmp_path: Path
) -> None:
    version, place = oldest
    source, target = topics.create(2), topics.create(2)
    done = subprocess.run(
        [sys.executable, oldest_job.__file__, topics.bootstrap, source, target, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # The sum of a batch read, rows that a stream wrote, its lag, rows in the lake, and with a tail.
    assert done.stdout.split() == [version, "4950", "100", "0", "100", "100"]
