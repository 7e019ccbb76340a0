"""Invariants of harm: what rots on one disk stays there, and costs no more than it must."""

from collections.abc import Iterator, Sequence

from tidelog.raft.messages import AppendRequest
from tidelog.records import Batch, CorruptBatch
from tidelog.sim.facts import Case
from tidelog.sim.invariants.log import difference
from tidelog.sim.truth import Entry, GroupTruth


def invariant_35_nothing_leaves_a_disk_but_what_was_written(case: Case) -> Iterator[str]:
    """What a replica sends, serves, applies or seals anew is what a leader once wrote."""
    for sent in case.sent:
        if isinstance(sent.message, AppendRequest):
            for why in _changed(case.truth, sent.message.batches):
                yield f"{sent.vnode} sent {sent.message.target} {why}"
    for served in case.served:
        for why in _changed(case.truth, served.batches):
            yield f"{served.vnode} gave a reader {why}"
    for fed in case.fed:
        for why in _changed(case.truth, fed.batches):
            yield f"{fed.vnode} applied {why}"
    for vnode, entry, batch in case.resealed:
        if (change := _change(entry, batch)) is not None:
            yield f"{vnode} gave {entry} a right checksum with other content: {change}"


def _changed(truth: GroupTruth, batches: Sequence[Batch]) -> Iterator[str]:
    for batch in batches:
        if batch.is_ghost:
            continue
        entry = truth.entries.get((batch.last_offset, batch.term))
        if entry is None:
            yield f"{batch}, which no leader wrote"
        elif (why := _change(entry, batch)) is not None:
            yield f"{entry} with other content: {why}"


def _change(entry: Entry, batch: Batch) -> str | None:
    try:
        return difference(entry, batch)
    except CorruptBatch as error:
        return f"its records cannot be read: {error.reason}"


def invariant_36_a_replica_is_lost_only_for_what_it_needs(case: Case) -> Iterator[str]:
    """Damage to what a replica whose log is whole can do without does not end it."""
    for loss in case.losses:
        if not loss.needed:
            yield (
                f"{loss.vnode} has a log from the first offset on, and is lost because {loss.harm}:"
                f" {loss.why}"
            )
