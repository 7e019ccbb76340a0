"""A cluster behind one object: who is who, a connection to each, and calls that find their node.

Theory of operation. The bootstrap addresses are only asked for metadata; from then on the nodes'
own addresses count, and the bootstrap addresses again when none of them answers. What is known of
a partition's leader carries the leader's epoch: an answer with an older epoch than one seen before
is older news and changes nothing, so a client that was told of a new leader does not go back to the
old one because a node that lags told it so. A topic that was created anew has a new id, and its
epochs begin again.

Calls come in four kinds: to any node, to the controller, to a group's coordinator, to a partition's
leader. Each is tried again after a passing error, with a fresh look at who is who, until its
deadline.

Connections are kept by node and *lane*. A long poll has a lane of its own, because a node answers a
connection's requests in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from tidelog.client.connection import Connection
from tidelog.client.errors import (
    NOT_CONTROLLER,
    PASSING,
    STALE_COORDINATOR,
    STALE_METADATA,
    ClientError,
    Disconnected,
    Refused,
    Silent,
    TimedOut,
    UnknownTopic,
    Unreachable,
    check,
)
from tidelog.client.messages import Api, Build, Maker
from tidelog.client.model import Metadata, Node, PartitionInfo, TopicInfo, TopicPartition
from tidelog.client.retry import Backoff, Deadline

DEFAULT_TIMEOUT: Final = 30.0
# Seconds for one connection attempt, so that a dead node does not use up a call's whole time.
CONNECT_SECONDS: Final = 3.0
# Seconds for an answer that a node has in memory: after that, another node is asked.
QUICK_SECONDS: Final = 5.0
# Seconds for an answer that waits for other nodes, more than they are given themselves.
REQUEST_SECONDS: Final = 15.0
DEFAULT_PORT: Final = 9092
GROUP_KEY: Final = 0  # FindCoordinator: the key is the name of a group

# Seconds within which the news of a topic's creation reaches every node. A topic that nobody has
# heard of after that does not exist.
NEWS_SECONDS: Final = 0.3

# Seconds a call may take, retries included; or the deadline of a larger piece of work.
Timeout = float | Deadline

# Errors after which the same call may be tried on another connection.
LOST: Final = (Disconnected, Unreachable)


class Cluster:
    """Connections to a cluster and what is known about it; an async context manager."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "tidelog",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.bootstrap = parse_addresses(bootstrap)
        self.client_id = client_id
        self.timeout = timeout  # seconds a call may take, unless it says otherwise
        self.nodes: dict[int, Node] = {}
        self.controller: int | None = None
        self.cluster_id: str | None = None
        self._topics: dict[str, TopicInfo] = {}  # as many as were ever asked for
        self._coordinators: dict[str, int] = {}  # group to node
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._opening: dict[tuple[str, int, str], asyncio.Lock] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        # The transports close in the next turn of the loop.
        await asyncio.sleep(0)

    # --- Who is who -------------------------------------------------------------------------------

    async def metadata(
        self, topics: Iterable[str] | None = None, *, create: bool = False, timeout: Timeout = 0
    ) -> Metadata:
        """Ask who is who: about these topics, or all (None). Unknown topics are left out."""
        deadline = self.deadline(timeout)
        wanted = None if topics is None else tuple(dict.fromkeys(topics))
        answer = await self.ask_any(
            Api.METADATA, lambda make: _metadata_request(make, wanted, create), deadline
        )
        return self._learn(answer)

    async def topic(self, name: str, *, fresh: bool = False, timeout: Timeout = 0) -> TopicInfo:
        """Return a topic, from memory unless `fresh`; raises `Refused` if there is none."""
        known = None if fresh else self._topics.get(name)
        if known is not None:
            return known
        backoff, grace = Backoff(), self.deadline(timeout).at_most(NEWS_SECONDS)
        while True:
            metadata = await self.metadata([name], timeout=timeout)
            if name in metadata.topics:
                return metadata.topics[name]
            await backoff.wait(grace, UnknownTopic(name))

    async def leader(
        self, partition: TopicPartition, deadline: Deadline
    ) -> tuple[Node, PartitionInfo]:
        """Return a partition's leader, waiting until it has one; raises `Refused`."""
        backoff = Backoff()
        fresh = False
        while True:
            await self.topic(partition.topic, fresh=fresh, timeout=deadline)
            found = self.known_leader(partition)
            if found is not None:
                return found
            fresh = True
            await backoff.wait(
                deadline, Refused(ErrorCode.leader_not_available, f"partition {partition}")
            )

    def known_leader(self, partition: TopicPartition) -> tuple[Node, PartitionInfo] | None:
        """Return a partition's leader if it is known, without asking anybody."""
        topic = self._topics.get(partition.topic)
        if topic is None:
            return None
        info = _find(topic, partition)
        node = None if info.leader is None else self.nodes.get(info.leader)
        return None if node is None else (node, info)

    def topic_id(self, name: str) -> Any:
        """Return the id of a topic that was asked for before; None if it has none."""
        known = self._topics.get(name)
        return None if known is None else known.id

    def forget(self, topic: str) -> None:
        """Drop what is known of a topic's leaders; the epochs stay, against older news."""
        known = self._topics.get(topic)
        if known is not None:
            partitions = tuple(
                PartitionInfo(p.index, None, p.epoch, p.replicas, p.in_sync, p.offline)
                for p in known.partitions
            )
            self._topics[topic] = TopicInfo(known.name, known.id, known.internal, partitions)

    # --- Calls ------------------------------------------------------------------------------------

    def deadline(self, timeout: Timeout = 0) -> Deadline:
        """Return the deadline of a call that begins now; 0 is the cluster's own timeout."""
        return timeout if isinstance(timeout, Deadline) else Deadline(timeout or self.timeout)

    async def ask(
        self,
        node: Node,
        api: Api,
        build: Build,
        deadline: Deadline,
        *,
        lane: str = "",
        patience: float = REQUEST_SECONDS,
    ) -> Any:
        """Ask one node, once; it may take `patience` seconds to answer."""
        connection = await self.connect(node.host, node.port, deadline, lane=lane)
        try:
            return await connection.call(api, build, deadline.at_most(patience))
        except Silent:
            self._disconnect(node)
            raise

    async def ask_any(self, api: Api, build: Build, deadline: Deadline) -> Any:
        """Ask any node that answers: those that are known first, then the bootstrap addresses."""

        async def attempt() -> Any:
            failure: ClientError = Unreachable("There is no address to ask.")
            for host, port in self.candidates():
                try:
                    connection = await self.connect(host, port, deadline)
                    return await connection.call(api, build, deadline.at_most(QUICK_SECONDS))
                except LOST as error:
                    failure = error
            raise self.nobody(failure)

        return await self.persist(attempt, deadline)

    async def ask_controller(
        self, api: Api, build: Build, deadline: Deadline, judge: Callable[[Any], None]
    ) -> Any:
        """Ask the controller; `judge` raises `Refused` where the answer says that."""

        async def attempt() -> Any:
            if self.controller not in self.nodes:
                await self.metadata((), timeout=deadline)
            node = self.nodes.get(self.controller) if self.controller is not None else None
            try:
                if node is None:
                    answer = await self.ask_any(api, build, deadline)
                else:
                    # Not to be asked twice if that can be: what was carried out cannot be again.
                    answer = await self.ask(node, api, build, deadline, patience=deadline.left)
                judge(answer)
            except (*LOST, Refused):
                self.controller = None  # ask again who it is, if there is another attempt
                raise
            return answer

        return await self.persist(attempt, deadline, NOT_CONTROLLER)

    async def ask_coordinator(
        self,
        group: str,
        api: Api,
        build: Build,
        deadline: Deadline,
        judge: Callable[[Any], None],
        *,
        lane: str = "",
        patience: float = REQUEST_SECONDS,
    ) -> Any:
        """Ask a group's coordinator; `judge` raises `Refused` where the answer says that."""

        async def attempt() -> Any:
            node = await self._coordinator(group, deadline)
            try:
                answer = await self.ask(node, api, build, deadline, lane=lane, patience=patience)
                judge(answer)
            except LOST:
                self._coordinators.pop(group, None)
                raise
            except Refused as error:
                if error.code in STALE_COORDINATOR:
                    self._coordinators.pop(group, None)
                raise
            return answer

        return await self.persist(attempt, deadline, STALE_COORDINATOR)

    async def ask_leader(
        self,
        partition: TopicPartition,
        api: Api,
        build: Callable[[PartitionInfo], Build],
        deadline: Deadline,
        judge: Callable[[Any], None],
        *,
        lane: str = "",
    ) -> Any:
        """Ask a partition's leader; `judge` raises `Refused` where the answer says that."""

        async def attempt() -> Any:
            node, info = await self.leader(partition, deadline)
            try:
                answer = await self.ask(node, api, build(info), deadline, lane=lane)
                judge(answer)
            except LOST:
                self.forget(partition.topic)
                raise
            except Refused as error:
                if error.code in STALE_METADATA:
                    self.forget(partition.topic)
                raise
            return answer

        return await self.persist(attempt, deadline)

    async def persist(
        self,
        attempt: Callable[[], Awaitable[Any]],
        deadline: Deadline,
        passing: frozenset[ErrorCode] = PASSING,
    ) -> Any:
        """Try again after lost connections and these codes, until the deadline."""
        backoff = Backoff()
        while True:
            try:
                return await attempt()
            except LOST as error:
                await backoff.wait(deadline, error)
            except UnknownTopic:  # the metadata says so, which is the last word
                raise
            except Refused as error:
                if error.code not in passing:
                    raise
                await backoff.wait(deadline, error)

    async def connect(
        self, host: str, port: int, deadline: Deadline, *, lane: str = ""
    ) -> Connection:
        """Return the connection to an address in a lane, opened if need be."""
        key = (host, port, lane)
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or connection.closed:
                if self._closed:
                    raise ClientError("This client is closed.")
                if not deadline.left:
                    raise TimedOut(f"Gave up after {deadline.seconds:g} s.")
                patience = deadline.at_most(CONNECT_SECONDS)
                connection = await Connection.open(host, port, self.client_id, patience)
                self._connections[key] = connection
        return connection

    # --- Inside -----------------------------------------------------------------------------------

    def candidates(self) -> list[tuple[str, int]]:
        known = [(node.host, node.port) for node in self.nodes.values()]
        random.shuffle(known)
        # Those with an open connection first: asking them costs nothing.
        known.sort(key=lambda address: not self._is_open(*address))
        return list(dict.fromkeys([*known, *self.bootstrap]))

    def _is_open(self, host: str, port: int) -> bool:
        connection = self._connections.get((host, port, ""))
        return connection is not None and not connection.closed

    def _disconnect(self, node: Node) -> None:
        """Close all lanes to a node that is silent in one, so that others are asked first."""
        for (host, port, _), connection in self._connections.items():
            if (host, port) == (node.host, node.port):
                connection.close()

    def nobody(self, failure: ClientError | None) -> Unreachable:
        addresses = ", ".join(f"{host}:{port}" for host, port in self.bootstrap)
        return Unreachable(
            f"No node answers at {addresses}. {failure} Is the cluster running, and is the "
            "address that of its Kafka listener?"
        )

    async def _coordinator(self, group: str, deadline: Deadline) -> Node:
        known = self.nodes.get(self._coordinators.get(group, -1))
        if known is not None:
            return known
        answer = await self.ask_any(
            Api.FIND_COORDINATOR,
            lambda make: make(
                "FindCoordinatorRequest", key=group, key_type=GROUP_KEY, coordinator_keys=(group,)
            ),
            deadline,
        )
        found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
        what = f"the coordinator of group {group}"
        check(found.error_code, what, getattr(found, "error_message", None))
        node = Node(found.node_id, found.host, found.port)
        self.nodes.setdefault(node.id, node)
        self._coordinators[group] = node.id
        return self.nodes[node.id]

    def _learn(self, answer: Any) -> Metadata:
        self.nodes = {
            node.node_id: Node(node.node_id, node.host, node.port, getattr(node, "rack", None))
            for node in answer.brokers
        }
        controller = getattr(answer, "controller_id", -1)
        self.controller = controller if controller >= 0 else None
        self.cluster_id = getattr(answer, "cluster_id", None)
        topics: dict[str, TopicInfo] = {}
        for each in answer.topics:
            if each.error_code in (ErrorCode.none, ErrorCode.leader_not_available):
                topics[each.name] = self._topics[each.name] = self._merge(_topic_info(each))
            elif each.name is not None:
                self._topics.pop(each.name, None)
                if each.error_code not in (
                    ErrorCode.unknown_topic_or_partition,
                    ErrorCode.unknown_topic_id,
                ):
                    raise Refused(each.error_code, f"topic {each.name}")
        return Metadata(self.cluster_id, self.controller, self.nodes, topics)

    def _merge(self, news: TopicInfo) -> TopicInfo:
        known = self._topics.get(news.name)
        if known is None or known.id != news.id:
            return news
        epochs = {partition.index: partition for partition in known.partitions}
        partitions = tuple(
            _newer(epochs.get(partition.index), partition) for partition in news.partitions
        )
        return TopicInfo(news.name, news.id, news.internal, partitions)


def _newer(known: PartitionInfo | None, news: PartitionInfo) -> PartitionInfo:
    if known is None or news.epoch < 0 or news.epoch >= known.epoch:
        return news
    return known


def _find(topic: TopicInfo, partition: TopicPartition) -> PartitionInfo:
    for info in topic.partitions:
        if info.index == partition.index:
            return info
    raise Refused(
        ErrorCode.unknown_topic_or_partition,
        f"partition {partition}",
        f"Topic {topic.name} has {len(topic.partitions)} partitions, counted from 0: there is no "
        f"partition {partition.index}.",
    )


def _metadata_request(make: Maker, topics: tuple[str, ...] | None, create: bool) -> Any:
    # Before version 1, no topics means all of them, and there is no way to ask for none.
    everything = () if make.version == 0 else None
    return make(
        "MetadataRequest",
        topics=everything
        if topics is None
        else tuple(make("MetadataRequestTopic", topic_id=None, name=name) for name in topics),
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


def _topic_info(answer: Any) -> TopicInfo:
    partitions = sorted(answer.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        answer.name,
        getattr(answer, "topic_id", None),
        getattr(answer, "is_internal", False),
        tuple(
            PartitionInfo(
                each.partition_index,
                each.leader_id if each.leader_id >= 0 else None,
                getattr(each, "leader_epoch", -1),
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
                tuple(getattr(each, "offline_replicas", ())),
            )
            for each in partitions
        ),
    )


def parse_addresses(bootstrap: str | Sequence[str]) -> list[tuple[str, int]]:
    """Read `host:port,host:port`; the port may be left out. Raises `ClientError`."""
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    addresses = [_parse_address(part.strip()) for part in parts if part.strip()]
    if not addresses:
        raise ClientError("There is no address to connect to: give host:port.")
    return addresses


def _parse_address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or host.endswith(":"):  # no port, or an IPv6 address without one
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ClientError(f"{text} is no address: write it as host:port.")
    return host, int(port)
