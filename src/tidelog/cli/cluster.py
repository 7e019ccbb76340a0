"""`tidelog cluster`: nodes, leaders, disks, and partitions that are in trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
from tidelog.cli.health import Problem, is_healthy, problems, summary

if TYPE_CHECKING:
    from tidelog.client import Cluster

app = typer.Typer(
    help="Show cluster health.",
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
        typer.Option("--check", help="Exit with status 1 unless the cluster is healthy."),
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show nodes, leaders and disks, then what is wrong, the most severe first.

    The last line sums up. A cluster is healthy if every node answers and every partition has its
    leader and all its replicas. *critical* problems keep clients from something, *warnings* cost
    redundancy, *notes* pass by themselves.

    `--json` prints everything that the nodes report, with `healthy` and `problems`.

    **Examples**

    `tidelog cluster status`

    `tidelog cluster status --check` in a script that waits until the cluster is healthy
    """
    from tidelog.client import operate

    async def work(cluster: Cluster) -> dict[str, Any]:
        found: dict[str, Any] = await operate(cluster, "status")
        return found

    found = run(bootstrap, work)
    assert found is not None
    wrong = problems(found)
    if as_json:
        emit({**found, "healthy": is_healthy(wrong), "problems": [p.document() for p in wrong]})
    else:
        _show(found, wrong)
    if check and not is_healthy(wrong):
        raise typer.Exit(1)


def _absent(founder: int) -> dict[str, Any]:
    """Return the row of a node that was to found the cluster and never came."""
    return {
        "id": founder,
        "alive": True,
        "status": "never joined",
        "kafka": None,
        "rack": None,
        "replicas": None,
    }


def _show(found: dict[str, Any], wrong: list[Problem]) -> None:
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
            for node in (*found["nodes"], *map(_absent, found.get("absent_founders", [])))
        ),
    )
    typer.echo("")
    for problem in wrong:
        typer.echo(str(problem))
    typer.echo(summary(wrong))
