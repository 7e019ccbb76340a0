"""Ways to a lake: a REST catalog, Avro values, and a command that goes on until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Topics
from tests.spark.rest_catalog import RestCatalog, serve
from tests.spark.test_lake import expected, filled, in_lake, moved, records
from tests.spark.test_read import AVRO, UTC, avro
from typer.testing import CliRunner

from tidelog.cli.app import app
from tidelog.spark.lake import Lake, LakeError, care
from tidelog.spark.lake.stamp import last_stamp
from tidelog.spark.options import OptionError


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalog]:
    with serve(tmp_path / "rest") as catalog:
        yield catalog


def shown(*words: str) -> Any:
    result = CliRunner().invoke(app, ["lake", *words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


# --- A REST catalog -------------------------------------------------------------------------------


def test_a_rest_catalog_takes_the_place_of_sqlite(
    here: None, topics: Topics, rest: RestCatalog, tmp_path: Path
) -> None:
    place = tmp_path / "lake"
    topic, lake = filled(topics), Lake(str(place), rest.address)
    assert moved(None, lake, topic, topics, max_offsets=90) == 200
    topics.send(topic, records(200, 230))
    assert moved(None, lake, topic, topics) == 30
    assert in_lake(lake, topic) == expected(0, 230)
    assert not place.exists()  # the catalog says where tables are
    (found,) = shown("show", str(place), "--catalog", rest.address)
    assert (found["table"], found["rows"], found["epoch"]) == (topic, 230, 4)
    care.compact(lake.table(topic))
    care.expire(lake.table(topic), older_than=timedelta(0))
    assert care.clean(lake.table(topic), older_than=timedelta(0)).files > 0
    assert in_lake(lake, topic) == expected(0, 230)


def test_an_answer_that_a_rest_catalog_lost_doubles_nothing(
    here: None, topics: Topics, rest: RestCatalog, tmp_path: Path
) -> None:
    topic, lake = filled(topics), Lake(str(tmp_path / "lake"), rest.address)
    rest.lost_answers = 1
    assert moved(None, lake, topic, topics, max_offsets=100) == 200
    assert rest.commits == 2
    assert in_lake(lake, topic) == expected(0, 200)


def test_a_rest_catalog_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with serve(tmp_path) as gone:
        address = gone.address
    with pytest.raises(LakeError, match=address):
        Lake(str(tmp_path), address).tables()


# --- Avro -----------------------------------------------------------------------------------------


def test_avro_values_become_columns_and_those_that_are_none_are_kept(
    here: None, topics: Topics, tmp_path: Path
) -> None:
    from datetime import datetime

    topic, lake = topics.create(), Lake(str(tmp_path))
    at = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)
    values = [avro(id=n, amount=Decimal(n) / 4, note=None, at=at) for n in range(5)]
    topics.send_values(topic, [*(b"\0\0\0\0\1" + value for value in values), b"\1", None])
    framed = {"valueFormat": "avro", "avroSchema": AVRO, "avroFraming": "confluent"}
    assert moved(None, lake, topic, topics, options=framed) == 7
    rows = lake.table(topic).scan().to_arrow().sort_by("_offset").to_pylist()
    assert [(row["id"], row["amount"]) for row in rows[:5]] == [
        (n, Decimal(n) / 4) for n in range(5)
    ]
    assert {row["at"] for row in rows[:5]} == {at}
    assert [(row["id"], row["_corrupt"]) for row in rows[5:]] == [(None, b"\1"), (None, None)]
    topics.send_values(topic, [b"\0\0\0\0\1" + values[0]])
    assert moved(None, lake, topic, topics) == 1  # the table knows how its topic is read


def test_maps_in_json_are_refused_with_a_sentence(
    here: None, topics: Topics, tmp_path: Path
) -> None:
    from pyspark.sql.types import LongType, MapType, StringType, StructType

    topic = topics.create()
    topics.send_values(topic, [b'{"counts": {"a": 1}}'])
    schema = StructType().add("counts", MapType(StringType(), LongType()))
    with pytest.raises(OptionError, match="map"):
        moved(
            None,
            Lake(str(tmp_path)),
            topic,
            topics,
            schema=schema,
            options={"valueFormat": "json"},
        )


# --- Until Ctrl-C ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_command_that_follows_a_topic_ends_with_ctrl_c_and_has_all_rows(
    topics: Topics, tmp_path: Path
) -> None:
    topic, lake = filled(topics), Lake(str(tmp_path))
    words = ["lake", topic, "--to", str(tmp_path), "--follow", "--every", "1s", "--json"]
    following = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words, "-b", topics.bootstrap, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["rows"] == 200
        topics.send(topic, records(200, 230))
        assert json.loads(following.stdout.readline())["rows"] == 30
        os.killpg(following.pid, signal.SIGINT)  # as a terminal does: to the JVM and all workers
        out, err = following.communicate(timeout=120)
    finally:
        if following.poll() is None:
            os.killpg(following.pid, signal.SIGKILL)
    assert (following.returncode, out) == (0, ""), err
    assert "Traceback" not in err
    assert in_lake(lake, topic) == expected(0, 230)
    assert last_stamp(lake.table(topic)).epoch == 2
