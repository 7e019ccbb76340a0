"""Node processes in a directory: started where they are missing, stopped where they hold a lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cluster.jointoken import JoinToken
from tidelog.rpc import Secret
from tidelog.server import ports
from tidelog.server.nodes import ClusterFailed, LocalCluster, Outcome


@pytest.fixture
def here(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that do not run yet."""
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.prepare(3, 0)
    yield cluster
    cluster.stop_all()


def pids(cluster: LocalCluster) -> list[int | None]:
    return [node.pid for node in cluster.nodes]


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


# --- What nodes are told --------------------------------------------------------------------------


def test_any_rack_and_any_path_are_told_as_they_are(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / 'a "quoted" \\ directory\n')
    cluster.prepare(
        1, 0, racks=['r"1"\\', "unused"], settings="heartbeat_ms = 50\n[log]\nfiles = 2"
    )
    (node,) = cluster.nodes
    told = tomllib.loads((node.directory / "node.toml").read_text())
    assert told["rack"] == 'r"1"\\'
    assert told["data"] == str(node.directory.resolve())
    assert told["heartbeat_ms"] == 50
    assert told["log"] == {"file": "node.log", "files": 2}


def test_nodes_get_ports_that_no_connection_takes_while_they_are_down(here: LocalCluster) -> None:
    told = [node.settings() for node in here.nodes]
    given = {each[listener]["port"] for each in told for listener in ("rpc", "kafka")}
    assert len(given) == 6
    assert not given & set(ports.ephemeral_range())


def test_kafka_ports_move_and_everything_else_stays(here: LocalCluster) -> None:
    before = [node.settings() for node in here.nodes]
    here.prepare(3, 19_000)
    after = [node.settings() for node in here.nodes]
    assert [each["kafka"].pop("port") for each in after] == [19_000, 19_001, 19_002]
    for each in before:
        del each["kafka"]["port"]
    assert after == before


def test_a_cluster_keeps_its_size(here: LocalCluster) -> None:
    with pytest.raises(ClusterFailed, match="holds a cluster of 3 nodes, not 5"):
        here.bring_up(5)


def test_a_file_that_was_spoilt_is_named(here: LocalCluster) -> None:
    (here.node(2).directory / "node.toml").write_text("id = = 2")
    with pytest.raises(ClusterFailed, match=r"node-2/node.toml cannot be read"):
        here.start(2)


def test_only_one_command_is_at_work_on_a_directory(here: LocalCluster) -> None:
    with here.alone():  # noqa: SIM117
        with pytest.raises(ClusterFailed, match="another `tidelog up` or `tidelog down`"):
            with LocalCluster(here.data).alone(0.1):
                pass
    with LocalCluster(here.data).alone(0.1):
        pass


# --- Starting -------------------------------------------------------------------------------------


def test_what_runs_is_not_touched_and_what_is_missing_is_started(here: LocalCluster) -> None:
    assert here.bring_up() == [1, 2, 3]
    before = pids(here)
    told = [(node.directory / "node.toml").read_text() for node in here.nodes]
    other = LocalCluster(here.data)  # as another process sees it

    assert other.bring_up() == []
    assert pids(here) == before

    here.kill(2)
    assert other.running == [1, 3]
    assert other.bring_up() == [2]
    after = pids(here)
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] not in (None, before[1])

    with pytest.raises(ClusterFailed, match="cannot change while nodes"):
        other.bring_up(kafka_port=19_000)
    assert pids(here) == after
    assert [(node.directory / "node.toml").read_text() for node in here.nodes] == told
    other.stop_all()
    assert here.running == []


def test_the_token_of_another_cluster_in_the_environment_keeps_no_node_from_starting(
    here: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    foreign = JoinToken(Secret.new(), "another cluster").encode()
    (tmp_path / "foreign").write_text(foreign)
    monkeypatch.setenv("TIDELOG_TOKEN", foreign)
    monkeypatch.setenv("TIDELOG_TOKEN_FILE", str(tmp_path / "foreign"))
    assert here.bring_up() == [1, 2, 3]
    monkeypatch.delenv("TIDELOG_TOKEN")  # which is looked at first
    here.stop(1)
    assert here.bring_up() == [1]


def test_a_taken_port_is_told_with_its_owner_and_leaves_nothing_behind(here: LocalCluster) -> None:
    port = here.node(2).settings()["rpc"]["port"]
    with listening(port), pytest.raises(ClusterFailed) as failed:
        here.bring_up()
    assert f"has its rpc port {port}" in str(failed.value)
    assert "process" in str(failed.value)
    assert "node-2/node.toml" in str(failed.value)
    assert here.running == []


def test_a_taken_port_of_one_node_keeps_no_other_from_starting(here: LocalCluster) -> None:
    here.bring_up()
    here.kill(2)
    here.kill(3)
    with (
        listening(here.node(2).settings()["kafka"]["port"]),
        pytest.raises(ClusterFailed, match=r"node 2 cannot start: .* its kafka port"),
    ):
        here.bring_up()
    assert here.running == [1, 3]


def test_a_node_with_another_port_finds_its_cluster_again(here: LocalCluster) -> None:
    """What the error about a taken port tells the user to do."""
    here.bring_up()
    here.kill(2)
    told = here.node(2).settings()
    (told["rpc"]["port"],) = ports.choose(1, "127.0.0.1")
    here.node(2).tell(told)
    assert here.bring_up() == [2]


def test_a_node_that_ends_at_once_is_told_with_its_last_words(here: LocalCluster) -> None:
    told = here.node(3).settings()
    here.node(3).tell({**told, "heartbeat_ms": 5000})
    with pytest.raises(ClusterFailed, match=r"node 3 ended with code 1(.|\n)*heartbeat_ms"):
        here.bring_up()
    assert here.running == []


def test_a_node_started_by_hand_says_who_has_its_port(here: LocalCluster) -> None:
    node = here.node(1)
    node.tell({key: value for key, value in node.settings().items() if key != "log"})
    port = node.settings()["rpc"]["port"]
    with listening(port):
        done = subprocess.run(
            here.command(node), capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 1
    assert f"process {os.getpid()} (" in done.stderr
    assert f"has the port {port} on 127.0.0.1: stop it, or change `port` under [rpc]" in done.stderr


# --- Stopping -------------------------------------------------------------------------------------


def test_a_stranger_with_the_pid_of_a_node_that_is_gone_lives_on(here: LocalCluster) -> None:
    directory = here.node(1).directory
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        said = {"pid": stranger.pid, "started": 1, "kafka": "127.0.0.1:1"}
        for name in ("lock", "serving.json"):
            (directory / name).write_text(json.dumps(said))
        (directory / "pid").write_text(f"{stranger.pid}\n")
        assert here.running == []
        assert here.node(1).address is None
        assert {each.outcome for each in here.end([1, 2, 3])} == {Outcome.NOT_RUNNING}
        with (directory / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert [each.outcome for each in here.end([1])] == [Outcome.UNKNOWN]
            with pytest.raises(ClusterFailed, match="does not say as which process"):
                here.stop(1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_each_node_is_stopped_and_what_became_of_it_is_told(here: LocalCluster) -> None:
    here.bring_up()
    before = pids(here)
    here.kill(2)
    other = LocalCluster(here.data)
    endings = other.end([1, 2, 3])
    assert [each.outcome for each in endings] == [
        Outcome.STOPPED,
        Outcome.NOT_RUNNING,
        Outcome.STOPPED,
    ]
    assert [each.pid for each in endings] == [before[0], None, before[2]]
    assert other.running == []


def test_a_node_that_does_not_stop_in_time_is_killed(here: LocalCluster) -> None:
    here.bring_up()
    for ending in here.end([1], patience=0.0):
        assert ending.outcome is Outcome.KILLED
    assert here.running == [2, 3]


def test_a_paused_node_is_stopped_as_well(here: LocalCluster) -> None:
    here.bring_up()
    assert here.signal(2, signal.SIGSTOP)
    assert here.running == [1, 2, 3]
    assert {each.outcome for each in here.end([1, 2, 3])} == {Outcome.STOPPED}


# --- The log --------------------------------------------------------------------------------------


def test_the_log_of_a_node_rotates(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.prepare(1, 0, settings="[log]\nmax_bytes = 65536\nfiles = 2")
    log = cluster.node(1).directory / "node.log"
    log.write_bytes(b"x" * 65536)
    try:
        cluster.bring_up()
    finally:
        cluster.stop_all()
    assert log.with_name("node.log.1").stat().st_size == 65536
    assert "serves Kafka clients" in log.read_text()
    assert "is stopping" in log.read_text()
