"""Invariants of the log: what is appended, kept, cut and flushed on each replica."""

from collections.abc import Iterator
from itertools import pairwise

from tidelog.raft.messages import AppendRequest
from tidelog.records import Batch, BatchType, read_records
from tidelog.sim.facts import Case, Exam, Truncation
from tidelog.sim.truth import Entry, GroupTruth, Link


def invariant_08_logs_match(case: Case) -> Iterator[str]:
    """Two logs that hold the same offset with the same term hold the same everything before it."""
    for linked in case.linked:
        if linked.link is Link.FORK:
            yield f"{linked.vnode} appended {linked.entry} to a log that does not lead to it"
        elif linked.link is Link.STRANGER:
            yield f"{linked.vnode} appended {linked.batch}, which no leader wrote"
        elif (why := difference(linked.entry, linked.batch)) is not None:
            yield f"{linked.vnode} appended {linked.entry} with other content: {why}"
    for exam in case.exams:
        for batch in exam.strangers:
            yield f"{exam.vnode} stores {batch}, which is no part of its log's history"


def invariant_10_committed_content_never_changes(case: Case) -> Iterator[str]:
    """The term and content of a committed offset are the same for ever, but for compaction."""
    truth = case.truth
    for _, sight in case.sights.values():
        decided = truth.ledger.at(min(sight.committed, truth.ledger.dirty))
        if decided is not None and not truth.replica(sight.vnode).lineage.holds(decided):
            there = truth.replica(sight.vnode).lineage.at(decided.base)
            yield f"{decided} is committed; {sight.vnode} committed {there} in its place"
    for exam in case.exams:
        for entry, batch in exam.pairs:
            if batch is None or batch.data == entry.data or entry.last > exam.sight.committed:
                continue
            if (why := difference(entry, batch)) is not None:
                yield f"the committed {entry} changed on {exam.vnode}: {why}"


def difference(entry: Entry, batch: Batch) -> str | None:
    """What a stored batch says that its entry never said; None for equal or properly compacted."""
    if batch.data == entry.data:
        return None
    if batch.last_offset != entry.last or not entry.base <= batch.base_offset:
        return f"it covers [{batch.base_offset}, {batch.last_offset}]"
    if batch.type is BatchType.PLACEHOLDER:
        return None if entry.is_data else f"a placeholder stands for {entry}"
    if batch.type is not entry.type:
        return f"it is a {batch.type.name.lower()} batch"
    if entry.type is BatchType.SNAPSHOT:
        return None  # superseded: emptied, so that it still takes its offset
    original = entry.batch
    identity = (original.producer_id, original.producer_epoch, original.base_sequence)
    if (batch.producer_id, batch.producer_epoch, batch.base_sequence) != identity:
        return "it names another producer or sequence"
    said = {
        original.base_offset + record.offset_delta: (record.key, record.value, record.headers)
        for record in entry.records
    }
    for record in read_records(batch):
        offset = batch.base_offset + record.offset_delta
        if said.get(offset) != (record.key, record.value, record.headers):
            return f"the record at {offset} is another one"
    return None


def invariant_11_truncation_removes_only_conflicts(case: Case) -> Iterator[str]:
    """No committed entry is cut off, and nothing is cut but for a batch that contradicts it."""
    for cut in case.truncations:
        if cut.first_removed <= cut.committed:
            yield f"{cut.vnode} cut its log at {cut.first_removed}, committed up to {cut.committed}"
        for entry in cut.removed:
            if case.truth.ledger.holds(entry):
                yield f"{cut.vnode} cut off {entry}, which is committed"
        if (why := _baseless(case.truth, cut)) is not None:
            yield f"{cut.vnode} cut its log at {cut.first_removed} {why}"


def _baseless(truth: GroupTruth, cut: Truncation) -> str | None:
    """Why a truncation had no cause; None if the request contradicts what was removed first."""
    request = cut.cause
    if not isinstance(request, AppendRequest):
        return f"because of {request}"
    if not request.batches:
        return "because of a heartbeat"
    newest = request.batches[-1]
    tip = truth.entries.get((newest.last_offset, newest.term))
    if not cut.removed or tip is None:
        return None  # invariant 8 judges what follows
    first = cut.removed[0]
    if tip.depth >= first.depth and tip.ancestor(first.depth) is first:
        return f"though the request agrees with {first}"
    return None


def invariant_12_a_crash_loses_only_what_was_dirty(case: Case) -> Iterator[str]:
    """A crash loses a suffix of what was not flushed: nothing flushed, and nothing in between."""
    for opening in case.openings:
        lineage = case.truth.replica(opening.vnode).lineage
        if opening.kept is not None and not lineage.holds(opening.kept):
            yield (
                f"{opening.vnode} had flushed up to {opening.flushed} and came back without "
                f"{opening.kept}: its log ends at {opening.dirty}"
            )
        if opening.tip is None and opening.dirty >= 0 and lineage.dirty != opening.dirty:
            yield f"{opening.vnode} came back with an end at {opening.dirty} that it never wrote"
    for exam in case.exams:
        if exam.opened:
            for entry, batch in exam.pairs:
                if batch is None and entry.last > _holes_upto(exam):
                    yield f"{exam.vnode} came back with a hole where {entry} was"


def _holes_upto(exam: Exam) -> int:
    return max(exam.sight.collectible, exam.sight.compacted)


def invariant_13_a_flush_counts_only_what_is_on_disk(case: Case) -> Iterator[str]:
    """What counts as flushed is on the disk: no flush is credited across a truncation."""
    for vnode, entry, flushed in case.flushes:
        if entry is not None and not case.disks.holds(vnode, entry):
            yield f"{vnode} counts offset {flushed} as flushed; {entry} is not on its disk"


def invariant_17_streams_are_contiguous(case: Case) -> Iterator[str]:
    """Appends are contiguous, ghosts included; a ghost has the true term, and is never last, kept
    or applied."""
    for sent in case.sent:
        if isinstance(sent.message, AppendRequest):
            for why in _breaks(case.truth, sent.message):
                yield f"{sent.vnode} sent {sent.message.target} {why}"
    for exam in case.exams:
        for batch in (*(stored for _, stored in exam.pairs), *exam.strangers):
            if batch is not None and batch.is_ghost:
                yield f"{exam.vnode} stored a ghost: {batch}"
    for fed in case.fed:
        for batch in fed.batches:
            if batch.is_ghost:
                yield f"{fed.vnode} applied a ghost: {batch}"


def _breaks(truth: GroupTruth, request: AppendRequest) -> Iterator[str]:
    expected = request.prev_offset + 1
    for batch in request.batches:
        if batch.base_offset != expected:
            yield f"{batch} where offset {expected} was due"
        expected = batch.last_offset + 1
    if not request.batches:
        return
    newest = request.batches[-1]
    if newest.is_ghost:
        yield f"a ghost as the last batch: {newest}"
    tip = truth.entries.get((newest.last_offset, newest.term))
    for batch in request.batches:
        if batch.is_ghost and tip is not None:
            step: Entry | None = tip
            while step is not None and step.last >= batch.base_offset:
                if step.base <= batch.last_offset and step.term != batch.term:
                    yield f"a ghost of term {batch.term} for {step}"
                step = step.parent


def invariant_18_segments_have_one_term(case: Case) -> Iterator[str]:
    """A segment holds one term, terms never fall, and each segment's last offset survives."""
    for exam in case.exams:
        segments = exam.segments
        for earlier, later in pairwise(segments):
            if later.term < earlier.term:
                yield f"{exam.vnode} has a segment of term {later.term} after {earlier}"
            if later.base != earlier.last + 1:
                yield f"{exam.vnode} has a segment that ends at {earlier.last} before {later}"
        stored = [batch for _, batch in exam.pairs if batch is not None]
        ends = {batch.last_offset: batch for batch in stored}
        for segment in segments:
            if segment.last >= segment.base and segment.last not in ends:
                yield f"the last offset of {segment} did not survive on {exam.vnode}"
        index = 0
        for batch in stored:
            while index < len(segments) and segments[index].last < batch.base_offset:
                index += 1
            if index < len(segments) and batch.term != segments[index].term:
                yield f"{exam.vnode} keeps {batch} in {segments[index]}"
