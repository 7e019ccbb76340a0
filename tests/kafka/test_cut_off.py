"""A node that hears of nobody is cut off itself: what it tells its clients then."""

from pathlib import Path
from typing import Any

import pytest
from tests.kafka.desk import Desk

from tidelog.kafka.dispatch import Disconnect

METADATA = 3


def metadata(desk: Desk, *topics: str) -> Any:
    return desk.ask(
        METADATA,
        12,
        topics=[{"topic_id": None, "name": name} for name in topics] if topics else None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A node of three with a topic that another leads."""
    desk = Desk(tmp_path)
    desk.create("tides", 1, 3)
    desk.node.lead("tides", 0, 2)
    return desk


def test_a_node_that_is_gone_is_no_broker(desk: Desk) -> None:
    desk.node.dead = {3}
    answer = metadata(desk, "tides")
    assert [each.node_id for each in answer.brokers] == [1, 2]
    assert answer.topics[0].partitions[0].offline_replicas == (3,)


def test_a_node_without_contact_tells_what_it_knew_before(desk: Desk) -> None:
    desk.node.dead = {2, 3}
    answer = metadata(desk, "tides")
    assert [each.node_id for each in answer.brokers] == [1, 2, 3]
    [partition] = answer.topics[0].partitions
    assert partition.leader_id == 2


def test_a_node_without_contact_sends_clients_away_if_it_knows_no_leader(desk: Desk) -> None:
    desk.node.controller.elects = False
    desk.create("ebb", 1, 3)  # no node said that it leads that
    assert metadata(desk, "ebb")  # a node with contact says so: one will lead soon
    desk.node.dead = {2, 3}
    with pytest.raises(Disconnect, match="ebb/0"):
        metadata(desk, "tides", "ebb")
    assert metadata(desk)  # who only looks around may see all topics
