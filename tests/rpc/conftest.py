"""Loops that the tests of this room run on."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest
import uvloop
from tests.rpc.ends import Run

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Return what runs a coroutine, on each kind of loop in turn."""

    def go(main: Coroutine[None, None, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main)

    return go
