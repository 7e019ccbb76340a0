"""Spark's own Kafka connector, to be measured and tested beside ours.

Its jars are looked for in TIDELOG_SPARK_CONNECTOR (by default ~/.cache/tidelog/spark-connector),
and fetched there with Maven if there is one. A jar is moved into place when it is whole, so that
several processes may fetch at a time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

# The connector of the newest Spark is not published everywhere; these work together with it.
ARTIFACTS: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
MISSING: Final = (
    "Spark's own connector is not to be had here: its jars are neither in "
    "TIDELOG_SPARK_CONNECTOR nor can Maven fetch them"
)
FETCH_S: Final = 120.0


def connector_jars() -> list[Path]:
    """Return the jars, fetched if that is possible; [] if it is not."""
    home = os.environ.get("TIDELOG_SPARK_CONNECTOR", "~/.cache/tidelog/spark-connector")
    cache = Path(home).expanduser()
    jars = []
    for artifact in ARTIFACTS:
        _, name, version = artifact.split(":")
        jar = cache / f"{name}-{version}.jar"
        if not jar.exists() and not _fetch(artifact, jar):
            return []
        jars.append(jar)
    return jars


def _fetch(artifact: str, jar: Path) -> bool:
    maven = shutil.which("mvn")
    if maven is None:
        return False
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent) as place:
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        try:
            subprocess.run(
                [*command, f"-DoutputDirectory={place}"],
                cwd=place,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=FETCH_S,
                check=True,
            )
            (Path(place) / jar.name).replace(jar)
        except (OSError, subprocess.SubprocessError):
            return False
    return True
