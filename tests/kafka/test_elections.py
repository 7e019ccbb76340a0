"""ElectLeaders: preferred replicas lead; nobody is elected who lacks acknowledged records."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import PATIENCE, Desk, versions

ELECT = 43
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk in front of a cluster with one topic, whose partitions prefer nodes 1 and 2."""
    desk = Desk(tmp_path)
    where = [
        {"partition_index": 0, "broker_ids": [1, 2, 3]},
        {"partition_index": 1, "broker_ids": [2, 3, 1]},
    ]
    topic = {"name": "tides", "num_partitions": -1, "replication_factor": -1}
    desk.ask(19, 7, topics=[{**topic, "assignments": where, "configs": []}])
    desk.node.lead("tides", 0, 1)
    desk.node.lead("tides", 1, 3)
    return desk


def elect(
    desk: Desk,
    *indexes: int,
    topic: str = "tides",
    kind: int = PREFERRED,
    everywhere: bool = False,
    version: int = 2,
) -> Any:
    """Ask for elections and return the answer."""
    asked = None if everywhere else [{"topic": topic, "partitions": list(indexes)}]
    return desk.ask(ELECT, version, election_type=kind, topic_partitions=asked, timeout=PATIENCE)


def codes(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    """Return what came of each partition."""
    return {
        (topic.topic, part.partition_id): part.error_code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }


@pytest.mark.parametrize("version", versions(ELECT))
def test_every_version_hands_partitions_to_their_preferred_replica(
    desk: Desk, version: int
) -> None:
    answer = elect(desk, 0, 1, version=version)
    assert codes(answer) == {
        ("tides", 0): ErrorCode.election_not_needed,
        ("tides", 1): ErrorCode.none,
    }
    assert desk.node.handovers == [3]
    if version >= 1:
        assert answer.error_code is ErrorCode.none


def test_who_asks_for_all_is_told_only_of_what_was_done(desk: Desk) -> None:
    assert codes(elect(desk, everywhere=True)) == {("tides", 1): ErrorCode.none}
    desk.node.lead("tides", 1, 2, term=2)
    assert codes(elect(desk, everywhere=True)) == {}


def test_a_preferred_replica_that_is_down_is_not_available(desk: Desk) -> None:
    desk.node.dead.add(2)
    assert codes(elect(desk, 1)) == {("tides", 1): ErrorCode.preferred_leader_not_available}
    assert desk.node.handovers == []


def test_partitions_that_do_not_exist_have_no_elections(desk: Desk) -> None:
    assert codes(elect(desk, 7, -1)) == {
        ("tides", 7): ErrorCode.unknown_topic_or_partition,
        ("tides", -1): ErrorCode.unknown_topic_or_partition,
    }
    assert codes(elect(desk, 0, topic="never")) == {
        ("never", 0): ErrorCode.unknown_topic_or_partition
    }


def test_an_unclean_election_never_happens(desk: Desk) -> None:
    assert codes(elect(desk, 1, kind=UNCLEAN)) == {("tides", 1): ErrorCode.election_not_needed}
    desk.node.dead.add(3)
    dead = elect(desk, 1, kind=UNCLEAN)
    assert codes(dead) == {("tides", 1): ErrorCode.eligible_leaders_not_available}
    group = desk.node.state.group_of("tides", 1)
    assert group is not None
    desk.node.leaders.lost(group, 2)
    unknown = elect(desk, 1, kind=UNCLEAN)
    assert codes(unknown) == {("tides", 1): ErrorCode.eligible_leaders_not_available}
    assert desk.node.handovers == []


def test_an_election_of_an_unknown_kind_is_refused_whole(desk: Desk) -> None:
    answer = elect(desk, 1, kind=5)
    assert (answer.error_code, codes(answer)) == (ErrorCode.invalid_request, {})
