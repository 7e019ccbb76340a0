"""Threads for blocking work: rounds, errors, and an end that loses no job."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial

import pytest
import uvloop

from tidelog.cluster import executor as executor_module
from tidelog.cluster.executor import THREADS, YIELD, Done, Executor, Lane

Main = Callable[[asyncio.AbstractEventLoop], Coroutine[None, None, None]]
PATIENCE = 60.0


def run(main: Main) -> None:
    async def go() -> None:
        async with asyncio.timeout(PATIENCE):
            await main(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(go())


def fail(error: BaseException) -> None:
    raise error


def ignore(_: OSError | None) -> None:
    pass


async def submitted(executor: Executor, lane: str, job: Callable[[], None]) -> OSError | None:
    """Submit a job and wait for its end."""
    end: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    executor.submit(lane, job, end.set_result)
    return await end


@pytest.mark.parametrize("lane", [*THREADS, YIELD])
def test_a_job_is_done_and_reported_on_the_loop(lane: str) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        executor = Executor(loop)
        here = threading.get_ident()
        ran: list[int] = []
        ended: asyncio.Future[int] = loop.create_future()
        executor.submit(
            lane,
            lambda: ran.append(threading.get_ident()),
            lambda _: ended.set_result(threading.get_ident()),
        )
        assert not ended.done()  # never before the caller's turn is over
        assert await ended == here
        assert (ran == [here]) == (lane == YIELD)
        executor.close()

    run(main)


@pytest.mark.parametrize("lane", ["flush", YIELD])
def test_an_error_of_the_disk_is_handed_on_and_a_mistake_becomes_one(
    lane: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        executor = Executor(loop)
        full = OSError(28, "No space left on device")
        assert await submitted(executor, lane, partial(fail, full)) is full
        mistake = await submitted(executor, lane, partial(fail, KeyError("x")))
        assert type(mistake) is OSError
        assert str(mistake) == "KeyError: 'x'"
        assert await submitted(executor, lane, lambda: None) is None  # and it goes on
        executor.close()

    run(main)
    assert sum("unexpected error" in each.message for each in caplog.records) == 1


def test_what_waits_is_one_round_and_one_report_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[int] = []
    original = executor_module._report

    def report(finished: list[tuple[Done, OSError | None]]) -> None:
        reports.append(len(finished))
        original(finished)

    monkeypatch.setattr(executor_module, "_report", report)

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        lane = Lane("test", loop)
        gate, began = threading.Event(), threading.Event()
        done: list[int] = []
        last: asyncio.Future[None] = loop.create_future()

        def first() -> None:
            began.set()
            gate.wait(PATIENCE)

        lane.submit(first, lambda _: done.append(0))
        began.wait(PATIENCE)
        ran: list[int] = []
        for number in range(1, 11):
            lane.submit(partial(ran.append, number), lambda _, n=number: done.append(n))  # type: ignore[misc]
        lane.submit(lambda: None, lambda _: last.set_result(None))
        assert len(lane) == 11
        gate.set()
        await last
        assert ran == list(range(1, 11))
        assert done == list(range(11))
        assert reports == [1, 11]
        lane.close()

    run(main)


def test_a_short_round_is_reported_while_the_next_one_still_runs() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        lane = Lane("test", loop, most=2)
        queued, gate, began = threading.Event(), threading.Event(), threading.Event()
        early: asyncio.Future[None] = loop.create_future()

        def first() -> None:
            began.set()
            queued.wait(PATIENCE)

        def slow() -> None:
            gate.wait(PATIENCE)

        lane.submit(first, ignore)
        began.wait(PATIENCE)
        lane.submit(lambda: None, ignore)
        lane.submit(lambda: None, lambda _: early.set_result(None))
        lane.submit(slow, ignore)  # the report above does not wait for this
        queued.set()
        await early
        gate.set()
        lane.close()

    run(main)


def test_what_nobody_waits_for_is_done_after_the_report_and_before_the_next_job() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        lane = Lane("test", loop)
        reported = threading.Event()
        order: list[str] = []
        last: asyncio.Future[None] = loop.create_future()

        def job() -> Callable[[], None]:
            order.append("job")
            return rest

        def rest() -> None:
            assert reported.wait(PATIENCE)
            order.append("rest")

        def done(_: OSError | None) -> None:
            order.append("done")
            lane.submit(lambda: order.append("next"), lambda _: last.set_result(None))
            reported.set()

        lane.submit(job, done)
        await last
        assert order == ["job", "done", "rest", "next"]
        lane.close()

    run(main)


def test_a_rest_that_fails_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        executor = Executor(loop)
        ended: asyncio.Future[OSError | None] = loop.create_future()
        executor.submit("flush", lambda: partial(fail, KeyError("x")), ended.set_result)
        assert await ended is None
        assert await submitted(executor, "flush", lambda: None) is None
        executor.close()

    run(main)
    assert sum("unexpected error" in each.message for each in caplog.records) == 1


def test_jobs_of_a_lane_with_several_threads_run_side_by_side() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        lane = Lane("test", loop, threads=3, most=1)
        together = threading.Barrier(3)

        def meet() -> None:
            together.wait(PATIENCE)

        ended = [loop.create_future() for _ in range(3)]
        for end in ended:
            lane.submit(meet, end.set_result)
        assert await asyncio.gather(*ended) == [None, None, None]
        lane.close()

    run(main)


def test_flushes_of_one_iteration_of_the_loop_are_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[int] = []
    original = executor_module._report

    def report(finished: list[tuple[Done, OSError | None]]) -> None:
        reports.append(len(finished))
        original(finished)

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        executor = Executor(loop)
        monkeypatch.setattr(executor_module, "_report", report)
        ended = [loop.create_future() for _ in range(5)]
        for end in ended:
            executor.submit("flush", lambda: None, end.set_result)
            threading.Event().wait(0.01)  # a thread that was woken would have begun
        assert len(executor.lanes["flush"]) == 0
        await asyncio.gather(*ended)
        executor.close()

    run(main)
    assert sum(reports) == 5
    assert len(reports) <= 2  # the first may be taken before the others are queued


def test_lanes_do_not_wait_for_each_other() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        executor = Executor(loop)
        gate = threading.Event()

        def wait() -> None:
            gate.wait(PATIENCE)

        slow = asyncio.ensure_future(submitted(executor, "compact", wait))
        await asyncio.sleep(0)
        for lane in THREADS.keys() - {"compact"}:
            assert await submitted(executor, lane, lambda: None) is None
        assert not slow.done()
        gate.set()
        await slow
        executor.close()

    run(main)


def test_a_report_that_fails_costs_nobody_else_theirs(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        executor = Executor(loop)
        gate, began = threading.Event(), threading.Event()

        def first() -> None:
            began.set()
            gate.wait(PATIENCE)

        executor.submit("flush", first, ignore)
        await asyncio.to_thread(began.wait, PATIENCE)
        executor.submit("flush", lambda: None, lambda _: fail(KeyError("mistake")))
        second = asyncio.ensure_future(submitted(executor, "flush", lambda: None))
        await asyncio.sleep(0)
        gate.set()
        assert await second is None
        executor.close()

    run(main)
    assert any("could not be handled" in each.message for each in caplog.records)


def test_closing_finishes_what_is_queued_and_ends_the_threads() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        before = set(threading.enumerate())
        executor = Executor(loop)
        assert len(set(threading.enumerate()) - before) == sum(THREADS.values())
        ran: list[int] = []
        for number in range(100):
            executor.submit("flush", partial(ran.append, number), ignore)
        executor.close()
        assert ran == list(range(100))
        assert set(threading.enumerate()) == before

    run(main)


def test_a_loop_that_is_gone_ends_the_thread() -> None:
    loop = asyncio.new_event_loop()
    lane = Lane("test", loop)
    loop.close()
    lane.submit(lambda: None, ignore)
    lane.close()
    assert not any(thread.is_alive() for thread in lane._threads)
