"""A node without a disk or a network, and a desk where requests to it are handed in.

The node's cluster state and controller are the real ones; only the way through group 0 is cut
short: a command is carried out at once. Partitions are whatever a test makes of them.

`Desk.ask` takes the way of a client: the request is written and read back as bytes, and so is the
answer, so that every answer is one that can be sent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.static.constants import EntityType

from tidelog.cluster import commands as cmd
from tidelog.cluster.calls import Call
from tidelog.cluster.catchup import CatchUp
from tidelog.cluster.comparing import Comparer
from tidelog.cluster.configs import TopicConfig
from tidelog.cluster.controller import Controller
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.leaders import Claim, LeaderTable
from tidelog.cluster.model import CONTROLLER_GROUP, Address
from tidelog.cluster.operations import Operations
from tidelog.cluster.partition import ProduceFailed
from tidelog.cluster.state import ClusterState
from tidelog.kafka import codec
from tidelog.kafka.apis import default_table
from tidelog.kafka.dispatch import Context
from tidelog.machines import Producers
from tidelog.raft.types import NodeId
from tidelog.records import BatchType, internal_batch

PATIENCE = timedelta(seconds=20)


class QuickController(Controller):
    """Carries commands out at once. `stuck` makes it one that finds no majority."""

    stuck = False
    # Whether the first replica of a new partition leads it at once.
    elects = True

    async def propose(self, command: cmd.Command, timeout: float = 30.0) -> int | None:
        """Apply the command, or wait in vain as long as allowed."""
        if self.stuck:
            await asyncio.sleep(timeout)
            raise ClusterError(Problem.TIMEOUT, "no majority")
        await asyncio.sleep(0)
        self._state.apply(internal_batch(BatchType.CHANGELOG, cmd.encode(command)))
        if self.elects:
            for _, partition in self._state.partitions():
                if not self._node.leaders.has_led(partition.group):
                    claim = Claim(partition.group, 1, partition.nodes)
                    self._node.leaders.claim(partition.nodes[0], claim)
        return self._state.results[command.token].get()


class PretendPartition:
    """A led partition with records 0 to `high_watermark` - 1."""

    def __init__(self, topic: str, index: int, high_watermark: int = 10, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self.topic = topic
        self.index = index
        self.config = TopicConfig.from_strings(settings, {})
        self.is_leader = True
        self.failed: str | None = None
        self.epoch = 1
        self.log_start = 0
        self.high_watermark = high_watermark
        self.end = high_watermark
        self.bytes = 0
        # What becomes of a deletion: None does it, a failure refuses it, False never answers.
        self.failure: ProduceFailed | bool | None = None
        self.replica = SimpleNamespace(machines=SimpleNamespace(machines=[Producers()]))

    @property
    def size(self) -> int:
        """Bytes that the replica takes on the disk."""
        return self.bytes

    def delete_before(self, offset: int, done: Callable[[int | ProduceFailed], None]) -> None:
        """Do it, refuse it, or keep silent."""
        if isinstance(self.failure, ProduceFailed):
            done(self.failure)
        elif self.failure is None:
            self.log_start = max(self.log_start, offset)
            done(self.log_start)


class PretendNode:
    """What handlers need of a node."""

    def __init__(self, data: Path, nodes: int) -> None:
        self.id = NodeId(1)
        self.config = SimpleNamespace(rack="a", data=data)
        self.state = ClusterState()
        self.leaders = LeaderTable()
        self.controller = QuickController(cast(Any, self))
        self.dead: set[int] = set()
        self.gone_since_a_moment: set[int] = set()  # of these
        self.hosted: dict[tuple[str, int], PretendPartition] = {}
        self.handovers: list[int] = []
        self.catch_up = CatchUp(cast(Any, self))
        self.newest: int | None = None  # version of the state at the leader of group 0
        self.questions = 0  # how often that was asked for
        self.comparer = Comparer(cast(Any, self))
        self.space = SimpleNamespace(has_room=lambda _: True)
        self.operations = Operations(cast(Any, self))
        self._found(nodes)

    def _found(self, nodes: int) -> None:
        seeds = tuple(NodeId(number) for number in range(1, nodes + 1))
        self.apply(cmd.CreateCluster(token=cmd.new_token(), cluster_id="tides", seeds=seeds))
        for node in seeds:
            self.apply(
                cmd.AddMember(
                    token=cmd.new_token(),
                    id=node,
                    rack="a",
                    rpc=Address("127.0.0.1", 9000 + node),
                    kafka=Address("127.0.0.1", 9100 + node),
                    version=1,
                    birth=f"birth-{node}",
                )
            )
        self.leaders.claim(NodeId(1), Claim(CONTROLLER_GROUP, 1, seeds))

    def apply(self, command: cmd.Command) -> None:
        """Carry out a command that must succeed."""
        self.state.apply(internal_batch(BatchType.CHANGELOG, cmd.encode(command)))
        self.state.results[command.token].get()

    def host(self, partition: PretendPartition) -> PretendPartition:
        """Let a partition live here, led by this node."""
        self.hosted[partition.topic, partition.index] = partition
        return partition

    def lead(self, topic: str, index: int, node: int, term: int = 1) -> None:
        """Let everybody know who leads a partition, with all replicas in sync."""
        group = self.state.group_of(topic, index)
        assert group is not None
        in_sync = self.state.partition_at(topic, index).nodes
        self.leaders.claim(NodeId(node), Claim(group, term, in_sync))

    def partition(self, topic: str, index: int) -> PretendPartition | None:
        return self.hosted.get((topic, index))

    def partitions(self) -> Iterator[PretendPartition]:
        return iter(self.hosted.values())

    def leader_of(self, topic: str, index: int) -> tuple[NodeId | None, int]:
        """What the node believes."""
        group = self.state.group_of(topic, index)
        found = None if group is None else self.leaders.leadership(group)
        return (None, -1) if found is None else (found.node, found.term)

    def is_alive(self, node_id: int) -> bool:
        return node_id not in self.dead

    def was_alive(self, node_id: int) -> bool:
        return node_id not in self.dead - self.gone_since_a_moment

    def controller_id(self) -> NodeId | None:
        return self.leaders.get(CONTROLLER_GROUP)

    async def ask(self, node: int, call: int, _payload: bytes, _timeout: float) -> bytes:
        """Another node is asked to hand leadership over, or how far the cluster's state has got."""
        if call == Call.OPERATE:
            self.questions += 1
            await asyncio.sleep(0)
            return json.dumps({"version": self.newest, "leads": self.newest is not None}).encode()
        self.handovers.append(node)
        return b""

    async def operate(self, payload: bytes | memoryview) -> bytes:
        """Answer the command line."""
        return await self.operations.operate(payload)


class Desk:
    """Hands requests to a pretended node."""

    def __init__(self, data: Path, nodes: int = 3) -> None:
        self.node = PretendNode(data, nodes)
        self.table = default_table()
        self.context = Context(
            cast(Any, self.node), Address("127.0.0.1", 9101), 1, "127.0.0.1", "desk"
        )

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send one request and return the answer as the client reads it."""
        return asyncio.run(self.asking(api_key, version, **fields))

    async def asking(self, api_key: int, version: int, **fields: Any) -> Any:
        """The same, on a loop that runs."""
        api = self.table.get(api_key)
        assert api is not None
        assert api.handler is not None
        assert api.serves(version)
        sent = codec.encode(build(api_key, version, **fields))
        answer = await api.handler(self.context, codec.decode_request(api_key, version, sent))
        received = codec.encode(answer)
        read, size = entity_reader(load_response_schema(api_key, version))(received, 0)
        assert size == len(received)
        return read

    def create(self, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> None:
        """Create a topic, straight at the controller."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        asyncio.run(self.node.controller.create_topic(name, partitions, replicas, settings))


def build(api_key: int, version: int, **fields: Any) -> Any:
    """Build a request from plain values, dicts for structures; unknown fields are left out."""
    module = load_payload_module(api_key, version, EntityType.request)
    classes = {
        name: kind
        for name, kind in vars(module).items()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type)
    }
    return _fill(load_request_schema(api_key, version), classes, fields)


def _fill(kind: Any, classes: dict[str, Any], values: dict[str, Any]) -> Any:
    known = {field.name: field for field in dataclasses.fields(kind)}
    return kind(
        **{
            name: _value(str(known[name].type), classes, value)
            for name, value in values.items()
            if name in known
        }
    )


def _value(type_name: str, classes: dict[str, Any], value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(type_name, classes, each) for each in value)
    if isinstance(value, dict):
        wanted = re.findall(r"\w+", type_name)
        kind = next(kind for name, kind in classes.items() if name in wanted)
        return _fill(kind, classes, value)
    return value


def versions(api_key: int) -> list[int]:
    """Return all versions of an API that are served."""
    api = default_table().get(api_key)
    assert api is not None
    return list(range(api.min_version, api.max_version + 1))
