"""What ApiVersions tells of features."""

from pathlib import Path
from typing import Any, cast

import pytest
from tests.kafka.desk import Desk

from tidelog.cluster import commands as cmd
from tidelog.kafka.groups.handlers import handlers

API_VERSIONS = 18


@pytest.mark.parametrize("version", [3, 4])
def test_clients_see_the_version_of_groups_and_none_of_our_own_features(
    tmp_path: Path, version: int
) -> None:
    desk = Desk(tmp_path)
    desk.table.add_all(handlers(cast(Any, None)))
    desk.node.apply(
        cmd.EnableFeature(token=cmd.new_token(), name="side-snapshots", level=1, needs=1)
    )
    answer = desk.ask(API_VERSIONS, version, client_software_name="me", client_software_version="1")
    supported = {
        each.name: (each.min_version, each.max_version) for each in answer.supported_features
    }
    finalized = {
        each.name: (each.min_version_level, each.max_version_level)
        for each in answer.finalized_features
    }
    assert supported == finalized == {"group.version": (1, 1)}
    assert answer.finalized_features_epoch == desk.node.state.version
