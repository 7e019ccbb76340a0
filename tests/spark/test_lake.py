"""Topics in the lake: every record once, whatever happens to whoever brings them there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType
from tests.spark import lake_driver
from tests.spark.conftest import Sent, Topics
from typer.testing import CliRunner

from tidelog.cli.app import app
from tidelog.client import Admin, Cluster, TopicPartition
from tidelog.client.arrowread import DataLost
from tidelog.spark.lake import Lake, LakeError, LakeJob, care, read_lake
from tidelog.spark.lake.committing import (
    Overtaken,
    adding,
    commit,
    data_files,
    from_offsets,
    from_query,
    target_of,
)
from tidelog.spark.lake.files import write_files
from tidelog.spark.lake.schemas import infer
from tidelog.spark.lake.sink import LakeStreamWriter, LakeWriter, TaskFiles
from tidelog.spark.lake.stamp import MAX_QUERIES, Stamp, last_stamp
from tidelog.spark.options import OptionError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

DAY = 24 * 3600 * 1000
BEGIN = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
DRIVER = Path(lake_driver.__file__)


def records(low: int, high: int) -> list[Sent]:
    """Records over three days, in two partitions, with all that a record can have or lack."""
    return [
        Sent(
            None if number % 7 == 3 else b"value-%d" % number,
            None if number % 5 == 2 else b"key-%d" % number,
            partition=number % 2,
            headers=(("h", b"%d" % number), ("empty", None)) if number % 3 == 0 else (),
            time=BEGIN + number % 3 * DAY,
        )
        for number in range(low, high)
    ]


def filled(topics: Topics, count: int = 200) -> str:
    topic = topics.create(2)
    topics.send(topic, records(0, count))
    return topic


def in_lake(lake: Lake, topic: str) -> list[tuple[Any, ...]]:
    rows = lake.table(topic).scan().to_arrow().to_pylist()
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in rows)


def expected(low: int, high: int) -> list[tuple[Any, ...]]:
    """The same records as rows: two partitions, filled in turns."""
    return sorted(
        (sent.partition, number // 2, sent.key, sent.value)
        for number, sent in enumerate(records(low, high), low)
    )


def moved(spark: Any, lake: Lake, topic: str, topics: Topics, **more: Any) -> int:
    job = LakeJob(spark, lake, topic, topics.bootstrap, **more)
    return sum(each.rows for each in job.run())


# --- What is in the topic is in the lake ----------------------------------------------------------


def test_a_lake_has_the_rows_of_its_topic_and_reads_as_one_with_the_live_tail(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, lake = filled(topics), Lake(str(tmp_path))
    assert moved(spark, lake, topic, topics, max_offsets=90, headers=True) == 200
    assert in_lake(lake, topic) == expected(0, 200)
    table = lake.table(topic)
    assert len({str(each.partition) for each in data_files(table)}) == 3  # one for each day
    assert last_stamp(table) == Stamp(
        {TopicPartition(topic, 0): 100, TopicPartition(topic, 1): 100},
        epoch=3,
        commit=last_stamp(table).commit,
    )
    topics.send(topic, records(200, 250))
    both = read_lake(spark, lake, topic, bootstrap=topics.bootstrap)
    by_format = (
        spark.read.format("tidelog")
        .options(**topics.options(lake=str(tmp_path), subscribe=topic))
        .load()
    )
    for frame in (both, by_format):
        rows = [(row.partition, row.offset, row.key, row.value) for row in frame.collect()]
        assert sorted(rows) == expected(0, 250)
    assert read_lake(spark, lake, topic).count() == 200  # the lake alone
    sent = records(0, 250)
    headers = {(row.partition, row.offset): row.headers for row in both.collect()}
    assert [tuple(map(tuple, headers[n % 2, n // 2] or ())) for n in range(250)] == [
        sent[n].headers for n in range(250)
    ]


def test_json_values_become_columns_whose_types_are_learned(
    here: None, topics: Topics, tmp_path: Path
) -> None:
    topic, lake = topics.create(), Lake(str(tmp_path))
    values = [json.dumps({"id": n, "price": n / 2, "tags": ["a"]}).encode() for n in range(20)]
    topics.send_values(topic, [*values, b"no json", None])
    assert moved(None, lake, topic, topics, options={"valueFormat": "json"}) == 22
    found = lake.table(topic).scan().to_arrow().sort_by("_offset").to_pylist()
    assert [(row["id"], row["price"], row["tags"]) for row in found[:20]] == [
        (n, n / 2, ["a"]) for n in range(20)
    ]
    assert [row["_corrupt"] for row in found[19:]] == [None, b"no json", None]
    with pytest.raises(LakeError, match="was made with valueformat json"):
        LakeJob(None, lake, topic, topics.bootstrap, options={"valueFormat": "string"})  # type: ignore[arg-type]


def test_a_field_of_two_types_must_be_named_by_the_user() -> None:
    with pytest.raises(OptionError, match="give --schema"):
        infer([b'{"a": 1}', b'{"a": "text"}'], "orders")
    with pytest.raises(OptionError, match="no JSON objects"):
        infer([b"x", None, b"3"], "orders")


def test_records_that_retention_removed_before_they_got_there_are_missed_aloud(
    here: None, topics: Topics, tmp_path: Path
) -> None:
    topic, lake = filled(topics, 100), Lake(str(tmp_path))
    moved(None, lake, topic, topics)
    topics.send(topic, records(100, 200))

    async def cut(cluster: Cluster) -> None:
        await Admin(cluster).delete_records(TopicPartition(topic, 0), 60)

    topics.run(cut)
    with pytest.raises(DataLost, match="--skip-lost"):
        moved(None, lake, topic, topics)
    assert moved(None, lake, topic, topics, options={"failOnDataLoss": "false"}) == 90
    kept = [row for row in expected(0, 200) if row[0] == 1 or not 50 <= row[1] < 60]
    assert in_lake(lake, topic) == kept


def test_a_topic_that_was_made_again_does_not_continue_a_table(
    here: None, topics: Topics, tmp_path: Path
) -> None:
    topic, lake = filled(topics, 20), Lake(str(tmp_path))
    moved(None, lake, topic, topics)

    async def delete(cluster: Cluster) -> None:
        await Admin(cluster).delete_topic(topic)

    topics.run(delete)
    topics.create(2, name=topic)
    with pytest.raises(LakeError, match="deleted and created again"):
        LakeJob(None, lake, topic, topics.bootstrap)  # type: ignore[arg-type]


# --- Crashes --------------------------------------------------------------------------------------


def drive(topics: Topics, lake: Path, topic: str, window: str, engine: str) -> int:
    done = subprocess.run(
        [sys.executable, str(DRIVER), topics.bootstrap, str(lake), topic, window, engine],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def check_crash(topics: Topics, place: Path, window: str, engine: str) -> None:
    topic, lake = filled(topics), Lake(str(place))
    assert drive(topics, place, topic, window, engine) == -signal.SIGKILL
    committed = 2 if window == "after commit" else 1
    assert last_stamp(lake.table(topic)).epoch == committed
    assert len(in_lake(lake, topic)) == committed * lake_driver.SIZE
    topics.send(topic, records(200, 230))
    assert drive(topics, place, topic, "none", engine) == 0
    assert in_lake(lake, topic) == expected(0, 230)
    table = lake.table(topic)
    left_over = care.clean(table, older_than=timedelta(0)).files
    # What was written and not committed is garbage, and nothing else is.
    assert (left_over > 0) == (window in ("amid writing", "before commit", "amid commit"))
    assert in_lake(lake, topic) == expected(0, 230)


@pytest.mark.parametrize("window", lake_driver.WINDOWS)
def test_a_driver_killed_in_any_window_loses_and_doubles_nothing(
    topics: Topics, tmp_path: Path, window: str
) -> None:
    check_crash(topics, tmp_path, window, "plain")


@pytest.mark.slow
@pytest.mark.parametrize("window", lake_driver.WINDOWS)
def test_a_spark_driver_killed_in_any_window_loses_and_doubles_nothing(
    topics: Topics, tmp_path: Path, window: str
) -> None:
    check_crash(topics, tmp_path, window, "spark")


# --- Commits --------------------------------------------------------------------------------------

COLUMNS = StructType().add("id", LongType()).add("text", StringType())


def rows(low: int, high: int) -> pa.RecordBatch:
    numbers = range(low, high)
    return pa.RecordBatch.from_pydict({"id": list(numbers), "text": [str(n) for n in numbers]})


def paths(table: Table, low: int, high: int) -> list[str]:
    return [each.path for each in write_files([rows(low, high)], target_of(table))]


def ids(table: Table) -> list[int]:
    found: list[int] = sorted(table.refresh().scan().to_arrow()["id"].to_pylist())
    return found


def test_of_two_drivers_with_the_same_work_one_is_overtaken(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).create("t", COLUMNS, None, {})
    began, end = last_stamp(table), {TopicPartition("t", 0): 10}
    assert commit(table, adding(paths(table, 0, 10)), from_offsets(began, end))
    late = Lake(str(tmp_path)).table("t")
    with pytest.raises(Overtaken, match="second `tidelog lake`"):
        commit(late, adding(paths(table, 0, 10)), from_offsets(began, end))
    assert ids(table) == list(range(10))


def test_a_commit_that_lost_a_race_is_made_on_top_of_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Lake(str(tmp_path)).create("t", COLUMNS, None, {})
    other = Lake(str(tmp_path)).table("t")
    raced = False

    def decide(stamp: Stamp) -> Stamp:
        nonlocal raced
        if not raced:  # between the look at the table and the commit
            raced = True
            commit(other, adding(paths(other, 10, 20)), Stamp.added)
        return stamp.added()

    assert commit(table, adding(paths(table, 0, 10)), decide)
    assert ids(table) == list(range(20))
    assert last_stamp(table).epoch == 2


def test_a_commit_whose_answer_is_lost_is_found_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Lake(str(tmp_path)).create("t", COLUMNS, None, {})
    do_commit = type(table)._do_commit

    def lose_answer(self: Table, *given: Any, **more: Any) -> None:
        do_commit(self, *given, **more)
        raise ConnectionError("the answer is lost")

    monkeypatch.setattr(type(table), "_do_commit", lose_answer)
    assert commit(table, adding(paths(table, 0, 10)), Stamp.added)
    assert ids(table) == list(range(10))


def stream_writer(place: Path) -> LakeStreamWriter:
    return LakeStreamWriter({"lake": str(place), "table": "t"}, COLUMNS, overwrite=False)


def written(writer: LakeStreamWriter | LakeWriter, low: int, high: int) -> Sequence[TaskFiles]:
    found = writer.write(iter([rows(low, high)]))
    return [TaskFiles(found.files, "query-1")]


def test_a_batch_of_a_stream_is_committed_once_and_an_abort_after_it_harms_nothing(
    tmp_path: Path,
) -> None:
    first = stream_writer(tmp_path)
    messages = written(first, 0, 10)
    first.commit(messages, 0)
    first.abort(messages, 0)  # as Spark does when the answer of the commit was lost
    again = stream_writer(tmp_path)
    again.commit(written(again, 0, 10), 0)
    table = Lake(str(tmp_path)).table("t")
    assert ids(table) == list(range(10))
    again.commit(written(again, 10, 15), 1)
    assert ids(table) == list(range(15))
    assert last_stamp(table).queries == {"query-1": 1}


def test_an_overwrite_replaces_all_rows_in_one_snapshot(tmp_path: Path) -> None:
    options = {"lake": str(tmp_path), "table": "t"}
    for low, high in ((0, 10), (20, 25)):
        writer = LakeWriter(options, COLUMNS, overwrite=True)
        writer.commit(written(writer, low, high))
    table = Lake(str(tmp_path)).table("t")
    assert ids(table) == list(range(20, 25))
    assert len(table.snapshots()) == 2


def test_a_write_with_a_column_that_the_table_lacks_is_refused(tmp_path: Path) -> None:
    stream_writer(tmp_path)
    wider = StructType(COLUMNS.fields).add("extra", LongType())
    with pytest.raises(OptionError, match="no column `extra`"):
        LakeStreamWriter({"lake": str(tmp_path), "table": "t"}, wider, overwrite=False)


def test_a_stamp_forgets_the_query_that_wrote_longest_ago() -> None:
    stamp = Stamp()
    for number in range(MAX_QUERIES + 1):
        stamp = stamp.wrote(f"q{number}", 5)
    assert len(stamp.queries) == MAX_QUERIES
    assert "q0" not in stamp.queries
    assert from_query("q1", 5)(stamp) is None
    assert from_query("q1", 6)(stamp) is not None


# --- Care -----------------------------------------------------------------------------------------


def test_compaction_expiry_and_cleaning_keep_the_rows_and_the_place(
    here: None, topics: Topics, tmp_path: Path
) -> None:
    topic, lake = filled(topics), Lake(str(tmp_path))
    moved(None, lake, topic, topics, max_offsets=40)
    before = last_stamp(lake.table(topic))
    cli = CliRunner()

    def call(*words: str) -> Any:
        result = cli.invoke(app, ["lake", *words, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    (compacted,) = call("compact", str(tmp_path))
    assert compacted == {
        "table": topic,
        "files_before": compacted["files_before"],
        "files_after": 3,  # one for each day
        "rows": 200,
    }
    assert compacted["files_before"] > 3
    after = last_stamp(lake.table(topic))
    assert (after.offsets, after.epoch) == (before.offsets, before.epoch)
    assert in_lake(lake, topic) == expected(0, 200)
    assert call("clean", str(tmp_path), "--older-than", "0s")[0]["removed_files"] == 0
    assert call("expire", str(tmp_path), "--older-than", "0s")[0]["expired_snapshots"] == 5
    removed = call("clean", str(tmp_path), "--older-than", "0s")[0]["removed_files"]
    assert removed > compacted["files_before"]  # the old files, and the metadata that named them
    assert in_lake(lake, topic) == expected(0, 200)
    topics.send(topic, records(200, 240))
    assert moved(None, lake, topic, topics) == 40
    assert in_lake(lake, topic) == expected(0, 240)
    shown = call("show", str(tmp_path))
    assert [(each["table"], each["rows"], each["epoch"]) for each in shown] == [(topic, 240, 6)]


def test_young_files_are_not_cleaned_away_from_under_a_commit(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).create("t", COLUMNS, None, {})
    waiting = paths(table, 0, 10)
    assert care.clean(table).files == 0
    assert commit(table, adding(waiting), Stamp.added)
    assert ids(table) == list(range(10))


def test_rows_that_come_during_a_compaction_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Lake(str(tmp_path)).create("t", COLUMNS, None, {})
    for low in (0, 10):
        commit(table, adding(paths(table, low, low + 10)), Stamp.added)
    rewrite = care._rewrite

    def slow(group: Any) -> Any:
        other = Lake(str(tmp_path)).table("t")
        commit(other, adding(paths(other, 20, 30)), Stamp.added)
        return rewrite(group)

    monkeypatch.setattr(care, "_rewrite", slow)
    care.compact(table)
    assert ids(table) == list(range(30))
    assert len(data_files(table)) == 2


# --- The command ----------------------------------------------------------------------------------


def test_the_command_takes_a_topic_over_and_goes_on_the_next_time(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # others need it
    topic = topics.create()
    cli = CliRunner()
    for low in (0, 5):
        topics.send_values(topic, [json.dumps({"id": n}).encode() for n in range(low, low + 5)])
        result = cli.invoke(
            app,
            ["lake", topic, "--to", str(tmp_path), "--format", "json", "--schema", "id int"]
            + ["--json", "-b", topics.bootstrap],
            catch_exceptions=False,
        )
        assert result.exit_code == 0, result.output
        line = json.loads(result.output.splitlines()[-1])
        assert (line["rows"], line["offsets"]) == (5, {topic: {"0": low + 5}})
    assert ids(Lake(str(tmp_path)).table(topic)) == list(range(10))


def test_a_lake_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["lake", "show", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert "There is no lake at" in result.output
