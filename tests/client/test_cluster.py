"""Who is who: bootstrap, leaders and their epochs, retries that end, errors that are sentences."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.client.scripted import NONE, ScriptedBroker, producer_id

from tidelog.client import (
    Admin,
    ClientError,
    Cluster,
    Refused,
    TimedOut,
    TopicPartition,
    UnknownTopic,
    Unsupported,
    operate,
)
from tidelog.client.cluster import parse_addresses
from tidelog.client.errors import Silent
from tidelog.client.messages import Api
from tidelog.client.retry import Deadline

ORDERS = TopicPartition("orders", 0)


def with_cluster(
    work: Callable[[ScriptedBroker, Cluster], Awaitable[None]], timeout: float = 5
) -> None:
    async def main() -> None:
        async with (
            ScriptedBroker() as broker,
            Cluster(broker.bootstrap, timeout=timeout) as cluster,
        ):
            await work(broker, cluster)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        ("localhost", [("localhost", 9092)]),
        (" a:1 , ", [("a", 1)]),
        ("[::1]:9093", [("::1", 9093)]),
    ],
)
def test_addresses_are_read(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "a:b", ":9092", "a:0", "a:70000"])
def test_a_wrong_address_is_a_sentence(text: str) -> None:
    with pytest.raises(ClientError, match="host:port"):
        parse_addresses(text)


def test_a_dead_bootstrap_address_is_passed_over() -> None:
    async def main() -> None:
        async with ScriptedBroker() as dead:
            nobody = dead.bootstrap
        async with (
            ScriptedBroker() as broker,
            Cluster(f"{nobody},{broker.bootstrap}", timeout=5) as cluster,
        ):
            assert (await cluster.metadata()).cluster_id == "scripted"

    asyncio.run(main())


def test_a_cluster_that_is_not_there_is_given_up_with_the_reason() -> None:
    async def main() -> None:
        async with ScriptedBroker() as dead:
            nobody = dead.bootstrap
        async with Cluster(nobody, timeout=0.2) as cluster:
            with pytest.raises(TimedOut, match="nobody listens there"):
                await cluster.metadata()

    asyncio.run(main())


def test_a_topic_that_nobody_knows_is_refused() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(UnknownTopic, match="Topic nope does not exist"):
            await cluster.topic("nope")

    with_cluster(work)


def test_a_partition_that_a_topic_does_not_have_is_refused() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(Refused, match="there is no partition 5"):
            await cluster.leader(TopicPartition("orders", 5), Deadline(1))

    with_cluster(work)


def test_older_news_about_a_leader_changes_nothing() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.epoch = 7
        assert (await cluster.topic("orders")).partitions[0].epoch == 7
        broker.epoch, broker.leader = 6, 3
        fresh = await cluster.topic("orders", fresh=True)
        assert (fresh.partitions[0].epoch, fresh.partitions[0].leader) == (7, 1)
        broker.epoch = 8
        fresh = await cluster.topic("orders", fresh=True)
        assert (fresh.partitions[0].epoch, fresh.partitions[0].leader) == (8, 3)

    with_cluster(work)


def test_a_leader_is_waited_for_until_there_is_one() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.leader = -1
        asked = 0
        plain = broker.metadata

        def elect(request: Any, make: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 3:
                broker.leader = 1
            return plain(request, make)

        broker.on(Api.METADATA, elect)
        node, _ = await cluster.leader(ORDERS, Deadline(5))
        assert (node.id, asked) == (1, 3)

    with_cluster(work)


def test_waiting_for_a_leader_ends_with_its_deadline() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.leader = -1
        with pytest.raises(Refused, match="orders/0 has no leader"):
            await cluster.leader(ORDERS, Deadline(0.1))

    with_cluster(work)


def test_a_lost_connection_is_opened_again() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        answers = iter((None, "now"))

        def flaky(request: Any, make: Any) -> Any:
            return producer_id(request, make) if next(answers) else None

        broker.on(Api.INIT_PRODUCER_ID, flaky)
        await cluster.metadata()
        before = broker.connections
        answer = await cluster.ask_any(
            Api.INIT_PRODUCER_ID,
            lambda make: make(
                "InitProducerIdRequest", transactional_id=None, transaction_timeout=NONE
            ),
            Deadline(5),
        )
        assert answer.producer_id == 9
        assert broker.connections == before + 1

    with_cluster(work)


def test_a_node_that_is_silent_in_one_lane_is_disconnected_in_all() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        async def never(request: Any, make: Any) -> Any:
            await asyncio.sleep(60)

        broker.on(Api.INIT_PRODUCER_ID, never)
        await cluster.metadata()
        node = cluster.nodes[1]
        quick = await cluster.connect(node.host, node.port, Deadline(5))
        with pytest.raises(Silent):
            await cluster.ask(
                node,
                Api.INIT_PRODUCER_ID,
                lambda make: make(
                    "InitProducerIdRequest", transactional_id=None, transaction_timeout=NONE
                ),
                Deadline(5),
                lane="other",
                patience=0.05,
            )
        assert quick.closed  # the lane on which who is who is asked
        assert (await cluster.metadata()).cluster_id == "scripted"

    with_cluster(work)


def created(error: ErrorCode, message: str | None) -> Callable[[Any, Any], Any]:
    def handler(request: Any, make: Any) -> Any:
        return make(
            "CreateTopicsResponse",
            throttle_time=NONE,
            topics=(
                make(
                    "CreatableTopicResult",
                    name=request.topics[0].name,
                    topic_id=None,
                    error_code=error,
                    error_message=message,
                    topic_config_error_code=0,
                    num_partitions=1,
                    replication_factor=1,
                    configs=(),
                ),
            ),
        )

    return handler


def test_the_clusters_own_sentence_is_what_is_told() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.on(Api.CREATE_TOPICS, created(ErrorCode.invalid_config, "retention.ms is a number"))
        with pytest.raises(Refused, match="is a number"):
            await Admin(cluster).create_topic("t")
        broker.on(Api.CREATE_TOPICS, created(ErrorCode.topic_already_exists, None))
        with pytest.raises(Refused, match="Topic t exists already"):
            await Admin(cluster).create_topic("t")
        broker.on(Api.CREATE_TOPICS, created(ErrorCode.invalid_request, None))
        with pytest.raises(Refused, match="refused topic t: invalid request"):
            await Admin(cluster).create_topic("t")

    with_cluster(work)


def test_a_node_that_is_not_the_controller_sends_the_call_on() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        codes = iter((ErrorCode.not_controller, ErrorCode.none))

        def answer(request: Any, make: Any) -> Any:
            return created(next(codes), None)(request, make)

        broker.on(Api.CREATE_TOPICS, answer)
        await Admin(cluster).create_topic("t", 3, 1, {"a": "b"})
        asked = broker.requests(Api.CREATE_TOPICS)
        assert len(asked) == 2
        assert (asked[1].topics[0].num_partitions, asked[1].topics[0].configs[0].value) == (3, "b")

    with_cluster(work)


def test_an_operation_of_tidelog_on_another_cluster_is_a_sentence() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(Unsupported, match="is not a Tidelog node"):
            await operate(cluster, "status")

    with_cluster(work)
