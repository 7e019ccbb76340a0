"""Errors for programs: one JSON line on the error stream, and the exit status of always."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

from tidelog.cli.app import app
from tidelog.cli.errors import asks_for_json, kind_of
from tidelog.client.errors import Refused, TimedOut, UnknownTopic
from tidelog.client.operations import OperationRefused
from tidelog.server import process
from tidelog.storage import StorageError

NOWHERE = {"TIDELOG_BOOTSTRAP": "127.0.0.1:1"}
BAD_NEWS = [
    ["topic", "list"],
    ["topic", "describe", "t"],
    ["topic", "create", "t"],
    ["topic", "alter", "t", "-p", "3"],
    ["topic", "delete", "t"],
    ["consume", "t"],
    ["produce", "t"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "delete", "g"],
    ["group", "reset", "g", "--to-latest"],
    ["cluster", "status"],
    ["cluster", "status", "--check"],
    ["node", "drain", "1"],
    ["node", "undrain", "1"],
    ["node", "decommission", "1"],
    ["config", "list"],
    ["config", "get", "k"],
    ["config", "set", "k=v"],
    ["log", "show", "t/0"],
    ["down", "--data", "/nowhere"],
    ["up", "--data", "/dev/null/data"],
]
WRONG_LINES = [
    ["topic", "create"],
    ["topic", "create", "t", "-p", "0"],
    ["topic", "alter", "t"],
    ["consume", "t", "-f", "%x"],
    ["config", "set", "novalue"],
    ["log", "show", "orders"],
    ["node", "drain", "two"],
    ["node", "decommission"],
    ["up", "--nodes", "many"],
    ["nonsense"],
    ["topic", "nonsense"],
    ["topic", "list", "--no-such-option"],
]


def error_of(stderr: str) -> dict[str, str]:
    (line,) = stderr.splitlines()
    document = json.loads(line)
    assert list(document) == ["error"]
    assert list(document["error"]) == ["kind", "message"]
    error: dict[str, str] = document["error"]
    return error


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.cli.common.CONTACT_SECONDS", 0.05)


@pytest.mark.parametrize("line", BAD_NEWS, ids=" ".join)
def test_bad_news_is_json_with_status_1(line: list[str]) -> None:
    plain = CliRunner().invoke(app, line, env=NOWHERE)
    result = CliRunner().invoke(app, [*line, "--json"], env=NOWHERE)
    assert (result.exit_code, plain.exit_code) == (1, 1), result.output
    assert result.stdout == ""
    error = error_of(result.stderr)
    assert error["kind"] in ("unreachable", "timed_out", "failed", "system")
    assert error["message"].endswith((".", "?"))
    assert plain.stderr.startswith("tidelog: ")


@pytest.mark.parametrize("line", WRONG_LINES, ids=" ".join)
def test_a_wrong_command_line_is_json_with_status_2(line: list[str]) -> None:
    plain = CliRunner().invoke(app, line, env=NOWHERE)
    result = CliRunner().invoke(app, [*line, "--json"], env=NOWHERE)
    assert (result.exit_code, plain.exit_code) == (2, 2), result.output
    assert result.stdout == ""
    assert error_of(result.stderr)["kind"] == "usage"


def test_a_defect_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("tidelog.cli.cluster.run", broken)
    result = CliRunner().invoke(app, ["cluster", "status", "--json"], env=NOWHERE)
    error = error_of(result.stderr)
    assert (result.exit_code, error["kind"]) == (1, "internal")
    assert "ZeroDivisionError: division by zero" in error["message"]


def test_the_script_itself_does_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", "node", "drain", "two", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "integer" in error_of(done.stderr)["message"]


def test_help_is_help_and_not_an_error() -> None:
    result = CliRunner().invoke(app, ["topic", "list", "--json", "--help"])
    assert result.exit_code == 0
    assert "tidelog topic list" in result.stdout


def test_a_value_after_two_dashes_is_not_an_option() -> None:
    assert asks_for_json(["topic", "delete", "--json", "--", "x"])
    assert not asks_for_json(["topic", "delete", "--", "--json"])


def test_kinds_are_names_that_programs_can_compare() -> None:
    assert [
        kind_of(error)
        for error in (
            UnknownTopic("t"),
            Refused(ErrorCode.group_id_not_found, "group g"),
            OperationRefused("unknown node", "there is no node 9"),
            OperationRefused("the disk refused", "no"),
            TimedOut("late"),
            FileNotFoundError("x"),
        )
    ] == [
        "unknown_topic_or_partition",
        "group_id_not_found",
        "unknown_node",
        "the_disk_refused",
        "timed_out",
        "system",
    ]


def test_a_node_that_cannot_start_on_a_full_disk_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise StorageError("no", OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(process, "run", refuse)
    config = tmp_path / "node.toml"
    config.write_text(f'id = 1\ndata = "{tmp_path}"\n')
    result = CliRunner().invoke(app, ["start", "--config", str(config)])
    assert result.exit_code == 1
    assert "its disk is full (no). Remove something that is not the node's own" in result.output
