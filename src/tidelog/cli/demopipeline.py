"""The last part of `tidelog demo`: the sample pipeline, from topics to a table in the lake."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.errors import fail
from tidelog.cli.spark import what_is_missing

if TYPE_CHECKING:
    from rich.console import Console

    from tidelog.cli.pipelineview import Report
    from tidelog.spark.pipelines.sample import Fed

ORDERS: Final = 2_000
MASTER: Final = "local[2]"


def show_pipeline(bootstrap: str, directory: Path, used: str, console: Console) -> None:
    """Run the sample on the demo's cluster; `used` is a topic of the demo that it needs anew."""
    missing = what_is_missing()
    if missing is not None:
        console.print(f"\nThe pipeline on Spark is left out. {missing}")
        return
    from tidelog.cli.pipelineview import watch
    from tidelog.spark.pipelines.launching import launch
    from tidelog.spark.pipelines.project import create
    from tidelog.spark.pipelines.runner import Order

    fed = asyncio.run(_feed(bootstrap, used))
    console.print(
        f"\n[bold]A pipeline on Spark[/bold]: {fed.orders:,} orders and {fed.payments:,} payments"
        f" come in as topics, {fed.bad_orders + fed.bad_payments} of them bad. Paid orders go out"
        " as a topic, revenue by day goes to the lake.\n"
    )
    project = create(directory, name="shop", bootstrap=bootstrap)
    lake = project.lake(None)
    order = Order(
        project=str(project.directory), master=MASTER, bootstrap=bootstrap, lake=lake, events=-1
    )
    report = watch(launch(project, order), quiet=False, console=console)
    if report.interrupted:
        raise KeyboardInterrupt
    if not report.ok:
        fail(" ".join(report.problems) or "The pipeline failed")
    _show(report, console)
    total = _show_revenue(lake, console)
    if total != fed.paid:
        fail(f"{fed.paid} orders were paid and {total} are in the lake: please report this")
    console.print(f"\n[bold]{total:,} paid orders in the lake, none lost, none doubled.[/bold]")


async def _feed(bootstrap: str, used: str) -> Fed:
    from tidelog.client import Admin, Cluster
    from tidelog.spark.pipelines import sample

    async with Cluster(bootstrap, client_id="demo") as cluster:
        await Admin(cluster).delete_topic(used)
        return await sample.feed(cluster, ORDERS, seed=1)


def _show(report: Report, console: Console) -> None:
    table = _table("FLOW", "READ", "WRITTEN", "REJECTED", "SECONDS")
    for flow in report.flows.values():
        table.add_row(
            flow.name,
            f"{flow.read:,}" if flow.batches else "-",
            "-" if flow.written is None else f"{flow.written:,}",
            f"{flow.rejected:,}" if flow.rules else "-",
            f"{flow.milliseconds / 1000:.1f}" if flow.batches else "-",
        )
    console.print(table)


def _show_revenue(place: str, console: Console) -> int:
    """Print the revenue by day, from the lake, and return how many orders it stands for."""
    from tidelog.spark.lake import Lake

    rows = Lake(place).table("daily_revenue").scan().to_arrow().to_pylist()
    currencies = sorted({row["currency"] for row in rows})
    by_day: defaultdict[Any, dict[str, float]] = defaultdict(dict)
    for row in rows:
        by_day[row["day"]][row["currency"]] = row["revenue"]
    table = _table("DAY", *currencies)
    for day in sorted(by_day):
        sums = (f"{by_day[day].get(currency, 0):,.2f}" for currency in currencies)
        table.add_row(str(day), *sums)
    console.print("\n[bold]Revenue by day[/bold], read from the lake:\n", table, sep="\n")
    return sum(row["orders"] for row in rows)


def _table(*titles: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place else "left")
    return table
