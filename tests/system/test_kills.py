"""Nodes that are killed and paused while clients write and read: nothing acknowledged is lost."""

from __future__ import annotations

import time

import pytest
from tests.system.pythonworkload import UNCLOSED, PythonWorkload
from tests.system.system import LONGER_THAN_STEADY, System, until
from tests.system.workload import Workload

PARTITIONS = 3
ROUNDS = 5
# More than any election timeout: by default 400 ms, doubled by chance at most.
LONGER_THAN_AN_ELECTION = 2.0


def kill_leaders(
    cluster: System, rounds: int, seconds: float = 0.0, workload: type[Workload] = Workload
) -> None:
    """Kill the leader of each partition in turn, again and again, and bring it back each time."""
    cluster.create("t", PARTITIONS)
    began = time.monotonic()
    with workload(cluster, "t", PARTITIONS).running() as work:
        done = 0
        while done < rounds or time.monotonic() - began < seconds:
            leader, epoch = cluster.leader("t", done % PARTITIONS)
            cluster.kill(leader)
            _, later = cluster.leader("t", done % PARTITIONS, after=epoch)
            assert later > epoch
            work.progress()
            cluster.start(leader)
            work.progress()
            done += 1
        assert not work.history.failures()


def test_the_leader_is_killed_again_and_again(cluster: System) -> None:
    kill_leaders(cluster, ROUNDS)


@pytest.mark.slow
def test_the_leader_is_killed_for_minutes(cluster: System) -> None:
    kill_leaders(cluster, ROUNDS, 150)


@pytest.mark.usefixtures("tidy")
@pytest.mark.filterwarnings(UNCLOSED)
def test_the_leader_is_killed_under_another_client(cluster: System) -> None:
    kill_leaders(cluster, 2, workload=PythonWorkload)


@pytest.mark.slow
@pytest.mark.usefixtures("tidy")
@pytest.mark.filterwarnings(UNCLOSED)
def test_the_leader_is_killed_for_minutes_under_another_client(cluster: System) -> None:
    kill_leaders(cluster, ROUNDS, 150, PythonWorkload)


def test_the_controller_is_killed(cluster: System) -> None:
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for number in range(3):
            controller = cluster.controller()
            cluster.kill(controller)
            work.progress()
            # The cluster can be changed while the node is away.
            cluster.create(f"later-{number}", 2, 3)
            cluster.start(controller)
        assert not work.history.failures()
    for number in range(3):
        cluster.leader(f"later-{number}", 1)


def test_a_leader_that_was_paused_wakes_up_as_a_follower(cluster: System) -> None:
    cluster.create("t", PARTITIONS)
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for round_number in range(3):
            leader, epoch = cluster.leader("t", round_number)
            others = [number for number in cluster.running() if number != leader]
            # What the old leader is asked before it can hear of the new one: it must refuse, or
            # the new leader must know of it.
            with cluster.wire(leader) as old:
                old.metadata("t")
                cluster.pause(leader)
                time.sleep(LONGER_THAN_AN_ELECTION)
                _, later = cluster.leader("t", round_number, by=others, after=epoch)
                work.progress()
                value = f"woken-{round_number}".encode()
                work.history.begin("woken", round_number, value)
                old.socket.settimeout(20)
                cluster.resume(leader)
                answer = old.produce("t", value, index=round_number)
            assert answer.error_code.value != 0, "the old leader acknowledged a write"
            work.history.fail(value, str(answer.error_code))
            assert later > epoch
            work.progress()
        refused = work.history.failures()
        assert len(refused) == 3, refused


def test_a_paused_follower_holds_nobody_up(steady: System) -> None:
    cluster = steady
    cluster.create("t", 1)
    with Workload(cluster, "t", 1).running() as work:
        leader, epoch = cluster.leader("t")
        follower = next(number for number in cluster.running() if number != leader)
        cluster.pause(follower)
        time.sleep(LONGER_THAN_STEADY)
        work.progress(300)
        cluster.resume(follower)
        until(lambda: in_sync(cluster, leader) == 3, "the follower to be in sync again")
        assert cluster.leader("t") == (leader, epoch)
        assert not work.history.failures()


def in_sync(cluster: System, asked: int) -> int:
    with cluster.wire(asked) as wire:
        return len(wire.metadata("t").topics[0].partitions[0].isr_nodes)


def test_cached_writes_survive_the_death_of_any_process(cluster: System) -> None:
    """Two processes had each write in memory, and the system keeps what a process wrote."""
    cluster.create("t", PARTITIONS, write_caching="true")
    with Workload(cluster, "t", PARTITIONS).running() as work:
        for index in range(PARTITIONS):
            leader, epoch = cluster.leader("t", index)
            cluster.kill(leader)
            cluster.leader("t", index, after=epoch)
            work.progress()
            cluster.start(leader)
        assert not work.history.failures()


def test_writes_that_the_leader_alone_acknowledged_survive_a_follower(steady: System) -> None:
    cluster = steady
    cluster.create("t")
    work = Workload(cluster, "t", 1, enable_idempotence=False, acks=1)
    with work.running():
        leader, epoch = cluster.leader("t")
        for follower in [number for number in cluster.running() if number != leader]:
            cluster.kill(follower)
            work.progress()
            cluster.start(follower)
            # Without this one the next could not be missed: there would be no majority.
            until(lambda: in_sync(cluster, leader) == 3, "the follower to be in sync again")
        assert cluster.leader("t") == (leader, epoch)
        assert not work.history.failures()


def test_what_was_read_survives_a_leader_that_alone_acknowledged(cluster: System) -> None:
    """Only what nobody else had may go with the leader; readers never saw that."""
    cluster.create("t", PARTITIONS)
    # A client that tries again could write twice, so it does not.
    work = Workload(
        cluster, "t", PARTITIONS, leaders_die=True, enable_idempotence=False, acks=1, retries=0
    )
    with work.running():
        for index in range(PARTITIONS):
            leader, epoch = cluster.leader("t", index)
            cluster.kill(leader)
            cluster.leader("t", index, after=epoch)
            work.progress()
            cluster.start(leader)
