"""Fetch sessions: only what changed is asked for and answered, and nothing is missed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.broker import FETCH, NEWEST_FETCH, Broker, batch, broker, run

from tidelog.kafka import sessions
from tidelog.kafka.fetchform import Asked, FetchRequest, TopicToRead
from tidelog.kafka.sessions import Followed, Session, Sessions

NOT_FOUND = ErrorCode.fetch_session_id_not_found
WRONG_EPOCH = ErrorCode.invalid_fetch_session_epoch


async def fetch(
    node: Broker,
    session: tuple[int, int],
    offsets: dict[int, int],
    *,
    forget: tuple[int, ...] = (),
    version: int = NEWEST_FETCH,
    max_wait: timedelta = timedelta(0),
) -> tuple[Any, dict[int, int]]:
    """Ask with a session; return the whole answer, and bytes of the partitions it names."""
    answer = await node.ask(
        FETCH,
        version,
        replica_id=-1,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            node.topic_fields(
                "t",
                partitions=[
                    {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
                    for index, offset in offsets.items()
                ],
            )
        ]
        if offsets
        else [],
        forgotten_topics_data=[node.topic_fields("t", partitions=list(forget))] if forget else [],
        rack_id="",
    )
    named = {
        each.partition_index: len(each.records)
        for topic in answer.responses
        for each in topic.partitions
    }
    return answer, named


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_a_session_answers_only_what_changed(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 3)

            session = 0

            async def ask(epoch: int, **fields: Any) -> dict[int, int]:
                nonlocal session
                offsets = fields.pop("offsets", {})
                answer, named = await fetch(
                    node, (session, epoch), offsets, version=version, **fields
                )
                assert answer.error_code is ErrorCode.none
                session = answer.session_id
                return named

            size = batch(b"x").size
            assert await ask(0, offsets={0: 0, 1: 0, 2: 0}) == {0: 0, 1: 0, 2: 0}
            assert session > 0
            assert await ask(1) == {}
            await node.produce(batch(b"x"), index=1)
            assert await ask(2) == {1: size}
            # The client did not move on, so it is told again.
            assert await ask(3) == {1: size}
            assert await ask(4, offsets={1: 1}) == {}
            assert await ask(5, forget=(1,)) == {}
            await node.produce(batch(b"x"), index=1)
            assert await ask(6) == {}
            assert await ask(7, offsets={1: 1}) == {1: size}

    run(story())


def test_lost_and_wrong_sessions_are_refused_as_a_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            answer, _ = await fetch(node, (0, 0), {0: 0})
            session = answer.session_id
            for key, expected in (
                ((session, 2), WRONG_EPOCH),
                ((session + 1, 1), NOT_FOUND),
                ((0, 1), NOT_FOUND),
            ):
                answer, named = await fetch(node, key, {})
                assert (answer.error_code, answer.session_id, named) == (expected, 0, {})
            answer, _ = await fetch(node, (session, 1), {}, version=17)
            assert answer.error_code is WRONG_EPOCH  # names have another form in other versions
            answer, named = await fetch(node, (session, -1), {0: 0})
            assert (answer.session_id, named) == (0, {0: 0})
            answer, _ = await fetch(node, (session, 1), {})
            assert answer.error_code is NOT_FOUND  # it was ended

    run(story())


def test_a_session_waits_and_tells_errors_until_they_are_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1)
            answer, named = await fetch(node, (0, 0), {0: 0, 1: 0})
            session = answer.session_id
            assert named == {0: 0, 1: 0}
            for epoch in (1, 2):
                answer, named = await fetch(
                    node, (session, epoch), {}, max_wait=timedelta(seconds=30)
                )
                (told,) = answer.responses[0].partitions
                assert told.partition_index == 1
                assert told.error_code is ErrorCode.unknown_topic_or_partition
            answer, named = await fetch(
                node, (session, 3), {}, forget=(1,), max_wait=timedelta(milliseconds=20)
            )
            assert named == {}

    run(story())


def test_a_session_without_partitions_is_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            answer, _ = await fetch(node, (0, 0), {0: 0})
            session = answer.session_id
            answer, named = await fetch(node, (session, 1), {}, forget=(0,))
            assert (answer.session_id, named) == (0, {})
            answer, _ = await fetch(node, (session, 2), {})
            assert answer.error_code is NOT_FOUND

    run(story())


# --- Bounds ---------------------------------------------------------------------------------------


def followed(count: int, key: bytes = b"t") -> list[Followed]:
    return [Followed(key, "t", Asked(index, -1, 0, -1, 1)) for index in range(count)]


def begin(cache: Sessions, count: int, now: float) -> Session | None:
    return cache.begin(12, followed(count), now)


def going_on(session: Session, *indexes: int) -> FetchRequest:
    asked = [Asked(index, -1, 0, -1, 1) for index in indexes]
    topics = [TopicToRead(b"t", "t", asked)]
    return FetchRequest(-1, 0, 0, 0, 0, session.id, session.epoch, topics, [], "")


def test_sessions_that_nobody_uses_make_room_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    cache = Sessions()
    first, second = begin(cache, 1, 0.0), begin(cache, 1, 10.0)
    assert first is not None
    assert second is not None
    assert begin(cache, 1, 20.0) is None
    assert cache.go_on(12, going_on(first), 50.0) is first
    later = sessions.KEEP_S + 15.0
    assert begin(cache, 1, later) is not None
    assert cache.go_on(12, going_on(second), later) is NOT_FOUND
    assert cache.go_on(12, going_on(first), later) is first
    assert (len(cache), cache.evicted) == (2, 1)


def test_the_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_PARTITIONS", 10)
    monkeypatch.setattr(sessions, "MAX_PARTITIONS_EACH", 6)
    cache = Sessions()
    assert begin(cache, 7, 0.0) is None
    first = begin(cache, 6, 0.0)
    second = begin(cache, 4, 0.0)
    assert first is not None
    assert second is not None
    assert begin(cache, 1, 1.0) is None
    # One that grows beyond the bound is ended, and its room is free again.
    assert cache.go_on(12, going_on(second, 0, 1, 2, 3, 4), 1.0) is NOT_FOUND
    assert begin(cache, 4, 1.0) is not None
    assert cache.go_on(12, going_on(first, *range(7)), 1.0) is NOT_FOUND
    assert len(cache) == 1


def test_epochs_start_over_at_one() -> None:
    cache = Sessions()
    session = begin(cache, 1, 0.0)
    assert session is not None
    session.epoch = 2**31 - 1
    assert cache.go_on(12, going_on(session), 0.0) is session
    assert session.epoch == 1


def test_partitions_with_data_go_to_the_end_of_the_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 3)
            for index in range(3):
                await node.produce(batch(b"x"), index=index)
            answer, _ = await fetch(node, (0, 0), {0: 0, 1: 1, 2: 1})
            _, named = await fetch(node, (answer.session_id, 1), {1: 0, 2: 0})
            assert list(named) == [1, 2, 0]

    run(story())
