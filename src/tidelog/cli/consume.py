"""`tidelog consume`: records of topics to standard output, on any Kafka cluster."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    complete_topics,
    parse_time,
    run,
)
from tidelog.cli.formats import OutputFormat, as_document

if TYPE_CHECKING:
    from tidelog.client import Cluster, Fetched, FetchedRecord, TopicPartition

_DURATION: Final = re.compile(r"-(\d+)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Seconds between two looks at whether everything up to the end was read.
LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: one of the three is set."""

    time: int | None = None  # EARLIEST, LATEST, or milliseconds
    offset: int | None = None  # the same one in every partition
    before_end: int | None = None  # this many records before the end of each partition


def consume(
    topics: Annotated[
        list[str],
        typer.Argument(help="Names of topics.", autocompletion=complete_topics, metavar="TOPIC"),
    ],
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            "-o",
            help="Where to begin: start, end, N, -N (before the end), @TIME or @-1h.",
            metavar="WHERE",
        ),
    ] = "start",
    number: Annotated[
        int | None, typer.Option("--num", "-n", help="Stop after this many records.", min=1)
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="%t topic, %p partition, %o offset, %k key, %v value, %h headers, %d time.",
        ),
    ] = "%v\\n",
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Read as a member of this group, and commit.", metavar="GROUP"
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition; may be repeated.", min=0),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow",
            " /-e",
            help="Wait for more records at the end, or stop there (-e).",
        ),
    ] = True,
    committed: Annotated[
        bool,
        typer.Option(
            "--read-committed", help="Skip records of transactions that have not committed."
        ),
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Read records from topics.

    Reading begins at the start of each partition and, like `rpk` and Kafka's own tools, goes on
    until Ctrl-C. `-e` stops at the end as of the start of the command, `-n N` after N records.
    In a group, `--offset` applies only to partitions for which the group has no committed offset.

    **Examples**

    `tidelog consume orders -e` prints what is there, one value per line

    `tidelog consume orders -o -10 -f '%p/%o %k: %v\\n'` shows the last ten of each partition

    `tidelog consume orders -o @-1h --json -e | jq .value` takes the last hour

    `tidelog consume orders -g billing` shares the work with the other members of the group
    """
    start = parse_start(offset)
    formatter = OutputFormat(format)
    if group is not None and partition:
        raise typer.BadParameter("A group assigns partitions itself: leave -p out.")
    if group is not None and start.time is None:
        raise typer.BadParameter("A group begins at start, end or @TIME.")
    output = typer.get_binary_stream("stdout")
    write = _json_writer if as_json else formatter.write
    printer = _Printer(output, write, number)

    async def work(cluster: Cluster) -> None:
        for topic in topics:
            await cluster.topic(topic)
        if group is None:
            await _read(cluster, topics, partition, start, follow, committed, printer)
        else:
            await _read_in_group(cluster, topics, group, start, follow, committed, printer)

    run(bootstrap, work, endless=True)


class _Printer:
    """Prints records until there are enough."""

    def __init__(
        self, output: BinaryIO, write: Callable[[FetchedRecord], bytes], number: int | None
    ) -> None:
        self._output = output
        self._write = write
        self._left = number

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def print(self, part: Fetched, end: int | None = None) -> int:
        """Print what came before `end`; return the offset of the next record after it."""
        for record in part.records():
            if self.is_done or (end is not None and record.offset >= end):
                self._output.flush()
                return record.offset
            self._output.write(self._write(record))
            if self._left is not None:
                self._left -= 1
        self._output.flush()
        return part.next


def _json_writer(record: FetchedRecord) -> bytes:
    return json.dumps(as_document(record), ensure_ascii=False).encode() + b"\n"


async def _read(
    cluster: Cluster,
    topics: list[str],
    only: list[int] | None,
    start: Start,
    follow: bool,
    committed: bool,
    printer: _Printer,
) -> None:
    from tidelog.client import EARLIEST, LATEST, Fetcher, TopicPartition, list_offsets

    partitions: list[TopicPartition] = []
    for topic in topics:
        info = await cluster.topic(topic)
        indexes = [each.index for each in info.partitions] if only is None else only
        partitions += [TopicPartition(topic, index) for index in indexes]
    positions = await _positions(cluster, partitions, start)
    ends: dict[TopicPartition, int] = {}
    if not follow:
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), committed=committed)
        positions = {p: at for p, at in positions.items() if at < ends[p]}
    fetcher = Fetcher(cluster, positions, reset=EARLIEST, committed=committed)
    left = set(positions)
    try:
        while not printer.is_done and (left or follow):
            part = await fetcher.next()
            assert part is not None
            printer.print(part, ends.get(part.partition))
            if not follow and part.next >= ends[part.partition]:
                left.discard(part.partition)
                fetcher.drop(part.partition)
    finally:
        await fetcher.close()


async def _read_in_group(
    cluster: Cluster,
    topics: list[str],
    group: str,
    start: Start,
    follow: bool,
    committed: bool,
    printer: _Printer,
) -> None:
    from tidelog.client import GroupConsumer

    assert start.time is not None
    async with GroupConsumer(
        cluster, group, topics, start=start.time, committed=committed
    ) as consumer:
        ends: dict[TopicPartition, int] = {}
        assignment: tuple[TopicPartition, ...] | None = None
        while not printer.is_done:
            part = await consumer.next(LOOK_SECONDS)
            if part is not None:
                consumer.done(part.partition, printer.print(part))
            if follow:
                continue
            if consumer.assignment != assignment:
                assignment = consumer.assignment
                ends = await _ends(cluster, assignment, committed)
            if part is None and _is_read(consumer.positions, ends):
                return


async def _ends(
    cluster: Cluster, partitions: tuple[TopicPartition, ...], committed: bool
) -> dict[TopicPartition, int]:
    from tidelog.client import LATEST, list_offsets

    wanted = dict.fromkeys(partitions, LATEST)
    return await list_offsets(cluster, wanted, committed=committed) if wanted else {}


def _is_read(positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> bool:
    return all(position >= ends.get(partition, 0) for partition, position in positions.items())


async def _positions(
    cluster: Cluster, partitions: list[TopicPartition], start: Start
) -> dict[TopicPartition, int]:
    from tidelog.client import bounds, positions_at

    if start.time is not None:
        return await positions_at(cluster, partitions, start.time)
    found = await bounds(cluster, partitions)
    return {
        partition: min(max(first, _wanted(start, end)), end)
        for partition, (first, end) in found.items()
    }


def _wanted(start: Start, end: int) -> int:
    if start.offset is not None:
        return start.offset
    assert start.before_end is not None
    return end - start.before_end


def parse_start(text: str) -> Start:
    """Read the `--offset` option; a wrong one is a wrong command line."""
    earliest, latest = -2, -1  # as the protocol has it; the client is not imported for that
    if text in ("start", "earliest"):
        return Start(time=earliest)
    if text in ("end", "latest"):
        return Start(time=latest)
    if text.startswith("@"):
        duration = _DURATION.fullmatch(text[1:])
        if duration is not None:
            seconds = int(duration[1]) * _SECONDS[duration[2]]
            return Start(time=int((time.time() - seconds) * 1000))
        return Start(time=parse_time(text[1:]))
    if text.removeprefix("-").isdigit():
        number = int(text)
        return Start(before_end=-number) if text.startswith("-") else Start(offset=number)
    raise typer.BadParameter(
        f"{text!r} is not a place to begin: use start, end, N, -N, @2026-01-31T12:00:00 or @-1h."
    )
