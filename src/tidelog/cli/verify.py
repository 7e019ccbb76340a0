"""`tidelog log verify`: have every replica read its files again, and compare the copies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    complete_topics,
    emit,
    emit_table,
    format_bytes,
    plural,
    run,
)
from tidelog.cli.errors import fail

if TYPE_CHECKING:
    from tidelog.client import Cluster

POLL_SECONDS: Final = 0.5
MIB: Final = 1 << 20


def verify(
    partition: Annotated[
        str | None,
        typer.Argument(
            help="Topic and partition: orders/0.",
            autocompletion=complete_topics,
            metavar="[TOPIC/P]",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Verify all partitions, and the controller's log.")
    ] = False,
    rate: Annotated[
        int,
        typer.Option(
            help="MiB that each node may read per second. Comparing takes what nodes may read in"
            " the background.",
            min=1,
            max=4096,
        ),
    ] = 32,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Read all files of a partition's replicas again, now, and compare the replicas.

    Nodes do this in the background as well, each file once a day. Every batch and every snapshot is
    checked against its checksum. Then the replicas compare what they hold, as far as it was not
    compacted: that finds a copy that is wrong although its checksums are right.

    A damaged replica is rebuilt from the others by itself. If two copies of two differ, nobody can
    tell which is wrong: `docs/recovery.md` says what to do.

    The exit status is 1 if damage or a difference was found, or if a replica could not be read.
    Ctrl-C ends the command; the nodes give up a minute later.

    **Examples**

    `tidelog log verify orders/0`

    `tidelog log verify --all --rate 100 --json`
    """
    from tidelog.cli.log import parse_partition
    from tidelog.cli.progress import Progress
    from tidelog.client import operate

    if (partition is None) != everything:
        raise typer.BadParameter("name one partition, as orders/0, or give --all.")
    arguments: dict[str, Any] = {"check": uuid4().hex, "rate": rate * MIB}
    if partition is not None:
        topic, index = parse_partition(partition)
        arguments |= {"topic": topic, "partition": index}

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        with Progress("files", 1) as progress:
            while True:
                answer = await operate(cluster, "verify", **arguments)
                nodes: list[dict[str, Any]] = answer["nodes"]
                there = [each for each in nodes if each["answers"]]
                progress.total = max(1, sum(each["steps"] for each in there))
                progress.done = min(progress.total, sum(each["done"] for each in there))
                if all(each["over"] for each in there):
                    return nodes
                await asyncio.sleep(POLL_SECONDS)

    nodes = run(bootstrap, work)
    assert nodes is not None
    wrong = troubles(nodes)
    if as_json:
        emit({"nodes": nodes, "sound": not wrong, "problems": wrong})
    else:
        _show(nodes, wrong)
    if wrong:
        raise typer.Exit(1)
    if not any(each.get("replicas") for each in nodes):
        fail("there is no replica to verify on the nodes that answer")


def troubles(nodes: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong, as sentences."""
    found = [
        f"node {each['node']} does not answer, or is busy with other checks: its replicas were not"
        " verified"
        for each in nodes
        if not each["answers"]
    ]
    for node in nodes:
        if node.get("failed"):
            found.append(f"node {node['node']} did not read everything: {node['failed']}")
        for replica in node.get("replicas", ()):
            found += [
                f"{replica['partition']} on node {node['node']}: {damage['why']}"
                for damage in replica["damage"]
            ]
        for each in node.get("comparisons", ()):
            if each["text"] is not None:
                found.append(each["text"])
    return found


def _show(nodes: list[dict[str, Any]], wrong: list[str]) -> None:
    rows = [
        (
            replica["partition"],
            node["node"],
            replica["segments"],
            format_bytes(replica["bytes"]),
            replica["snapshots"],
            "DAMAGED" if replica["damage"] else "sound",
        )
        for node in nodes
        for replica in node.get("replicas", ())
    ]
    emit_table(("REPLICA", "NODE", "SEGMENTS", "READ", "SNAPSHOTS", "RESULT"), sorted(rows))
    unlisted = sum(node.get("unlisted", 0) for node in nodes)
    if unlisted:
        typer.echo(f"and {plural(unlisted, 'replica')} more, all sound")
    comparisons = [each for node in nodes for each in node.get("comparisons", ())]
    typer.echo("")
    for each in sorted(comparisons, key=lambda found: found["partition"]):
        typer.echo(_comparison(each))
    for text in wrong:
        typer.echo(text)
    typer.echo("Damage or differences were found." if wrong else "All that was read is sound.")


def _comparison(each: dict[str, Any]) -> str:
    name, nodes = each["partition"], ", ".join(map(str, each["nodes"]))
    if each["problem"] is not None:
        return f"{name}: not compared: {each['problem']}"
    if each["last"] < each["first"]:
        return f"{name}: nodes {nodes} have nothing that compaction may not have changed"
    compared = f"offsets {each['first']} to {each['last']} of nodes {nodes}"
    return f"{name}: {compared} {'differ' if each['text'] else 'are equal'}"
