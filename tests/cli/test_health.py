"""What a status says is wrong: every trouble named, the most severe first, never "all is well"."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tidelog.cli.health import HEALTHY, Severity, is_healthy, problems, summary

GIB = 1 << 30


def node(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "alive": True,
        "status": "active",
        "replicas": 4,
        "rebuilding": [],
        "disk_free_bytes": 5 * GIB,
        "disk_total_bytes": 10 * GIB,
        "failed_partitions": {},
        "lost_partitions": {},
        "controller_replica": {"failed": None, "lost": None},
        **more,
    }


def status(*changed: dict[str, Any], **more: Any) -> dict[str, Any]:
    nodes = {number: node(number) for number in (1, 2, 3)} | {each["id"]: each for each in changed}
    return {
        "controller": 1,
        "leaderless": [],
        "under_replicated": [],
        "moving": [],
        "nodes": [nodes[number] for number in sorted(nodes)],
        **more,
    }


def test_a_healthy_cluster_says_so() -> None:
    found = problems(status())
    assert found == []
    assert summary(found) == HEALTHY


TROUBLES: dict[str, dict[str, Any]] = {
    "no controller": status(controller=None),
    "no majority of the controller; nodes 2, 3 down": status(
        {"id": 2, "alive": False, "status": "active", "replicas": 4},
        {"id": 3, "alive": False, "status": "active", "replicas": 4},
        controller=None,
    ),
    "1 partition without a majority": status(leaderless=["a/0"], majority_gone=["a/0"]),
    "the replicas of a/0 differ": status(
        node(2, comparison={"differences": [{"partition": "a/0", "wrong": [], "text": "x"}]})
    ),
    "1 partition without a leader": status(leaderless=["a/0"]),
    "2 partitions with replicas behind or down": status(under_replicated=["a/0", "a/1"]),
    "node 2 down": status({"id": 2, "alive": False, "status": "active", "replicas": 4}),
    "the disk of node 2 nearly full": status(node(2, disk_free_bytes=1 << 20)),
    "the disk of node 2 full": status(node(2, disk_free_bytes=4096)),
    "1 replica failed on node 2": status(node(2, failed_partitions={"a/0": "EIO"})),
    "1 replica lost on node 2": status(node(2, lost_partitions={"a/0": "its vote is gone"})),
    "node 2 rebuilding 1 of 4 replicas": status(node(2, rebuilding=["a/0"])),
    "a failed replica of the controller on node 2": status(
        node(2, controller_replica={"failed": "EIO", "lost": None})
    ),
    "node 2 not following the cluster's changes": status(
        node(2, controller_replica={"failed": None, "lost": None, "stopped": "upgrade this node"})
    ),
    "founder 4 not there": status(absent_founders=[4]),
    "the data directory of node 2 unreadable": status(node(2, disk_error="gone")),
    "node 2 without a vote on the controller": status(
        node(2, controller_replica={"failed": None, "lost": None, "seated": False})
    ),
    "a lost replica of the controller on node 2": status(
        node(2, controller_replica={"failed": None, "lost": "its vote is gone"})
    ),
}


@pytest.mark.parametrize("brief", TROUBLES)
def test_no_trouble_ends_with_all_is_well(brief: str) -> None:
    found = problems(TROUBLES[brief])
    assert not is_healthy(found)
    assert summary(found) == f"Not healthy: {brief}."


def test_what_to_do_without_a_majority_is_said() -> None:
    down = [{"id": each, "alive": False, "status": "active", "replicas": 4} for each in (2, 3)]
    (controller, partition, *_) = problems(
        status(*down, controller=None, leaderless=["a/0"], majority_gone=["a/0"])
    )
    assert "(nodes 2, 3 of 3) is not reachable" in controller.message
    assert "tidelog node recover --data DIR" in controller.message
    assert "tidelog node recover --partition" in partition.message


def test_a_recovery_is_told_of_for_a_week() -> None:
    now = time.time() * 1000
    fresh, old = now - 3_600_000, now - 30 * 86_400_000
    (note,) = problems(status(recoveries=[{"at_ms": fresh, "text": "it was recovered"}]))
    assert note.message == "it was recovered"
    assert is_healthy([note])
    assert problems(status(recoveries=[{"at_ms": old, "text": "it was recovered"}])) == []


def test_the_most_severe_comes_first() -> None:
    found = problems(
        status(
            {"id": 3, "alive": False, "status": "active", "replicas": 4},
            controller=None,
            leaderless=["a/0"],
            under_replicated=["b/0"],
            moving=["c/0"],
        )
    )
    assert [each.kind for each in found] == [
        "no_controller",
        "leaderless",
        "under_replicated",
        "node_down",
        "moving",
    ]
    assert summary(found).startswith("Not healthy: no controller; 1 partition without a leader;")


def test_what_passes_by_itself_is_told_and_is_healthy() -> None:
    found = problems(status(node(2, status="draining"), node(3, status="leaving"), moving=["a/0"]))
    assert [each.kind for each in found] == ["moving", "draining", "leaving"]
    assert is_healthy(found)
    assert summary(found) == HEALTHY


def test_a_full_disk_is_critical_where_it_leads() -> None:
    (follower,) = problems(status(node(2, disk_free_bytes=0, leaders=0)))
    (leader,) = problems(status(node(2, disk_free_bytes=0, leaders=3)))
    assert (follower.severity, leader.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert "0 B of 10.0 GiB are free. Delete topics or records" in leader.message


def test_founders_that_never_came_count_for_the_majority() -> None:
    lone, absent = problems(status(controller=None, absent_founders=[4, 5]))
    assert "a majority of the nodes (3 of 5)" in lone.message
    assert absent.message.startswith("founders 4, 5 never joined")
    assert "start them, or remove them with `tidelog node decommission 4`" in absent.message


def test_a_replica_that_stopped_is_critical_and_says_what_to_do() -> None:
    why = "a command cannot be read: upgrade this node to release 2"
    (found,) = problems(status(node(2, controller_replica={"stopped": why})))
    assert found.severity is Severity.CRITICAL
    assert found.message.endswith(why)


def test_a_data_directory_that_cannot_be_read_is_critical_where_it_leads() -> None:
    (follower,) = problems(status(node(2, disk_error="EIO", leaders=0)))
    (leader,) = problems(status(node(2, disk_error="EIO", leaders=3)))
    assert (follower.severity, leader.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert "cannot be read: EIO. See that its disk works" in leader.message


def test_what_a_node_does_about_its_room_is_told_as_the_node_says_it() -> None:
    low = problems(status(node(2, disk={"level": "low", "refusing": []})))
    full = problems(status(node(2, disk={"level": "full", "refusing": []})))
    refusing = problems(status(node(2, disk={"level": "roomy", "refusing": ["t/0", "t/1"]})))
    both = problems(status(node(2, disk={"level": "full", "refusing": ["t/0"]})))
    assert [each.kind for each in low] == ["disk_nearly_full"]
    assert [each.kind for each in full] == ["disk_full"]
    assert "Delete topics or records" in full[0].message
    assert [(each.kind, each.severity) for each in refusing] == [
        ("writes_refused", Severity.CRITICAL)
    ]
    assert refusing[0].message.endswith("no room on their disks: t/0, t/1")
    assert [each.kind for each in both] == ["writes_refused", "disk_full"]


def test_a_node_with_room_by_its_own_word_is_healthy_whatever_the_disk() -> None:
    """Its operator may have set other thresholds."""
    roomy = node(2, disk_free_bytes=4096, disk={"level": "roomy", "refusing": []})
    assert problems(status(roomy)) == []


def test_replicas_of_one_reason_are_one_line_with_the_reason() -> None:
    failed = {f"t/{number}": "No space left on device" for number in range(20)} | {"u/0": ""}
    one, other = problems(status(node(2, failed_partitions=failed)))
    assert one.message == (
        "node 2: 20 replicas failed (t/0, t/1, t/2, t/3, t/4, t/5, t/6, t/7 and 12 more):"
        " No space left on device"
    )
    assert other.message.endswith("(u/0): the node gave no reason; see its log")


def test_a_node_that_is_down_is_not_asked_for_its_disk() -> None:
    silent = {"id": 2, "alive": False, "status": "active", "replicas": 4, "rebuilding": []}
    assert [each.kind for each in problems(status(silent))] == ["node_down"]
