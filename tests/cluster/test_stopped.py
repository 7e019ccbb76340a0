"""A command that only a later release decodes: the fold stops there, says so, and skips nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.hands import FLUSH, Puppet, alone, at
from tests.cluster.nodes import HOST, Nodes, cluster, until, write

from tidelog.cli.health import Severity, problems
from tidelog.cluster import commands as cmd
from tidelog.cluster.errors import ClusterError, StartFailed
from tidelog.cluster.model import CONTROLLER_GROUP, Address
from tidelog.cluster.node import Node
from tidelog.cluster.state import ClusterState
from tidelog.raft import events as ev
from tidelog.raft.types import Level, NodeId, Role
from tidelog.records import Batch, BatchType, internal_batch

LATER = 2  # the release that knows the command "Sink", which changes settings of the cluster


def command_batch(payload: bytes) -> Batch:
    return internal_batch(BatchType.CHANGELOG, payload)


def setting(name: str) -> Batch:
    command = cmd.SetClusterConfig(token=cmd.new_token(), changes={name: "1"})
    return command_batch(cmd.encode(command))


def sink(name: str) -> Batch:
    """Return a command as only the later release writes it."""
    command = cmd.SetClusterConfig(token=cmd.new_token(), changes={name: "1"})
    envelope = {**json.loads(cmd.encode(command)), "kind": "Sink", "needs": LATER}
    return command_batch(json.dumps(envelope).encode())


def founding() -> Batch:
    command = cmd.CreateCluster(token=cmd.new_token(), cluster_id="harbour", seeds=(NodeId(1),))
    return command_batch(cmd.encode(command))


def upgrade(patch: pytest.MonkeyPatch) -> None:
    """Let everything in this process be of the later release from now on."""
    patch.setattr(cmd, "RELEASE", LATER)
    patch.setitem(cmd._KINDS, "Sink", cmd.SetClusterConfig)


# --- One replica ----------------------------------------------------------------------------------


class Controller:
    """A replica of group 0 by itself."""

    def __init__(self) -> None:
        self.states: list[ClusterState] = []  # one for each life
        self.puppet: Puppet = alone(carries=self._machines)
        self.said: list[str] = []
        self.puppet.running.on_stopped = self.said.append

    def _machines(self) -> list[ClusterState]:
        self.states.append(ClusterState())
        return [self.states[-1]]

    @property
    def state(self) -> ClusterState:
        return self.states[-1]

    def write(self, *batches: Batch) -> None:
        """Commit batches that the machines get in one go."""
        self.puppet.step(ev.Propose(1, batches, Level.QUORUM))
        self.puppet.flush()
        self.puppet.hands.do_all()

    def restart(self) -> None:
        self.puppet.kill()
        self.puppet.start()
        self.puppet.running.on_stopped = self.said.append
        self.puppet.step(ev.ElectionTimeout())
        self.puppet.flush()
        self.puppet.hands.do_all()


def settings(state: ClusterState) -> set[str]:
    return set(state.config)


def test_what_comes_before_the_unknown_command_is_folded_and_what_follows_is_not() -> None:
    controller = Controller()
    first = controller.puppet.running.log.dirty + 1
    controller.write(founding(), setting("a"), sink("unknown"), setting("b"))
    replica = controller.puppet.running
    assert settings(controller.state) == {"a"}
    assert replica.machines.applied == replica.core.applied == at(first + 1)
    assert replica.core.committed == at(first + 3), "the log goes on"
    (why,) = controller.said
    assert why == replica.stopped
    assert why.endswith(f"upgrade this node to release {LATER}")
    assert f"offset {first + 2} of the controller's log" in why


def test_a_replica_that_stopped_leads_no_more_and_says_so_once() -> None:
    controller = Controller()
    controller.write(founding(), sink("unknown"))
    replica = controller.puppet.running
    assert replica.core.role is Role.FOLLOWER
    for _ in range(3):
        controller.puppet.step(ev.ElectionTimeout())
        assert replica.core.role is Role.FOLLOWER
    replica.step(ev.Propose(9, (setting("b"),), Level.QUORUM))
    assert controller.puppet.hands.refusal(9) is ev.Refusal.NOT_LEADER
    assert len(controller.said) == 1


@pytest.mark.parametrize("saved", [False, True], ids=["from the log", "from a checkpoint"])
def test_a_later_release_goes_on_to_the_state_of_one_that_never_stopped(
    monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    history = (founding(), setting("a"), sink("unknown"), setting("b"))
    stopped = Controller()
    stopped.write(*history)
    before = stopped.state.snapshot()
    if saved:
        stopped.puppet.running._save_checkpoint()
        stopped.puppet.hands.do_all(FLUSH)
    stopped.restart()
    assert stopped.state.snapshot() == before, "this release stops at the same place again"
    assert len(stopped.said) == 2

    upgrade(monkeypatch)
    stopped.restart()
    never = Controller()
    never.write(*history)
    assert settings(never.state) == {"a", "unknown", "b"}
    assert stopped.state.snapshot() == never.state.snapshot()
    assert stopped.puppet.running.core.ready
    assert (len(stopped.said), never.said) == (2, [])


def test_the_snapshot_of_another_release_stops_a_replica_that_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Controller()
    controller.write(founding(), setting("a"))
    with monkeypatch.context() as later:
        later.setattr("tidelog.cluster.state._FORMAT", 3)
        controller.puppet.step(ev.Compact(2))
        controller.puppet.hands.do_all()
        replica = controller.puppet.running
        assert replica.core.snapshot is not None
        assert replica.truncate_prefix(at(replica.core.snapshot.offset + 1))
    controller.puppet.kill()
    controller.puppet.start()
    replica = controller.puppet.running
    assert replica.stopped is not None
    assert "was written by another release (it has format 3" in replica.stopped
    assert replica.stopped.endswith("upgrade this node to a newer release than 1")
    assert (replica.lost, replica.failed) == (None, None)

    monkeypatch.setattr("tidelog.cluster.state._FORMAT", 3)
    controller.restart()
    assert controller.puppet.running.stopped is None
    assert settings(controller.state) == {"a"}


# --- A cluster ------------------------------------------------------------------------------------


def run(story: Coroutine[Any, Any, None]) -> None:
    uvloop.run(story)


async def leader_of_group_0(nodes: Nodes) -> Node:
    found: list[Node] = []

    def look() -> bool:
        for node in nodes.running.values():
            hosted = node.groups.get(CONTROLLER_GROUP)
            if hosted is not None and hosted.replica.core.ready:
                found.append(node)
        return bool(found)

    await until(look, "a controller")
    return found[0]


async def commit(nodes: Nodes, *batches: Batch) -> None:
    """Write commands to group 0 as they are, as a leader of another release would."""
    leader = await leader_of_group_0(nodes)
    hosted = leader.groups.get(CONTROLLER_GROUP)
    assert hosted is not None
    outcome = await leader.groups.ask(
        hosted, lambda token: ev.Propose(token, batches, Level.QUORUM), 10.0
    )
    assert isinstance(outcome, ev.Done), outcome


def test_a_cluster_stops_at_an_unknown_command_says_so_and_serves_its_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        nodes = Nodes(tmp_path, 3)
        await nodes.start(1, 2, 3)
        await nodes.any.controller.create_topic("t", 1, 3, {"retention.ms": "-1"})
        await nodes.write("t", 0, b"before")
        await commit(nodes, setting("a"), sink("unknown"), setting("b"))
        await until(
            lambda: all(node.stuck is not None for node in nodes.running.values()),
            "that every node stops",
        )
        assert all(
            settings(node.state) >= {"a"} and not settings(node.state) & {"unknown", "b"}
            for node in nodes.running.values()
        )
        said = [each for each in caplog.records if "does not follow the cluster's" in each.message]
        assert len(said) == 3, "each says it once"
        assert all(each.message.endswith("upgrade this node to release 2") for each in said)

        status = json.loads(await nodes.any.operate(b'{"operation": "status", "arguments": {}}'))
        shown = [
            each for each in problems(status["result"]) if each.kind == "controller_replica_stopped"
        ]
        assert [each.severity for each in shown] == [Severity.CRITICAL] * 3
        assert all(each.message.endswith("upgrade this node to release 2") for each in shown)

        assert await nodes.write("t", 0, b"after") == 1
        with pytest.raises(ClusterError, match="upgrade this node to release 2"):
            await nodes.any.controller.create_topic("u", 1, 3, {})

        await nodes.stop(1)
        with pytest.raises(StartFailed, match="upgrade this node to release 2"):
            await Node(nodes.config(1)).start(Address(HOST, 20_001))

        upgrade(monkeypatch)
        await nodes.start(1)
        assert settings(nodes[1].state) >= {"a", "unknown", "b"}
        assert (await leader_of_group_0(nodes)) is nodes[1], "the others cannot lead"
        await nodes[1].controller.create_topic("u", 1, 1, {})
        await nodes.stop(2, 3)
        await nodes.start(2, 3)
        await until(
            lambda: len({node.state.snapshot() for node in nodes.running.values()}) == 1,
            "that all have the same state",
        )
        assert await nodes.write("t", 0, b"at last") == 2
        await nodes.stop_all()

    with caplog.at_level(logging.INFO, "tidelog"):
        run(story())


def test_a_node_alone_says_why_it_cannot_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes[1].controller.create_topic("t", 1, 1, {})
            await write(await nodes.leader("t"), b"value")
            await commit(nodes, sink("unknown"))
            await until(lambda: nodes[1].stuck is not None, "that it stops")
            await nodes.stop(1)
            with pytest.raises(StartFailed, match="upgrade this node to release 2"):
                await Node(nodes.config(1)).start(Address(HOST, 20_001))

    run(story())
