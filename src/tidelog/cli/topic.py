"""`tidelog topic`: create, list, describe, alter and delete topics, on any Kafka cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    TopicName,
    complete_topics,
    emit,
    emit_table,
    parse_settings,
    plural,
    run,
)

if TYPE_CHECKING:
    from tidelog.client import Cluster, Setting, TopicInfo

CLUSTER_DEFAULT: Final = -1

app = typer.Typer(
    help=(
        "Create, look at, change and delete topics.\n\n"
        "**Examples**\n\n"
        "`tidelog topic create orders -p 12 -r 3 -c retention.ms=86400000`\n\n"
        "`tidelog topic describe orders` shows leaders, offsets, and settings that were changed"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)

TopicNames = Annotated[
    list[str],
    typer.Argument(help="Names of topics.", autocompletion=complete_topics, metavar="TOPIC"),
]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="A setting; may be repeated.", metavar="KEY=VALUE"),
]


@app.command()
def create(
    names: Annotated[list[str], typer.Argument(help="Names of new topics.", metavar="TOPIC")],
    partitions: Annotated[
        int,
        typer.Option("--partitions", "-p", help="How many; -1 is the cluster's default.", min=-1),
    ] = CLUSTER_DEFAULT,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", "-r", help="Copies of each; -1 is the cluster's default.", min=-1
        ),
    ] = CLUSTER_DEFAULT,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check whether it could be created.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create topics.

    **Examples**

    `tidelog topic create orders -p 12 -r 3` makes 12 partitions with 3 copies of each

    `tidelog topic create users -c cleanup.policy=compact` keeps the last record of every key
    """
    from kio.schema.errors import ErrorCode

    from tidelog.client import Admin, Refused

    settings = parse_settings(config or (), "--config")
    if 0 in (partitions, replicas):
        raise typer.BadParameter("A topic has at least one partition and one replica.")

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for name in names:
            created = True
            try:
                await Admin(cluster).create_topic(
                    name, partitions, replicas, settings, validate_only=dry_run
                )
            except Refused as error:
                if error.code is not ErrorCode.topic_already_exists or not if_not_exists:
                    raise
                created = False
            results.append({"topic": name, "created": created and not dry_run})
        return results

    results = run(bootstrap, work) or []
    if as_json:
        emit(results)
        return
    for result in results:
        name = result["topic"]
        if dry_run:
            typer.echo(f"Topic {name} can be created.")
        elif result["created"]:
            typer.echo(f"Created topic {name}.")
        else:
            typer.echo(f"Topic {name} exists already.")


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", "-i", help="Also those that the cluster made for itself.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List topics."""

    async def work(cluster: Cluster) -> list[TopicInfo]:
        found = (await cluster.metadata()).topics.values()
        return sorted(
            (topic for topic in found if internal or not topic.internal),
            key=lambda topic: topic.name,
        )

    topics = run(bootstrap, work) or []
    if as_json:
        emit(
            [
                {
                    "topic": topic.name,
                    "partitions": len(topic.partitions),
                    "replicas": topic.replication,
                    "internal": topic.internal,
                }
                for topic in topics
            ]
        )
    else:
        emit_table(
            ("TOPIC", "PARTITIONS", "REPLICAS"),
            ((topic.name, len(topic.partitions), topic.replication) for topic in topics),
        )


@app.command()
def describe(
    name: TopicName,
    all_settings: Annotated[
        bool, typer.Option("--all", "-a", help="Show unchanged settings as well.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a topic's partitions, offsets and settings."""
    from tidelog.client import Admin, Resource, TopicPartition, bounds

    async def work(
        cluster: Cluster,
    ) -> tuple[TopicInfo, dict[int, tuple[int, int]], list[Setting]]:
        topic = await cluster.topic(name, fresh=True)
        # A partition without a leader has no offsets to show; the table does not wait for one.
        led = [TopicPartition(name, p.index) for p in topic.partitions if p.leader is not None]
        offsets = await bounds(cluster, led)
        settings = await Admin(cluster).settings(Resource.TOPIC, name)
        return topic, {partition.index: found for partition, found in offsets.items()}, settings

    result = run(bootstrap, work)
    assert result is not None
    topic, offsets, settings = result
    shown = [setting for setting in settings if all_settings or not setting.is_default]
    if as_json:
        emit(_document(topic, offsets, shown))
        return
    identity = f", id {topic.id}" if topic.id is not None else ""
    typer.echo(
        f"{topic.name}: {plural(len(topic.partitions), 'partition')}, "
        f"{plural(topic.replication, 'replica')} each{identity}\n"
    )
    emit_table(
        ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN-SYNC", "START", "END"),
        (
            (p.index, p.leader, p.epoch, p.replicas, p.in_sync, *offsets.get(p.index, (None, None)))
            for p in topic.partitions
        ),
    )
    if shown:
        typer.echo()
        emit_table(
            ("SETTING", "VALUE", "FROM"),
            ((setting.name, setting.value, setting.source) for setting in shown),
        )


@app.command()
def alter(
    name: TopicName,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", help="Put a setting back to its default.", metavar="KEY"),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", help="Grow to this many in all.", min=1),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a topic's settings, or add partitions.

    **Examples**

    `tidelog topic alter orders -c retention.ms=3600000`

    `tidelog topic alter orders --delete-config retention.ms` goes back to the default

    `tidelog topic alter orders -p 24` adds partitions; records with a key may then go elsewhere
    """
    from tidelog.client import Admin, Resource

    changes: dict[str, str | None] = dict(parse_settings(config or (), "--config"))
    changes.update(dict.fromkeys(delete_config or (), None))
    if not changes and partitions is None:
        raise typer.BadParameter("Nothing to change: give -c, --delete-config or -p.")

    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        if changes:
            await admin.change_settings(Resource.TOPIC, name, changes)
        if partitions is not None:
            await admin.add_partitions(name, partitions)

    run(bootstrap, work)
    if as_json:
        emit({"topic": name, "settings": changes, "partitions": partitions})
    else:
        typer.echo(f"Changed topic {name}.")


@app.command()
def delete(
    names: TopicNames,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and all that is in them."""
    from tidelog.client import Admin

    async def work(cluster: Cluster) -> None:
        for name in names:
            await Admin(cluster).delete_topic(name)

    run(bootstrap, work)
    if as_json:
        emit([{"topic": name, "deleted": True} for name in names])
        return
    for name in names:
        typer.echo(f"Deleted topic {name}.")


def _document(
    topic: TopicInfo, offsets: dict[int, tuple[int, int]], settings: list[Setting]
) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": None if topic.id is None else str(topic.id),
        "internal": topic.internal,
        "partitions": [
            {
                "partition": each.index,
                "leader": each.leader,
                "epoch": each.epoch,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync),
                "start": offsets[each.index][0] if each.index in offsets else None,
                "end": offsets[each.index][1] if each.index in offsets else None,
            }
            for each in topic.partitions
        ],
        "settings": {
            setting.name: {"value": setting.value, "source": setting.source} for setting in settings
        },
    }
