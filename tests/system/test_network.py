"""Nodes that cannot reach each other, while clients still reach all of them."""

from __future__ import annotations

import time

import pytest
from kio.schema.errors import ErrorCode
from tests.system.proxy import Proxy
from tests.system.system import LONGER_THAN_STEADY, System, until
from tests.system.workload import Workload

PARTITIONS = 3
# Longer than a node that leads believes so without having heard of a majority.
LONG = 3.0


def others(cluster: System, number: int) -> list[int]:
    return [each for each in cluster.addresses if each != number]


def write_to(cluster: System, work: Workload, number: int, value: bytes) -> None:
    """Ask a node that cannot have a majority to write something: it must not acknowledge."""
    work.history.begin("misled", 0, value)
    with cluster.wire(number) as wire:
        answer = wire.produce("t", value)
    assert answer.error_code is not ErrorCode.none, "a leader without followers acknowledged"
    work.history.fail(value, answer.error_code.name)


def test_a_leader_cut_off_acknowledges_nothing(network: tuple[System, Proxy]) -> None:
    cluster, proxy = network
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for round_number in range(2):
            leader, epoch = cluster.leader("t")
            proxy.cut(leader, *others(cluster, leader))
            write_to(cluster, work, leader, f"misled-{round_number}".encode())
            cluster.leader("t", by=others(cluster, leader), after=epoch)
            work.progress()
            proxy.heal()
            _, later = cluster.leader("t")  # all of them agree, the old one too
            assert later > epoch
            work.progress()
        assert len(work.history.failures()) == 2  # the two misled ones


def test_a_leader_that_misses_one_follower_goes_on(
    steady_network: tuple[System, Proxy],
) -> None:
    cluster, proxy = steady_network
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        before = [cluster.leader("t", index) for index in range(PARTITIONS)]
        leader = before[0][0]
        lonely = others(cluster, leader)[0]
        proxy.cut(leader, lonely)
        time.sleep(LONGER_THAN_STEADY)
        work.progress(300)
        # Whoever hears of the leader through nobody else does not depose it for that.
        assert cluster.belief(leader, "t") == before[0]
        proxy.heal()
        cluster.leader("t")
        assert not work.history.failures()


@pytest.mark.parametrize("deaf", [True, False], ids=["hears nobody", "is heard by nobody"])
def test_a_leader_that_is_cut_off_one_way_is_replaced(
    network: tuple[System, Proxy], deaf: bool
) -> None:
    cluster, proxy = network
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        leader, epoch = cluster.leader("t")
        rest = others(cluster, leader)
        if deaf:
            for other in rest:
                proxy.mute(other, leader)
        else:
            proxy.mute(leader, *rest)
        cluster.leader("t", by=rest, after=epoch)
        work.progress()
        proxy.heal()
        cluster.leader("t", after=epoch)
        work.progress()
        assert not work.history.failures()


def test_a_follower_that_comes_back_deposes_nobody(
    steady_network: tuple[System, Proxy],
) -> None:
    cluster, proxy = steady_network
    cluster.create("t", 1)
    with Workload(cluster, "t", 1).running() as work:
        led = cluster.leader("t")
        follower = others(cluster, led[0])[0]
        proxy.cut(follower, *others(cluster, follower))
        time.sleep(LONGER_THAN_STEADY)
        work.progress(300)
        proxy.heal()
        assert cluster.leader("t") == led
        assert not work.history.failures()


def test_without_any_majority_nothing_is_acknowledged_until_the_repair(
    network: tuple[System, Proxy],
) -> None:
    cluster, proxy = network
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for number in cluster.addresses:
            proxy.cut(number, *others(cluster, number))
        # What was on its way when the links broke is told soon after.
        acknowledged = until(lambda: settled(work), "the last acknowledgement")
        time.sleep(LONG)
        assert work.history.acknowledged() == acknowledged
        proxy.heal()
        work.progress()
        assert not work.history.failures()


def settled(work: Workload) -> int | None:
    """Return how many writes are acknowledged, once it is the same for a while."""
    before = work.history.acknowledged()
    time.sleep(2.0)
    return before if work.history.acknowledged() == before else None


def test_the_controller_is_cut_off(network: tuple[System, Proxy]) -> None:
    cluster, proxy = network
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        controller = cluster.controller()
        proxy.cut(controller, *others(cluster, controller))
        work.progress()
        cluster.controller(by=others(cluster, controller))
        cluster.create("later", 1, 3, by=others(cluster, controller))
        proxy.heal()
        cluster.leader("later")
        cluster.controller()
        assert not work.history.failures()
