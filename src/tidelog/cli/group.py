"""`tidelog group`: list, describe, move and delete groups of consumers, on any Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    complete_groups,
    complete_topics,
    emit,
    emit_table,
    parse_time,
    plural,
    run,
)

if TYPE_CHECKING:
    from tidelog.client import Cluster, GroupInfo, GroupListing, TopicPartition

app = typer.Typer(
    help=(
        "List and describe consumer groups; reset their offsets.\n\n"
        "**Examples**\n\n"
        "`tidelog group describe billing` shows how far it is behind, and who reads what\n\n"
        "`tidelog group reset billing --to-earliest --dry-run` shows what would change"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)

GroupName = Annotated[
    str, typer.Argument(help="Name of the group.", autocompletion=complete_groups, metavar="GROUP")
]


@app.command("list")
def list_groups(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List groups."""
    from tidelog.client import GroupAdmin

    async def work(cluster: Cluster) -> list[GroupListing]:
        return await GroupAdmin(cluster).groups()

    groups = run(bootstrap, work) or []
    if as_json:
        emit(
            [
                {
                    "group": group.name,
                    "kind": group.kind,
                    "protocol": group.protocol,
                    "state": group.state,
                    "coordinator": group.coordinator,
                }
                for group in groups
            ]
        )
    else:
        emit_table(
            ("GROUP", "KIND", "STATE", "COORDINATOR"),
            (
                (group.name, group.kind or "-", group.state or "-", group.coordinator)
                for group in groups
            ),
        )


@app.command()
def describe(
    name: GroupName, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Show a group's members, and how far behind it is in each partition."""
    from tidelog.client import LATEST, GroupAdmin, list_offsets

    async def work(
        cluster: Cluster,
    ) -> tuple[GroupInfo, dict[TopicPartition, int], dict[TopicPartition, int]]:
        admin = GroupAdmin(cluster)
        info = await admin.describe(name)
        offsets = await admin.offsets(name)
        partitions = {*offsets, *(each for member in info.members for each in member.partitions)}
        topics = (await cluster.metadata({each.topic for each in partitions})).topics
        there = [each for each in partitions if each.topic in topics]
        return info, offsets, await list_offsets(cluster, dict.fromkeys(there, LATEST))

    result = run(bootstrap, work)
    assert result is not None
    info, offsets, ends = result
    rows = list(_lags(info, offsets, ends))
    if as_json:
        emit(
            {
                "group": info.name,
                "kind": info.kind,
                "state": info.state,
                "assignor": info.assignor,
                "members": [
                    {"id": member.id, "client_id": member.client_id, "host": member.host}
                    for member in info.members
                ],
                "partitions": rows,
            }
        )
        return
    lag = sum(row["lag"] or 0 for row in rows)
    typer.echo(
        f"{info.name}: {info.state or 'unknown'}, {plural(len(info.members), 'member')}, "
        f"{plural(lag, 'record')} behind\n"
    )
    emit_table(
        ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "HOST"),
        (tuple(row.values()) for row in rows),
    )


def _lags(
    info: GroupInfo, offsets: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> Iterable[dict[str, Any]]:
    owners = {partition: member for member in info.members for partition in member.partitions}
    for partition in sorted({*offsets, *owners}):
        offset, end, owner = offsets.get(partition), ends.get(partition), owners.get(partition)
        yield {
            "topic": partition.topic,
            "partition": partition.index,
            "offset": offset,
            "end": end,
            "lag": None if offset is None or end is None else max(0, end - offset),
            "member": None if owner is None else owner.id,
            "host": None if owner is None else owner.host,
        }


@app.command()
def reset(
    name: GroupName,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first record.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end: skip all existing records.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", help="To this offset.", min=0, metavar="N")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", help="To the first record at or after a time.", metavar="TIME"
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", help="Forward by N records, or back if N is negative.", metavar="N"
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Only these topics; without it, all that the group has read.",
            autocompletion=complete_topics,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Reset the offsets of a group. Its consumers must be stopped.

    An offset that a partition does not have becomes the nearest that it has.

    **Examples**

    `tidelog group reset billing --to-earliest` reads everything again

    `tidelog group reset billing --to-datetime 2026-01-31T00:00:00 --topic orders`

    `tidelog group reset billing --shift-by -100 --dry-run`
    """
    from tidelog.client import GroupAdmin

    ways = (to_earliest, to_latest, to_offset is not None, to_datetime, shift_by is not None)
    if sum(map(bool, ways)) != 1:
        raise typer.BadParameter(
            "Say where to go with one of --to-earliest, --to-latest, --to-offset, --to-datetime "
            "and --shift-by."
        )
    time = None if to_datetime is None else parse_time(to_datetime)

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        admin = GroupAdmin(cluster)
        before = await admin.offsets(name)
        partitions = await _partitions(cluster, topic, before)
        after = await _targets(cluster, partitions, before, to_earliest, to_offset, time, shift_by)
        if not dry_run and after:
            await admin.set_offsets(name, after)
        return [
            {
                "topic": partition.topic,
                "partition": partition.index,
                "before": before.get(partition),
                "after": after[partition],
            }
            for partition in sorted(after)
        ]

    rows = run(bootstrap, work) or []
    if as_json:
        emit({"group": name, "changed": not dry_run and bool(rows), "partitions": rows})
        return
    if not rows:
        typer.echo(f"Group {name} has no offsets: name topics with --topic.")
        return
    emit_table(("TOPIC", "PARTITION", "BEFORE", "AFTER"), (tuple(row.values()) for row in rows))
    if dry_run:
        typer.echo("Nothing was changed.")


async def _partitions(
    cluster: Cluster, topics: list[str] | None, before: dict[TopicPartition, int]
) -> list[TopicPartition]:
    from tidelog.client import TopicPartition

    if not topics:
        return sorted(before)
    found: list[TopicPartition] = []
    for name in topics:
        info = await cluster.topic(name, fresh=True)
        found += [TopicPartition(name, each.index) for each in info.partitions]
    return found


async def _targets(
    cluster: Cluster,
    partitions: list[TopicPartition],
    before: dict[TopicPartition, int],
    to_earliest: bool,
    to_offset: int | None,
    time: int | None,
    shift_by: int | None,
) -> dict[TopicPartition, int]:
    from tidelog.client import bounds, positions_at

    limits = await bounds(cluster, partitions)
    if time is not None:
        return await positions_at(cluster, partitions, time)
    if shift_by is not None:
        wanted = {p: before[p] + shift_by for p in partitions if p in before}
    elif to_offset is not None:
        wanted = dict.fromkeys(partitions, to_offset)
    else:
        wanted = {p: limits[p][0 if to_earliest else 1] for p in partitions}
    return {p: min(max(limits[p][0], offset), limits[p][1]) for p, offset in wanted.items()}


@app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(help="Names of groups.", autocompletion=complete_groups, metavar="GROUP"),
    ],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete groups and where they were. Their consumers must be stopped."""
    from tidelog.client import GroupAdmin

    async def work(cluster: Cluster) -> None:
        for name in names:
            await GroupAdmin(cluster).delete(name)

    run(bootstrap, work)
    if as_json:
        emit([{"group": name, "deleted": True} for name in names])
        return
    for name in names:
        typer.echo(f"Deleted group {name}.")
