"""The node processes of a cluster on this machine.

    DIR/lock                  held by a `tidelog up` or `down` that is at work
    DIR/join-token            what a node needs to join; only its owner may read it
    DIR/node-1/node.toml      what the node was told
    DIR/node-1/lock           held by its process while it runs
    DIR/node-1/serving.json   where it serves clients, once it does
    DIR/node-1/node.log       its log
    DIR/node-1/...            its data

Everything is found in the directory again, so a cluster need not be stopped by the process that
started it. A node that ends is never restarted silently, and a node that runs is never touched by
starting others. Only the process that holds a node's lock is ever signalled.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from tidelog.cluster.directory import Held, Process, Taken, look, take
from tidelog.cluster.jointoken import JoinToken, write_private
from tidelog.rpc import Secret
from tidelog.server import ports, toml
from tidelog.server.names import (
    LOG_FILE,
    NODE_FILE,
    SERVING_FILE,
    TOKEN_FILE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
)

HOST: Final = "127.0.0.1"
POLL_S: Final = 0.01
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
KILL_TIMEOUT_S: Final = 5.0  # after SIGKILL only the kernel is still at work
# Another `up` may wait for its nodes for as long as `START_TIMEOUT_S`.
ALONE_TIMEOUT_S: Final = START_TIMEOUT_S + STOP_TIMEOUT_S
LOG_LINES: Final = 15  # of a node that failed, shown to the user who started it


class ClusterFailed(Exception):
    """The cluster cannot be started or stopped; the message says why, and what to do."""


class Interrupted(Exception):
    """Somebody asked to stop before all nodes were there."""


class Outcome(Enum):
    """What became of a node that was told to stop; the text completes "node 1 ..."."""

    NOT_RUNNING = "was not running"
    STOPPED = "stopped"
    KILLED = "did not stop in time and was killed; it recovers at the next start"
    STUCK = "cannot be stopped, not even with SIGKILL"
    FORBIDDEN = "belongs to another user: it was not touched"
    UNKNOWN = "runs, but its lock file does not say as which process: it was not touched"

    @property
    def is_over(self) -> bool:
        return self in (Outcome.NOT_RUNNING, Outcome.STOPPED, Outcome.KILLED)


@dataclass(frozen=True, slots=True)
class Ending:
    node: int
    pid: int | None  # None if no process was found
    outcome: Outcome

    def __str__(self) -> str:
        process = "" if self.pid is None else f" (process {self.pid})"
        return f"node {self.node}{process} {self.outcome.value}"


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node as its directory shows it."""

    id: int
    directory: Path

    @property
    def held(self) -> Held | None:
        """Who runs this node; None if it does not run."""
        return look(self.directory)

    @property
    def pid(self) -> int | None:
        """The process that runs this node; None if none does, or if it cannot be told."""
        held = self.held
        return None if held is None or held.process is None else held.process.pid

    @property
    def address(self) -> str | None:
        """Where it serves Kafka clients; None while it does not."""
        serving = self._serving()
        if serving is None or serving["pid"] != self.pid:
            return None
        return str(serving["kafka"])

    def settings(self) -> dict[str, Any]:
        """Return what the node was told; raises `ClusterFailed`."""
        path = self.directory / NODE_FILE
        try:
            return tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ClusterFailed(f"{path} cannot be read: {error}") from error

    def tell(self, settings: Mapping[str, Any]) -> None:
        """Write what the node is told when it starts next; raises `ClusterFailed`."""
        path = self.directory / NODE_FILE
        partial = path.with_suffix(".partial")
        try:
            partial.write_text(toml.dump(settings))
        except toml.NotToml as error:
            raise ClusterFailed(str(error)) from error
        partial.replace(path)

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.directory / LOG_FILE).read_text(errors="replace").splitlines()
            return "\n".join(lines[-LOG_LINES:])
        return ""

    def _serving(self) -> "dict[str, int] | None":
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.directory / SERVING_FILE).read_text())
            if isinstance(found, dict) and "pid" in found and "kafka" in found:
                return found
        return None


class LocalCluster:
    """All nodes below one directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> list[LocalNode]:
        """The nodes that were written down here by `prepare`, whether or not they run."""
        numbers = (each.parent.name.removeprefix("node-") for each in self._files())
        return [self.node(number) for number in sorted(map(int, filter(str.isdigit, numbers)))]

    def _files(self) -> Iterable[Path]:
        return self.data.glob(f"node-*/{NODE_FILE}")

    def node(self, number: int) -> LocalNode:
        return LocalNode(number, self.data / f"node-{number}")

    @property
    def running(self) -> list[int]:
        """The nodes that some process runs, whichever command started them."""
        return [node.id for node in self.nodes if self._runs(node.id)]

    @property
    def bootstrap(self) -> str:
        """The addresses of the nodes that serve clients, for `bootstrap.servers`."""
        return ",".join(each.address for each in self.nodes if each.address is not None)

    @contextlib.contextmanager
    def alone(self, patience: float = ALONE_TIMEOUT_S) -> Iterator[None]:
        """Keep every other `up` and `down` of this directory waiting; raises `ClusterFailed`."""
        deadline = time.monotonic() + patience
        while True:
            try:
                lock = take(self.data)
            except Taken as error:
                if time.monotonic() > deadline:
                    raise ClusterFailed(
                        f"another `tidelog up` or `tidelog down` is at work on {self.data}"
                        f" ({error}): wait until it has finished"
                    ) from error
            else:
                break
        with lock:
            yield

    # --- Starting -------------------------------------------------------------------------------

    def bring_up(
        self,
        count: int | None = None,
        kafka_port: int | None = None,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Start the nodes that do not run; return them once they serve clients.

        If it is asked to stop first, it ends what it started and raises `Interrupted`.

        A node that runs is not touched, and its settings are not either. If something fails in a
        cluster of which nothing ran before, nothing is left running; otherwise the nodes that could
        be started stay. Raises `ClusterFailed`.
        """
        ran = self.running
        if self.nodes:
            self._check_count(count)
            self._move_kafka_ports(kafka_port, ran)
        else:
            self.prepare(3 if count is None else count, 9092 if kafka_port is None else kafka_port)
        started: list[int] = []
        failures: list[str] = []
        try:
            for node in self.nodes:
                if node.id not in ran:
                    with _noting(failures):
                        self.start(node.id)
                        started.append(node.id)
            if ran or not failures:
                with _noting(failures):
                    self.wait(started, asked_to_stop=asked_to_stop)
        except BaseException:
            self._stop(started)
            raise
        if failures:
            if not ran:
                self._stop(started)
            raise ClusterFailed("\n".join(failures))
        return started

    def prepare(
        self, count: int, kafka_port: int, *, racks: Sequence[str] = (), settings: str = ""
    ) -> None:
        """Write what the nodes are told, unless this directory holds a cluster already.

        `kafka_port` is that of the first node, the others follow; 0 means any that is free, or for
        a cluster that exists those that it has. `settings` are more TOML for every node's file.
        """
        if self.nodes:
            self._check_count(count)
            self._move_kafka_ports(kafka_port or None, self.running)
            return
        try:
            chosen = ports.choose(count if kafka_port else 2 * count, HOST)
        except ports.NoPorts as error:
            raise ClusterFailed(str(error)) from error
        kafka_ports = [kafka_port + each for each in range(count)] if kafka_port else chosen[count:]
        seeds = [{"id": each + 1, "host": HOST, "port": chosen[each]} for each in range(count)]
        self.data.mkdir(parents=True, exist_ok=True)
        token = self.data.resolve() / TOKEN_FILE
        write_private(token, JoinToken(Secret.new()).encode() + "\n")
        for each in range(count):
            node = self.node(each + 1)
            held = node.held
            if held is not None:
                raise ClusterFailed(
                    f"{node.directory} is in use by {held}, which `tidelog up` did not start: use"
                    " another directory"
                )
            node.directory.mkdir(parents=True, exist_ok=True)
            told: dict[str, Any] = {
                "id": node.id,
                "data": str(node.directory.resolve()),
                "token_file": str(token),
            }
            if racks:
                told["rack"] = racks[each % len(racks)]
            told |= {
                "rpc": {"host": HOST, "port": chosen[each]},
                "kafka": {"host": HOST, "port": kafka_ports[each]},
                "log": {"file": LOG_FILE},
                "seeds": seeds,
            }
            node.tell(_merged(told, tomllib.loads(settings)))

    def _check_count(self, count: int | None) -> None:
        known = len(self.nodes)
        if count is not None and count != known:
            raise ClusterFailed(
                f"{self.data} holds a cluster of {known} nodes, not {count}: leave --nodes out, or"
                " use another directory"
            )

    def _move_kafka_ports(self, kafka_port: int | None, running: Sequence[int]) -> None:
        """Let the nodes of a cluster that exists listen elsewhere from now on."""
        if kafka_port is None:
            return
        told = {node: node.settings() for node in self.nodes}
        wanted = {node: kafka_port + place for place, node in enumerate(told)} if kafka_port else {}
        moving = [node for node, port in wanted.items() if told[node]["kafka"]["port"] != port]
        if moving and running:
            raise ClusterFailed(
                f"the Kafka ports of {self.data} cannot change while nodes {running} run: stop"
                f" them with `tidelog down --data {self.data}`, or leave --kafka-port out"
            )
        for node in moving:
            node.tell(_merged(told[node], {"kafka": {"port": wanted[node]}}))

    def start(self, number: int) -> None:
        """Start one node; it serves clients a moment later."""
        node = self.node(number)
        held = node.held
        if held is not None:
            raise ClusterFailed(
                f"node {number} of {self.data} runs already, as {held}: stop it with"
                f" `tidelog down --data {self.data}`"
            )
        self._check_ports(node)
        with (node.directory / LOG_FILE).open("ab") as log:
            self._children[number] = subprocess.Popen(
                self.command(node),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the command that watches the nodes
            )

    def _check_ports(self, node: LocalNode) -> None:
        """Raise if a port of a node is taken, which its clients and peers expect it to have."""
        settings = node.settings()
        for listener, remedy in (
            ("kafka", f"or choose others with `tidelog up --data {self.data} --kafka-port PORT`"),
            ("rpc", f"or change `port` under [rpc] in {node.directory / NODE_FILE}"),
        ):
            place = settings.get(listener, {})
            host, port = place.get("host", HOST), place.get("port", 0)
            try:
                owner = ports.taken_by(host, port)
            except OSError as error:
                raise ClusterFailed(
                    f"node {node.id} cannot listen on {host}:{port}: {error.strerror}"
                ) from error
            if owner is not None:
                raise ClusterFailed(
                    f"node {node.id} cannot start: {owner} has its {listener} port {port}. Stop"
                    f" that process, {remedy}"
                )

    def command(self, node: LocalNode) -> list[str]:
        """Return the command line that runs a node."""
        config = str(node.directory / NODE_FILE)
        return [sys.executable, "-m", "tidelog", "start", "--config", config]

    def start_all(self) -> None:
        for node in self.nodes:
            self.start(node.id)

    def wait(
        self,
        numbers: Sequence[int] | None = None,
        timeout: float = START_TIMEOUT_S,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Return once these nodes (by default all) serve clients.

        Raises `ClusterFailed`, and `Interrupted` if it is asked to stop before that.
        """
        waiting = [node.id for node in self.nodes] if numbers is None else list(numbers)
        deadline = time.monotonic() + timeout
        while waiting:
            number = waiting[0]
            if self.node(number).address is not None:
                waiting.pop(0)
                continue
            if asked_to_stop():
                raise Interrupted
            for each in waiting:
                self._check_alive(each)
            if time.monotonic() > deadline:
                raise ClusterFailed(
                    f"node {number} does not serve clients after {timeout:.0f} s. Its last log"
                    f" lines:\n{self.node(number).log_tail()}"
                )
            time.sleep(POLL_S)

    def _check_alive(self, number: int) -> None:
        child = self._children.get(number)
        if child is not None and child.poll() is not None:
            raise ClusterFailed(
                f"node {number} ended with code {child.returncode} before it served clients. Its"
                f" last log lines:\n{self.node(number).log_tail()}"
            )

    # --- Stopping -------------------------------------------------------------------------------

    def ended(self) -> Iterator[tuple[int, int]]:
        """Nodes that this object started and that have ended since, with their exit codes."""
        for number, child in tuple(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[number]
                yield number, code

    def signal(self, number: int, what: signal.Signals) -> bool:
        """Send a signal to the process that runs a node; False if it is gone or unknown.

        Raises `PermissionError` if it belongs to another user.
        """
        process = self._process(number)
        return process is not None and _send(process, what)

    def pid(self, number: int) -> int | None:
        process = self._process(number)
        return None if process is None else process.pid

    def _process(self, number: int) -> "_Process | None":
        """The process that runs a node: started by this object, or found by the lock it holds."""
        child = self._children.get(number)
        if child is not None and child.poll() is None:
            return child
        held = self.node(number).held
        return None if held is None else held.process

    def _runs(self, number: int) -> bool:
        return self._process(number) is not None or self.node(number).held is not None

    def kill(self, number: int) -> None:
        """End a node as a crash would, and wait until it is gone."""
        process = self._process(number)
        if process is not None:
            _send(process, signal.SIGKILL)
            self._wait_ended({number: process}, KILL_TIMEOUT_S)

    def stop(self, number: int) -> None:
        self._stop([number])

    def stop_all(self) -> None:
        """Stop all nodes; raises `ClusterFailed` if one of them goes on."""
        self._stop([node.id for node in self.nodes])

    def _stop(self, numbers: Sequence[int]) -> None:
        left = [ending for ending in self.end(numbers) if not ending.outcome.is_over]
        if left:
            raise ClusterFailed("; ".join(map(str, left)))

    def end(self, numbers: Sequence[int], patience: float = STOP_TIMEOUT_S) -> list[Ending]:
        """Stop nodes, all at the same time, and tell what became of each.

        A node hands over what it leads, flushes and ends. One that has not done so in time is
        killed.
        """
        found = {number: self._process(number) for number in numbers}
        outcomes: dict[int, Outcome] = {}
        ending: dict[int, _Process] = {}
        for number, process in found.items():
            if process is None:
                runs = self.node(number).held is not None
                outcomes[number] = Outcome.UNKNOWN if runs else Outcome.NOT_RUNNING
                continue
            try:
                _send(process, signal.SIGCONT)  # one that was paused could not hear
                _send(process, signal.SIGTERM)
            except PermissionError:
                outcomes[number] = Outcome.FORBIDDEN
            else:
                ending[number] = process
                outcomes[number] = Outcome.STOPPED
        late = self._wait_ended(ending, patience)
        for number in late:
            _send(ending[number], signal.SIGKILL)
            outcomes[number] = Outcome.KILLED
        stuck = self._wait_ended({number: ending[number] for number in late}, KILL_TIMEOUT_S)
        outcomes |= dict.fromkeys(stuck, Outcome.STUCK)
        return [
            Ending(number, None if process is None else process.pid, outcomes[number])
            for number, process in found.items()
        ]

    def _wait_ended(self, processes: "Mapping[int, _Process]", timeout: float) -> list[int]:
        """Return the nodes whose processes have not ended in time."""
        deadline = time.monotonic() + timeout
        left = list(processes)
        while left and time.monotonic() < deadline:
            left = [number for number in left if _lives(processes[number])]
            if left:
                time.sleep(POLL_S)
        for number in processes:
            if number not in left:
                self._children.pop(number, None)
        return left


# Both name one process for good: the pid of a child stays taken until it has been waited for.
_Process = subprocess.Popen[bytes] | Process


def _environment() -> dict[str, str]:
    """Return what a node inherits: no token that its user has for another cluster."""
    foreign = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in foreign}


def _send(process: _Process, what: signal.Signals) -> bool:
    if isinstance(process, Process):
        return process.send(what)
    process.send_signal(what)
    return process.poll() is None


def _lives(process: _Process) -> bool:
    return process.is_running() if isinstance(process, Process) else process.poll() is None


@contextlib.contextmanager
def _noting(failures: list[str]) -> Iterator[None]:
    """Go on after a failure, and remember it."""
    try:
        yield
    except ClusterFailed as error:
        failures.append(str(error))


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the settings of `over` added, tables included."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return merged
