"""DescribeAcls, CreateAcls, DeleteAcls where there is no authorizer."""

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import Desk, versions

DESCRIBE, CREATE, DELETE = 29, 30, 31
DISABLED = ErrorCode.security_disabled


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_a_question_for_acls_is_answered_security_disabled(tmp_path: Path, version: int) -> None:
    answer = Desk(tmp_path).ask(
        DESCRIBE,
        version,
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    assert (answer.error_code, answer.resources) == (DISABLED, ())
    assert "no authorizer" in answer.error_message


@pytest.mark.parametrize("version", versions(CREATE))
def test_each_acl_that_shall_be_created_is_refused(tmp_path: Path, version: int) -> None:
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:me",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    answer = Desk(tmp_path).ask(CREATE, version, creations=[acl, acl])
    assert [each.error_code for each in answer.results] == [DISABLED, DISABLED]


@pytest.mark.parametrize("version", versions(DELETE))
def test_each_filter_of_acls_to_delete_is_refused(tmp_path: Path, version: int) -> None:
    wanted = {
        "resource_type_filter": 2,
        "resource_name_filter": "t",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 3,
        "permission_type": 3,
    }
    (result,) = Desk(tmp_path).ask(DELETE, version, filters=[wanted]).filter_results
    assert (result.error_code, result.matching_acls) == (DISABLED, ())
