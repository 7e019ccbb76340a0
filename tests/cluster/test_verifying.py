"""Background verification on real nodes: what nobody reads is found all the same."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from tests.cluster.nodes import Nodes, until

from tidelog.cluster import verifying
from tidelog.cluster.config import NodeConfig
from tidelog.cluster.partition import Partition
from tidelog.records import Offset


class Eager(Nodes):
    """Nodes that verify everything again and again."""

    every = 0.1

    def config(self, number: int, *, rack: str | None = None) -> NodeConfig:
        return (
            super()
            .config(number, rack=rack)
            .model_copy(update={"verify_bytes_per_s": 1 << 30, "verify_every_s": self.every})
        )


def run(path: Path, story: Callable[[Eager], Awaitable[None]]) -> None:
    async def limited() -> None:
        nodes = Eager(path, 3)
        try:
            async with asyncio.timeout(120):
                await story(nodes)
        finally:
            await nodes.stop_all()

    uvloop.run(limited())


async def written(nodes: Nodes) -> Partition:
    """Write a topic of several segments; return a follower that has them on its disk."""
    await nodes.start(1, 2, 3)
    # The records of these tests are from 1970.
    kept = {"segment.bytes": "16384", "retention.ms": "-1"}
    await nodes.any.controller.create_topic("t", 1, 3, kept)
    for number in range(40):
        await nodes.write("t", 0, b"%04d" % number * 500)
    leader = await nodes.leader("t")
    id_ = next(each for each in nodes.running if each != leader.core.vnode.id)
    follower = nodes[id_].partition("t", 0)
    assert follower is not None
    await until(lambda: follower.core.committed == leader.core.committed, "the same log")
    assert follower.replica.log.segments > 3
    return follower


def closed_segment(path: Path, follower: Partition) -> Path:
    """Return the file of a segment in the middle of a follower's log."""
    node = path / f"node-{follower.core.vnode.id}"
    found = sorted(
        node.glob("topics/t/*/log/*.log"), key=lambda each: int(each.name.partition("-")[0])
    )
    return found[1]


def flip(segment: Path) -> None:
    with segment.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("harm", [flip, Path.unlink])
def test_damage_that_nobody_reads_is_found_and_mended(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async def story(nodes: Eager) -> None:
        follower = await written(nodes)
        node, was = nodes[follower.core.vnode.id], follower.core.vnode
        harm(closed_segment(tmp_path, follower))
        await until(lambda: node.verifier.counts.damaged == 1, "that it is found")

        def rebuilt() -> bool:
            now = node.partition("t", 0)
            return (
                now is not None
                and now.core.vnode != was
                and now.core.vnode in now.core.configuration.voters
                and now.replica.log.segments > 3
            )

        await until(rebuilt, "the rebuilt replica")
        counts = node.verifier.counts
        before = counts.segments
        await until(lambda: counts.segments > before + 10, "another pass")
        assert counts.damaged == 1

    run(tmp_path, story)


@pytest.mark.parametrize("loss", ["snapshots/*.snapshot", "vote"])
def test_a_file_beside_the_log_that_vanishes_is_found_and_mended(tmp_path: Path, loss: str) -> None:
    async def story(nodes: Eager) -> None:
        await nodes.start(1, 2, 3)
        short = {"segment.bytes": "16384", "retention.bytes": "60000", "retention.ms": "-1"}
        await nodes.any.controller.create_topic("t", 1, 3, short)
        for number in range(60):
            await nodes.write("t", 0, b"%04d" % number * 500)
        leader = await nodes.leader("t")
        number = next(each for each in nodes.running if each != leader.core.vnode.id)
        node = nodes[number]
        follower = node.partition("t", 0)
        assert follower is not None
        was = follower.core.vnode
        (files,) = (tmp_path / f"node-{number}").glob("topics/t/*")
        await until(lambda: list(files.glob("snapshots/*.snapshot")), "a snapshot")
        while found := list(files.glob(loss)):
            for each in found:
                each.unlink(missing_ok=True)
            await asyncio.sleep(0.01)
        await until(lambda: node.verifier.counts.damaged, "that it is found")

        def rebuilt() -> bool:
            now = node.partition("t", 0)
            return (
                now is not None
                and now.core.vnode != was
                and now.core.vnode in now.core.configuration.voters
            )

        await until(rebuilt, "the rebuilt replica")

    run(tmp_path, story)


def flip_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [flip_last, Path.unlink])
def test_a_replica_alone_does_without_a_snapshot_that_is_damaged(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(nodes: Eager) -> None:
        await nodes.start(1, 2, 3)
        short = {"segment.bytes": "16384", "retention.bytes": "60000", "retention.ms": "-1"}
        await nodes.any.controller.create_topic("t", 1, 1, short)
        for number in range(60):
            await nodes.write("t", 0, b"%04d" % number * 500)
        leader = await nodes.leader("t")
        was, node = leader.core.vnode, nodes[leader.core.vnode.id]
        (files,) = (tmp_path / f"node-{was.id}").glob("topics/t/*")
        await until(lambda: leader.replica.log.start > 0, "a log that begins late")
        await until((files / "checkpoint").exists, "a checkpoint")
        end = leader.high_watermark
        harmed: set[Path] = set()

        def found() -> bool:
            for path in set(files.glob("snapshots/*.snapshot")) - harmed:
                harmed.add(path)  # a newer one may take its place before it is looked at
                with contextlib.suppress(FileNotFoundError):
                    harm(path)
            return node.verifier.counts.damaged > 0

        await until(found, "that it is found")
        assert await nodes.write("t", 0, b"after") == end
        again = await nodes.leader("t")
        assert again.core.vnode == was
        assert again is not leader
        assert not len(node.hosting.lost)
        assert "-v1.snapshot is damaged and set aside" in caplog.text
        snapshots = again.replica.snapshots
        another = snapshots.latest()
        assert another is not None
        snapshots.check(another)

    run(tmp_path, story)


def test_a_file_that_cannot_be_read_for_now_keeps_no_other_from_being_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(nodes: Eager) -> None:
        follower = await written(nodes)
        for node in nodes.running.values():
            node.comparer.close()  # what it reads counts as verified
        verifier = nodes[follower.core.vnode.id].verifier
        counts, read = verifier.counts, verifier._verify
        sick = verifying.Piece(follower.group, follower.core.vnode.revision, Offset(0))

        async def troubled(piece: verifying.Piece) -> None:
            if piece == sick:
                raise OSError(errno.EMFILE, "Too many open files")
            await read(piece)

        monkeypatch.setattr(verifier, "_verify", troubled)
        await until(lambda: counts.unread, "a refused read")
        full, before = counts.last_full_pass, counts.segments
        await until(lambda: counts.unread > 2 and counts.segments > before + 10, "all the others")
        assert counts.last_full_pass == full
        assert counts.damaged == 0
        assert verifier.describe()["unread"] == counts.unread
        monkeypatch.undo()
        await until(lambda: counts.last_full_pass != full, "a full pass")

    run(tmp_path, story)


def test_what_changes_while_it_is_verified_is_no_damage(tmp_path: Path) -> None:
    async def story(nodes: Eager) -> None:
        await nodes.start(1, 2, 3)
        compacted = {
            "segment.bytes": "16384",
            "segment.ms": "200",
            "cleanup.policy": "compact,delete",
            "retention.bytes": "100000",
        }
        await nodes.any.controller.create_topic("t", 1, 3, compacted)
        for number in range(300):
            await nodes.write("t", 0, b"%04d" % number * 500)
        for node in nodes.running.values():
            counts = node.verifier.counts
            await until(lambda counts=counts: counts.segments > 20, "a pass")  # type: ignore[misc]
            assert counts.damaged == 0

    run(tmp_path, story)


def test_a_restart_remembers_what_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "SAVE_S", 0.0)

    async def story(nodes: Eager) -> None:
        follower = await written(nodes)
        number, group = follower.core.vnode.id, follower.group
        await until(lambda: nodes[number].verifier.counts.last_full_pass is not None, "a full pass")
        await asyncio.sleep(0.3)
        await nodes.stop(number)
        nodes.every = 1000.0
        await nodes.start(number)
        await until(lambda: nodes[number].partition("t", 0), "the replica")
        await until(lambda: nodes[number].verifier.counts.last_full_pass is not None, "a full pass")
        hosted = nodes[number].groups.get(group)
        assert hosted is not None
        told = nodes[number].verifier.describe_replica(hosted)
        assert told["verified"] == told["of"]
        # What was read since is not what was read before: at most the end of each log.
        assert nodes[number].verifier.counts.segments < follower.replica.log.segments

    run(tmp_path, story)
