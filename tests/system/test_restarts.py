"""Nodes that are stopped and started: one after the other, all in peace, all by a crash."""

from __future__ import annotations

import pytest
from tests.system.system import System
from tests.system.workload import Workload

PARTITIONS = 3


def restart_each(cluster: System, times: int) -> None:
    """Restart every node under load; an idempotent producer that tries again notices nothing."""
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for _ in range(times):
            for number in cluster.addresses:
                cluster.stop(number)
                work.progress()
                cluster.start(number)
                work.progress()
        assert not work.history.failures()


def test_a_rolling_restart_fails_no_write(cluster: System) -> None:
    restart_each(cluster, 1)


@pytest.mark.slow
def test_rolling_restarts_fail_no_write(cluster: System) -> None:
    restart_each(cluster, 8)


def test_a_node_that_stops_hands_its_leadership_over(cluster: System) -> None:
    cluster.create("t", PARTITIONS)
    leader, epoch = cluster.leader("t")
    cluster.stop(leader)
    others = cluster.running()
    for number in others:
        found = cluster.belief(number, "t")
        assert found is not None, "nobody leads after a leader left in peace"
        assert found[0] in others
        assert found[1] > epoch
    cluster.start(leader)


def test_all_nodes_stop_and_start(cluster: System) -> None:
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        epochs = [cluster.leader("t", index)[1] for index in range(PARTITIONS)]
        cluster.cluster.stop_all()
        cluster.start(*cluster.addresses)
        work.progress()
        for index, epoch in enumerate(epochs):
            assert cluster.leader("t", index)[1] > epoch  # epochs go on, they do not start over
        assert not work.history.failures()


def crash_all(cluster: System, times: int) -> None:
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for _ in range(times):
            cluster.kill(*cluster.addresses)
            cluster.start(*cluster.addresses)
            work.progress()
        assert not work.history.failures()


def test_all_nodes_crash_at_once(cluster: System) -> None:
    crash_all(cluster, 3)


@pytest.mark.slow
def test_all_nodes_crash_at_once_again_and_again(cluster: System) -> None:
    crash_all(cluster, 15)


def test_topics_and_their_settings_are_there_after_a_crash_of_all(cluster: System) -> None:
    cluster.create("kept", 2, retention_ms="123456")
    with cluster.wire(1) as wire:
        before = wire.metadata("kept").topics[0].topic_id
    cluster.kill(*cluster.addresses)
    cluster.start(*cluster.addresses)
    cluster.leader("kept", 1)
    for number in cluster.addresses:
        with cluster.wire(number) as wire:
            assert wire.metadata("kept").topics[0].topic_id == before
            [settings] = wire.ask(
                32,
                4,
                resources=[
                    {
                        "resource_type": 2,
                        "resource_name": "kept",
                        "configuration_keys": ("retention.ms",),
                    }
                ],
                include_synonyms=False,
                include_documentation=False,
            ).results
            assert [each.value for each in settings.configs] == ["123456"]
