"""Fixtures for pytest: a real broker instead of a mock, or of Kafka in a container.

    def test_orders_arrive(tidelog):
        producer = Producer({"bootstrap.servers": tidelog.bootstrap})

`tidelog` is one broker for the whole run, ready in a fraction of a second: give every test topics
of its own. `tidelog_cluster` is one of three nodes, each a process.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.server.local import Local


@pytest.fixture(scope="session")
def tidelog() -> "Iterator[Local]":
    """A broker of one node, in this process."""
    from tidelog.server.local import local

    with local() as broker:
        yield broker


@pytest.fixture(scope="session")
def tidelog_cluster() -> "Iterator[Local]":
    """A broker of three nodes, each a process of its own."""
    from tidelog.server.local import local

    with local(nodes=3) as broker:
        yield broker
