"""What clients written by others turned out to need, beyond what the protocol demands."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode
from tests.kafka.broker import broker, run
from tests.kafka.desk import Desk, versions
from tests.kafka.live import live

from tidelog.records import Record, build_batch

INCREMENTAL_ALTER_CONFIGS = 44
DESCRIBE_TOPIC_PARTITIONS = 75
BROKER, SET, DELETE = 4, 0, 1


def test_a_batch_refused_for_some_records_names_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, cleanup_policy="compact")
            keys = (b"a", None, b"c", None)
            data = build_batch([Record(place, 0, key, b"x") for place, key in enumerate(keys)])
            answer = await node.produce(data)
            assert answer.error_code is ErrorCode.invalid_record
            assert [each.batch_index for each in answer.record_errors] == [1, 3]
            assert "2 records have no key" in answer.error_message

    run(story())


def test_the_first_metadata_of_a_topic_created_on_demand_names_its_leaders(tmp_path: Path) -> None:
    with live(tmp_path, 3) as cluster:
        client = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(10):
            name = f"new-{number}"
            (topic,) = client.list_topics(name, timeout=30).topics.values()
            assert topic.error is None
            assert [each.error for each in topic.partitions.values()] == [None]


def test_lists_of_replicas_are_empty_and_never_null(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.create("t", 2)
    for version in versions(DESCRIBE_TOPIC_PARTITIONS):
        answer = desk.ask(
            DESCRIBE_TOPIC_PARTITIONS,
            version,
            topics=[{"name": "t"}],
            response_partition_limit=10,
            cursor=None,
        )
        for partition in answer.topics[0].partitions:
            assert partition.eligible_leader_replicas == ()
            assert partition.last_known_elr == ()
            assert partition.offline_replicas == ()


@pytest.mark.parametrize(
    ("operation", "code"), [(DELETE, ErrorCode.none), (SET, ErrorCode.invalid_request)]
)
def test_a_throttle_that_a_node_cannot_have_can_be_taken_back(
    tmp_path: Path, operation: int, code: ErrorCode
) -> None:
    change = {"name": "leader.replication.throttled.rate", "config_operation": operation}
    for version in versions(INCREMENTAL_ALTER_CONFIGS):
        answer = Desk(tmp_path).ask(
            INCREMENTAL_ALTER_CONFIGS,
            version,
            resources=[
                {
                    "resource_type": BROKER,
                    "resource_name": "1",
                    "configs": [change | {"value": "1"}],
                }
            ],
            validate_only=False,
        )
        assert answer.responses[0].error_code is code
