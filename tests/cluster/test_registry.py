"""The registry of hosted replicas: what it says survives, and what damage does to it."""

from __future__ import annotations

import random

import pytest
from tests.storage.faultdisk import FaultDisk

from tidelog.cluster import registry as registry_module
from tidelog.cluster.registry import NAME, Registry
from tidelog.raft.types import GroupId

ONE, TWO, THREE = (GroupId(1), 5), (GroupId(2), 5), (GroupId(1), 6)


def load(disk: FaultDisk, birth: str = "a") -> Registry:
    found = Registry.load(disk, birth)
    assert found is not None
    return found


def test_what_was_noted_is_there_after_any_crash() -> None:
    disk = FaultDisk()
    registry = Registry.begin(disk, "a")
    registry.add([ONE, TWO])
    registry.lose(*TWO, "rot")
    looked: set[frozenset[tuple[GroupId, int]]] = set()

    def look() -> None:
        for each in disk.outcomes(random.Random(0), 100):
            found = load(each)
            assert found.hosted >= {ONE, TWO}
            assert found.why_lost(*TWO) == "rot"
            looked.add(found.hosted)

    disk.watch = look
    registry.add([THREE])
    disk.watch = None
    look()
    assert looked == {frozenset({ONE, TWO}), frozenset({ONE, TWO, THREE})}
    registry.remove([TWO])
    found = load(disk)
    assert found.hosted == {ONE, THREE}
    assert found.why_lost(*TWO) is None
    assert not found.hosts(*TWO)


def test_it_belongs_to_one_birth() -> None:
    disk = FaultDisk()
    assert Registry.load(disk, "a") is None
    Registry.begin(disk, "a").add([ONE])
    assert Registry.load(disk, "b") is None
    assert not Registry.begin(disk, "b").hosted


def test_damage_costs_what_follows_it_and_at_the_beginning_everything() -> None:
    disk = FaultDisk()
    registry = Registry.begin(disk, "a")
    begun = len(disk.content(NAME))
    registry.add([ONE])
    registry.add([TWO])
    whole = disk.content(NAME)
    for position in range(len(whole)):
        for content in (
            whole[:position],
            whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :],
        ):
            disk.overwrite(NAME, content)
            found = Registry.load(disk, "a")
            if position < begun:
                assert found is None
            else:
                assert found is not None
                assert found.hosted in ({ONE}, set())


def test_a_write_that_failed_may_be_tried_again() -> None:
    disk = FaultDisk()
    registry = Registry.begin(disk, "a")
    for failing, room in ((1, None), (0, 3)):
        disk.failing_syncs, disk.room = failing, room
        with pytest.raises(OSError, match=r"sync|full"):
            registry.add([ONE])
        disk.room = None
        assert not registry.hosted
    registry.add([TWO])
    for each in disk.outcomes(random.Random(0), 50):
        assert load(each).hosted == {TWO}


def test_it_does_not_grow_with_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_MIN_REWRITE", 1000)
    disk = FaultDisk()
    registry = Registry.begin(disk, "a")
    for number in range(200):
        registry.add([(GroupId(number), 1)])
        registry.remove([(GroupId(number), 1)])
        assert len(disk.content(NAME)) <= 1000
    assert not load(disk).hosted
