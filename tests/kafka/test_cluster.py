"""DescribeCluster: nodes, and the one to send changes to."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import Desk, versions

from tidelog.cluster.leaders import Claim
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.raft.types import NodeId

DESCRIBE = 60
BROKERS, CONTROLLERS = 1, 2


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk in front of a cluster of three nodes."""
    return Desk(tmp_path)


def describe(desk: Desk, version: int = 2, **more: Any) -> Any:
    """Describe the cluster."""
    plain = {
        "include_cluster_authorized_operations": False,
        "endpoint_type": BROKERS,
        "include_fenced_brokers": False,
    }
    return desk.ask(DESCRIBE, version, **{**plain, **more})


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_every_version_tells_of_all_nodes_and_the_controller(desk: Desk, version: int) -> None:
    answer = describe(desk, version)
    assert (answer.error_code, answer.cluster_id) == (ErrorCode.none, "tides")
    assert answer.controller_id == 1
    assert [(each.broker_id, each.host, each.port, each.rack) for each in answer.brokers] == [
        (1, "127.0.0.1", 9101, "a"),
        (2, "127.0.0.1", 9102, "a"),
        (3, "127.0.0.1", 9103, "a"),
    ]
    assert answer.cluster_authorized_operations == -(2**31)


def test_what_clients_may_do_is_told_if_asked_for(desk: Desk) -> None:
    answer = describe(desk, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations > 0


def test_a_node_that_is_down_is_told_of_only_if_asked_for(desk: Desk) -> None:
    desk.node.dead.add(3)
    assert [each.broker_id for each in describe(desk).brokers] == [1, 2]
    answer = describe(desk, include_fenced_brokers=True)
    assert [(each.broker_id, each.is_fenced) for each in answer.brokers] == [
        (1, False),
        (2, False),
        (3, True),
    ]


def test_while_the_controller_is_down_this_node_takes_changes(desk: Desk) -> None:
    desk.node.leaders.claim(NodeId(3), Claim(CONTROLLER_GROUP, 2, ()))
    assert describe(desk).controller_id == 3
    desk.node.dead.add(3)
    assert describe(desk).controller_id == 1


def test_a_controller_that_is_not_known_as_a_member_yet_is_not_told_of(desk: Desk) -> None:
    # librdkafka would wait for it until it asks for metadata again, minutes later.
    desk.node.leaders.claim(NodeId(4), Claim(CONTROLLER_GROUP, 2, ()))
    assert describe(desk).controller_id == 1


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (CONTROLLERS, ErrorCode.mismatched_endpoint_type),
        (9, ErrorCode.unsupported_endpoint_type),
    ],
)
def test_a_listener_for_controllers_does_not_exist(desk: Desk, kind: int, code: ErrorCode) -> None:
    answer = describe(desk, endpoint_type=kind)
    assert (answer.error_code, answer.brokers) == (code, ())
    assert answer.error_message
