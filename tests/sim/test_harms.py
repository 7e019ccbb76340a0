"""Harm to files: what the disk can lose, what is fair, and what becomes of a replica."""

import random
from typing import Any

import pytest
from tests.sim.cases import GROUP

from tidelog.raft.types import NodeId
from tidelog.sim.disk import SimDisk
from tidelog.sim.host import VERIFY
from tidelog.sim.node import Harm, SimNode
from tidelog.sim.run import Run
from tidelog.sim.verify import verify
from tidelog.sim.world import Failure

LOG = "group-1/log"


def written() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_directory("a/b")
    for name in ("x", "y"):
        disk.open(f"a/b/{name}", create=True).append([name.encode()])
    return disk


def content(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


def warm(**knobs: Any) -> Run:
    """A world of one group that has its first leader, and of three nodes."""
    run = Run(1, {"groups": 1, "voters": 3, "spares": 1, "tended": False, **knobs}, None)
    run.warm_up()
    return run


def harmless(run: Run, number: int) -> SimNode:
    node = run.world.nodes[NodeId(number)]
    assert node.alive
    return node


# --- The disk ---------------------------------------------------------------------------------


def test_a_lost_file_is_gone_for_good_and_who_has_it_open_does_not_notice() -> None:
    disk = written()
    file = disk.open("a/b/x")
    disk.lose("a/b/x")
    assert disk.list("a/b") == ["y"]
    assert file.read(0, 9) == b"x"
    disk.crash(power=True)
    assert disk.list("a/b") == ["y"]


def test_a_lost_directory_takes_all_below_it() -> None:
    disk = written()
    disk.lose_directory("a")
    assert disk.files("a") == []
    with pytest.raises(FileNotFoundError):
        disk.open("a/b/z", create=True)


def test_swapped_files_have_each_others_content_after_any_crash() -> None:
    disk = written()
    for path in disk.files("a"):
        disk.open(path).sync()
    disk.swap("a/b/x", "a/b/y")
    assert content(disk, "a/b/x") == b"y"
    disk.crash(power=True)
    assert content(disk, "a/b/y") == b"x"


def test_a_file_that_was_put_back_is_what_it_was() -> None:
    disk = written()
    disk.put_back("a/b/x", b"old")
    disk.crash(power=True)
    assert content(disk, "a/b/x") == b"old"


def test_a_file_that_was_written_back_survives_every_crash() -> None:
    for seed in range(20):
        disk = written()
        disk.write_back("a/b/x")
        disk._rng = random.Random(seed)
        disk.crash(power=True)
        assert content(disk, "a/b/x") == b"x"


# --- What is fair -----------------------------------------------------------------------------


def test_fewer_than_a_majority_of_the_copies_are_harmed() -> None:
    run = warm()
    faults = run.nemesis.faults
    first, second = harmless(run, 1), harmless(run, 2)
    assert faults.may_harm(first, GROUP)
    first.harm[GROUP] = harm_of(first)
    assert not faults.may_harm(second, GROUP), "two of three"
    assert not faults.may_wipe(second)
    assert faults.may_harm(run.world.nodes[NodeId(4)], GROUP), "it is no voter"
    assert not run.nemesis.operator.keeps_all(GROUP, [first.vnode_of(GROUP)])


def harm_of(node: SimNode, path: str = f"{LOG}/0-1-v1.log", *, in_log: bool = True) -> Harm:
    return Harm(f"{path} is gone", path, node.configurations(GROUP), in_log)


# --- What becomes of a replica ----------------------------------------------------------------


def run_for(run: Run, milliseconds: int) -> None:
    run._for(milliseconds * 1_000, 20_000)


def test_a_replica_whose_files_are_gone_comes_back_as_a_learner_of_another_revision() -> None:
    run = warm()
    node = harmless(run, 2)
    before = node.vnode_of(GROUP)
    node.harm[GROUP] = harm_of(node, "group-1")
    run.world.judge.on_harm(node, GROUP)
    node.disk.lose_directory("group-1")
    node.crash(power=False, downtime=0)
    run_for(run, 3_000)
    after = node.vnode_of(GROUP)
    assert after.revision > before.revision
    assert GROUP not in node.harm
    replica = node.replicas[GROUP]
    assert replica.core.vnode == after
    assert not replica.core.configuration.is_voter(after), "until a leader makes it one"
    run.nemesis.operator.heal()
    run_for(run, 10_000)
    leader = run.world.leader(GROUP)
    assert leader is not None
    voters = leader.replicas[GROUP].core.configuration.voters
    assert after in voters
    assert before not in voters


def test_verification_finds_a_file_that_vanished_while_its_node_runs() -> None:
    run = warm(cache_bytes=512)
    node = harmless(run, 2)
    path = next(each for each in node.disk.files(LOG) if each.endswith(".log"))
    node.harm[GROUP] = harm_of(node, path)
    run.world.judge.on_harm(node, GROUP)
    node.disk.lose(path)
    before = node.vnode_of(GROUP)
    node.guard(lambda: verify(node, GROUP))
    assert node.hosts[GROUP].is_verifying, VERIFY
    run_for(run, 3_000)
    assert node.vnode_of(GROUP) != before


def test_damage_that_nobody_did_fails_the_world() -> None:
    run = warm()
    node = harmless(run, 2)
    node.disk.lose(f"{LOG}/log.state")
    node.crash(power=False, downtime=0)
    with pytest.raises(Failure, match="damage that nobody did"):
        run_for(run, 3_000)


def test_a_node_without_its_registry_is_another_node() -> None:
    run = warm()
    node = harmless(run, 2)
    before = node.vnode_of(GROUP)
    node.harm[GROUP] = harm_of(node, "registry", in_log=False)
    run.world.judge.on_harm(node, GROUP)
    node.disk.lose("registry")
    node.crash(power=False, downtime=0)
    run_for(run, 3_000)
    assert node.vnode_of(GROUP).revision > before.revision
    assert node.memory.hosts(GROUP)
