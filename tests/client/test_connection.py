"""One connection: versions are agreed on, answers find their question, strangers are told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.client.scripted import NONE, ScriptedBroker, producer_id

from tidelog.client import BadAnswer, Disconnected, Unreachable, Unsupported
from tidelog.client.connection import MAX_FRAME, Connection
from tidelog.client.errors import Silent
from tidelog.client.messages import Api
from tidelog.client.retry import Deadline


def with_broker(work: Callable[[ScriptedBroker], Awaitable[None]], **versions: Any) -> None:
    async def main() -> None:
        async with ScriptedBroker(**versions) as broker:
            await work(broker)

    asyncio.run(main())


async def connect(port: int) -> Connection:
    return await Connection.open("127.0.0.1", port, "test", Deadline(5))


def ask_for_id(connection: Connection, deadline: float = 5) -> Awaitable[Any]:
    return connection.call(
        Api.INIT_PRODUCER_ID,
        lambda make: make("InitProducerIdRequest", transactional_id=None, transaction_timeout=NONE),
        Deadline(deadline),
    )


def test_the_newest_version_that_both_sides_know_is_spoken() -> None:
    async def work(broker: ScriptedBroker) -> None:
        broker.on(Api.INIT_PRODUCER_ID, producer_id)
        broker.versions[Api.INIT_PRODUCER_ID] = (0, 2)
        connection = await connect(broker.port)
        assert (await ask_for_id(connection)).producer_id == 9
        assert broker.asked[-1][:2] == (Api.INIT_PRODUCER_ID, 2)
        connection.close()

    with_broker(work)


def test_a_broker_that_knows_only_the_oldest_api_versions_is_asked_again_in_that() -> None:
    async def work(broker: ScriptedBroker) -> None:
        broker.versions[Api.API_VERSIONS] = (0, 0)
        connection = await connect(broker.port)
        assert connection.versions[Api.FETCH] == broker.versions[Api.FETCH]
        assert broker.asked[0][:2] == (Api.API_VERSIONS, 0)
        connection.close()

    with_broker(work)


@pytest.mark.parametrize("theirs", [None, (90, 95)])
def test_an_api_that_the_other_side_lacks_is_a_sentence(theirs: tuple[int, int] | None) -> None:
    async def work(broker: ScriptedBroker) -> None:
        del broker.versions[Api.INIT_PRODUCER_ID]
        if theirs is not None:
            broker.versions[Api.INIT_PRODUCER_ID] = theirs
        connection = await connect(broker.port)
        with pytest.raises(Unsupported, match="init producer id"):
            await ask_for_id(connection)
        connection.close()

    with_broker(work)


def test_many_questions_at_once_get_their_own_answers() -> None:
    async def work(broker: ScriptedBroker) -> None:
        ids = iter(range(1000))

        def next_id(request: Any, make: Any) -> Any:
            return make(
                "InitProducerIdResponse",
                throttle_time=NONE,
                error_code=ErrorCode.none,
                producer_id=next(ids),
                producer_epoch=0,
            )

        broker.on(Api.INIT_PRODUCER_ID, next_id)
        connection = await connect(broker.port)
        answers = await asyncio.gather(*(ask_for_id(connection) for _ in range(200)))
        assert [answer.producer_id for answer in answers] == list(range(200))
        connection.close()

    with_broker(work)


def test_a_cancelled_question_does_not_disturb_those_behind_it() -> None:
    async def work(broker: ScriptedBroker) -> None:
        gate = asyncio.Event()

        async def slow(request: Any, make: Any) -> Any:
            await gate.wait()
            return producer_id(request, make)

        broker.on(Api.INIT_PRODUCER_ID, slow)
        connection = await connect(broker.port)
        first = asyncio.ensure_future(ask_for_id(connection))
        second = asyncio.ensure_future(ask_for_id(connection))
        await asyncio.sleep(0.05)
        first.cancel()
        gate.set()
        assert (await second).producer_id == 9
        assert first.cancelled()
        connection.close()

    with_broker(work)


def test_whoever_waits_hears_that_the_connection_ended() -> None:
    async def work(broker: ScriptedBroker) -> None:
        broker.on(Api.INIT_PRODUCER_ID, lambda request, make: None)
        connection = await connect(broker.port)
        with pytest.raises(Disconnected, match="closed the connection"):
            await ask_for_id(connection)
        assert connection.closed
        with pytest.raises(Disconnected):
            await ask_for_id(connection)

    with_broker(work)


def test_a_node_that_does_not_answer_in_time_is_given_up_with_its_connection() -> None:
    async def work(broker: ScriptedBroker) -> None:
        async def never(request: Any, make: Any) -> Any:
            await asyncio.sleep(60)

        broker.on(Api.INIT_PRODUCER_ID, never)
        connection = await connect(broker.port)
        with pytest.raises(Silent, match=r"did not answer within 0\.05 s"):
            await ask_for_id(connection, deadline=0.05)
        assert connection.closed

    with_broker(work)


def test_an_address_where_nobody_listens_is_a_sentence() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            port = broker.port
        with pytest.raises(Unreachable, match="nobody listens there"):
            await connect(port)

    asyncio.run(main())


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        (MAX_FRAME + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"\0\0\0\5\0\0\0\0\0",
        b"\0\0\0\x08\0\0\0\0\0\0\xff\xff",
        b"\0\0\0\x05\0\0\1\0\0",
    ],
)
def test_a_server_that_is_no_kafka_is_recognised(greeting: bytes) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(greeting)
            await writer.drain()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BadAnswer):
            await connect(port)
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)

    asyncio.run(main())
