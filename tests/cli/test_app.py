"""The command line as a whole: help that is quick and true, completion, wrong command lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tidelog.cli.app import Commands, app
from tidelog.cli.lazy import Entry

runner = CliRunner()


def test_help_lists_every_command() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for entry in Commands.table:
        assert entry.summary in result.output


@pytest.mark.parametrize("entry", Commands.table, ids=lambda entry: entry.name)
def test_every_command_explains_itself(entry: Entry) -> None:
    result = runner.invoke(app, [entry.name, "--help"])
    assert result.exit_code == 0
    assert f"tidelog {entry.name}" in result.output
    assert (entry.load().help or "").strip()


def test_help_imports_no_room_and_no_command() -> None:
    """What makes `--help` quick: nothing is imported that it does not show."""
    script = (
        "import sys; from tidelog.cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith(('tidelog.', 'kio', 'numpy', "
        "'asyncio', 'multiprocessing'))], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    found = sorted(eval(done.stderr.strip().splitlines()[-1]))
    assert found == ["tidelog.cli", "tidelog.cli.app", "tidelog.cli.lazy"]


@pytest.mark.parametrize(
    "line",
    [
        ["topic", "create"],
        ["topic", "create", "t", "-p", "0"],
        ["topic", "create", "t", "-c", "novalue"],
        ["topic", "alter", "t"],
        ["consume", "t", "-o", "nowhere"],
        ["consume", "t", "-f", "%x"],
        ["consume", "t", "-g", "g", "-p", "1"],
        ["consume", "t", "-g", "g", "-o", "5"],
        ["produce", "t", "-f", "nothing"],
        ["produce", "t", "-H", "novalue"],
        ["produce", "t", "--acks", "2"],
        ["group", "reset", "g"],
        ["group", "reset", "g", "--to-earliest", "--to-latest"],
        ["group", "reset", "g", "--to-datetime", "yesterday"],
        ["config", "set", "novalue"],
        ["log", "show", "orders"],
        ["log", "verify"],
        ["log", "verify", "orders"],
        ["log", "verify", "orders/0", "--all"],
        ["node", "recover"],
        ["node", "recover", "--data", "d", "--partition", "orders/0"],
        ["node", "recover", "--data", "d", "--keep", "two"],
        ["node", "drain", "two"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_with_2_before_anything_is_asked(line: list[str]) -> None:
    result = runner.invoke(app, line, env={"TIDELOG_BOOTSTRAP": "127.0.0.1:1"})
    assert result.exit_code == 2, result.output


def test_a_cluster_that_is_not_there_is_a_sentence_and_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.cli.common.CONTACT_SECONDS", 0.1)
    result = runner.invoke(app, ["topic", "list", "-b", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "No node answers at 127.0.0.1:1" in result.output
    assert "Is the cluster running" in result.output


def test_a_wrong_address_is_a_sentence_and_1() -> None:
    result = runner.invoke(app, ["topic", "list", "-b", "nowhere:at:all"])
    assert result.exit_code == 1
    assert "write it as host:port" in result.output


def test_the_shell_completes_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog"],
        env={
            **os.environ,
            "_TIDELOG_COMPLETE": "complete_bash",
            "COMP_WORDS": "tidelog co",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["consume", "config"]
