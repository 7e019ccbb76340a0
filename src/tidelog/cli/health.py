"""What is wrong with a cluster, read from its status: the most severe first.

A problem is *critical* while it keeps clients from reading or writing something, a *warning* while
the cluster works with less than it should have, and a *note* if it passes by itself. A cluster with
nothing worse than notes is healthy.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from tidelog.cli.common import format_bytes, plural

# Names of partitions in a message; `--json` has them all.
SHOWN: Final = 8
# Less than one append of a large batch: producers get storage errors.
FULL_BYTES: Final = 1 << 20
# A disk with less than both of these free is about to refuse writes.
NEARLY_FULL_BYTES: Final = 512 << 20
NEARLY_FULL_SHARE: Final = 0.02

TOLD_FOR_S: Final = 7 * 86_400  # how long a recovery is mentioned

HEALTHY: Final = "Every partition has its leader and all its replicas."


class Severity(IntEnum):
    CRITICAL = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True)
class Problem:
    severity: Severity
    kind: str  # for programs
    brief: str  # for the line that sums up; without a verb
    message: str  # with the reason, and what to do where that is not obvious

    def __str__(self) -> str:
        return f"{self.severity.name.lower()}: {self.message}"

    def document(self) -> dict[str, str]:
        return {
            "severity": self.severity.name.lower(),
            "kind": self.kind,
            "message": self.message,
        }


def problems(status: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong, the most severe first; empty if all is well."""
    found = [
        *_controller(status),
        *_partitions(status),
        *_nodes(status["nodes"]),
        *_recoveries(status),
    ]
    return sorted(found, key=lambda problem: problem.severity)  # stable within a severity


def is_healthy(found: Iterable[Problem]) -> bool:
    return all(problem.severity is Severity.NOTE for problem in found)


def summary(found: Iterable[Problem]) -> str:
    """Say in one line how the cluster is."""
    briefs = [each.brief for each in found if each.severity is not Severity.NOTE]
    return f"Not healthy: {'; '.join(briefs)}." if briefs else HEALTHY


# --- The cluster as a whole -----------------------------------------------------------------------


def _controller(status: Mapping[str, Any]) -> Iterator[Problem]:
    absent = [str(node) for node in status.get("absent_founders", [])]
    if status["controller"] is None:
        count = len(status["nodes"]) + len(absent)
        down = [str(node["id"]) for node in status["nodes"] if not node["alive"]] + absent
        if 2 * len(down) >= count > 1:
            yield Problem(
                Severity.CRITICAL,
                "controller_majority_gone",
                "no majority of the controller",
                f"the majority of the controller (nodes {', '.join(down)} of {count}) is not"
                " reachable, so topics, settings and members cannot change. Start these nodes. If"
                " they are gone for good, stop a node that is left and run `tidelog node recover"
                " --data DIR` on its machine",
            )
            return
        yield Problem(
            Severity.CRITICAL,
            "no_controller",
            "no controller",
            "no node leads the cluster, so topics, settings and members cannot change. It takes a"
            f" majority of the nodes ({count // 2 + 1} of {count}), able to reach each other",
        )
    if absent:
        word, them = ("founder", "it") if len(absent) == 1 else ("founders", "them")
        yield Problem(
            Severity.WARNING,
            "founder_absent",
            f"{word} {', '.join(absent)} not there",
            f"{word} {', '.join(absent)} never joined, and the controller's majority counts {them}:"
            f" start {them}, or remove {them} with `tidelog node decommission {absent[0]}`",
        )


def _recoveries(status: Mapping[str, Any]) -> Iterator[Problem]:
    """The last time that something was given up, for as long as people may ask what is missing."""
    recoveries = status.get("recoveries") or []
    if recoveries and recoveries[-1]["at_ms"] > (time.time() - TOLD_FOR_S) * 1000:
        yield Problem(Severity.NOTE, "recovered", "recovered", recoveries[-1]["text"])


def _partitions(status: Mapping[str, Any]) -> Iterator[Problem]:
    gone = status.get("majority_gone") or []
    leaderless, behind = status["leaderless"], status["under_replicated"]
    leaderless = [each for each in leaderless if each not in gone]
    if gone:
        yield Problem(
            Severity.CRITICAL,
            "majority_gone",
            f"{plural(len(gone), 'partition')} without a majority",
            f"{plural(len(gone), 'partition')} lost the majority of their replicas and cannot be"
            f" read or written: {_names(gone)}. Start the nodes that are down. If the replicas are"
            " gone for good, `tidelog node recover --partition TOPIC/P` goes on with what is left",
        )
    if leaderless:
        yield Problem(
            Severity.CRITICAL,
            "leaderless",
            f"{plural(len(leaderless), 'partition')} without a leader",
            f"{_count(leaderless)} no leader and cannot be read or written: {_names(leaderless)}",
        )
    if behind:
        yield Problem(
            Severity.WARNING,
            "under_replicated",
            f"{plural(len(behind), 'partition')} with replicas behind or down",
            f"{_count(behind)} replicas that are behind or down: {_names(behind)}",
        )
    if status["moving"]:
        yield Problem(
            Severity.NOTE,
            "moving",
            f"{plural(len(status['moving']), 'partition')} on the move",
            f"{plural(len(status['moving']), 'partition')} on the move to other nodes:"
            f" {_names(status['moving'])}",
        )


# --- Single nodes ---------------------------------------------------------------------------------


def _nodes(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    nodes = list(nodes)
    down = [str(node["id"]) for node in nodes if not node["alive"]]
    if down:
        word, verb = ("node", "does") if len(down) == 1 else ("nodes", "do")
        yield Problem(
            Severity.WARNING,
            "node_down",
            f"{word} {', '.join(down)} down",
            f"{word} {', '.join(down)} {verb} not answer: start what has ended, or see the log",
        )
    for node in nodes:
        if node["alive"]:
            yield from _disk(node)
            yield from _replicas(node)
            yield from _differences(node)
        if node["status"] == "draining":
            yield _note(node, "draining", "leads nothing until `tidelog node undrain`")
        elif node["status"] == "leaving":
            left = plural(node["replicas"], "replica")
            yield _note(node, "leaving", f"is being decommissioned and has {left} left to move")


def _note(node: Mapping[str, Any], kind: str, what: str) -> Problem:
    message = f"node {node['id']} {what}"
    return Problem(Severity.NOTE, kind, message, message)


def _disk(node: Mapping[str, Any]) -> Iterator[Problem]:
    error = node.get("disk_error")
    if error:
        yield Problem(
            Severity.CRITICAL if node.get("leaders") else Severity.WARNING,
            "disk_unreadable",
            f"the data directory of node {node['id']} unreadable",
            f"the data directory of node {node['id']} cannot be read: {error}. See that its disk"
            " works and is mounted, then restart the node",
        )
    free, total = node.get("disk_free_bytes"), node.get("disk_total_bytes")
    if not isinstance(free, int) or not isinstance(total, int):
        return
    disk = f"the disk of node {node['id']}"
    room = (
        f"{format_bytes(free)} of {format_bytes(total)} are free. Delete topics or records, shorten"
        " retention, or give it more space"
    )
    level = (node.get("disk") or {}).get("level")
    if level is not None:
        yield from _level(node, level, disk, room)
    elif free < FULL_BYTES:
        # What it leads cannot be written; a follower with a full disk costs a copy.
        leads = bool(node.get("leaders"))
        yield Problem(
            Severity.CRITICAL if leads else Severity.WARNING,
            "disk_full",
            f"{disk} full",
            f"{disk} is full, so its replicas take no writes: {room}",
        )
    elif free < min(NEARLY_FULL_BYTES, NEARLY_FULL_SHARE * total):
        yield Problem(
            Severity.WARNING, "disk_nearly_full", f"{disk} nearly full", f"{disk} is low: {room}"
        )


def _level(node: Mapping[str, Any], level: str, disk: str, room: str) -> Iterator[Problem]:
    """What a node says itself of the room that it has, and of what it does about that."""
    refusing = node["disk"].get("refusing") or []
    if refusing:
        yield Problem(
            Severity.CRITICAL,
            "writes_refused",
            f"{plural(len(refusing), 'partition')} on node {node['id']} taking no writes",
            f"node {node['id']} leads {plural(len(refusing), 'partition')} that can be read and not"
            f" written, because too many replicas have no room on their disks: {_names(refusing)}",
        )
    if level == "full":
        yield Problem(
            Severity.WARNING,
            "disk_full",
            f"{disk} full",
            f"{disk} is full, so its replicas take no writes of clients and fall behind: {room}",
        )
    elif level == "low":
        yield Problem(
            Severity.WARNING,
            "disk_nearly_full",
            f"{disk} nearly full",
            f"{disk} is low, so other nodes lead what they can, and the rest takes no writes:"
            f" {room}",
        )


def _replicas(node: Mapping[str, Any]) -> Iterator[Problem]:
    name = f"node {node['id']}"
    controller = node.get("controller_replica") or {}
    if controller.get("stopped"):
        yield Problem(
            Severity.CRITICAL,
            "controller_replica_stopped",
            f"{name} not following the cluster's changes",
            f"{name} does not follow the cluster's changes (topics, settings, members):"
            f" {controller['stopped']}",
        )
    # An older node does not tell; one that has lost its replica is told of below.
    if controller.get("seated") is False and not (controller["lost"] or controller["failed"]):
        yield Problem(
            Severity.WARNING,
            "controller_replica_unseated",
            f"{name} without a vote on the controller",
            f"{name} has no vote on the controller yet: it gets one by itself once it has caught"
            " up. Until then do not take another node away",
        )
    for kind, word in (("lost", "lost"), ("failed", "failed")):
        why = controller.get(kind)
        if why:
            yield Problem(
                Severity.WARNING,
                f"controller_replica_{kind}",
                f"a {word} replica of the controller on {name}",
                f"{name}: its replica of the controller's log {word}: {why}",
            )
        for reason, places in _by_reason(node.get(f"{kind}_partitions") or {}).items():
            count = plural(len(places), "replica")
            yield Problem(
                Severity.WARNING,
                f"replicas_{kind}",
                f"{count} {word} on {name}",
                f"{name}: {count} {word} ({_names(places)}): {reason}",
            )
    rebuilding = node.get("rebuilding") or []
    if rebuilding:
        of = f"{len(rebuilding)} of {plural(node['replicas'], 'replica')}"
        yield Problem(
            Severity.WARNING,
            "rebuilding",
            f"{name} rebuilding {of}",
            f"{name} is rebuilding {of} from its peers: {_names(rebuilding)}",
        )


def _differences(node: Mapping[str, Any]) -> Iterator[Problem]:
    """Copies that differ, where nobody can tell which is wrong; the others are being rebuilt."""
    for each in (node.get("comparison") or {}).get("differences") or []:
        if not each["wrong"]:
            yield Problem(
                Severity.WARNING,
                "replicas_differ",
                f"the replicas of {each['partition']} differ",
                f"{each['text']}. See docs/recovery.md",
            )


def _by_reason(places: Mapping[str, str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place, why in places.items():
        found[why or "the node gave no reason; see its log"].append(place)
    return found


def _count(names: list[str]) -> str:
    return f"{plural(len(names), 'partition')} {'has' if len(names) == 1 else 'have'}"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
