"""Pipelines: projects, rules, and the sample from topics to the lake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import Topics
from tests.spark.rest_catalog import serve
from typer.testing import CliRunner

import tidelog
from tidelog.cli.app import app
from tidelog.cli.pipelineview import Report
from tidelog.client import Cluster
from tidelog.spark.lake import Lake
from tidelog.spark.pipelines import Rule, clean
from tidelog.spark.pipelines.events import (
    Ended,
    Event,
    Filled,
    FlowState,
    Problem,
    Progress,
    Published,
    Stage,
    from_line,
    to_line,
)
from tidelog.spark.pipelines.graph import Use
from tidelog.spark.pipelines.project import Project, ProjectError, create
from tidelog.spark.pipelines.rules import keep, rejected
from tidelog.spark.pipelines.runner import missing_topics
from tidelog.spark.pipelines.sample import Fed, feed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"


# --- Projects -------------------------------------------------------------------------------------


def test_a_new_project_is_wired_to_the_cluster_and_explains_itself(tmp_path: Path) -> None:
    place = tmp_path / "shop"
    result = CliRunner().invoke(app, ["pipeline", "init", str(place), "-b", "node:9999"])
    assert result.exit_code == 0, result.output
    project = Project(place)
    spec = project.spec()
    assert spec.name == "shop"
    assert spec.storage == (place / "state" / "checkpoints").as_uri()
    assert project.bootstrap(None) == "node:9999"
    assert project.bootstrap("other:1") == "other:1"
    assert project.lake(None) == str(place / "lake")
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert files == {
        "README.md",
        "spark-pipeline.yml",
        "transformations/sources.py",
        "transformations/paid_orders.py",
        "transformations/daily_revenue.sql",
    }
    assert "{{" not in "".join((place / name).read_text() for name in files)


def test_a_project_is_not_made_over_something_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ProjectError, match="not empty"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_directory_without_a_project_and_a_broken_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="pipeline init"):
        Project(tmp_path).spec()
    (tmp_path / "spark-pipeline.yml").write_text("name: [")
    with pytest.raises(ProjectError, match="cannot be used"):
        Project(tmp_path).spec()


def test_two_runs_of_one_project_at_a_time_are_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with (
        project.locked(),
        pytest.raises(ProjectError, match="Another run"),
        Project(tmp_path).locked(),
    ):
        pass
    with project.locked():
        pass


# --- Rules ----------------------------------------------------------------------------------------

RULES = (
    Rule("has an id", "id IS NOT NULL", "fail"),
    Rule("is positive", "amount > 0", "drop"),
    Rule("is in euros", "currency = 'EUR'", "quarantine"),
)


def rows(spark: SparkSession, *values: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(values), "id int, amount double, currency string")


def test_rows_that_break_a_rule_are_dropped_and_quarantined_and_nulls_break_rules(
    spark: SparkSession,
) -> None:
    frame = rows(
        spark, (1, 5.0, "EUR"), (2, -5.0, "EUR"), (3, 5.0, "USD"), (4, None, "EUR"), (5, 1.0, None)
    )
    assert [row.id for row in keep("v", frame, RULES).collect()] == [1]
    held = [json.loads(row.value) for row in rejected("v", frame, RULES).collect()]
    assert held == [
        {
            "view": "v",
            "rules": ["is in euros"],
            "row": {"id": 3, "amount": 5.0, "currency": "USD"},
        },
        {"view": "v", "rules": ["is in euros"], "row": {"id": 5, "amount": 1.0}},
    ]


def test_a_row_that_breaks_a_rule_that_must_hold_ends_the_run_and_is_shown(
    spark: SparkSession,
) -> None:
    # The row would also be dropped by another rule: that must not hide it.
    frame = rows(spark, (1, 5.0, "EUR"), (None, -7.5, "EUR"))
    with pytest.raises(PySparkException, match=r"has an id.*-7\.5"):
        keep("v", frame, RULES).collect()


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="drop, fail, quarantine"):
        Rule("r", "a > 0", "ignore")
    with pytest.raises(ValueError, match="same name"):
        clean(Rule("r", "a > 0"), Rule("r", "b > 0"))
    with pytest.raises(ValueError, match="needs a topic"):
        clean(Rule("r", "a > 0", "quarantine"))


# --- What a run tells -----------------------------------------------------------------------------


def test_events_survive_the_way_between_two_processes() -> None:
    events: list[Event] = [
        Stage("Starting"),
        FlowState("a", "RUNNING"),
        Progress("a", 1, 10, 5.0, 3, 2000, 7, {"v": {"r": 3}}),
        Filled("a", 10, 7),
        Published("t", "/lake", 2),
        Problem("it's\nbad"),
        Ended(True),
    ]
    assert [from_line(to_line(event)) for event in events] == events


def test_a_report_sums_batches_and_counts_a_view_that_two_flows_read_once() -> None:
    report = Report()
    for flow in ("a", "b"):
        for batch in (0, 1):
            report.take(Progress(flow, batch, 10, 5.0, 3 - batch, 500, 8, {"v": {"r": 2}}))
    report.take(FlowState("view", "PLANNING"))
    report.take(FlowState("view", "COMPLETED"))
    report.take(Filled("view", 30, 2))
    report.take(Ended(True))
    assert report.rows() == [
        ("a", 20, 16, 4, 2, "1.0", 2),
        ("b", 20, 16, 4, 2, "1.0", 2),
        ("view", None, 30, None, None, None, None),  # computed anew: all rows are written
    ]
    assert report.broken() == [("v", "r", 4)]
    assert report.ok


def test_topics_that_are_missing_are_named_with_who_wants_them(topics: Topics) -> None:
    there = topics.create()
    options = {"kafka.bootstrap.servers": topics.bootstrap}
    uses = [
        Use("reads", {**options, "subscribe": f"{there}, gone"}, writes=False),
        Use("writes", {**options, "topic": "also-gone"}, writes=True),
        Use("lake", {"lake": "/lake", "table": "t"}, writes=True),
    ]
    found = missing_topics(uses)
    assert [text.split(" does")[0] for text in found] == [
        "Topic also-gone of writes",
        "Topic gone of reads",
    ]


# --- The sample, on a live broker -----------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Topics]:
    """A broker of its own: the sample's topics have fixed names."""
    with tidelog.local() as broker:
        yield Topics(broker.bootstrap)


def fill(broker: Topics, orders: int, seed: int) -> Fed:
    async def work(cluster: Cluster) -> Fed:
        return await feed(cluster, orders, seed=seed, replicas=1)

    return broker.run(work)


def invoke(*words: str, master: str = MASTER) -> tuple[int, Any]:
    result = CliRunner().invoke(
        app, ["pipeline", *words, "--master", master, "--json"], catch_exceptions=False
    )
    return result.exit_code, json.loads(result.output)


def revenue(project: Path) -> pa.Table:
    return Lake(str(project / "lake")).table("daily_revenue").scan().to_arrow()


def records(broker: Topics, topic: str) -> int:
    from tidelog.client import TopicPartition, bounds

    async def work(cluster: Cluster) -> int:
        info = await cluster.topic(topic, fresh=True)
        found = await bounds(cluster, [TopicPartition(topic, p.index) for p in info.partitions])
        return sum(end - first for first, end in found.values())

    return broker.run(work)


def check_run(
    project: Path, broker: Topics, report: dict[str, Any], new: Fed, *, all_: list[Fed]
) -> None:
    """Compare what a run says, what topics and lake have, and what was written."""
    flows = {flow["flow"]: flow for flow in report["flows"]}
    assert flows["paid_orders"]["read"] == new.orders + new.payments
    assert flows["paid_orders"]["written"] == new.paid
    assert flows["paid_orders_out"]["written"] == new.paid
    assert flows["payments_rejected"]["written"] == new.bad_payments
    assert flows["paid_orders"]["rejected"] == new.bad_orders + new.bad_payments
    assert sum(each["rejected"] for each in report["rules"]) == new.bad_orders + new.bad_payments
    paid = sum(each.paid for each in all_)
    assert sum(revenue(project)["orders"].to_pylist()) == paid
    assert records(broker, "orders.paid") == paid
    assert records(broker, "payments.rejected") == sum(each.bad_payments for each in all_)


def test_the_sample_moves_orders_and_payments_to_a_topic_and_the_lake(
    broker: Topics, tmp_path: Path
) -> None:
    project = create(tmp_path / "shop", bootstrap=broker.bootstrap).directory
    fed = fill(broker, 300, seed=1)
    code, report = invoke("run", str(project))
    assert (code, report["problems"]) == (0, [])
    check_run(project, broker, report, fed, all_=[fed])
    assert report["published"] == [
        {"table": "daily_revenue", "lake": str(project / "lake"), "rows": len(revenue(project))}
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)  # three runs, of which the last tries the flow again before it gives up
def test_a_run_goes_on_where_the_last_one_stopped_and_a_rule_that_must_hold_ends_it(
    broker: Topics, tmp_path: Path
) -> None:
    project = create(tmp_path / "shop", bootstrap=broker.bootstrap).directory
    first = fill(broker, 300, seed=1)
    assert invoke("run", str(project))[0] == 0
    second = fill(broker, 100, seed=2)
    code, report = invoke("run", str(project))
    assert (code, report["problems"]) == (0, [])
    check_run(project, broker, report, second, all_=[first, second])
    broker.send_values("orders", [b'{"order_id": "x", "amount": 2000000}'])
    code, report = invoke("run", str(project))
    assert code == 1
    assert any("amount is below a million" in problem for problem in report["problems"])
    assert sum(revenue(project)["orders"].to_pylist()) == first.paid + second.paid


def test_a_check_finds_wrong_topics_columns_and_expressions_before_anything_runs(
    broker: Topics, tmp_path: Path
) -> None:
    project = create(tmp_path / "shop", bootstrap=broker.bootstrap).directory
    for name in ("orders", "orders.paid", "payments.rejected"):
        broker.create(1, name=name)
    (project / "transformations" / "wrong.sql").write_text(
        "CREATE MATERIALIZED VIEW wrong AS SELECT no_such_column FROM paid_orders;"
    )
    code, report = invoke("check", str(project))
    assert code == 1
    assert not report["ok"]
    text = "\n".join(report["problems"])
    assert "Topic payments of payments does not exist" in text
    assert "no_such_column" in text
    assert not (project / "lake").exists()
    assert records(broker, "orders.paid") == 0


@pytest.mark.slow
def test_a_check_is_content_with_the_sample_and_names_the_line_of_a_mistake(
    broker: Topics, tmp_path: Path
) -> None:
    project = create(tmp_path / "shop", bootstrap=broker.bootstrap).directory
    fill(broker, 1, seed=1)
    code, report = invoke("check", str(project))
    assert (code, report) == (0, {"ok": True, "problems": []})
    shutil.rmtree(project / "state")
    (project / "transformations" / "broken.py").write_text("from pyspark import pipelines\n1 / 0\n")
    code, report = invoke("check", str(project))
    assert code == 1
    assert report["problems"] == ["transformations/broken.py, line 2: division by zero"]


# --- Other ways to run ----------------------------------------------------------------------------

COPY = """
from tidelog.spark.pipelines import from_topic, to_lake

@to_lake("copied")
def copy():
    return from_topic("orders", "order_id long")
"""


def copying(broker: Topics, place: Path) -> Path:
    """A project that appends a topic to a table of the lake."""
    project = create(place, bootstrap=broker.bootstrap).directory
    for each in (project / "transformations").iterdir():
        each.unlink()
    (project / "transformations" / "copy.py").write_text(COPY)
    broker.create(2, name="orders")
    return project


def send(broker: Topics, low: int, high: int) -> None:
    values = [json.dumps({"order_id": number}).encode() for number in range(low, high)]
    broker.send_values("orders", values, partitions=2)


def copied(project: Path, catalog: str | None = None) -> list[int]:
    lake = Lake(str(project / "lake"), catalog)
    table = lake.find("copied") if lake.exists() else None
    return [] if table is None else sorted(table.scan().to_arrow()["order_id"].to_pylist())


@pytest.mark.slow
@pytest.mark.timeout(900)  # several runs, each with a Spark of its own
def test_a_continuous_run_takes_in_what_comes_until_ctrl_c(broker: Topics, tmp_path: Path) -> None:
    project = copying(broker, tmp_path / "copy")
    words = ["pipeline", "run", str(project), "--continuous", "--every", "1s"]
    running = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words, "--master", MASTER, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for low, high in ((0, 50), (50, 80)):
            send(broker, low, high)
            while running.poll() is None and len(copied(project)) < high:
                time.sleep(0.5)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate()
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, err
    assert json.loads(out)["problems"] == []
    assert copied(project) == list(range(80))
    # It ended: another run gets in, and goes on where this one was.
    send(broker, 80, 90)
    assert invoke("run", str(project))[0] == 0
    assert copied(project) == list(range(90))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_runs_on_a_standalone_cluster_and_commits_to_a_rest_catalog(
    broker: Topics, standalone: str, tmp_path: Path
) -> None:
    project = copying(broker, tmp_path / "copy")
    send(broker, 0, 50)
    with serve(tmp_path / "rest") as catalog:
        with (project / "spark-pipeline.yml").open("a") as settings:
            settings.write(f'\n  spark.tidelog.catalog: "{catalog.address}"\n')
        code, report = invoke("run", str(project), master=standalone)
        assert (code, report["problems"]) == (0, [])
        assert [(flow["read"], flow["written"]) for flow in report["flows"]] == [(50, 50)]
        assert copied(project, catalog.address) == list(range(50))
