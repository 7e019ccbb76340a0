"""`tidelog produce`: records from standard input to a topic, on any Kafka cluster."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    TopicName,
    emit_line,
    note,
    plural,
    run,
)
from tidelog.cli.errors import fail
from tidelog.cli.formats import Headers, InputFormat, InputRecord, Mismatch, parse_headers

if TYPE_CHECKING:
    from tidelog.client import Cluster, Producer, Written

CHUNK_BYTES: Final = 256 * 1024
# A record that is longer is taken for input without an end.
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
# Records whose answers are awaited; the producer bounds their bytes.
MAX_UNANSWERED: Final = 10_000


class Acks(StrEnum):
    """How safe a record is before the cluster says that it has it."""

    ALL = "all"
    ONE = "1"
    NONE = "0"


class Compression(StrEnum):
    """How batches are packed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: TopicName,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Key of every record.", metavar="KEY")
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="What the input looks like: %k key, %v value, %h headers, %p partition.",
        ),
    ] = "%v\\n",
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", help="Header of every record; may be repeated.", metavar="NAME=VALUE"
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", help="Partition of every record.", min=0),
    ] = None,
    acks: Annotated[
        Acks,
        typer.Option(help="Acknowledgement level: fsynced on a majority, leader only, or none."),
    ] = Acks.ALL,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compression of batches.")
    ] = Compression.NONE,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="An empty value deletes its key.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write records to a topic.

    Records are read from standard input, one per line unless `--format` says otherwise, and are
    sent as they arrive. `--json` prints where each one was written, one line per record.

    **Examples**

    `echo hello | tidelog produce greetings`

    `tidelog produce users -f '%k %v\\n' < users.txt` takes what is before the first space as key

    `echo | tidelog produce users -k alice --tombstone` deletes the record of alice
    """
    reader = InputFormat(format)
    try:
        headers = parse_headers(header or [])
    except Mismatch as error:
        raise typer.BadParameter(str(error)) from None

    async def work(cluster: Cluster) -> int:
        from tidelog.client import Producer
        from tidelog.records import Codec

        await cluster.topic(topic)
        async with Producer(
            cluster,
            acks=-1 if acks is Acks.ALL else int(acks.value),
            codec=Codec[compression.name],
        ) as producer:
            sender = _Sender(producer, topic, key, headers, partition, as_json)
            async for piece in _pieces(reader.end):
                try:
                    record = reader.read(piece)
                except Mismatch as error:
                    await sender.finish()
                    fail(f"Record {sender.sent + 1} of the input: {error}")
                if tombstone and not record.value:
                    record = InputRecord(None, record.key, record.headers, record.partition)
                await sender.send(record)
            await sender.finish()
        return sender.sent

    sent = run(bootstrap, work)
    if sent is not None and not as_json:
        note(f"Wrote {plural(sent, 'record')} to {topic}.")


class _Sender:
    """Sends records and checks the answers in their order, so that memory stays bounded."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        key: str | None,
        headers: Headers,
        partition: int | None,
        as_json: bool,
    ) -> None:
        self.sent = 0
        self._producer = producer
        self._topic = topic
        self._key = None if key is None else key.encode()
        self._headers = headers
        self._partition = partition
        self._as_json = as_json
        self._unanswered: deque[asyncio.Future[Written]] = deque()  # at most MAX_UNANSWERED

    async def send(self, record: InputRecord) -> None:
        if len(self._unanswered) >= MAX_UNANSWERED:
            await self._answer()
        future = await self._producer.send(
            self._topic,
            record.value,
            self._key if record.key is None else record.key,
            self._headers + record.headers,
            partition=self._partition if record.partition is None else record.partition,
        )
        self._unanswered.append(future)
        self.sent += 1
        while self._unanswered and self._unanswered[0].done():
            await self._answer()

    async def finish(self) -> None:
        while self._unanswered:
            await self._answer()

    async def _answer(self) -> None:
        written = await self._unanswered.popleft()
        if self._as_json:
            emit_line(
                {
                    "topic": written.partition.topic,
                    "partition": written.partition.index,
                    "offset": written.offset,
                }
            )


async def _pieces(end: bytes) -> AsyncIterator[bytes]:
    """Yield what standard input brings, cut at `end`, as soon as it is there."""
    stream = typer.get_binary_stream("stdin")
    loop = asyncio.get_running_loop()
    rest = b""
    while True:
        chunk = await loop.run_in_executor(None, stream.read1, CHUNK_BYTES)  # type: ignore[attr-defined]
        if not chunk:
            break
        *pieces, rest = (rest + chunk).split(end)
        for piece in pieces:
            yield piece
        if len(rest) > MAX_RECORD_BYTES:
            fail(f"A record of more than {MAX_RECORD_BYTES:,} bytes: does the format fit?")
    if rest:
        yield rest
