"""No request keeps the event loop for long: the work between two turns of the loop is bounded.

Every API that is served gets its largest requests, each of its arrays filled with elements that
exist and with others. What is counted is calls of functions on the loop's thread, so that the bound
holds on every machine; `python -m bench pauses` tells the times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from bench._largest import PRODUCE, TOPIC, largest
from bench._watched import Watched, watched
from tidelog.kafka import codec
from tidelog.kafka.apis import default_table
from tidelog.kafka.dispatch import Table
from tidelog.kafka.groups.handlers import handlers

# More than one call for an element, without a turn for others, would be beyond the bound.
ELEMENTS = 30_000
TRIES = 4
ALTER_PARTITION_REASSIGNMENTS = 45
MOST_CALLS = 25_000
# What is written to one partition is done all at once when a flush is, and that is more work. The
# controller takes a snapshot of its whole state, in one piece, after 2,000 commands.
FEWER = {PRODUCE: 800, ALTER_PARTITION_REASSIGNMENTS: 1_500}


def _table() -> Table:
    table = default_table()
    table.add_all(handlers(cast(Any, None)))
    return table


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("node")) as running:
        running.create_topic()
        yield running


@pytest.mark.parametrize("key", [api.key for api in _table()], ids=codec.api_name)
def test_the_largest_requests_of_an_api_give_the_loop_turns(node: Watched, key: int) -> None:
    served = node.server.kafka.table
    assert [api.key for api in served] == [api.key for api in _table()]
    topic_id = node.server.node.state.topics[TOPIC].id
    only = Table()
    api = served.get(key)
    assert api is not None
    only.add(api)
    walked = 0
    for request in largest(only, FEWER.get(key, ELEMENTS), topic_id):
        walked += 1
        # A chore of the node may come on top, but not each time.
        fewest = min(node.calls(request), MOST_CALLS + 1)
        for _ in range(TRIES):
            if fewest > MOST_CALLS:
                fewest = min(fewest, node.calls(request))
        assert fewest <= MOST_CALLS, f"{request}: {request.elements} elements"
    assert walked > 0
