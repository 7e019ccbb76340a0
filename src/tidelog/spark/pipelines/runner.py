"""The process in which Spark runs a pipeline: `python -m tidelog.spark.pipelines.runner ORDER`.

It is a process of its own so that what Spark and Java print goes to a file, and the screen shows
what matters. The order is JSON; events go to the file descriptor that it names.

Spark keeps tables and their properties in a catalog. The one in memory is gone after a run, and the
next run would find the tables' files and not know them; so there is one on disk, in the project's
state. It belongs to one process at a time.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.client import ClientError, UnknownTopic
from tidelog.client.blocking import Blocking
from tidelog.spark.pipelines.ends import BOOTSTRAP, CATALOG, LAKE, lake_options
from tidelog.spark.pipelines.events import (
    Ended,
    Event,
    Filled,
    FlowState,
    Problem,
    Published,
    Stage,
    send,
)
from tidelog.spark.pipelines.project import Project, ProjectError
from tidelog.spark.pipelines.watching import Watcher, short_name

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec
    from pyspark.sql import SparkSession

    from tidelog.spark.pipelines.graph import Use

# The property of a table that is published: under which name.
PUBLISHED: Final = "tidelog.lake"
_CATALOG_SETTING: Final = "spark.tidelog.catalog"
_FLOW: Final = re.compile(r"Flow '?([^\s']+)'? (?:is|has) ([A-Z_]+)\b")
_UNRESOLVED: Final = re.compile(
    r"Failed to resolve flow: '?([^\s']+?)'?\.\s+Error: (.*)", re.DOTALL
)
# What a rule says that ends a run, among what Spark says about it.
_RULE: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE: ", re.DOTALL)
# Where the part of Spark's errors begins that is for those who work on Spark: plans and stacks.
_BEHIND: Final = re.compile(r"\n=== |;\n|\n\s*(?:JVM stacktrace|at [a-z]+\.)")
# The last batches of a run are told by Spark a moment after it says that the run is over.
_SETTLE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to run, and how."""

    project: str
    master: str
    bootstrap: str
    lake: str
    events: int  # a file descriptor
    dry: bool = False
    every: float | None = None  # seconds between two runs; None: one run
    refresh: tuple[str, ...] = ()
    refresh_all: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Runner:
    """Runs one project."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._project = Project(Path(order.project))
        self._stream = os.fdopen(order.events, "w", buffering=1)
        self._progressed = time.monotonic()  # when something was last heard of a flow
        self._unresolved: list[str] = []  # what is wrong with flows, as Spark found it

    def tell(self, event: Event) -> None:
        self._progressed = time.monotonic()
        send(self._stream, event)

    def run(self) -> bool:
        """Run to the end; tell whether it went well."""
        try:
            spec = self._project.spec()
            self.tell(Stage("Starting Spark"))
            spark = self._session(spec)
        except (ProjectError, OSError) as error:
            return self._fail(str(error))
        spark.streams.addListener(Watcher(self.tell))
        ok = self._once(spark, spec)
        while ok and self._order.every is not None:
            time.sleep(self._order.every)
            ok = self._once(spark, spec)
        return ok

    def _once(self, spark: SparkSession, spec: PipelineSpec) -> bool:
        try:
            problems = self._update(spark, spec)
        except Exception as error:  # noqa: BLE001  # whatever definitions, Spark and Java come up with
            traceback.print_exc()
            problems = self._explain(error)
        for problem in problems:
            self.tell(Problem(problem))
        self.tell(Ended(not problems))
        return not problems

    def _update(self, spark: SparkSession, spec: PipelineSpec) -> list[str]:
        """Tell Spark about the definitions and let it run them; return what is wrong with them."""
        from pyspark.pipelines.cli import register_definitions
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

        from tidelog.spark.pipelines.graph import Definitions

        self._unresolved = []
        self.tell(Stage("Reading the definitions"))
        graph = create_dataflow_graph(
            spark,
            default_catalog=spec.catalog,
            default_database=spec.database,
            sql_conf=spec.configuration,
        )
        definitions = Definitions(spark, graph)
        register_definitions(self._project.spec_path, definitions, spec, spark, graph)
        problems = missing_topics(definitions.uses)
        if problems and not self._order.dry:
            return problems
        before = {} if self._order.dry else self._counts(spark, spec)
        self.tell(Stage("Checking the flows" if self._order.dry else "Running the flows"))
        try:
            for result in start_run(
                spark,
                graph,
                full_refresh=list(self._order.refresh),
                full_refresh_all=self._order.refresh_all,
                refresh=[],
                dry=self._order.dry,
                storage=spec.storage,
            ):
                self._hear(result)
        except Exception as error:
            if not self._order.dry:
                raise
            traceback.print_exc()
            problems += self._explain(error)
        if not self._order.dry:
            self._settle()
            self._conclude(spark, spec, before)
        return problems

    def _hear(self, result: dict[str, Any]) -> None:
        """Pass on what Spark says about flows."""
        if "pipeline_event_result" in result:
            message = result["pipeline_event_result"].event.message
            sys.stdout.write(f"{message}\n")
            found = _FLOW.search(message)
            wrong = _UNRESOLVED.match(message)
            if wrong is not None:
                self._unresolved.append(f"{short_name(wrong[1])}: {_plain(wrong[2])}")
            elif found is not None:
                self.tell(FlowState(short_name(found[1]), found[2]))

    def _settle(self) -> None:
        """Wait until no batch has been told about for a moment."""
        self._progressed = time.monotonic()
        while time.monotonic() < self._progressed + _SETTLE_S:
            time.sleep(0.05)

    def _conclude(self, spark: SparkSession, spec: PipelineSpec, before: dict[str, int]) -> None:
        """Count the rows of tables, and publish those that are for the lake."""
        for table, rows in self._counts(spark, spec).items():
            self.tell(Filled(table, rows, rows - before.get(table, 0)))
            properties = {
                row.key: row.value
                for row in spark.sql(f"SHOW TBLPROPERTIES {_qualified(spec, table)}").collect()
            }
            target = properties.get(PUBLISHED)
            if target:
                self.tell(Stage(f"Publishing {table}"))
                (
                    spark.table(_qualified(spec, table))
                    .coalesce(1)
                    .write.format("tidelog")
                    .options(**lake_options(target))
                    .mode("overwrite")
                    .save()
                )
                self.tell(Published(target, self._order.lake, rows))

    def _counts(self, spark: SparkSession, spec: PipelineSpec) -> dict[str, int]:
        names = [
            each.name
            for each in spark.catalog.listTables(spec.database)
            if each.tableType != "TEMPORARY"
        ]
        return {name: spark.table(_qualified(spec, name)).count() for name in names}

    def _session(self, spec: PipelineSpec) -> SparkSession:
        from pyspark.sql import SparkSession

        from tidelog.spark.session import SETTINGS

        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ[BOOTSTRAP] = self._order.bootstrap
        os.environ[LAKE] = self._order.lake
        catalog = spec.configuration.get(_CATALOG_SETTING)
        if catalog is not None:
            os.environ[CATALOG] = catalog
        if self._order.master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        state = self._project.state
        settings = SETTINGS | {
            "spark.api.mode": "connect",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={state}",
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:{state / 'catalog'};create=true"
            ),
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.connect.serverStacktrace.enabled": "false",
            "spark.sql.warehouse.dir": str(state / "tables"),
        }
        builder = SparkSession.builder.appName(spec.name).master(self._order.master)
        for key, value in (settings | dict(spec.configuration)).items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    def _fail(self, text: str) -> bool:
        self.tell(Problem(text))
        self.tell(Ended(False))
        return False

    def _explain(self, error: BaseException) -> list[str]:
        """Return what went wrong: each flow that is wrong, or the error with its place."""
        if self._unresolved:
            return self._unresolved
        text = _plain(str(error)) or type(error).__name__
        root = str(self._project.directory.resolve())
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename.startswith(root):
                place = Path(frame.filename).relative_to(root)
                return [f"{place}, line {frame.lineno}: {text}"]
        return [text]


def _plain(said: str) -> str:
    """Return an error of Spark without plans and stacks."""
    broken = _RULE.search(said)
    return broken[1] if broken is not None else _BEHIND.split(said)[0].strip()


def missing_topics(uses: list[Use]) -> list[str]:
    """Return a sentence for each topic that is read or written and does not exist."""
    problems: list[str] = []
    clusters = sorted({use.bootstrap for use in uses if use.topics and use.bootstrap})
    for bootstrap in clusters:
        with Blocking(bootstrap, client_id="tidelog-pipeline") as client:
            wanted = {
                (topic, use.name)
                for use in uses
                if use.bootstrap == bootstrap
                for topic in use.topics
            }
            for topic, name in sorted(wanted):
                try:
                    client.run(client.cluster.topic(topic, fresh=True))
                except UnknownTopic:
                    problems.append(
                        f"Topic {topic} of {name} does not exist at {bootstrap}: "
                        f"`tidelog topic create {topic}` makes it."
                    )
                except ClientError as error:
                    return [*problems, str(error)]
    return problems


def _qualified(spec: PipelineSpec, table: str) -> str:
    return f"`{spec.database}`.`{table}`" if spec.database else f"`{table}`"


def _end_with_parent() -> None:
    """Wait until whoever started this process is gone; a run that nobody sees must not go on."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Carry out the order on the command line, and leave without waiting for threads of Spark."""
    order = Order(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    ok = Runner(order).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # The JVM ends with the pipe to this process. Closing the session first would only add minutes
    # of complaints to the log about listeners that are gone.
    os._exit(0 if ok else 1)


if __name__ == "__main__":
    main()
