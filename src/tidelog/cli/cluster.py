"""`tidelog cluster`: nodes, leaders, disks, and partitions that are in trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    emit,
    emit_table,
    format_bytes,
    plural,
    run,
)

if TYPE_CHECKING:
    from tidelog.client import Cluster

# Names of partitions shown of each kind of trouble; JSON has them all.
SHOWN: Final = 8

app = typer.Typer(
    help="See how the cluster is.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)


@app.callback()
def _group() -> None:
    """Keep `status` a command of its own, next to those that will follow."""


@app.command()
def status(
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with 1 unless every node and partition is well."),
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show nodes, leaders, disks, and partitions that are in trouble.

    **Examples**

    `tidelog cluster status`

    `tidelog cluster status --check` in a script that waits for a cluster to be well
    """
    from tidelog.client import operate

    async def work(cluster: Cluster) -> dict[str, Any]:
        found: dict[str, Any] = await operate(cluster, "status")
        return found

    found = run(bootstrap, work)
    assert found is not None
    if as_json:
        emit(found)
    else:
        _show(found)
    if check and not is_well(found):
        raise typer.Exit(1)


def is_well(found: dict[str, Any]) -> bool:
    """Tell whether every node answers and every partition has its leader and all its replicas."""
    return (
        found["controller"] is not None
        and all(
            node["alive"]
            and not node["rebuilding"]
            and not node.get("failed_partitions")
            and not node.get("lost_partitions")
            for node in found["nodes"]
        )
        and not found["leaderless"]
        and not found["under_replicated"]
    )


def _show(found: dict[str, Any]) -> None:
    controller = found["controller"]
    led = "no controller" if controller is None else f"controller node {controller}"
    typer.echo(
        f"cluster {found['cluster_id']}: {plural(len(found['nodes']), 'node')}, {led}, "
        f"{plural(found['topics'], 'topic')}, {plural(found['partitions'], 'partition')}\n"
    )
    emit_table(
        ("NODE", "STATE", "KAFKA", "RACK", "REPLICAS", "LEADERS", "DATA", "DISK FREE"),
        (
            (
                node["id"],
                node["status"] if node["alive"] else "down",
                node["kafka"],
                node["rack"],
                node["replicas"],
                node.get("leaders"),
                format_bytes(node.get("data_bytes")),
                format_bytes(node.get("disk_free_bytes")),
            )
            for node in found["nodes"]
        ),
    )
    troubles = (
        ("without a leader", found["leaderless"]),
        ("with replicas behind or down", found["under_replicated"]),
        ("on the move", found["moving"]),
    )
    lines = [_trouble(what, names) for what, names in troubles if names]
    for node in found["nodes"]:
        failed = node.get("failed_partitions") or {}
        lines += [f"node {node['id']}: {name} failed: {why}" for name, why in failed.items()]
        lost = node.get("lost_partitions") or {}
        lines += [f"node {node['id']}: {name} is lost: {why}" for name, why in lost.items()]
        if node["rebuilding"]:
            count = f"{len(node['rebuilding'])} of {plural(node['replicas'], 'replica')}"
            lines.append(f"node {node['id']} is rebuilding {count} from its peers")
    typer.echo("\n" + ("\n".join(lines) or "Every partition has its leader and all its replicas."))


def _trouble(what: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{plural(len(names), 'partition')} {what}: {', '.join(names[:SHOWN])}{more}"
