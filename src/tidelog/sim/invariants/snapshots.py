"""Invariants of compaction, snapshots and machines: nothing is forgotten that somebody needs."""

from collections.abc import Iterator

from tidelog.cluster.written import decode_snapshot
from tidelog.raft.events import ResetLog
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset, internal_payload, read_records
from tidelog.sim.facts import Case, Exam, Sight
from tidelog.sim.truth import Entry, GroupTruth, has_majority


def invariant_19_compaction_stays_below_the_bound(case: Case) -> Iterator[str]:
    """Compaction touches only what a majority has a snapshot of, and keeps the newest of a key."""
    for before, sight in case.sights.values():
        if before is None or sight.compacted > before.compacted:
            yield from _unshipped(case.truth, sight)
        if before is None or sight.collectible > before.collectible:
            yield from _uncovered(case.truth, sight)
    for exam in case.exams:
        bound = max(exam.sight.collectible, exam.sight.compacted)
        removed = [
            (entry, batch)
            for entry, batch in exam.pairs
            if batch is None or (batch.data != entry.data and entry.is_data)
        ]
        for entry, _ in removed:
            if entry.last > bound:
                yield f"{exam.vnode} compacted {entry}, above the bound {bound}"
            if not entry.is_data and entry.type is not BatchType.SNAPSHOT:
                yield f"{exam.vnode} compacted {entry}, which is no data"
        if removed:
            yield from _lost_keys(case.truth, exam, removed)


def _unshipped(truth: GroupTruth, sight: Sight) -> Iterator[str]:
    """Why a replica must not yet say that the log is compacted up to its mark.

    The mark is set when a majority has a snapshot of it, or the log itself ships one; from then on
    it is told on, and no later change of the configuration makes it wrong.
    """
    upto = sight.compacted
    if upto <= truth.safe_to_compact:
        return
    stored = {vnode: max(r.snapshots, default=NO_OFFSET) for vnode, r in truth.replicas.items()}
    if has_majority(sight.configuration, lambda voter: stored.get(voter, NO_OFFSET) >= upto):
        truth.safe_to_compact = upto
    elif (shipped := _shipped_in_log(truth)) >= upto:
        truth.safe_to_compact = shipped
    else:
        holders = " ".join(str(vnode) for vnode, offset in stored.items() if offset >= upto)
        yield (
            f"{sight.vnode} says that the log is compacted up to {upto}; only ({holders}) of "
            f"{sight.configuration} have a snapshot of that"
        )


def _uncovered(truth: GroupTruth, sight: Sight) -> Iterator[str]:
    """Why what a replica holds for collectible is not safe to collect."""
    upto = sight.collectible
    if upto > truth.ledger.dirty:
        yield f"{sight.vnode} may compact up to {upto}; only {truth.ledger.dirty} is committed"
    if upto > sight.compacted:
        yield f"{sight.vnode} may compact up to {upto}; it would say {sight.compacted}"
    if max(truth.replica(sight.vnode).snapshots, default=NO_OFFSET) < upto:
        yield f"{sight.vnode} may compact up to {upto} and has no snapshot of that on disk"


def _shipped_in_log(truth: GroupTruth) -> Offset:
    """The newest snapshot that is a committed batch of the log."""
    for entry in reversed(truth.ledger.entries):
        if entry.type is BatchType.SNAPSHOT:
            return decode_snapshot(internal_payload(entry.batch))[0].offset
    return NO_OFFSET


def _lost_keys(
    truth: GroupTruth, exam: Exam, removed: list[tuple[Entry, Batch | None]]
) -> Iterator[str]:
    """Records that went although no newer one of the same key took their place.

    The newer one need not be here: holes come from other logs too, before what made them.
    """
    newest: dict[bytes | None, int] = {}
    for entry in truth.ledger.between(NO_OFFSET, max(truth.safe_to_compact, exam.sight.compacted)):
        if entry.is_data:
            for record in entry.records:
                newest[record.key] = entry.base + record.offset_delta
    for entry, batch in removed:
        if not entry.is_data:
            continue
        kept = set()
        if batch is not None and batch.type is BatchType.DATA:
            kept = {batch.base_offset + record.offset_delta for record in read_records(batch)}
        for record in entry.records:
            offset = entry.base + record.offset_delta
            if offset in kept or newest.get(record.key, NO_OFFSET) > offset:
                continue
            if record.value is None and record.timestamp + exam.delete_retention_ms <= exam.now_ms:
                continue  # a tombstone that outlived its time
            what = "value" if record.value is not None else "tombstone"
            yield f"{exam.vnode} compacted the newest {what} of key {record.key!r}, at {offset}"


def invariant_20_a_snapshot_is_the_fold_of_everything(case: Case) -> Iterator[str]:
    """A snapshot at X is the fold of the uncompacted history up to X, whoever took it."""
    for saved in case.saved:
        if saved.state is None or saved.snapshot.offset > case.truth.ledger.dirty:
            continue  # invariants 22 and 21 judge these
        if saved.state != case.fold(saved.snapshot.offset):
            yield f"{saved.snapshot} on {saved.vnode} is not the fold of the history up to there"


def invariant_21_a_snapshot_covers_what_is_gone(case: Case) -> Iterator[str]:
    """A log that begins late has a snapshot of what came before; snapshots only move on.

    A replica whose snapshot was harmed gets one from its peers, and its machines wait for it.
    """
    truth = case.truth
    for before, sight in case.sights.values():
        snapshot = sight.snapshot
        covered = snapshot.offset if snapshot is not None else NO_OFFSET
        if sight.start > 0 and covered < sight.start - 1 and not sight.waits:
            yield f"the log of {sight.vnode} begins at {sight.start}; its snapshot is {snapshot}"
        earlier = truth.ledger.at(sight.start - 1)
        if earlier is not None and sight.prefix_term not in (0, earlier.term):
            yield (
                f"{sight.vnode} says that offset {sight.start - 1} has term {sight.prefix_term}; "
                f"it is part of {earlier}"
            )
        former = before.snapshot if before is not None else None
        if former is not None and covered < former.offset:
            yield f"{sight.vnode} went from {former} back to {snapshot}"
        if snapshot is not None and (before is None or before.snapshot != snapshot):
            entry = truth.ledger.at(snapshot.offset)
            if entry is None:
                yield f"{snapshot} on {sight.vnode} is beyond what is committed"
            elif entry.last != snapshot.offset or entry.term != snapshot.term:
                yield f"{snapshot} on {sight.vnode} ends in {entry}"


def invariant_22_an_install_moves_nothing_backwards(case: Case) -> Iterator[str]:
    """An install never takes back what is committed, applied or configured; no part is visible."""
    for step in case.steps:
        for output in step.outputs:
            if not isinstance(output, ResetLog):
                continue
            offset = output.snapshot.offset
            was, now = step.was, step.now
            if offset < was.committed or now.committed < was.committed:
                yield f"{step.vnode} installed {output.snapshot}, committed up to {was.committed}"
            if offset < was.applied:
                yield f"{step.vnode} installed {output.snapshot}, applied up to {was.applied}"
            if now.configuration_offset < was.configuration_offset <= was.committed:
                yield (
                    f"{step.vnode} installed {output.snapshot} and went back from the "
                    f"configuration at {was.configuration_offset}"
                )
    for saved in case.saved:
        if saved.state is None:
            yield f"{saved.snapshot} is visible on {saved.vnode} and cannot be read whole"


def invariant_23_every_entry_is_applied_once(case: Case) -> Iterator[str]:
    """Machines get what is committed, in order and once: their state is the fold of the history."""
    for _, sight in case.sights.values():
        if sight.applied > sight.committed:
            yield f"{sight.vnode} applied up to {sight.applied}, committed up to {sight.committed}"
    for fed in case.fed:
        applied = fed.applied
        for batch in fed.batches:
            if batch.base_offset <= applied:
                yield f"{fed.vnode} applied {batch} again, after offset {applied}"
            if batch.last_offset > fed.committed:
                yield f"{fed.vnode} applied {batch}, committed up to {fed.committed}"
            applied = batch.last_offset
    for exam in case.exams:
        # Only what may be read must be right: machines that met holes say so (seed 3).
        if exam.state is None or exam.sight.applied > exam.sight.readable:
            continue
        if exam.sight.applied > case.truth.ledger.dirty:
            yield (
                f"the machines of {exam.vnode} are at {exam.sight.applied}; only "
                f"{case.truth.ledger.dirty} is committed"
            )
        elif exam.state != case.fold(exam.sight.applied):
            yield (
                f"the machines of {exam.vnode} at {exam.sight.applied}, readable up to "
                f"{exam.sight.readable}, are not the fold of the history"
            )


def invariant_32_a_start_goes_on_from_the_fold(case: Case) -> Iterator[str]:
    """Machines that a checkpoint brings back are the fold of all that is committed up to there."""
    for opening in case.openings:
        if opening.applied == NO_OFFSET:
            continue
        if opening.applied > case.truth.ledger.dirty:
            yield (
                f"{opening.vnode} starts with machines at {opening.applied}; only "
                f"{case.truth.ledger.dirty} is committed"
            )
        elif opening.state != case.fold(opening.applied):
            yield (
                f"{opening.vnode} starts with machines at {opening.applied} that are not the fold "
                "of the history"
            )
