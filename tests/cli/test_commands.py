"""The commands on a real broker, as a user types them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import tidelog
from tidelog.cli.app import app


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with tidelog.local() as broker:
        yield broker.bootstrap


class Shell:
    """Types commands."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def type(self, *line: str, feed: str | bytes = "") -> Result:
        environment = {"TIDELOG_BOOTSTRAP": self.bootstrap}
        return CliRunner().invoke(app, list(line), input=feed, env=environment)

    def run(self, *line: str, feed: str | bytes = "") -> str:
        """Type a command that must go well; return its standard output."""
        result = self.type(*line, feed=feed)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *line: str, feed: str = "") -> Any:
        return json.loads(self.run(*line, "--json", feed=feed))

    def lines(self, *line: str, feed: str | bytes = "") -> list[str]:
        return self.run(*line, feed=feed).splitlines()


@pytest.fixture
def shell(bootstrap: str) -> Shell:
    return Shell(bootstrap)


def process(bootstrap: str, *line: str, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog", *line],
        env={**os.environ, "TIDELOG_BOOTSTRAP": bootstrap},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **streams,
    )


# --- Topics ---------------------------------------------------------------------------------------


def test_a_topic_from_its_creation_to_its_end(shell: Shell) -> None:
    assert shell.run(
        "topic", "create", "life", "-p", "2", "-r", "1", "-c", "retention.ms=5000"
    ) == ("Created topic life.\n")
    assert ["life", "2", "1"] in [line.split() for line in shell.lines("topic", "list")]
    described = shell.json("topic", "describe", "life")
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    assert described["settings"] == {"retention.ms": {"value": "5000", "source": "topic"}}
    shell.run("topic", "alter", "life", "-p", "3", "-c", "segment.bytes=2097152")
    shell.run("topic", "alter", "life", "--delete-config", "retention.ms")
    described = shell.json("topic", "describe", "life")
    assert len(described["partitions"]) == 3
    assert list(described["settings"]) == ["segment.bytes"]
    text = shell.run("topic", "describe", "life")
    assert "life: 3 partitions, 1 replica each" in text
    assert "segment.bytes  2097152  topic" in text
    assert shell.run("topic", "delete", "life") == "Deleted topic life.\n"
    assert "life" not in [each["topic"] for each in shell.json("topic", "list")]


def test_what_cannot_be_is_a_sentence_and_1(shell: Shell) -> None:
    shell.run("topic", "create", "once")
    for line, words in (
        (["topic", "create", "once"], "exists already"),
        (["topic", "describe", "nope"], "Topic nope does not exist. `tidelog topic list`"),
        (["topic", "delete", "nope"], "nope"),
        (["topic", "create", "x", "-r", "3"], "replica"),
        (["topic", "create", "x", "-c", "no.such=1"], "no.such"),
        (["topic", "create", "a/b"], "a/b"),
        (["consume", "nope"], "does not exist"),
        (["produce", "nope"], "does not exist"),
        (["group", "describe", "nope"], "Group nope does not exist"),
        (["group", "delete", "nope"], "Group nope does not exist"),
        (["log", "show", "nope/0"], "nope"),
        (["log", "show", "once/99"], "99"),
        (["node", "drain", "77"], "77"),
        (["config", "get", "no.such"], "no setting no.such"),
        (["config", "set", "no.such=1"], "no.such"),
        (["config", "list", "--node", "9"], "no node 9"),
    ):
        result = shell.type(*line)
        assert result.exit_code == 1, (line, result.output)
        assert result.stderr.startswith("tidelog: "), line
        assert words in result.stderr, line
        assert "Traceback" not in result.output


def test_creation_can_be_tried_and_repeated(shell: Shell) -> None:
    assert "can be created" in shell.run("topic", "create", "maybe", "--dry-run")
    assert shell.json("topic", "create", "maybe") == [{"topic": "maybe", "created": True}]
    assert shell.json("topic", "create", "maybe", "--if-not-exists") == [
        {"topic": "maybe", "created": False}
    ]


# --- Records --------------------------------------------------------------------------------------


def test_what_is_produced_is_consumed(shell: Shell) -> None:
    shell.run("topic", "create", "words", "-p", "1")
    result = shell.type("produce", "words", feed="one\ntwo\nthree")
    assert result.stderr == "Wrote 3 records to words.\n"
    assert shell.lines("consume", "words", "-e") == ["one", "two", "three"]
    assert shell.lines("consume", "words", "-n", "2") == ["one", "two"]
    assert shell.lines("consume", "words", "-e", "-o", "-1") == ["three"]
    assert shell.lines("consume", "words", "-e", "-o", "1") == ["two", "three"]
    assert shell.lines("consume", "words", "-e", "-o", "end") == []
    assert shell.lines("consume", "words", "-e", "-o", "99") == []
    assert shell.lines("consume", "words", "-e", "-o", "@-1h") == ["one", "two", "three"]
    assert shell.lines("consume", "words", "-e", "-o", "@2100-01-01") == []


def test_keys_headers_partitions_and_packing_arrive(shell: Shell) -> None:
    shell.run("topic", "create", "full", "-p", "3")
    written = shell.lines(
        "produce", "full", "-f", r"%k %v\n", "-H", "a=1", "-p", "2", "-z", "zstd", "--json",
        feed="k1 v1\nk2 v2\n",
    )  # fmt: skip
    assert [json.loads(line) for line in written] == [
        {"topic": "full", "partition": 2, "offset": 0},
        {"topic": "full", "partition": 2, "offset": 1},
    ]
    assert shell.lines("consume", "full", "-e", "-f", r"%t/%p@%o %k=%v %h\n") == [
        "full/2@0 k1=v1 a=1",
        "full/2@1 k2=v2 a=1",
    ]
    assert shell.lines("consume", "full", "-e", "-p", "1") == []
    record = json.loads(shell.lines("consume", "full", "-n", "1", "--json")[0])
    assert (record["key"], record["headers"]) == ("k1", [{"key": "a", "value": "1"}])


def test_an_empty_line_is_an_empty_record_or_a_tombstone(shell: Shell) -> None:
    shell.run("topic", "create", "gone", "-p", "1")
    shell.run("produce", "gone", "-k", "me", feed="\n")
    shell.run("produce", "gone", "-k", "me", "--tombstone", "--acks", "1", feed="\n")
    records = [json.loads(line) for line in shell.lines("consume", "gone", "-e", "--json")]
    assert [record["value"] for record in records] == ["", None]


def test_bytes_that_are_no_text_go_through_unchanged(bootstrap: str, shell: Shell) -> None:
    shell.run("topic", "create", "raw", "-p", "1")
    shell.run("produce", "raw", feed=b"\xff\xfe\x00x\n")
    result = shell.type("consume", "raw", "-e")
    assert result.stdout_bytes == b"\xff\xfe\x00x\n"


def test_a_line_that_does_not_fit_is_named_and_those_before_it_are_written(shell: Shell) -> None:
    shell.run("topic", "create", "fits", "-p", "1")
    result = shell.type("produce", "fits", "-f", r"%k %v\n", feed="a b\nnospace\nc d\n")
    assert result.exit_code == 1
    assert "Record 2 of the input: 'nospace'" in result.stderr
    assert shell.lines("consume", "fits", "-e") == ["b"]


def test_many_records_of_several_topics(shell: Shell) -> None:
    shell.run("topic", "create", "many-a", "many-b", "-p", "2")
    numbers = [str(number) for number in range(3000)]
    for topic in ("many-a", "many-b"):
        shell.run("produce", topic, feed="\n".join(numbers))
    found = shell.lines("consume", "many-a", "many-b", "-e")
    assert sorted(found) == sorted(numbers * 2)


def test_consume_follows_until_it_is_told_to_stop(bootstrap: str, shell: Shell) -> None:
    shell.run("topic", "create", "tail", "-p", "1")
    reader = process(bootstrap, "consume", "tail", "-g", "followers")
    assert reader.stdout is not None
    try:
        for word in ("first", "second"):
            shell.run("produce", "tail", feed=word)
            assert reader.stdout.readline() == f"{word}\n"
        assert shell.json("group", "describe", "followers")["state"] == "Stable"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(30) == 0
        assert reader.stderr is not None
        assert reader.stderr.read() == ""
    finally:
        reader.kill()
        reader.communicate()
    described = shell.json("group", "describe", "followers")
    assert (described["state"], described["members"]) == ("Empty", [])
    assert [each["lag"] for each in described["partitions"]] == [0]


def test_produce_sends_a_line_before_the_next_one_is_typed(bootstrap: str, shell: Shell) -> None:
    shell.run("topic", "create", "typed", "-p", "1")
    writer = process(bootstrap, "produce", "typed", stdin=subprocess.PIPE)
    assert writer.stdin is not None
    try:
        writer.stdin.write("at once\n")
        writer.stdin.flush()
        assert shell.lines("consume", "typed", "-n", "1") == ["at once"]
        writer.stdin.close()
        assert writer.wait(30) == 0
    finally:
        writer.kill()
        writer.wait()
        for stream in (writer.stdout, writer.stderr):
            assert stream is not None
            stream.close()


# --- Groups ---------------------------------------------------------------------------------------


def test_a_group_reads_on_is_moved_and_is_deleted(shell: Shell) -> None:
    shell.run("topic", "create", "grouped", "-p", "1")
    shell.run("produce", "grouped", feed="a\nb\nc\nd\n")
    assert shell.lines("consume", "grouped", "-g", "g", "-n", "3") == ["a", "b", "c"]
    assert shell.lines("consume", "grouped", "-g", "g", "-e") == ["d"]
    assert ["g", "Empty"] in [
        [each["group"], each["state"]] for each in shell.json("group", "list")
    ]
    text = shell.run("group", "describe", "g")
    assert "g: Empty, 0 members, 0 records behind" in text
    for options, after in (
        (["--to-earliest"], 0),
        (["--shift-by", "2"], 2),
        (["--shift-by", "-100"], 0),
        (["--to-latest"], 4),
        (["--to-offset", "3"], 3),
        (["--to-datetime", "2000-01-01"], 0),
    ):
        moved = shell.json("group", "reset", "g", *options)
        assert [each["after"] for each in moved["partitions"]] == [after]
        offsets = shell.json("group", "describe", "g")["partitions"]
        assert [each["offset"] for each in offsets] == [after]
    dry = shell.run("group", "reset", "g", "--to-latest", "--dry-run")
    assert "Nothing was changed." in dry
    assert [each["lag"] for each in shell.json("group", "describe", "g")["partitions"]] == [4]
    assert shell.run("group", "delete", "g") == "Deleted group g.\n"
    assert "g" not in [each["group"] for each in shell.json("group", "list")]


def test_a_new_group_can_be_placed_before_it_begins(shell: Shell) -> None:
    shell.run("topic", "create", "placed", "-p", "1")
    shell.run("produce", "placed", feed="a\nb\n")
    assert "name topics with --topic" in shell.run("group", "reset", "fresh", "--to-latest")
    shell.run("group", "reset", "fresh", "--to-offset", "1", "--topic", "placed")
    assert shell.lines("consume", "placed", "-g", "fresh", "-e") == ["b"]


# --- The cluster ----------------------------------------------------------------------------------


def test_status_tells_how_the_cluster_is(shell: Shell) -> None:
    shell.run("topic", "create", "status", "-p", "1")
    deadline = time.monotonic() + 60
    while shell.type("cluster", "status", "--check").exit_code:
        assert time.monotonic() < deadline
    text = shell.run("cluster", "status")
    assert "controller node 1" in text
    assert "Every partition has its leader and all its replicas." in text
    found = shell.json("cluster", "status")
    assert [(node["id"], node["alive"]) for node in found["nodes"]] == [(1, True)]


def test_a_node_is_drained_and_let_lead_again(shell: Shell) -> None:
    drained = shell.json("node", "drain", "1", "--no-wait")
    assert drained["status"] == "draining"
    states = [node["status"] for node in shell.json("cluster", "status")["nodes"]]
    assert states == ["draining"]
    assert shell.run("node", "undrain", "1") == "Node 1 may lead partitions again.\n"
    assert shell.json("node", "undrain", "1")["status"] == "active"


def test_settings_are_listed_changed_and_put_back(shell: Shell) -> None:
    assert shell.run("config", "set", "num.partitions=6") == "num.partitions is now 6.\n"
    assert shell.run("config", "get", "num.partitions") == "6\n"
    changed = shell.json("config", "list")
    assert changed["num.partitions"] == {"value": "6", "source": "cluster"}
    shell.run("config", "unset", "num.partitions")
    assert "num.partitions" not in shell.json("config", "list")
    assert "num.partitions" in shell.json("config", "list", "--all")


def test_a_log_is_drawn(shell: Shell) -> None:
    shell.run("topic", "create", "drawn", "-p", "1")
    shell.run("produce", "drawn", feed="a\nb\n")
    text = shell.run("log", "show", "drawn/0")
    assert "led by node 1" in text
    assert "clients see from 0 to 1; the next record gets 2" in text
    assert "node 1 leader" in text
    assert "[t1=" in text
    assert "start=0" in text
    assert "\x1b" not in text
    found = shell.json("log", "show", "drawn/0")
    assert found["replicas"][0]["high_watermark"] == 2


def test_a_log_that_is_followed_is_drawn_again_when_it_changes(
    bootstrap: str, shell: Shell
) -> None:
    shell.run("topic", "create", "watched", "-p", "1")
    shell.run("produce", "watched", feed="a\n")
    watcher = process(bootstrap, "log", "show", "watched/0", "--follow", "--json")
    assert watcher.stdout is not None
    try:
        assert json.loads(watcher.stdout.readline())["replicas"][0]["end"] == 1
        shell.run("produce", "watched", feed="b\n")
        while json.loads(watcher.stdout.readline())["replicas"][0]["end"] != 2:
            pass
        watcher.send_signal(signal.SIGTERM)
        assert watcher.wait(30) == 0
    finally:
        watcher.kill()
        watcher.communicate()


def test_the_shell_completes_names_of_topics(bootstrap: str, shell: Shell) -> None:
    shell.run("topic", "create", "complete-me", "complete-me-too", "other")
    done = subprocess.run(
        [sys.executable, "-m", "tidelog"],
        env={
            **os.environ,
            "TIDELOG_BOOTSTRAP": bootstrap,
            "_TIDELOG_COMPLETE": "complete_bash",
            "COMP_WORDS": "tidelog topic describe comp",
            "COMP_CWORD": "3",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["complete-me", "complete-me-too"]
