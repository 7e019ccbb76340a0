"""Calls: an answer, a refusal, or one of the ways in which there is neither."""

import asyncio
import logging
from dataclasses import replace

import pytest
from tests.rpc.ends import (
    CLUSTER,
    ECHO,
    FAIL,
    GROW,
    HANG,
    HOST,
    PATIENCE,
    REFUSE,
    End,
    Run,
    two_ends,
    until,
)

from tidelog.raft.types import NodeId
from tidelog.rpc import Lane, Limits, RpcError, RpcTimeout, Unreachable

ONE, TWO = NodeId(1), NodeId(2)
QUICK = Limits(backoff_first=0.01, backoff_most=0.05)


def test_calls_are_answered_each_with_its_own_answer(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            payloads = [bytes([i % 256]) * i for i in range(300)]
            answers = await asyncio.gather(
                *[one.network.call(TWO, ECHO, payload, PATIENCE) for payload in payloads]
            )
            assert answers == payloads
            assert set(two.ear.callers) == {ONE}
            assert one.stats.calls_made == two.stats.calls_served == 300

    run(main())


def test_a_large_call_and_a_large_answer_are_no_trouble(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, _):
            payload = bytes(10 << 20)
            assert await one.network.call(TWO, ECHO, payload, PATIENCE) == payload

    run(main())


def test_a_refusal_says_what_the_other_node_said(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            with pytest.raises(RpcError, match=r"^not today$"):
                await one.network.call(TWO, REFUSE, b"", PATIENCE)
            assert two.stats.handler_errors == 0

    run(main())


def test_a_bug_in_the_other_node_is_a_refusal_that_tells_no_secrets(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            with pytest.raises(RpcError, match=f"^call {FAIL} failed: KeyError$"):
                await one.network.call(TWO, FAIL, b"", PATIENCE)
            assert two.stats.handler_errors == 1
            assert await one.network.call(TWO, ECHO, b"fine", PATIENCE) == b"fine"

    run(main())
    assert "a bug" in caplog.text


def test_no_answer_in_time_is_a_timeout_and_a_late_answer_is_ignored(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            await one.network.call(TWO, ECHO, b"", PATIENCE)
            with pytest.raises(RpcTimeout, match=r"n2 .* did not answer within 0.05 s"):
                await one.network.call(TWO, HANG, b"", 0.05)
            await until(lambda: two.ear.hanging == 1)
            assert await one.network.call(TWO, ECHO, b"next", PATIENCE) == b"next"

    run(main())


def test_a_call_to_nobody_is_unreachable(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            with pytest.raises(Unreachable, match="address of n7 is not known"):
                await one.network.call(NodeId(7), ECHO, b"", PATIENCE)
            await two.close()
            with pytest.raises(Unreachable, match="no connection with n2"):
                await one.network.call(TWO, ECHO, b"", PATIENCE)

    run(main())


def test_a_call_during_a_backoff_waits_for_the_next_attempt(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            await two.close()
            with pytest.raises(Unreachable):
                await one.network.call(TWO, ECHO, b"", PATIENCE)
            again = End(2)
            await again.listen(two.port)
            assert await one.network.call(TWO, ECHO, b"back", PATIENCE) == b"back"
            await again.close()

    run(main())


def test_a_node_that_comes_back_is_connected_with_whatever_is_left_of_the_backoff(run: Run) -> None:
    async def main() -> None:
        slow = Limits(backoff_first=600.0, backoff_most=600.0)
        async with two_ends(slow) as (one, two):
            await two.close()
            with pytest.raises(Unreachable):
                await one.network.call(TWO, ECHO, b"", PATIENCE)
            again = End(2)
            await again.listen(two.port)
            again.knows(one)
            waiting = asyncio.ensure_future(one.network.call(TWO, ECHO, b"back", PATIENCE))
            await again.network.call(one.id, ECHO, b"here I am", PATIENCE)
            assert await waiting == b"back"
            await until(lambda: one.ear.peers[-1:] == ["+2"])
            await again.close()

    run(main())


def test_calls_under_way_fail_at_once_when_the_peer_dies(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            calls = [asyncio.ensure_future(one.network.call(TWO, HANG, b"", 600.0)) for _ in "abc"]
            await until(lambda: two.ear.hanging == 3)
            await two.close()
            assert two.ear.hanging == 0
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in outcomes] == [Unreachable] * 3

    run(main())


def test_calls_under_way_fail_at_once_when_this_node_stops(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            calls = [
                asyncio.ensure_future(one.network.call(TWO, HANG, b"", 600.0)),
                asyncio.ensure_future(one.network.call_address(HOST, two.port, HANG, b"", 600.0)),
            ]
            await until(lambda: two.ear.hanging == 2)
            await one.close()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in outcomes] == [Unreachable] * 2
            with pytest.raises(Unreachable, match="not known"):
                await one.network.call(TWO, ECHO, b"", PATIENCE)
            with pytest.raises(Unreachable, match="stopping"):
                await one.network.call_address(HOST, two.port, ECHO, b"", PATIENCE)

    run(main())


def test_a_call_that_waits_for_an_attempt_fails_at_once_when_this_node_stops(run: Run) -> None:
    async def main() -> None:
        slow = Limits(backoff_first=600.0, backoff_most=600.0)
        async with two_ends(slow) as (one, two):
            await two.close()
            with pytest.raises(Unreachable):
                await one.network.call(TWO, ECHO, b"", PATIENCE)
            call = asyncio.ensure_future(one.network.call(TWO, ECHO, b"", 600.0))
            await asyncio.sleep(0)
            await one.close()
            with pytest.raises(Unreachable):
                await call

    run(main())


def test_too_many_calls_are_refused_at_this_end(run: Run) -> None:
    async def main() -> None:
        async with two_ends(replace(QUICK, calls=3)) as (one, two):
            calls = [asyncio.ensure_future(one.network.call(TWO, HANG, b"", 600.0)) for _ in "abc"]
            await until(lambda: two.ear.hanging == 3)
            with pytest.raises(Unreachable, match=r"3 calls to n2 .* are under way"):
                await one.network.call(TWO, ECHO, b"", PATIENCE)
            calls.pop().cancel()
            await asyncio.sleep(0)
            with pytest.raises(RpcError, match="3 calls are under way"):  # the other end goes on
                await one.network.call(TWO, ECHO, b"", PATIENCE)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    run(main())


def test_a_call_or_an_answer_that_is_too_large_is_refused(run: Run) -> None:
    async def main() -> None:
        async with two_ends(replace(QUICK, frame_bytes=1000)) as (one, _):
            with pytest.raises(RpcError, match="a call of 1000 bytes is beyond 1000"):
                await one.network.call(TWO, ECHO, bytes(1000), PATIENCE)
            with pytest.raises(RpcError, match="has 1001 bytes and 1000 can be sent"):
                await one.network.call(TWO, GROW, b"1001", PATIENCE)
            assert len(await one.network.call(TWO, GROW, b"1000", PATIENCE)) == 1000

    run(main())


def test_an_answer_that_meets_a_full_queue_is_dropped_and_counted(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK, replace(QUICK, control_bytes=5000)) as (one, two):
            calls = [
                asyncio.ensure_future(one.network.call(TWO, GROW, b"4000", 600.0))
                for _ in range(10)
            ]
            await until(lambda: sum(map(asyncio.Task.done, calls)) + two.stats.dropped_full == 10)
            assert two.stats.dropped_full < 10
            assert all(len(call.result()) == 4000 for call in calls if call.done())
            assert one.ear.peers == ["+2"]
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    run(main())


# --- Newcomers ----------------------------------------------------------------------------------


def test_a_newcomer_that_knows_the_secret_may_call_an_address(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            newcomer = End(-1, CLUSTER, QUICK)
            answer = await newcomer.network.call_address(HOST, two.port, ECHO, b"join", PATIENCE)
            assert answer == b"join"
            assert two.ear.callers == [-1]
            assert two.ear.lanes == [Lane.NEWCOMER]
            assert newcomer.ear.peers == []  # peers are those we know by id
            await until(lambda: two.network._keeper.open == 0)  # a connection for this call alone
            await newcomer.close()

    run(main())


def test_many_newcomers_without_an_id_do_not_push_each_other_out(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            newcomer = End(-1, CLUSTER, QUICK)
            answers = await asyncio.gather(
                *[
                    newcomer.network.call_address(HOST, two.port, ECHO, bytes([i]), PATIENCE)
                    for i in range(20)
                ]
            )
            assert answers == [bytes([i]) for i in range(20)]
            await newcomer.close()

    run(main())


def test_a_newcomer_of_another_cluster_is_refused(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            newcomer = End(-1, "elsewhere", QUICK)
            with pytest.raises(Unreachable, match="belongs to cluster"):
                await newcomer.network.call_address(HOST, two.port, ECHO, b"join", PATIENCE)
            assert two.ear.callers == []
            await newcomer.close()

    run(main())


def test_a_newcomer_whose_address_nobody_has_is_unreachable(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            await two.close()
            with pytest.raises(Unreachable, match="no connection with a node at"):
                await one.network.call_address(HOST, two.port, ECHO, b"", PATIENCE)

    run(main())
