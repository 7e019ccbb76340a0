"""The admin clients that people use, against live nodes: one, and three.

Each client has a way of its own to choose versions, nodes and what it makes of an error, so each
goes through everything that it can ask for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import aiokafka.admin
import confluent_kafka.admin
import kafka.admin
import kafka.errors
import pytest
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from tests.kafka.live import Live, live, until

import kafka

rd: Any = confluent_kafka.admin  # its classes are not among what it says to export
SECONDS = 20
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=[1, 3], ids=["one node", "three nodes"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Live]:
    """Return live nodes that all tests of this module share."""
    with live(tmp_path_factory.mktemp("live"), request.param) as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    """Return the name of a topic that no other test has."""
    return f"tides-{next(_numbers)}"


@pytest.fixture
def confluent(cluster: Live) -> Any:
    """Return librdkafka's client."""
    return rd.AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


@pytest.fixture
def python(cluster: Live) -> Iterator[Any]:
    """Return kafka-python's client."""
    client = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    yield client
    client.close()


def only(futures: dict[Any, Any]) -> Any:
    """Return what came of the only thing that was asked for."""
    (future,) = futures.values()
    return future.result(SECONDS)


def refused(futures: dict[Any, Any]) -> KafkaError:
    """Return why the only thing that was asked for was not done."""
    with pytest.raises(KafkaException) as caught:
        only(futures)
    error: KafkaError = caught.value.args[0]
    return error


def fill(cluster: Live, topic: str, count: int = 10) -> None:
    """Write records to the first partition of a topic."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, f"record {number}", partition=0)
    assert producer.flush(SECONDS) == 0


def width(cluster: Live) -> int:
    """Return how many replicas a partition can have."""
    return len(cluster.nodes)


def led_everywhere(cluster: Live, topic: str) -> bool:
    """Tell whether all nodes know a leader of every partition of a topic."""
    return all(
        topic in node.state.topics
        and all(
            node.leader_of(topic, index)[0] is not None
            for index in range(len(node.state.topics[topic].partitions))
        )
        for node in cluster.nodes.values()
    )


# --- librdkafka -----------------------------------------------------------------------------------


def test_librdkafka_creates_enlarges_and_deletes_topics(
    cluster: Live, confluent: Any, topic: str
) -> None:
    new = rd.NewTopic(topic, 2, width(cluster), config={"retention.ms": "60000"})
    only(confluent.create_topics([new], validate_only=True))
    assert topic not in confluent.list_topics(timeout=SECONDS).topics
    only(confluent.create_topics([new], operation_timeout=0))
    error = refused(confluent.create_topics([new]))
    assert error.code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert topic in error.str()
    only(confluent.create_partitions([rd.NewPartitions(topic, 3)]))
    until(lambda: led_everywhere(cluster, topic), "a leader of every partition")
    found = confluent.list_topics(topic, timeout=SECONDS).topics[topic]
    assert {index: len(each.replicas) for index, each in found.partitions.items()} == dict.fromkeys(
        range(3), width(cluster)
    )
    fewer = refused(confluent.create_partitions([rd.NewPartitions(topic, 1)]))
    assert fewer.code() == KafkaError.INVALID_PARTITIONS
    only(confluent.delete_topics([topic]))
    assert refused(confluent.delete_topics([topic])).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_librdkafka_is_told_what_is_wrong_with_a_new_topic(
    cluster: Live, confluent: Any, topic: str
) -> None:
    bad = [
        (rd.NewTopic(topic, 1, width(cluster) + 1), KafkaError.INVALID_REPLICATION_FACTOR),
        (rd.NewTopic(topic, 20_000, 1), KafkaError.INVALID_PARTITIONS),
        (rd.NewTopic("no name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (rd.NewTopic(topic, 1, 1, config={"colour": "blue"}), KafkaError.INVALID_CONFIG),
        (rd.NewTopic(topic, 1, replica_assignment=[[9]]), KafkaError.INVALID_REPLICA_ASSIGNMENT),
    ]
    for new, code in bad:
        assert refused(confluent.create_topics([new])).code() == code
    only(confluent.create_topics([rd.NewTopic(topic, 2, replica_assignment=[[1], [1]])]))


def test_librdkafka_reads_and_changes_settings(cluster: Live, confluent: Any, topic: str) -> None:
    only(confluent.create_topics([rd.NewTopic(topic, 1, width(cluster))]))

    def resource(**changes: tuple[Any, str | None]) -> Any:
        entries = [
            rd.ConfigEntry(name.replace("_", "."), value, incremental_operation=operation)
            for name, (operation, value) in changes.items()
        ]
        return rd.ConfigResource(
            rd.ConfigResource.Type.TOPIC, topic, incremental_configs=entries or None
        )

    def value(name: str) -> str:
        entry = only(confluent.describe_configs([rd.ConfigResource("topic", topic)]))[name]
        found: str = entry.value
        return found

    change = rd.AlterConfigOpType
    only(
        confluent.incremental_alter_configs(
            [resource(flush_ms=(change.SET, "7"), cleanup_policy=(change.APPEND, "compact"))]
        )
    )
    until(lambda: value("cleanup.policy") == "delete,compact", "the change of the policy")
    assert value("flush.ms") == "7"
    only(
        confluent.incremental_alter_configs(
            [resource(flush_ms=(change.DELETE, None), cleanup_policy=(change.SUBTRACT, "delete"))]
        )
    )
    until(lambda: value("cleanup.policy") == "compact", "the second change of the policy")
    assert value("flush.ms") == "100"
    wrong = refused(confluent.incremental_alter_configs([resource(flush_ms=(change.SET, "x"))]))
    assert wrong.code() == KafkaError.INVALID_CONFIG
    assert "flush.ms" in wrong.str()


def test_librdkafka_sees_where_a_setting_comes_from(
    cluster: Live, confluent: Any, topic: str
) -> None:
    only(confluent.create_topics([rd.NewTopic(topic, 1, width(cluster), config={"flush.ms": "9"})]))
    settings = only(confluent.describe_configs([rd.ConfigResource("topic", topic)]))
    assert (settings["flush.ms"].value, settings["flush.ms"].source) == ("9", 1)
    assert set(settings["flush.ms"].synonyms) == {"flush.ms", "log.flush.interval.ms"}
    assert settings["segment.ms"].is_default
    for number in cluster.nodes:
        node = only(confluent.describe_configs([rd.ConfigResource("broker", str(number))]))
        assert node["node.id"].value == str(number)
        assert node["node.id"].is_read_only
        assert not node["num.partitions"].is_read_only
    change = rd.ConfigEntry("num.partitions", "3", incremental_operation=rd.AlterConfigOpType.SET)
    own = rd.ConfigResource("broker", "1", incremental_configs=[change])
    error = refused(confluent.incremental_alter_configs([own]))
    assert error.code() == KafkaError.INVALID_REQUEST


def test_a_changed_setting_is_obeyed_at_once(cluster: Live, confluent: Any, topic: str) -> None:
    only(confluent.create_topics([rd.NewTopic(topic, 1, width(cluster))]))

    def set_limit(operation: Any, value: str | None) -> None:
        change = rd.ConfigEntry("max.message.bytes", value, incremental_operation=operation)
        resource = rd.ConfigResource("topic", topic, incremental_configs=[change])
        only(confluent.incremental_alter_configs([resource]))
        expected = {} if value is None else {"max.message.bytes": value}
        until(
            lambda: all(
                node.state.topics[topic].config == expected for node in cluster.nodes.values()
            ),
            "the change everywhere",
        )

    def write() -> KafkaError | None:
        errors: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        producer.produce(topic, b"x" * 1000, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(SECONDS) == 0
        (error,) = errors
        return error

    set_limit(rd.AlterConfigOpType.SET, "200")
    error = write()
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    set_limit(rd.AlterConfigOpType.DELETE, None)
    assert write() is None


def test_librdkafka_deletes_records(cluster: Live, confluent: Any, topic: str) -> None:
    only(confluent.create_topics([rd.NewTopic(topic, 1, width(cluster))]))
    fill(cluster, topic)
    deleted = only(confluent.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    place = TopicPartition(topic, 0)
    assert only(confluent.list_offsets({place: rd.OffsetSpec.earliest()})).offset == 4
    beyond = refused(confluent.delete_records([TopicPartition(topic, 0, 11)]))
    assert beyond.code() == KafkaError.OFFSET_OUT_OF_RANGE
    everything = only(confluent.delete_records([TopicPartition(topic, 0, -1)]))
    assert everything.low_watermark == 10


def test_librdkafka_sees_the_nodes_and_asks_for_elections(
    cluster: Live, confluent: Any, topic: str
) -> None:
    described = confluent.describe_cluster().result(SECONDS)
    assert {node.id: node.port for node in described.nodes} == {
        number: address.port for number, address in cluster.addresses.items()
    }
    assert described.controller.id in cluster.nodes
    only(confluent.create_topics([rd.NewTopic(topic, 1, width(cluster))]))
    until(lambda: led_everywhere(cluster, topic), "a leader")
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        asked = confluent.elect_leaders(kind, [TopicPartition(topic, 0)])
        (outcome,) = asked.result(SECONDS).values()
        assert outcome.code() == KafkaError.ELECTION_NOT_NEEDED


# --- kafka-python ---------------------------------------------------------------------------------


def test_kafka_python_creates_enlarges_and_deletes_topics(
    cluster: Live, python: Any, topic: str
) -> None:
    spec = {"num_partitions": 2, "replication_factor": width(cluster)}
    made = python.create_topics({topic: spec}, wait_for_metadata=True)["topics"][0]
    assert (made["num_partitions"], made["replication_factor"]) == (2, width(cluster))
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        python.create_topics({topic: spec})
    python.create_partitions({topic: 4})
    until(lambda: len(python.describe_topics([topic])[0]["partitions"]) == 4, "the new partitions")
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        python.create_partitions({topic: 4})
    python.delete_topics([topic])
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        python.delete_topics([topic])


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_reads_and_changes_settings_at_once(
    cluster: Live, python: Any, topic: str, incremental: bool
) -> None:
    """At once: this client sends changes of settings to any node, not to the controller."""
    python.create_topics({topic: {"num_partitions": 1}})
    kind = kafka.admin.ConfigResourceType.TOPIC
    new = kafka.admin.ConfigResource(kind, topic, {"flush.ms": "7", "segment.ms": "90000"})
    assert python.alter_configs([new], incremental=incremental) == {"topic": {topic: "OK"}}

    def settle(expected: dict[str, str]) -> None:
        until(
            lambda: all(
                node.state.topics[topic].config == expected for node in cluster.nodes.values()
            ),
            f"{expected} everywhere",
        )

    settle({"flush.ms": "7", "segment.ms": "90000"})
    found = python.describe_configs([kafka.admin.ConfigResource(kind, topic)])["topic"][topic]
    assert {name: each["value"] for name, each in found.items()} == dict(new.configs)
    old = kafka.admin.ConfigResource(kind, topic, {"segment.ms"})
    python.reset_configs([old], incremental=incremental)
    settle({"flush.ms": "7"})


def test_kafka_python_describes_nodes_loggers_and_directories(
    cluster: Live, python: Any, topic: str
) -> None:
    described = python.describe_cluster()
    assert [broker["broker_id"] for broker in described["brokers"]] == sorted(cluster.nodes)
    spec = {"num_partitions": 2, "replication_factor": width(cluster)}
    python.create_topics({topic: spec}, wait_for_metadata=True)
    fill(cluster, topic)
    for told in python.describe_log_dirs({topic: [0, 1]}):
        (directory,) = told["log_dirs"]
        assert directory["log_dir"] == str(cluster.nodes[told["broker"]].config.data)
        assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
        (of_topic,) = directory["topics"]
        full, empty = (each["partition_size"] for each in of_topic["partitions"])
        assert full > empty > 0
    kind = kafka.admin.ConfigResourceType.BROKER_LOGGER
    logger = kafka.admin.ConfigResource(kind, "1")
    assert python.describe_configs([logger]) == {"broker_logger": {"1": {}}}


def test_kafka_python_deletes_records(cluster: Live, python: Any, topic: str) -> None:
    spec = {"num_partitions": 1, "replication_factor": width(cluster)}
    python.create_topics({topic: spec}, wait_for_metadata=True)
    fill(cluster, topic)
    place = kafka.TopicPartition(topic, 0)
    assert python.delete_records({place: 6})[place]["low_watermark"] == 6
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        python.delete_records({place: 12})
    assert python.delete_records({place: -1})[place]["low_watermark"] == 10


def test_kafka_python_is_told_what_cannot_be_moved(python: Any, topic: str) -> None:
    python.create_topics({topic: {"num_partitions": 1}}, wait_for_metadata=True)
    here, nowhere = kafka.TopicPartition(topic, 0), kafka.TopicPartition(topic, 1)
    nothing = python.alter_partition_reassignments({here: None})
    assert nothing == {here: kafka.errors.NoReassignmentInProgressError}
    assert python.list_partition_reassignments() == {}
    refused = python.alter_partition_reassignments({here: [9], nowhere: [1]})
    assert refused[here].errno == KafkaError.INVALID_REPLICA_ASSIGNMENT
    assert refused[nowhere] is kafka.errors.UnknownTopicOrPartitionError


def test_kafka_python_sees_who_writes(cluster: Live, python: Any, topic: str) -> None:
    spec = {"num_partitions": 1, "replication_factor": width(cluster)}
    python.create_topics({topic: spec}, wait_for_metadata=True)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for number in range(3):
        producer.produce(topic, f"record {number}")
    assert producer.flush(SECONDS) == 0
    place = kafka.TopicPartition(topic, 0)
    (writer,) = python.describe_producers([place])[place].active_producers
    assert (writer.producer_epoch, writer.last_sequence) == (0, 2)


@pytest.mark.parametrize("cluster", [3], ids=["three nodes"], indirect=True)
def test_kafka_python_moves_a_partition_and_its_leadership(
    cluster: Live, python: Any, topic: str
) -> None:
    spec = {"assignments": {0: [2, 1]}}
    python.create_topics({topic: spec}, wait_for_metadata=True)
    place = kafka.TopicPartition(topic, 0)
    fill(cluster, topic)
    assert python.alter_partition_reassignments({place: [3, 1]}) == {place: None}
    until(lambda: not python.list_partition_reassignments({topic: [0]}), "the end of the move")
    until(
        lambda: python.describe_topics([topic])[0]["partitions"][0]["replica_nodes"] == [3, 1],
        "the new replicas",
    )

    def leads() -> bool:
        python.elect_leaders(0, {topic: [0]}, raise_errors=False)
        leader, _ = cluster.nodes[1].leader_of(topic, 0)
        return leader == 3

    until(leads, "the preferred leader")
    earliest = kafka.admin.OffsetSpec.EARLIEST
    latest = kafka.admin.OffsetSpec.LATEST
    assert python.list_partition_offsets({place: earliest})[place].offset == 0
    assert python.list_partition_offsets({place: latest})[place].offset == 10


# --- aiokafka -------------------------------------------------------------------------------------


def test_aiokafka_administers_topics_settings_and_records(cluster: Live, topic: str) -> None:
    async def main() -> None:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await client.start()
        try:
            await administer(client)
        finally:
            await client.close()

    async def administer(client: Any) -> None:
        described = await client.describe_cluster()
        assert [broker["node_id"] for broker in described["brokers"]] == sorted(cluster.nodes)
        new = aiokafka.admin.NewTopic(topic, 1, width(cluster), topic_configs={"flush.ms": "9"})
        made = await client.create_topics([new])
        assert [error for _, error, *_ in made.topic_errors] == [0]
        again = await client.create_topics([new])
        assert [error for _, error, *_ in again.topic_errors] == [36]
        await client.create_partitions({topic: aiokafka.admin.NewPartitions(2)})
        await asyncio.to_thread(
            until, lambda: led_everywhere(cluster, topic), "a leader of every partition"
        )
        kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
        asked = aiokafka.admin.config_resource.ConfigResource(kind, topic)
        (told,) = await client.describe_configs([asked], include_synonyms=True)
        settings = {entry[0]: entry[1] for entry in told.resources[0][4]}
        assert settings["flush.ms"] == "9"
        change = aiokafka.admin.config_resource.ConfigResource(kind, topic, {"flush.ms": "11"})
        (altered,) = await client.alter_configs([change])
        assert [resource[0] for resource in altered.resources] == [0]
        await asyncio.to_thread(fill, cluster, topic)
        place = AioPartition(topic, 0)
        before = {place: aiokafka.admin.RecordsToDelete(before_offset=3)}
        assert await client.delete_records(before) == {place: 3}
        gone = await client.delete_topics([topic])
        assert [error for _, error in gone.topic_error_codes] == [0]

    asyncio.run(main())
    until(
        lambda: all(topic not in node.state.topics for node in cluster.nodes.values()),
        "the end of the topic everywhere",
    )
