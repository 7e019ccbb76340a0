"""Invariants that clients live by: acknowledgements, visibility, epochs, offsets, and the end."""

from collections.abc import Iterator

from tidelog.raft.events import Accepted, Done, Refusal, Refused
from tidelog.raft.types import Level, Role
from tidelog.records import NO_OFFSET
from tidelog.sim.facts import Case, Told
from tidelog.sim.truth import has_majority

# After a proposal was accepted, only these can still be said of it.
AFTER_ACCEPTED = (Refusal.TRUNCATED, Refusal.UNKNOWN)


def invariant_14_an_acknowledgement_keeps_its_level(case: Case) -> Iterator[str]:
    """Quorum: committed. In memory: a majority has held it. Leader: it was in the leader's log."""
    for told in case.told:
        if not isinstance(told.outcome, Done):
            continue
        asked, entry = told.asked, told.asked.entry
        if entry is None:
            yield f"{told.vnode} acknowledged {asked}, which it never appended"
            continue
        where = f"{told.vnode} acknowledged {entry} at level {asked.level.name}"
        if told.outcome.offset != entry.base:
            yield f"{where} with offset {told.outcome.offset}"
        if asked.level is Level.QUORUM and not case.truth.ledger.holds(entry):
            yield f"{where}; it is not committed"
        elif asked.level is Level.MEMORY and not case.truth.ledger.holds(entry):
            if not has_majority(told.configuration, entry.held_by.__contains__):
                holders = " ".join(map(str, entry.held_by))
                yield f"{where}; only ({holders}) of {told.configuration} ever held it"
        elif told.vnode not in entry.held_by:
            yield f"{where} and never held it"


def invariant_15_no_failure_is_reported_as_success(case: Case) -> Iterator[str]:
    """An outcome is final; "truncated" is said only when the entry cannot be committed any more:
    another has its place, or one of a later term is committed before it."""
    for told in case.told:
        yield from _contradiction(case, told)


def _contradiction(case: Case, told: Told) -> Iterator[str]:
    outcome, asked = told.outcome, told.asked
    earlier = asked.outcomes[: asked.outcomes.index(outcome)]
    final = next((known for known in earlier if not isinstance(known, Accepted)), None)
    if final is not None:
        yield f"{told.vnode} said {outcome} of {asked}, of which it had said {final}"
    if not isinstance(outcome, Refused):
        return
    if earlier and outcome.why not in AFTER_ACCEPTED:
        yield f"{told.vnode} refused {asked} as {outcome.why.value!r} after it was accepted"
    if outcome.why is Refusal.TRUNCATED:
        entry = asked.entry
        ledger = case.truth.ledger
        # Of any term: a later leader may have committed what an earlier one left at that place.
        instead = ledger.at(entry.base) if entry is not None else None
        if instead is None and entry is not None and ledger.tip is not None:
            instead = ledger.tip if ledger.tip.term > entry.term else None
        if instead is None or instead is entry:
            yield f"{told.vnode} called {asked} truncated; {instead} is committed in its place"


def invariant_16_nothing_uncertain_is_visible(case: Case) -> Iterator[str]:
    """No reader sees a quorum write before it is committed, and what was seen is lost only with
    the memory of a majority, under a new epoch."""
    truth = case.truth
    for _, sight in case.sights.values():
        if sight.visible > truth.ledger.dirty:
            lineage = truth.replica(sight.vnode).lineage
            for entry in lineage.between(truth.ledger.dirty, sight.visible):
                if entry.level is Level.QUORUM:
                    yield (
                        f"{sight.vnode} shows up to {sight.visible} with {entry}, a quorum write "
                        "that is not committed"
                    )
    for committed in case.committed:
        for term, (seen, configuration) in list(truth.exposed.items()):
            if seen.depth > committed.entries[-1].depth:
                continue
            del truth.exposed[term]
            if truth.ledger.holds(seen):
                continue
            instead = truth.ledger.entries[seen.depth]
            if has_majority(
                configuration,
                lambda voter, seen=seen: (  # type: ignore[misc]
                    voter in seen.held_by and voter not in seen.lost_by
                ),
            ):
                yield (
                    f"{seen} was visible and {instead} was committed in its place, though a "
                    f"majority of {configuration} never lost it"
                )
            if instead.term <= term:
                yield f"{seen} was visible in term {term} and lost within it to {instead}"


def invariant_26_epochs_end_where_they_ended(case: Case) -> Iterator[str]:
    """The end of an epoch is the start of the next committed one, on every replica, for ever."""
    for exam in case.exams:
        starts = _term_starts(case, exam.sight.committed)
        for term, answer in exam.term_ends.items():
            later = [start for start in starts if start[0] > term]
            known = [start for start in starts if start[0] <= term and start[1] >= exam.sight.start]
            if later and known and answer != (known[-1][0], later[0][1]):
                yield (
                    f"{exam.vnode} says that epoch {term} ended at {answer}; it ended at "
                    f"{(known[-1][0], later[0][1])}"
                )


def _term_starts(case: Case, upto: int) -> list[tuple[int, int]]:
    """Each committed term with its first offset."""
    starts: list[tuple[int, int]] = []
    for entry in case.truth.ledger.entries:
        if entry.last > upto:
            break
        if not starts or starts[-1][0] != entry.term:
            starts.append((entry.term, entry.base))
    return starts


def invariant_27_client_offsets_count_data(case: Case) -> Iterator[str]:
    """Client offsets count the data records and nothing else, there and back, on all replicas."""
    for exam in case.exams:
        translated = {each.log: each for each in exam.translated}
        internal = 0
        for entry in case.truth.replica(exam.vnode).lineage.entries:
            if not entry.is_data:
                internal += entry.last - entry.base + 1
                continue
            for log in (entry.base, entry.last):
                each = translated.get(log)
                if each is not None and (each.client, each.back) != (log - internal, log):
                    yield (
                        f"{exam.vnode} turns log offset {log} into client offset {each.client} "
                        f"and back into {each.back}; {internal} internal offsets come before it"
                    )


def invariant_28_a_retry_is_written_once(case: Case) -> Iterator[str]:
    """A batch of an idempotent producer is committed once, and every retry gets its offset."""
    truth = case.truth
    for committed in case.committed:
        for entry in committed.entries:
            sequence = entry.sequence
            if sequence is not None and truth.produced[sequence] is not entry:
                first = truth.produced[sequence]
                yield f"producer, epoch and sequence {sequence} are in {first} and in {entry}"
    for told in case.told:
        if isinstance(told.outcome, Done) and told.asked.producer is not None:
            original = truth.produced.get(told.asked.producer)
            if original is not None and told.outcome.offset != original.base:
                yield (
                    f"{told.vnode} answered a retry of {told.asked.producer} with offset "
                    f"{told.outcome.offset}; it was written at {original.base}"
                )


def invariant_33_sequences_have_no_holes(case: Case) -> Iterator[str]:
    """A producer's batches are committed in the order of their numbers, from 0 in each epoch."""
    for committed in case.committed:
        for entry in committed.entries:
            sequence = entry.sequence
            if sequence is None or sequence[2] == 0:
                continue
            before = case.truth.following.get(sequence)
            if before is None or before.base > entry.base:
                yield f"{entry} has {sequence} as producer, epoch and sequence; what was before?"


def invariant_30_replicas_end_equal(case: Case) -> Iterator[str]:
    """At rest all members have equal logs but for compaction, equal machines and nothing open."""
    exams = {exam.vnode: exam for exam in case.exams}
    leader = next((exam for exam in case.exams if exam.sight.role is Role.LEADER), None)
    if leader is None:
        yield "no replica leads"
        return
    ledger = case.truth.ledger
    for vnode in leader.sight.configuration.members:
        exam = exams.get(vnode)
        if exam is None:
            yield f"{vnode} is a member of {leader.sight.configuration} and not up"
            continue
        tip = case.truth.replica(vnode).lineage.tip
        if tip is not ledger.tip:
            yield f"the log of {vnode} ends in {tip}; {ledger.tip} is the last committed entry"
        if exam.state != leader.state:
            yield f"the machines of {vnode} differ from those of {leader.vnode}"
        upto = max(exam.sight.collectible, exam.sight.compacted, exam.sight.start - 1)
        for entry, batch in exam.pairs:
            if entry.last > upto and (batch is None or batch.data != entry.data):
                yield f"{vnode} holds {batch} instead of {entry}"
    for vnode, match in leader.sight.matches.items():
        if match != leader.sight.dirty:
            yield f"{leader.vnode} is done at {leader.sight.dirty} and knows {vnode} at {match}"
    if leader.sight.committed == NO_OFFSET:
        yield "nothing was ever committed"


def invariant_31_the_clients_history_is_sound(case: Case) -> Iterator[str]:
    """Nothing acknowledged is lost or doubled, readers saw one order, and the money adds up."""
    yield from case.complaints
