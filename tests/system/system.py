"""A cluster of node processes, with hands that can hurt it."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.system.wire import Closed, Wire
from typer.testing import CliRunner

from tidelog.cli.app import app
from tidelog.server.names import LOG_FILE
from tidelog.server.nodes import LocalCluster

PATIENCE = 60.0
# For tests that say that a leader stays: no pause of a busy machine is as long as that.
STEADY = "election_timeout_ms = 1500\n"
LONGER_THAN_STEADY = 4.0
# Lines that each node may have added to its log when something failed.
LOG_LINES_SHOWN = 60
# What a node never has to say, whatever its clients and its peers do.
COMPLAINTS = re.compile(
    r"^Traceback|\bERROR\b|\bCRITICAL\b|Task was destroyed|never awaited", re.MULTILINE
)


def until(holds: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + patience
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come true within {patience:g} s"
        time.sleep(0.02)
    return found


class System:
    """Three nodes, or as many as were asked for."""

    def __init__(self, data: Path, cluster: LocalCluster) -> None:
        self.data = data
        self.cluster = cluster
        # All of them, also when one does not run: this is what a client is told.
        self.bootstrap = cluster.bootstrap
        self.addresses = {node.id: str(node.address) for node in cluster.nodes}

    # --- Asking ---------------------------------------------------------------------------------

    def wire(self, number: int) -> Wire:
        return Wire(self.addresses[number])

    def running(self) -> list[int]:
        return [node for node in self.addresses if self.cluster.pid(node) is not None]

    def create(
        self,
        topic: str,
        partitions: int = 1,
        replicas: int = 3,
        *,
        by: list[int] | None = None,
        **config: str,
    ) -> None:
        """Create a topic with the help of some nodes and wait until each knows who leads it."""
        asked = self.running() if by is None else by
        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin = AdminClient(
            {"bootstrap.servers": ",".join(self.addresses[number] for number in asked)},
            logger=logging.getLogger("librdkafka"),
        )
        new = NewTopic(topic, partitions, replicas, config=settings)
        admin.create_topics([new])[topic].result(PATIENCE)
        for index in range(partitions):
            self.leader(topic, index, by=asked)

    def belief(self, number: int, topic: str, index: int = 0) -> tuple[int, int] | None:
        """Return who leads a partition and in which epoch, as one node says; None if nobody."""
        try:
            with Wire(self.addresses[number], timeout=2.0) as wire:
                [found] = wire.metadata(topic).topics
        except (Closed, OSError):
            return None
        for partition in found.partitions:
            if partition.partition_index == index and partition.leader_id >= 0:
                return partition.leader_id, partition.leader_epoch
        return None

    def leader(
        self, topic: str, index: int = 0, *, by: list[int] | None = None, after: int = -1
    ) -> tuple[int, int]:
        """Wait until these nodes agree on a leader with an epoch above `after`; return both."""

        def agreed() -> tuple[int, int] | None:
            asked = self.running() if by is None else by
            beliefs = {self.belief(number, topic, index) for number in asked}
            if len(beliefs) == 1 and (found := beliefs.pop()) is not None and found[1] > after:
                return found
            return None

        found: tuple[int, int] = until(agreed, f"a leader of {topic}/{index}")
        return found

    def controller(self, *, by: list[int] | None = None) -> int:
        """Wait until these nodes agree that one of them leads the cluster; return it."""

        def agreed() -> int | None:
            told = set()
            asked = self.running() if by is None else by
            for number in asked:
                with contextlib.suppress(Closed, OSError), self.wire(number) as wire:
                    told.add(wire.metadata().controller_id)
            return told.pop() if len(told) == 1 and told <= set(asked) else None

        found: int = until(agreed, "a controller that all know")
        return found

    def is_healthy(self) -> bool:
        """Whether `tidelog cluster status --check` succeeds on every node."""
        asked = ("cluster", "status", "--check", "--bootstrap")
        return all(
            CliRunner().invoke(app, [*asked, address]).exit_code == 0
            for address in self.addresses.values()
        )

    # --- Hurting --------------------------------------------------------------------------------

    def kill(self, *numbers: int) -> None:
        """End nodes as a crash would, all at the same time."""
        for number in numbers:
            self.cluster.signal(number, signal.SIGKILL)
        for number in numbers:
            self.cluster.kill(number)

    def pause(self, number: int) -> None:
        self.cluster.signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self.cluster.signal(number, signal.SIGCONT)

    def start(self, *numbers: int) -> None:
        """Start nodes and return when they serve clients."""
        for number in numbers:
            self.cluster.start(number)
        self.cluster.wait(numbers)

    def stop(self, number: int) -> None:
        """Stop a node in peace; it must end by itself."""
        self.cluster.stop(number)

    def log_of(self, number: int) -> str:
        path = self.cluster.node(number).directory / LOG_FILE
        return path.read_text(errors="replace") if path.exists() else ""

    def memory(self, number: int) -> int:
        """Return the bytes of memory that a node occupies."""
        status = Path(f"/proc/{self.cluster.pid(number)}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) << 10


@contextlib.contextmanager
def system(
    data: Path,
    nodes: int = 3,
    *,
    settings: str = "",
    prepared: LocalCluster | None = None,
    expected: str | None = None,
) -> Iterator[System]:
    """Run a cluster; what its nodes said is printed at the end, and must not be an error.

    Lines with `expected` in them may be: they report what the test does to the nodes.
    """
    cluster = prepared or LocalCluster(data)
    if prepared is None:
        cluster.prepare(nodes, 0, settings=settings)
    try:
        cluster.start_all()
        cluster.wait()
        running = System(data, cluster)
        yield running
        dead = sorted(set(running.addresses) - set(running.running()))
    finally:
        cluster.stop_all()
        said = {
            node.id: (node.directory / LOG_FILE).read_text(errors="replace")
            for node in cluster.nodes
        }
        for number, log in said.items():
            print(f"--- node {number}", *log.splitlines()[-LOG_LINES_SHOWN:], sep="\n")
    assert not dead, f"nodes {dead} are not running any more"
    for number, log in said.items():
        if expected is not None:
            log = "\n".join(line for line in log.splitlines() if expected not in line)
        complaint = COMPLAINTS.search(log)
        if complaint is not None:
            raise AssertionError(f"node {number} says:\n{log[complaint.start() :][:4000]}")
