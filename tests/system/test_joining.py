"""Node processes that join a cluster, or try to: with its token, without, and with another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.system import System, system, until
from typer.testing import CliRunner

from tidelog.cli.app import app
from tidelog.cluster.jointoken import SECRET_FILE
from tidelog.server.names import NODE_FILE, TOKEN_FILE
from tidelog.server.nodes import LocalNode


def type_line(*line: str) -> str:
    result = CliRunner().invoke(app, list(line))
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def start(directory: Path, seeds: str = "", **environment: str) -> subprocess.Popen[str]:
    """Start node 2 in a directory of its own."""
    directory.mkdir()
    data = directory / "data"
    (directory / NODE_FILE).write_text(f'id = 2\ndata = "{data}"\n{seeds}')
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog", "start", "--config", str(directory / NODE_FILE)],
        env={**os.environ, **environment},
        text=True,
        stderr=subprocess.PIPE,
    )


def stop(node: subprocess.Popen[str]) -> str:
    """End a node and return what it said."""
    node.terminate()
    return node.communicate()[1]


def seeds_of(running: System) -> str:
    text = (running.cluster.node(1).directory / NODE_FILE).read_text()
    return "[[seeds]]" + text.partition("[[seeds]]")[2]


def test_a_node_needs_nothing_but_the_token_to_join(tmp_path: Path) -> None:
    with system(tmp_path / "cluster", nodes=1) as running:
        token = type_line("node", "token", "--data", str(running.data))
        node = start(tmp_path / "newcomer", TIDELOG_TOKEN=token)
        try:
            newcomer = LocalNode(2, tmp_path / "newcomer" / "data")
            until(lambda: newcomer.address, "a node with a token")
            with running.wire(1) as wire:
                assert {each.node_id for each in wire.metadata().brokers} == {1, 2}
        finally:
            said = stop(node)
        assert token not in said
        assert token not in running.log_of(1)


def test_a_node_with_the_token_of_another_cluster_stays_outside_and_both_logs_say_so(
    tmp_path: Path,
) -> None:
    with system(tmp_path / "cluster", nodes=1) as running:
        token = type_line("node", "token", "--new")
        node = start(tmp_path / "stranger", seeds_of(running), TIDELOG_TOKEN=token)
        try:
            until(lambda: "does not know the secret" in running.log_of(1), "a refusal")
            with running.wire(1) as wire:
                assert {each.node_id for each in wire.metadata().brokers} == {1}
        finally:
            said = stop(node)
        assert "not a member yet" in said
        assert "its secret is not that of this node" in said
        assert running.log_of(1).count("does not know the secret") <= 3


def test_a_node_without_a_token_is_told_how_to_get_one(tmp_path: Path) -> None:
    with system(tmp_path / "cluster", nodes=1) as running:
        node = start(tmp_path / "stranger", seeds_of(running))
        said = node.communicate(timeout=60)[1]
    assert node.returncode == 1
    assert "run `tidelog node token --data DIR` on the machine of a member" in said


def test_the_secret_is_found_where_a_member_is_and_nowhere_else(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["node", "token", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert f"There is no {SECRET_FILE} in {tmp_path}" in result.stderr


@pytest.mark.parametrize("name", [TOKEN_FILE, f"node-1/{SECRET_FILE}"])
def test_the_files_with_the_secret_are_for_their_owner_alone(tmp_path: Path, name: str) -> None:
    with system(tmp_path, nodes=1):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
