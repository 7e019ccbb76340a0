"""Requests that make no sense, in any order: each gets an answer that can be sent, or waits."""

from __future__ import annotations

import asyncio
import dataclasses
import types
import typing
from datetime import timedelta
from functools import cache
from typing import Any, cast
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from tests.kafka.groups.fakes import FakeNode, FakePartition
from tests.kafka.groups.test_coordinator import coordinating, settle

from tidelog.cluster.model import Address
from tidelog.cluster.node import Node
from tidelog.kafka import codec
from tidelog.kafka.dispatch import Context
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.coordinator import Coordinator

FIND_COORDINATOR = 10  # needs more of a node than there is here
SERVED = [
    (key, version)
    for key, (oldest, newest, _) in Coordinator(cast(Node, FakeNode())).handlers.items()
    if key != FIND_COORDINATOR
    for version in range(oldest, newest + 1)
]
# Small sets, so that requests meet: groups, members, topics.
texts = st.sampled_from(
    ["g", "h", "m", "n", "t", "u", "range", "uniform", "consumer", "", "é" * 5000]
)
numbers = st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 3, 2**31 - 1])
# Every API as often as another, however many versions it has.
requests = st.lists(
    st.sampled_from(sorted({key for key, _ in SERVED})).flatmap(
        lambda key: st.sampled_from([pair for pair in SERVED if pair[0] == key])
    ),
    min_size=10,
    max_size=30,
)
TOPIC_IDS = [UUID(int=number) for number in range(1, 5)]


@cache
def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a structure of a request."""
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind, **{field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
    )


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for one field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin in {types.UnionType, typing.Union}:
        return st.one_of(*(st.none() if one is type(None) else values(one) for one in arguments))
    if dataclasses.is_dataclass(kind):
        return messages(cast(Any, kind))
    if issubclass(kind, UUID):
        return st.sampled_from(TOPIC_IDS)
    if issubclass(kind, bool):
        return st.booleans()
    if issubclass(kind, str):
        return texts
    if issubclass(kind, bytes):
        return st.sampled_from([b"", b"work", b"\0\1\0\0\0\1\0\1t"])
    if issubclass(kind, timedelta):
        return st.sampled_from([timedelta(milliseconds=-1), timedelta(0), timedelta(seconds=30)])
    if kind.__name__ == "i8":
        return st.sampled_from([-1, 0, 1])
    assert issubclass(kind, int), kind
    return numbers


def made_sense(data: st.DataObject, request: Any, members: list[str]) -> Any:
    """Replace some fields by ones that get a request further."""
    hopeful: dict[str, st.SearchStrategy[Any]] = {
        "group_id": st.sampled_from(["g", "h"]),
        "member_id": st.sampled_from(members),
        "group_instance_id": st.sampled_from([None, None, "one"]),
        "instance_id": st.sampled_from([None, None, "one"]),
        "generation_id": st.sampled_from([1, 2, 3]),
        "generation_id_or_member_epoch": st.sampled_from([-1, 1, 2]),
        "member_epoch": st.sampled_from([0, 0, 1, 2, -1, -2]),
        "session_timeout": st.just(timedelta(seconds=30)),
        "rebalance_timeout": st.just(timedelta(seconds=30)),
        "protocol_type": st.just("consumer"),
        "protocol_name": st.just("range"),
        "subscribed_topic_names": st.just(("t",)),
        "subscribed_topic_regex": st.none(),
        "server_assignor": st.none(),
        "topic_partitions": st.just(()),
    }
    if hasattr(request, "protocols"):
        kind = typing.get_args(typing.get_type_hints(type(request))["protocols"])[0]
        hopeful["protocols"] = st.just((kind(name="range", metadata=b"\0\1\0\0\0\1\0\1t"),))
    return dataclasses.replace(
        request,
        **{
            field.name: data.draw(hopeful[field.name])
            for field in dataclasses.fields(request)
            if field.name in hopeful
        },
    )


@settings(max_examples=100)
@given(st.data())
def test_any_requests_are_answered_and_leave_the_groups_in_order(data: st.DataObject) -> None:
    async def story() -> None:
        node = FakeNode(FakePartition(), t=3, u=1)
        context = Context(
            cast(Node, node), Address("127.0.0.1", 1), 1, "127.0.0.1", data.draw(texts)
        )
        waiting: list[asyncio.Future[Any]] = []
        members = ["", "m", "n"]
        config = GroupConfig(initial_rebalance_delay=0, min_session_timeout=0)
        async with coordinating(node, config) as coordinator:
            handlers = coordinator.handlers
            for key, version in data.draw(requests):
                request = data.draw(messages(load_request_schema(key, version)))
                if data.draw(st.integers(0, 3)):
                    request = made_sense(data, request, members)
                request = codec.decode_request(key, version, codec.encode(request))
                answer = asyncio.ensure_future(handlers[key][2](context, request))
                waiting.append(answer)
                await settle()
                if answer.done():
                    assert codec.encode(answer.result()) is not None
                    members.append(getattr(answer.result(), "member_id", None) or "m")
                for shard in coordinator.shards():
                    shard.check_invariants()
        await settle()
        for each in waiting:
            assert codec.encode(each.result()) is not None

    asyncio.run(story())
