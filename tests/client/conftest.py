"""A broker for the whole of these tests, and a way to run work on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

import tidelog
from tidelog.client import Cluster

T = TypeVar("T")
Run = Callable[[Callable[[Cluster], Awaitable[T]]], T]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker of one node, in this process."""
    with tidelog.local() as broker:
        yield broker.bootstrap


@pytest.fixture
def on_cluster(bootstrap: str) -> Run[T]:
    """Run work on a client of that broker."""

    def run(work: Callable[[Cluster], Awaitable[T]]) -> T:
        async def main() -> T:
            async with Cluster(bootstrap, timeout=20) as cluster:
                return await work(cluster)

        return asyncio.run(main())

    return run
