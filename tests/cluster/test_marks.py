"""The marks of replicas: what is written down when a node stops is demanded when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from tests.cluster.hands import alone
from tests.cluster.test_footing import write
from tests.storage.faultdisk import FaultDisk

from tidelog.cluster.groups import Hosted
from tidelog.cluster.marks import FILE, Marks
from tidelog.cluster.registry import Registry
from tidelog.cluster.replica import Replica
from tidelog.raft.types import GroupId


@dataclass
class Stopped:
    group: GroupId
    replica: Replica


def stopped(group: int, *, lost: bool = False) -> Stopped:
    puppet = alone()
    write(puppet, 1, 2, 3)
    if lost:
        puppet.running.lose("a test says so")
    return Stopped(GroupId(group), puppet.running)


def noted(*replicas: Stopped) -> FaultDisk:
    """Stop replicas, and return the disk that has their marks."""
    disk = FaultDisk()
    registry = Registry.begin(disk, "birth")
    registry.add([(each.group, 0) for each in replicas if each.group != GroupId(9)])
    marks = Marks()
    marks.note(cast(Hosted, each) for each in replicas)
    marks.save(disk, registry)
    return disk


def test_what_was_committed_and_saved_is_demanded() -> None:
    one = stopped(5)
    marks = Marks()
    marks.load(noted(one, stopped(6, lost=True), stopped(9)))
    found = marks.get(GroupId(5), 0)
    assert found is not None
    assert found.flushed == one.replica.core.committed > 0
    assert found.hard == one.replica.core.persisted
    assert found.hard.voted_for == one.replica.core.vnode
    assert marks.get(GroupId(5), 1) is None
    assert marks.get(GroupId(6), 0) is None, "one that is lost has no marks"
    assert marks.get(GroupId(9), 0) is None, "nor has one that the node does not have"


def test_marks_that_are_damaged_demand_nothing() -> None:
    disk = noted(stopped(5))
    whole = disk.content(FILE)
    for content in (b"", whole[:20], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        disk.overwrite(FILE, content)
        marks = Marks()
        marks.load(disk)
        assert marks.get(GroupId(5), 0) is None
