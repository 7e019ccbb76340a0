"""The two clusters that are compared: Tidelog's nodes, and Apache Kafka's, both as processes here.

Kafka is started by a script that `TIDELOG_KAFKA_PEER` names (by default `../shared/peers/kafka`,
seen from this repository). It must know

    up N BASE_PORT      start N nodes; prints "pids: ..." and "bootstrap: ..."
    down                stop them
    run CLASS ARGS...   run one of Kafka's tools

and keep everything below `KAFKA_PEER_HOME`. Without it, only Tidelog is measured.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka.admin
from confluent_kafka import KafkaException

from bench._machine import BenchFailed, is_running, wait_ended
from tidelog.server.nodes import LocalCluster

rd: Any = confluent_kafka.admin  # its classes are not among what it says to export
PEER_VARIABLE = "TIDELOG_KAFKA_PEER"
DEFAULT_PEER = Path(__file__).resolve().parents[2] / "shared" / "peers" / "kafka"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 5.0
TOOL_TIMEOUT_S = 900
REPLICAS = 3
# Kafka's nodes listen on the ports that follow a base, and on those a hundred further.
KAFKA_BASES = range(29_000, 32_000, 200)
KAFKA_CONTROLLERS = 100
QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"


class Cluster(ABC):
    """A cluster of node processes, numbered from 1."""

    name: str

    def __init__(self) -> None:
        self.nodes = 0
        self.started_s = 0.0  # from the start of the processes to the first topic
        self.bootstrap = ""
        self.admin: Any = None

    def start(self, nodes: int) -> None:
        """Start the nodes; returns once a topic could be created."""
        began = time.monotonic()
        self.nodes = nodes
        self._up(nodes)
        self.admin = rd.AdminClient(_client(self.bootstrap))
        until(
            lambda: self._try_create("first", 1, {}),
            START_TIMEOUT_S,
            f"{self.name} did not create a topic",
        )
        self.started_s = time.monotonic() - began
        self.delete_topic("first")

    def stop(self) -> None:
        self.admin = None
        self._down()

    @abstractmethod
    def _up(self, nodes: int) -> None: ...

    @abstractmethod
    def _down(self) -> None: ...

    @abstractmethod
    def pid(self, node: int) -> int | None: ...

    @abstractmethod
    def restart(self, node: int) -> None:
        """Start a node that was killed, on its data."""

    @abstractmethod
    def controller(self) -> int:
        """The node that decides about metadata."""

    @property
    def pids(self) -> list[int]:
        found = (self.pid(node) for node in range(1, self.nodes + 1))
        return [pid for pid in found if pid is not None]

    def kill(self, node: int) -> float:
        """End a node as a crash would, and return when that was."""
        pid = self.pid(node)
        if pid is None:
            raise BenchFailed(f"node {node} of {self.name} does not run")
        os.kill(pid, signal.SIGKILL)
        at = time.monotonic()
        wait_ended([pid], STOP_TIMEOUT_S)
        return at

    # --- Topics -------------------------------------------------------------------------------

    def create_topic(self, partitions: int, config: Mapping[str, str]) -> str:
        """Create a topic under a new name, and return that once every partition has a leader."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self.create_named(name, partitions, config)
        return name

    def create_named(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic, and return once every partition has a leader and all replicas."""
        until(
            lambda: self._try_create(name, partitions, config),
            START_TIMEOUT_S,
            f"{self.name} did not create a topic of {partitions} partitions",
        )
        self.wait_in_sync(name)

    def _try_create(self, name: str, partitions: int, config: Mapping[str, str]) -> bool:
        topic = rd.NewTopic(name, partitions, min(REPLICAS, self.nodes), config=dict(config))
        try:
            self.admin.create_topics([topic], request_timeout=START_TIMEOUT_S)[name].result()
        except KafkaException as error:
            return str(error.args[0].name()) == "TOPIC_ALREADY_EXISTS"
        return True

    def wait_in_sync(self, topic: str) -> None:
        """Return once every replica of every partition has caught up."""
        until(
            lambda: self._is_in_sync(topic),
            START_TIMEOUT_S,
            f"not all replicas of {topic} caught up on {self.name}",
        )

    def _is_in_sync(self, topic: str) -> bool:
        with contextlib.suppress(KafkaException):
            found = self.admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
            return (
                found.error is None
                and bool(found.partitions)
                and all(
                    each.leader > 0 and len(each.isrs) == min(REPLICAS, self.nodes)
                    for each in found.partitions.values()
                )
            )
        return False

    def leader(self, topic: str) -> int:
        found = self.admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        return int(found.partitions[0].leader)

    def coordinator(self, group: str) -> int:
        """The node that looks after a group; asking makes the groups' own topic."""
        found: list[int] = []

        def ask() -> bool:
            with contextlib.suppress(KafkaException):
                answer = self.admin.describe_consumer_groups([group])[group].result()
                if answer.coordinator is not None and answer.coordinator.id > 0:
                    found.append(int(answer.coordinator.id))
            return bool(found)

        until(ask, START_TIMEOUT_S, f"nobody coordinates groups on {self.name}")
        return found[0]

    def addresses(self, *, besides: int = 0) -> list[str]:
        """Where the nodes serve clients, without one of them."""
        all_nodes = self.bootstrap.split(",")
        return [each for number, each in enumerate(all_nodes, 1) if number != besides]

    def delete_topic(self, name: str) -> None:
        with contextlib.suppress(KafkaException):
            self.admin.delete_topics([name], request_timeout=START_TIMEOUT_S)[name].result()


def _client(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0, "topic.metadata.propagation.max.ms": 0}


def until(attempt: Callable[[], bool], timeout: float, failure: str) -> None:
    """Try until it works; raises `BenchFailed`."""
    deadline = time.monotonic() + timeout
    while not attempt():
        if time.monotonic() > deadline:
            raise BenchFailed(f"{failure} within {timeout:g} s")
        time.sleep(0.02)


class Tidelog(Cluster):
    name = "Tidelog"

    def __init__(self, directory: Path | None = None, settings: str = "") -> None:
        """A directory that is given is kept; `settings` are lines for every node's file."""
        super().__init__()
        self._kept = directory
        self._settings = settings
        self._directory: Path | None = None
        self._local: LocalCluster | None = None

    @property
    def local(self) -> LocalCluster:
        if self._local is None:
            raise BenchFailed("the cluster was not started")
        return self._local

    def _up(self, nodes: int) -> None:
        self._directory = self._kept or Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
        self._local = LocalCluster(self._directory)
        self._local.prepare(nodes, 0, settings=self._settings)
        self._local.start_all()
        self._local.wait()
        self.bootstrap = self._local.bootstrap

    def _down(self) -> None:
        if self._local is not None:
            self._local.stop_all()
        if self._directory is not None and self._kept is None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def pid(self, node: int) -> int | None:
        return self.local.pid(node)

    def restart(self, node: int) -> None:
        list(self.local.ended())  # this one did, and was meant to
        self.local.start(node)
        self.local.wait([node])

    def controller(self) -> int:
        return int(self.admin.describe_cluster().result().controller.id)


class Kafka(Cluster):
    name = "Kafka"

    def __init__(self, script: Path) -> None:
        super().__init__()
        self._script = script
        self._directory: Path | None = None
        self._pids: list[int] = []
        self._commands: dict[int, list[str]] = {}
        self._restarted: list[subprocess.Popen[bytes]] = []

    def _up(self, nodes: int) -> None:
        # A home of its own disturbs nobody who runs the same script; only the jars are shared.
        call_peer(self._script, ("install",))
        self._directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-kafka-"))
        for jars in _peer_home().glob("libs-*"):
            (self._directory / jars.name).symlink_to(jars)
        printed = self._call("up", str(nodes), str(_free_base(nodes)))
        lines = dict(line.split(": ", 1) for line in printed.splitlines() if ": " in line)
        self._pids = [int(pid) for pid in lines["pids"].split()]
        self.bootstrap = lines["bootstrap"]

    def _down(self) -> None:
        if self._directory is None:
            return
        self._call("down")
        for pid in wait_ended(self._pids, STOP_TIMEOUT_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_ended(self._pids, STOP_TIMEOUT_S)
        for child in self._restarted:
            child.kill()
            child.wait()
        self._restarted.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def pid(self, node: int) -> int | None:
        pid = self._pids[node - 1]
        return pid if is_running(pid) else None

    def kill(self, node: int) -> float:
        line = Path(f"/proc/{self._pids[node - 1]}/cmdline").read_bytes()
        self._commands[node] = [part.decode() for part in line.split(b"\0") if part]
        return super().kill(node)

    def restart(self, node: int) -> None:
        child = subprocess.Popen(
            self._commands[node],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._restarted.append(child)
        self._pids[node - 1] = child.pid
        # The others take it for alive until its session ends: only its port tells.
        host, _, port = self.addresses()[node - 1].rpartition(":")
        until(lambda: _is_open(host, int(port)), START_TIMEOUT_S, f"node {node} did not come back")

    def controller(self) -> int:
        """Ask the quorum: what brokers tell clients is any broker."""
        printed = self._call(
            "run", QUORUM_TOOL, "--bootstrap-server", self.bootstrap, "describe", "--status"
        )
        for line in printed.splitlines():
            if line.startswith("LeaderId:"):
                return int(line.split()[1])
        raise BenchFailed("Kafka does not say which node is its controller")

    def _call(self, *arguments: str) -> str:
        return call_peer(self._script, arguments, home=self._directory)


def _is_open(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), REQUEST_TIMEOUT_S):
        return True
    return False


def _free_base(nodes: int) -> int:
    """A base whose ports nobody uses."""
    for base in KAFKA_BASES:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(1, nodes + 1):
                for port in (base + number, base + KAFKA_CONTROLLERS + number):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
    raise BenchFailed(f"no free ports for Kafka between {KAFKA_BASES.start} and {KAFKA_BASES.stop}")


def peer_script() -> Path | None:
    """The script that starts Kafka and runs its tools, if there is one that can work."""
    script = Path(os.environ.get(PEER_VARIABLE, DEFAULT_PEER))
    return script if script.exists() and shutil.which("java") else None


def _peer_home() -> Path:
    return Path(os.environ.get("KAFKA_PEER_HOME", Path.home() / ".cache" / "kafka-peer"))


def call_peer(script: Path, arguments: Sequence[str], *, home: Path | None = None) -> str:
    """Run the script and return what it prints; raises `BenchFailed`."""
    environment = {**os.environ, "KAFKA_PEER_HOME": str(home or _peer_home())}
    try:
        done = subprocess.run(
            [str(script), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
            timeout=TOOL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        what = " ".join(arguments[:2])
        raise BenchFailed(f"{script.name} {what} did not end within {TOOL_TIMEOUT_S} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise BenchFailed(f"{script.name} {' '.join(arguments[:2])} failed: {' / '.join(said)}")
    return done.stdout
