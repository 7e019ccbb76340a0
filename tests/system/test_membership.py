"""Replicas that move while nodes are killed: nothing acknowledged is lost on the way."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.system.system import System, system, until
from tests.system.wire import Closed
from tests.system.workload import Workload

from tidelog.server.nodes import LocalCluster

NODES, REPLICAS, PARTITIONS = 4, 3, 3
REASSIGN, LIST_REASSIGNMENTS = 45, 46
QUICK, MANY = 4, 30
SEED = 20261119
TIMEOUT = timedelta(seconds=5)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[System]:
    """Four nodes, of which each partition is on three."""
    cluster = LocalCluster(tmp_path)
    cluster.prepare(NODES, 0)
    with system(tmp_path, prepared=cluster) as running:
        yield running


def move(cluster: System, partition: int, replicas: list[int], by: int) -> None:
    """Ask a node to move a partition; whether it could is not told, as it may be killed."""
    topic = {
        "name": "t",
        "partitions": [{"partition_index": partition, "replicas": tuple(replicas)}],
    }
    with contextlib.suppress(Closed, OSError), cluster.wire(by) as wire:
        wire.ask(REASSIGN, 0, timeout=TIMEOUT, topics=[topic])


def is_settled(cluster: System) -> bool:
    """Whether no move is under way and all replicas are in sync."""
    try:
        with cluster.wire(cluster.running()[0]) as wire:
            moving = wire.ask(LIST_REASSIGNMENTS, 0, timeout=TIMEOUT, topics=None).topics
            (topic,) = wire.metadata("t").topics
    except (Closed, OSError):
        return False
    return not moving and all(
        len(each.isr_nodes) == len(each.replica_nodes) == REPLICAS for each in topic.partitions
    )


def move_and_kill(cluster: System, times: int) -> None:
    chance = random.Random(SEED)
    cluster.create("t", PARTITIONS, REPLICAS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for _ in range(times):
            nodes = list(cluster.addresses)
            victim = chance.choice(nodes)
            for partition in range(PARTITIONS):
                by = chance.choice(nodes)
                move(cluster, partition, chance.sample(nodes, REPLICAS), by)
            time.sleep(chance.choice((0.0, 0.05, 0.3)))
            cluster.kill(victim)
            time.sleep(chance.choice((0.0, 0.3, 1.5)))
            cluster.start(victim)
            work.progress()
        assert not work.history.failures()
    until(lambda: is_settled(cluster), "every move to end with all replicas in sync")


def test_replicas_move_while_nodes_are_killed(four: System) -> None:
    move_and_kill(four, QUICK)


@pytest.mark.slow
def test_replicas_move_while_nodes_are_killed_again_and_again(four: System) -> None:
    move_and_kill(four, MANY)
