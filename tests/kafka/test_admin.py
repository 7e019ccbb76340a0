"""What requests that change the cluster share; the API of our own command line."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import Desk

from tidelog.cluster.leaders import Claim
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.kafka import admin, codec
from tidelog.kafka.admin import Deadline, for_each
from tidelog.kafka.dispatch import Api
from tidelog.kafka.errors import Refused
from tidelog.kafka.operations import handle_operation
from tidelog.raft.types import NodeId


def test_answers_come_in_order_and_never_too_many_are_worked_on() -> None:
    working = most = 0

    async def work(number: int) -> int:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await asyncio.sleep(0.001 * (number % 3))
        working -= 1
        return number * 2

    answers = asyncio.run(for_each(range(500), work))
    assert answers == [number * 2 for number in range(500)]
    assert most == admin.MAX_PARALLEL


def test_a_mistake_of_ours_ends_all_the_work_of_a_request() -> None:
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(0)
        raise RuntimeError("ours")

    with pytest.raises(ExceptionGroup):
        asyncio.run(for_each(range(500), work))
    assert len(begun) == admin.MAX_PARALLEL


def test_no_request_gets_more_time_than_any_may_have() -> None:
    async def main() -> None:
        assert Deadline(timedelta(days=24)).left() <= admin.MAX_TIMEOUT.total_seconds()
        over = Deadline(timedelta(microseconds=1))
        await asyncio.sleep(0.01)
        with pytest.raises(Refused) as refused:
            over.left()
        assert refused.value.code is ErrorCode.request_timed_out

    asyncio.run(main())


def test_the_command_line_reaches_the_node_with_an_api_that_nobody_is_told_of(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    api = desk.table.get(codec.OPERATIONS)
    assert api is not None
    assert api.raw is not None
    assert codec.OPERATIONS in {each.key for each in desk.table}
    assert codec.OPERATIONS not in {each.key for each in desk.table.announced}

    async def main() -> None:
        answer = await handle_operation(desk.context, 0, memoryview(b'{"operation":"features"}'))
        assert answer == [b'{"result":{}}']

    asyncio.run(main())


def test_the_api_of_the_command_line_has_one_version_and_the_oldest_header() -> None:
    assert codec.api_name(codec.OPERATIONS) == "operations"
    assert not codec.is_request_flexible(codec.OPERATIONS, 0)
    assert not codec.is_response_flexible(codec.OPERATIONS, 0)
    with pytest.raises(ValueError, match="0 to 1 are not within"):
        Api(codec.OPERATIONS, 0, 1, raw=handle_operation)


def test_a_node_that_may_be_behind_waits_a_moment_for_a_topic(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    resource = {
        "resource_type": 2,
        "resource_name": "tides",
        "configs": [{"name": "flush.ms", "config_operation": 0, "value": "5"}],
    }

    async def change() -> ErrorCode:
        answer = await desk.asking(44, 1, resources=[resource], validate_only=False)
        code: ErrorCode = answer.responses[0].error_code
        return code

    async def main() -> tuple[ErrorCode, ErrorCode, ErrorCode]:
        at_the_controller = await change()
        desk.node.leaders.claim(NodeId(2), Claim(CONTROLLER_GROUP, 2, ()))
        unknown = await change()
        late = asyncio.create_task(change())
        await asyncio.sleep(0)
        await desk.node.controller.create_topic("tides", 1, 1, {})
        return at_the_controller, unknown, await late

    assert asyncio.run(main()) == (
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
    )
