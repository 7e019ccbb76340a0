"""What a crash or a replica that was replaced leaves behind is gone after the next start."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.nodes import cluster, until
from tests.cluster.test_lost import run

from tidelog.cluster.identity import controller_directory
from tidelog.cluster.leftovers import former_controllers, remove


def test_only_older_replicas_of_group_0_are_former_ones(tmp_path: Path) -> None:
    for name in ("controller", "controller-r1", "controller-r2", "controller-r3", "controllers"):
        (tmp_path / name).mkdir()
    (tmp_path / "controller-r0").write_text("a file")
    assert sorted(former_controllers(tmp_path, 2)) == [
        (0, tmp_path / "controller"),
        (1, tmp_path / "controller-r1"),
    ]


def test_directories_of_topics_go_only_when_they_are_empty(tmp_path: Path) -> None:
    (tmp_path / "topics/empty").mkdir(parents=True)
    (tmp_path / "topics/t/0-g1-r1").mkdir(parents=True)
    remove([], tmp_path / "topics")
    assert [path.name for path in (tmp_path / "topics").iterdir()] == ["t"]


def test_a_start_sweeps_what_nothing_names(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes[1].controller.create_topic("t", 1, 3, {})
            await nodes.write("t", 0, b"value")
            await nodes.stop(2)
            root = tmp_path / "node-2"
            (root / "controller" / "vote").unlink()  # so the replica is lost
            (root / "topics" / "gone").mkdir()
            [replica] = (root / "topics" / "t").iterdir()
            staged = [root / "node.json.staging", replica / "checkpoint.staging"]
            for path in staged:
                path.write_bytes(bytes(100))
            await nodes.start(2)
            revision = nodes[2].joining.identity.revision
            assert revision
            swept = [root / "controller", root / "topics" / "gone", *staged]
            await until(lambda: not any(path.exists() for path in swept), "all of it is gone")
            assert (root / controller_directory(revision)).is_dir()
            assert replica.is_dir()

    run(story())
