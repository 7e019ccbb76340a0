"""Nodes whose disks are lost, in whole or in part, while clients write and read.

A node that forgot what it promised must not vote or count again as if it had not. It is rebuilt
from the others by itself, and nothing that was acknowledged is lost while a majority remembers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import evidence
from tests.system.disks import LOST, empty, flip, remove, replicas, revisions, segments
from tests.system.system import System, system, until
from tests.system.workload import Workload

PARTITIONS = 3
MINUTES = 2  # of a long test
# Longer than an election takes, and than any node waits before it tries again.
A_WHILE_S = 4.0
# Files are looked at all the time, not once a minute or a day.
WATCHFUL = "verify_every_s = 0.5\n"
# Closed every second or two under this load.
SMALL_SEGMENTS = "16384"


@pytest.fixture
def losing(tmp_path: Path) -> Iterator[System]:
    """Three nodes that soon notice what is gone, and may say so."""
    with system(tmp_path, settings=WATCHFUL, expected=LOST) as running:
        running.create("t", PARTITIONS, segment_bytes=SMALL_SEGMENTS)
        yield running


def wait_rebuilt(cluster: System, node: int, before: list[int]) -> None:
    """Wait until a node has another replica of each partition, and the cluster is whole."""

    def rebuilt() -> bool:
        now = revisions(cluster, node, "t")
        renewed = len(now) == len(before) and all(map(int.__gt__, now, before))
        return renewed and cluster.is_healthy()

    until(rebuilt, f"rebuilding node {node}")


def under_load(cluster: System, hurt: Callable[[Workload], int]) -> None:
    """Lose disks, or parts of them, while clients write and read; `hurt` returns how many."""
    work = Workload(cluster, "t", PARTITIONS)
    with work.running():
        lost = hurt(work)
        assert not work.history.failures()
    evidence.note("lost disks", lost=lost, acknowledged=work.history.acknowledged())


def empty_each(cluster: System, rounds: int, seconds: float = 0.0) -> None:
    """Empty the directory of each node in turn, once the one before it is rebuilt."""
    began = time.monotonic()

    def hurt(work: Workload) -> int:
        done = 0
        while done < rounds or time.monotonic() - began < seconds:
            node = done % len(cluster.addresses) + 1
            before = revisions(cluster, node, "t")
            cluster.kill(node)
            empty(cluster, node)
            work.progress()
            cluster.start(node)
            wait_rebuilt(cluster, node, before)
            work.progress()
            done += 1
        return done

    under_load(cluster, hurt)


def test_two_nodes_that_cannot_know_what_was_acknowledged_are_no_majority(losing: System) -> None:
    """One missed the records, the other lost them, and the third, which has them, is away."""
    cluster = losing

    def hurt(work: Workload) -> int:
        before = revisions(cluster, 2, "t")
        cluster.kill(3)
        work.progress(200)
        cluster.kill(1, 2)
        empty(cluster, 2)
        acknowledged = work.history.acknowledged()
        cluster.cluster.start(2)
        cluster.cluster.start(3)
        time.sleep(A_WHILE_S)
        assert cluster.running() == [2, 3]
        assert work.history.acknowledged() == acknowledged, "a majority formed that forgot"
        cluster.cluster.start(1)
        cluster.cluster.wait()
        wait_rebuilt(cluster, 2, before)
        work.progress()
        cluster.kill(1)  # node 2 counts again
        work.progress()
        cluster.start(1)
        return 1

    under_load(cluster, hurt)


def test_each_disk_is_lost_in_turn(losing: System) -> None:
    empty_each(losing, 3)


@pytest.mark.slow
def test_disks_are_lost_again_and_again(losing: System) -> None:
    empty_each(losing, 3, 60 * MINUTES)


# What of a replica goes, by the name of the loss.
PARTS: dict[str, str] = {"a replica": "", "its log": "log", "its vote": "vote"}


def test_parts_of_a_replica_are_gone_when_its_node_starts(losing: System) -> None:
    cluster = losing

    def hurt(work: Workload) -> int:
        for node, part in zip(cluster.addresses, PARTS.values(), strict=True):
            before = revisions(cluster, node, "t")
            cluster.kill(node)
            remove(replicas(cluster, node, "t")[0] / part)
            cluster.start(node)
            wait_renewed(cluster, node, before)
            work.progress()
        return len(PARTS)

    under_load(cluster, hurt)


def wait_renewed(cluster: System, node: int, before: list[int]) -> None:
    """Wait until a node has another replica of the first partition, and the cluster is whole."""

    def renewed() -> bool:
        now = revisions(cluster, node, "t")
        return now[0] > before[0] and now[1:] == before[1:] and cluster.is_healthy()

    until(renewed, f"a new replica on node {node}")


@pytest.mark.parametrize("loss", ["a replica", "its log"])
def test_parts_of_a_replica_go_while_its_node_runs(losing: System, loss: str) -> None:
    """The leader loses them, and then a node that follows."""
    cluster = losing

    def hurt(work: Workload) -> int:
        leader, epoch = cluster.leader("t")
        follower = next(node for node in cluster.addresses if node != leader)
        for node in (leader, follower):
            before = revisions(cluster, node, "t")
            remove(replicas(cluster, node, "t")[0] / PARTS[loss])
            wait_renewed(cluster, node, before)
            work.progress()
        assert cluster.leader("t")[1] > epoch
        return 2

    under_load(cluster, hurt)


def test_a_vote_goes_while_its_node_runs(losing: System) -> None:
    """The node still knows it, and is asked for the next one; after a crash it may not know."""
    cluster = losing

    def hurt(work: Workload) -> int:
        leader, epoch = cluster.leader("t")
        voter = next(node for node in cluster.addresses if node != leader)
        remove(replicas(cluster, voter, "t")[0] / PARTS["its vote"])
        cluster.kill(leader)
        cluster.leader("t", after=epoch)
        work.progress()
        cluster.start(leader)
        cluster.kill(voter)
        cluster.start(voter)
        until(cluster.is_healthy, "a cluster that is whole")
        work.progress()
        return 1

    under_load(cluster, hurt)


def flip_bits(cluster: System, rounds: int, seconds: float = 0.0) -> None:
    """Damage a closed segment of the first partition on each node in turn, the leader first."""
    began = time.monotonic()

    def hurt(work: Workload) -> int:
        leader, _ = cluster.leader("t")
        done = 0
        while done < rounds or time.monotonic() - began < seconds:
            node = (leader + done - 1) % len(cluster.addresses) + 1
            before = revisions(cluster, node, "t")
            [replica] = [each for each in replicas(cluster, node, "t") if each.name[0] == "0"]
            until(lambda: len(segments(replica)) > 1, "a closed segment")  # noqa: B023
            flip(segments(replica)[0], int(SMALL_SEGMENTS) // 2)
            wait_renewed(cluster, node, before)
            work.progress()
            done += 1
        return done

    under_load(cluster, hurt)


def test_bits_flip_on_one_disk_after_the_other(losing: System) -> None:
    flip_bits(losing, 3)


@pytest.mark.slow
def test_bits_flip_again_and_again(losing: System) -> None:
    flip_bits(losing, 3, 60 * MINUTES)
