"""The node processes of a cluster on this machine.

    DIR/node-1/node.toml      what the node was told
    DIR/node-1/pid            its process, while it runs
    DIR/node-1/serving.json   where it serves clients, once it does
    DIR/node-1/node.log       what it has to say
    DIR/node-1/...            its data

Everything is found in the directory again, so whoever starts a cluster need not be the one who
stops it. A node that ends is never started again silently: whoever watches is told.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.server.names import LOG_FILE, NODE_FILE, PID_FILE, SERVING_FILE

HOST: Final = "127.0.0.1"
POLL_S: Final = 0.01
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
LOG_LINES: Final = 15  # of a node that failed, shown to whoever started it


class ClusterFailed(Exception):
    """The cluster cannot be started or stopped; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node as its directory shows it."""

    id: int
    directory: Path

    @property
    def pid(self) -> int | None:
        """The process that runs this node; None if none does."""
        serving = self._serving()
        for pid in (self._pid(), None if serving is None else serving["pid"]):
            if pid is not None and _is_running(pid):
                return pid
        return None

    @property
    def address(self) -> str | None:
        """Where it serves Kafka clients; None while it does not."""
        serving = self._serving()
        if serving is None or not _is_running(serving["pid"]):
            return None
        return str(serving["kafka"])

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.directory / LOG_FILE).read_text(errors="replace").splitlines()
            return "\n".join(lines[-LOG_LINES:])
        return ""

    def _pid(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.directory / PID_FILE).read_text())
        return None

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
        found = sorted(self.data.glob("node-*"))
        numbered = [(each.name.removeprefix("node-"), each) for each in found if each.is_dir()]
        return sorted(
            (LocalNode(int(number), each) for number, each in numbered if number.isdigit()),
            key=lambda node: node.id,
        )

    def node(self, number: int) -> LocalNode:
        return LocalNode(number, self.data / f"node-{number}")

    @property
    def bootstrap(self) -> str:
        """The addresses of the nodes that serve clients, for `bootstrap.servers`."""
        return ",".join(each.address for each in self.nodes if each.address is not None)

    # --- Starting -------------------------------------------------------------------------------

    def prepare(
        self, count: int, kafka_port: int, *, racks: Sequence[str] = (), settings: str = ""
    ) -> None:
        """Write what the nodes are told, unless this directory holds a cluster already.

        `kafka_port` is that of the first node, the others follow; 0 means any that is free.
        `settings` are more lines for every node's file.
        """
        known = self.nodes
        if known:
            if len(known) != count:
                raise ClusterFailed(
                    f"{self.data} holds a cluster of {len(known)} nodes, not {count}: use"
                    f" --nodes {len(known)}, or another directory"
                )
            self._move_ports(kafka_port)
            return
        taken = _free_ports(count if kafka_port else 2 * count)
        kafka_ports = [kafka_port + each for each in range(count)] if kafka_port else taken[count:]
        seeds = "".join(
            f'\n[[seeds]]\nid = {each + 1}\nhost = "{HOST}"\nport = {taken[each]}\n'
            for each in range(count)
        )
        for each in range(count):
            node = self.node(each + 1)
            node.directory.mkdir(parents=True, exist_ok=True)
            rack = f'rack = "{racks[each % len(racks)]}"\n' if racks else ""
            (node.directory / NODE_FILE).write_text(
                f"id = {node.id}\n"
                f"data = {json.dumps(str(node.directory.resolve()))}\n"
                f"{rack}{settings}"
                f'\n[rpc]\nhost = "{HOST}"\nport = {taken[each]}\n'
                f'\n[kafka]\nhost = "{HOST}"\nport = {kafka_ports[each]}\n'
                f"{seeds}"
            )

    def _move_ports(self, kafka_port: int) -> None:
        """Let the nodes of a cluster that exists listen elsewhere from now on."""
        for place, node in enumerate(self.nodes):
            path = node.directory / NODE_FILE
            head, kafka, tail = path.read_text().partition("\n[kafka]\n")
            if kafka_port and kafka:
                lines = tail.split("\n")
                lines[1] = f"port = {kafka_port + place}"
                path.write_text(head + kafka + "\n".join(lines))

    def start(self, number: int) -> None:
        """Start one node; it serves clients a moment later."""
        node = self.node(number)
        if node.pid is not None:
            raise ClusterFailed(
                f"node {number} of {self.data} runs already, as process {node.pid}: stop it with"
                f" `tidelog down --data {self.data}`"
            )
        with (node.directory / LOG_FILE).open("ab") as log:
            self._children[number] = subprocess.Popen(
                self.command(node),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for whoever watches, who then stops the nodes
            )

    def command(self, node: LocalNode) -> list[str]:
        """Return the command line that runs a node."""
        config = str(node.directory / NODE_FILE)
        return [sys.executable, "-m", "tidelog", "start", "--config", config]

    def start_all(self) -> None:
        for node in self.nodes:
            self.start(node.id)

    def wait(self, numbers: Sequence[int] | None = None, timeout: float = START_TIMEOUT_S) -> None:
        """Return once these nodes (by default all) serve clients; raises `ClusterFailed`."""
        waiting = [node.id for node in self.nodes] if numbers is None else list(numbers)
        deadline = time.monotonic() + timeout
        while waiting:
            number = waiting[0]
            if self.node(number).address is not None:
                waiting.pop(0)
                continue
            self._check_alive(number)
            if time.monotonic() > deadline:
                raise ClusterFailed(
                    f"node {number} does not serve clients after {timeout:g} s. It says:\n"
                    f"{self.node(number).log_tail()}"
                )
            time.sleep(POLL_S)

    def _check_alive(self, number: int) -> None:
        child = self._children.get(number)
        if child is not None and child.poll() is not None:
            raise ClusterFailed(
                f"node {number} ended at once, with code {child.returncode}. It says:\n"
                f"{self.node(number).log_tail()}"
            )

    # --- Stopping -------------------------------------------------------------------------------

    def ended(self) -> Iterator[tuple[int, int]]:
        """Nodes that this object started and that are not running any more, with their codes."""
        for number, child in tuple(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[number]
                yield number, code

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a node, if it runs."""
        pid = self.pid(number)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def pid(self, number: int) -> int | None:
        child = self._children.get(number)
        if child is not None:
            return child.pid if child.poll() is None else None
        return self.node(number).pid

    def kill(self, number: int) -> None:
        """End a node as a crash would, and wait until it is gone."""
        self.signal(number, signal.SIGKILL)
        self._wait_ended([number], STOP_TIMEOUT_S)

    def stop(self, number: int) -> None:
        self._stop([number])

    def stop_all(self) -> None:
        """Stop the nodes, one after the other, so that each can hand over what it leads."""
        self._stop([node.id for node in self.nodes])

    def _stop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.signal(number, signal.SIGCONT)  # one that was paused could not hear
            self.signal(number, signal.SIGTERM)
        left = self._wait_ended(numbers, STOP_TIMEOUT_S)
        for number in left:
            self.signal(number, signal.SIGKILL)
        if self._wait_ended(left, STOP_TIMEOUT_S):
            raise ClusterFailed(f"nodes {left} cannot be stopped: look at their processes")

    def _wait_ended(self, numbers: Sequence[int], timeout: float) -> list[int]:
        deadline = time.monotonic() + timeout
        left = list(numbers)
        while left and time.monotonic() < deadline:
            left = [number for number in left if self.pid(number) is not None]
            if left:
                time.sleep(POLL_S)
        for number in numbers:
            if number not in left:
                self._children.pop(number, None)
        return left


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A child that ended and that nobody waited for is still there by name.
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except (OSError, ValueError):
        return False


def _free_ports(count: int) -> list[int]:
    """Ports that are free now. Held all at once, so that they are different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
