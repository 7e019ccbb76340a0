"""`tidelog node recover`: go on with what is left after the majority of the nodes is gone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from tidelog.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    emit,
    emit_table,
    note,
    plural,
    run,
)
from tidelog.cli.errors import fail

if TYPE_CHECKING:
    from tidelog.client import Cluster
    from tidelog.cluster.recovering import Rescue, Survey

WORD: Final = "recover"  # what has to be typed
ALL: Final = "all"  # instead of a partition
SHOWN: Final = 50  # partitions of one kind; `--json` has them all

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask. For scripts that have asked before.")]


class _Say(NamedTuple):
    """How the operator wants to be talked to."""

    yes: bool  # not asked
    as_json: bool


def recover(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", help="Data directory of the node, which is stopped.", file_okay=False
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            help="Other nodes whose directories are sound: 3,4. All the rest is given up.",
            metavar="IDS",
        ),
    ] = "",
    follow: Annotated[
        str | None,
        typer.Option(
            help="Let a kept node follow: the join token of the cluster that was recovered.",
            metavar="TOKEN",
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            help="On a running cluster: recover this partition (repeatable), or all.",
            metavar="TOPIC/P|all",
        ),
    ] = None,
    recreate_empty: Annotated[
        bool,
        typer.Option("--recreate-empty", help="Begin partitions anew of which no replica is left."),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Go on with what is left after a majority is gone for good. **This may lose data.**

    A cluster whose majority is down stays unavailable, because the nodes that are down may have
    acknowledged what the others do not have. If they can be started again, start them: nothing is
    lost then. This command is for disks that are gone.

    **The majority of the nodes is gone.** Stop every node that is left. Choose the one with the
    most data, and run `tidelog node recover --data DIR` on its machine. It prints what is there and
    what may be lost, asks, and makes this node a cluster by itself, with a new cluster id. Start
    the node; new nodes join it with empty directories, under the ids of those that are gone or
    under new ones, and receive copies. Former nodes that come back with their old directories are
    refused. Never start a majority of them together: they would go on as the old cluster.

    If other directories are sound as well, name their nodes with `--keep`, start the recovered
    node, and run `tidelog node recover --data DIR --follow TOKEN` for each of the others, with the
    token that `tidelog node token` prints on the recovered node. Their replicas are used again.

    **The cluster runs, and partitions lost the majority of their replicas.** Run
    `tidelog node recover --partition TOPIC/P`: the replica with the longest log goes on.

    **Examples**

    `tidelog node recover --data /var/lib/tidelog`

    `tidelog node recover --data /var/lib/tidelog --keep 4,5`

    `tidelog node recover --partition orders/0 --partition orders/3 --bootstrap node-1:9092`
    """
    if (data is None) == (not partition):
        raise typer.BadParameter(
            "name either --data, for a node that is stopped, or --partition, on a running cluster."
        )
    if partition:
        _recover_partitions(partition, bootstrap, recreate_empty, _Say(yes, as_json))
        return
    assert data is not None
    kept = _ids(keep)
    from tidelog.cluster.errors import StartFailed
    from tidelog.cluster.recovering import rescue

    try:
        with rescue(data, needs_log=follow is None) as found:
            if follow is not None:
                _follow(found, data, follow, _Say(yes, as_json))
            else:
                _go_on(found, data, kept, recreate_empty, _Say(yes, as_json))
    except StartFailed as error:
        fail(error)


# --- The controller -------------------------------------------------------------------------------


def _go_on(found: Rescue, data: Path, keep: list[int], empty: bool, say: _Say) -> None:
    survey = found.survey(keep)
    if not say.as_json:
        _show(survey, data, empty)
    if survey.has_majority:
        fail(
            f"nodes {_names(survey.lost) or 'that would be given up'} are no majority of"
            f" {len(survey.members)}: start the others, and the cluster works without them."
            " `tidelog node decommission` removes nodes for good"
        )
    _ask(say, f"Give up {plural(len(survey.lost), 'node')} and go on with this one?")
    cluster_id = found.go_on(survey, empty=empty)
    if say.as_json:
        emit({"recovered": True, "new_cluster_id": cluster_id, **_document(survey)})
        return
    typer.echo(
        f"\nNode {survey.node} is a cluster by itself now, with the id {cluster_id}. Next:\n"
        "1. Start it.\n"
        f"2. `tidelog node token --data {data}` prints the join token for new nodes.\n"
        f"3. Empty the directories of nodes {_names(survey.lost)} before you start them again."
    )


def _show(survey: Survey, data: Path, empty: bool) -> None:
    from tidelog.cluster.recovering import Fate

    members = ", ".join(
        f"{node} (this one)" if node == survey.node else f"{node}" for node in survey.members
    )
    unsure = survey.end - survey.committed
    typer.echo(
        f"{data}: node {survey.node} of cluster {survey.cluster_id}\n"
        f"members:          {members}\n"
        f"to be given up:   {_names(survey.lost)}\n"
        f"controller's log: known to be committed up to offset {survey.committed}, and goes on to"
        f" {survey.end}, in term {survey.term}"
        + (f" ({unsure} offsets may never have been acknowledged)" if unsure else "")
        + "\n"
    )
    emit_table(
        ("PARTITION", "REPLICAS", "FLUSHED HERE", "WHAT BECOMES OF IT"),
        (
            (
                f"{each.topic}/{each.index}",
                each.replicas,
                each.flushed,
                _fate(each.fate.value, each.survivor, survey.node, empty),
            )
            for each in survey.partitions[:SHOWN]
        ),
    )
    if len(survey.partitions) > SHOWN:
        typer.echo(f"and {len(survey.partitions) - SHOWN} more; --json lists all")
    alone, gone = survey.count(Fate.ALONE), survey.count(Fate.GONE)
    typer.echo(
        "\n"
        + typer.style("WHAT MAY BE LOST, AND CANNOT BE BROUGHT BACK AFTERWARDS", bold=True)
        + f"\n- Everything that nodes {_names(survey.lost)} acknowledged and this directory does"
        " not have: records,\n  offsets of consumer groups, topics, settings, users.\n"
        f"- {plural(alone, 'partition')} with one replica left: the end of its log may be missing,"
        " and consumers\n  that were further are sent back.\n"
        f"- {plural(gone, 'partition')} without any replica left: "
        + ("they begin anew, empty.\n" if empty else "their data is gone, and they stay down.\n")
        + f"- If a majority of the old nodes ({_names(survey.lost)}) is ever started together with"
        " its old directories,\n  it goes on as the old cluster. Make sure that this cannot happen."
    )


def _fate(fate: str, survivor: int | None, me: int, empty: bool) -> str:
    if survivor is not None:
        return "goes on here, alone" if survivor == me else f"goes on on node {survivor}, alone"
    return {
        "untouched": "nothing",
        "majority": "keeps a majority",
        "undecided": "stays down until `tidelog node recover --partition`",
        "gone": "begins anew, empty" if empty else "stays down: no replica is left",
    }[fate]


def _document(survey: Survey) -> dict[str, Any]:
    return {
        "node": survey.node,
        "cluster_id": survey.cluster_id,
        "members": survey.members,
        "lost": survey.lost,
        "controller": {
            "term": survey.term,
            "committed": survey.committed,
            "end": survey.end,
            "version": survey.version,
        },
        "partitions": [
            {
                "partition": f"{each.topic}/{each.index}",
                "replicas": each.replicas,
                "fate": each.fate.value,
                "survivor": each.survivor,
                "flushed": each.flushed,
            }
            for each in survey.partitions
        ],
    }


def _follow(found: Rescue, data: Path, word: str, say: _Say) -> None:
    from tidelog.cluster.jointoken import InvalidToken, JoinToken

    try:
        token = JoinToken.decode(word)
    except InvalidToken as error:
        fail(error)
    note(
        f"The node in {data} is about to join cluster {token.cluster_id}, which was recovered on"
        " another node.\nIts replicas are used there as far as that node was told to keep them."
        " What it knows of topics,\nsettings and members is replaced."
    )
    _ask(say, "Follow the recovered cluster?")
    found.follow(token)
    if say.as_json:
        emit({"followed": True, "cluster_id": token.cluster_id})
    else:
        typer.echo(f"The node in {data} belongs to cluster {token.cluster_id} now: start it.")


# --- Partitions -----------------------------------------------------------------------------------


def _recover_partitions(names: list[str], bootstrap: str, empty: bool, say: _Say) -> None:
    from tidelog.client import operate

    chosen = None if names == [ALL] else names

    def ask_cluster(confirm: bool) -> dict[str, Any]:
        async def work(cluster: Cluster) -> dict[str, Any]:
            found: dict[str, Any] = await operate(
                cluster, "recover", partitions=chosen, confirm=confirm, empty=empty
            )
            return found

        found = run(bootstrap, work)
        assert found is not None
        return found

    found = ask_cluster(False)
    if not found["partitions"]:
        fail("no partition lost the majority of its replicas: there is nothing to recover")
    if not say.as_json:
        _show_partitions(found["partitions"], empty)
    if not empty and not any(each["survivor"] for each in found["partitions"]):
        fail(
            "no replica of these partitions is left on a node that answers. Start the nodes that"
            " are down, or begin anew with --recreate-empty"
        )
    _ask(say, f"Go on with what is left of {plural(len(found['partitions']), 'partition')}?")
    done = ask_cluster(True)
    if say.as_json:
        emit(done)
    else:
        typer.echo(f"{plural(done['recovered'], 'partition')} recovered.")


def _show_partitions(found: list[dict[str, Any]], empty: bool) -> None:
    for each in found:
        typer.echo(each["partition"])
        for replica in each["found"]:
            chosen = replica == each["survivor"]
            typer.echo(
                f"  node {replica['node']}: its log ends at offset {replica['end']}, in term"
                f" {replica['last_term']}{'; it goes on alone' if chosen else ''}"
            )
        if each["silent"]:
            typer.echo(
                f"  nodes {_names(each['silent'])} do not answer: if they can be started, start"
                " them instead"
            )
        if each["survivor"] is None:
            typer.echo(
                "  no replica with records is left"
                + ("; it begins anew, empty" if empty else "; it stays down")
            )
    typer.echo(
        "\n"
        + typer.style("WHAT MAY BE LOST, AND CANNOT BE BROUGHT BACK AFTERWARDS", bold=True)
        + "\nEverything that the other replicas acknowledged and the one that goes on does not"
        " have.\nConsumers that were further are sent back."
    )


# --- Asking ---------------------------------------------------------------------------------------


def _ask(say: _Say, question: str) -> None:
    """Return if the operator wants it; end the command if not."""
    if say.yes:
        return
    if say.as_json or not sys.stdin.isatty():
        fail("nothing was changed: this needs --yes where nobody can be asked")
    answer = typer.prompt(f'\n{question} Type "{WORD}" to do it', default="", show_default=False)
    if answer.strip() != WORD:
        fail("nothing was changed")


def _ids(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",") if each.strip()]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write the ids of nodes, as 3,4.") from None


def _names(nodes: Any) -> str:
    return ", ".join(map(str, nodes))
