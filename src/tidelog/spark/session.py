"""A Spark session that is ready: settings that matter, and this package on every machine.

    spark = session("orders")                                     # in this process, all cores
    spark = session("orders", master="spark://host:7077")         # a standalone cluster
    spark = session("orders", remote="sc://host:15002")           # Spark Connect

The settings, each of which can be overruled by `settings`:

    PYSPARK_PYTHON           this interpreter; otherwise workers run whatever `python3` is, and find
                             no source that is called `tidelog`
    unix domain sockets      between Spark and its workers: a third less time for a small batch
    checkpoint file manager  the one that renames: 35 ms less for every file of a checkpoint, which
                             must be on a file system that renames atomically, as local ones do
    memory                   2 GB for the driver; 1 GB is too little for anything real
    state of streams         in RocksDB, with changelogs instead of whole copies
    log                      errors only; no progress bars, no web page

On a cluster (`master` that is not local) the executors are asked whether they have this package. If
one has not, it travels to them as a zip file; its dependencies (pyarrow, numpy, kio, cramjam,
crc32c, uvloop) must be installed there. An installed package is better: what travels has no
compiled modules and decodes several times slower. Over Spark Connect nobody can be asked, so it
travels unless `ship` says no.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RENAMING: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: Final = {
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    "spark.sql.streaming.checkpointFileManagerClass": _RENAMING,
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_JAVA: Final = "spark.driver.extraJavaOptions"
# Settings that a Spark Connect client may choose; the others belong to whoever started the server.
_OF_A_CLIENT: Final = "spark.sql."


def session(
    name: str = "tidelog",
    *,
    master: str = "local[*]",
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
    ship: bool | None = None,
) -> SparkSession:
    """Return a session with these settings, or the one that is running already.

    `ship` says whether this package travels to where tasks run; None means if they lack it.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    wanted = SETTINGS | dict(settings or {})
    builder = SparkSession.builder.appName(name)
    if remote is not None and not _is_in_process(remote):
        return _connected(builder.remote(remote).getOrCreate(), wanted, ship=ship)
    if _is_in_process(remote or master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else needs to reach it
    quiet = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -Dtidelog.level={log_level}"
    wanted[_JAVA] = f"{quiet} {wanted.get(_JAVA, '')}".strip()
    for key, value in wanted.items():
        builder = builder.config(key, value)
    if remote is not None:  # a server of Spark Connect in this process: it has this package
        with warnings.catch_warnings():
            # It is started with these settings, and then offered them once more.
            warnings.filterwarnings("ignore", "Failed to set spark", UserWarning)
            spark = builder.remote(remote).getOrCreate()
        return _connected(spark, {}, ship=bool(ship))
    spark = builder.master(master).getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    if ship or (ship is None and not _is_everywhere(spark, master)):
        spark.sparkContext.addPyFile(str(package_zip()))
        _register(spark)
    return spark


def _connected(
    spark: SparkSession, settings: Mapping[str, str], *, ship: bool | None
) -> SparkSession:
    """Prepare a session of Spark Connect, as far as a client may."""
    for key, value in settings.items():
        if key.startswith(_OF_A_CLIENT) and spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    if ship is not False:
        spark.addArtifacts(str(package_zip()), pyfile=True)
        _register(spark)
    return spark


def package_zip() -> Path:
    """Write this package, as tasks need it, to a zip file that goes with this process."""
    import tidelog

    sources = Path(tidelog.__file__).parent
    directory = tempfile.mkdtemp(prefix="tidelog-package-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory) / "tidelog.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for room in ("records", "client", "spark"):
            for path in sorted((sources / room).rglob("*.py")):
                archive.write(path, Path("tidelog") / path.relative_to(sources))
        archive.write(sources / "__init__.py", "tidelog/__init__.py")
        finder = sources.parent / "pyspark_tidelog" / "__init__.py"
        archive.write(finder, "pyspark_tidelog/__init__.py")
    return target


def _is_everywhere(spark: SparkSession, master: str) -> bool:
    """Ask tasks on all cores whether they have this package."""
    if _is_in_process(master):
        return True
    context = spark.sparkContext
    tasks = context.defaultParallelism
    asked = context.parallelize(["tidelog"] * tasks, tasks)
    return all(asked.map(importlib.util.find_spec).map(bool).collect())


def _is_in_process(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _register(spark: SparkSession) -> None:
    from tidelog.spark.source import TidelogSource

    spark.dataSource.register(TidelogSource)
