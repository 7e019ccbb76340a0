"""Invariants of commitment: what may be called committed, and what that promises."""

from collections.abc import Iterator

from tidelog.raft.messages import AppendReply
from tidelog.raft.types import Role
from tidelog.sim.facts import Case
from tidelog.sim.truth import has_majority


def invariant_01_commit_needs_a_durable_quorum(case: Case) -> Iterator[str]:
    """What is committed is on the disks of a majority of voters, of both halves when joint."""
    for committed in case.committed:
        newest, configuration = committed.entries[-1], committed.configuration
        holders = [voter for voter in configuration.members if case.disks.holds(voter, newest)]
        if not has_majority(configuration, holders.__contains__):
            yield (
                f"{committed.vnode} committed {newest}, which only ({' '.join(map(str, holders))}) "
                f"of {configuration} have on disk"
            )


def invariant_02_commit_counts_only_the_own_term(case: Case) -> Iterator[str]:
    """A leader moves its commit index only to an entry of its own term."""
    for step in case.steps:
        if step.now.role is Role.LEADER and step.now.committed > step.was.committed:
            entry = case.truth.replica(step.vnode).lineage.at(step.now.committed)
            if entry is not None and entry.term != step.now.term:
                yield (
                    f"{step.vnode}, leader of term {step.now.term}, committed {entry} by counting"
                )


def invariant_03_offsets_are_ordered(case: Case) -> Iterator[str]:
    """start <= committed + 1, committed <= flushed <= dirty, visible <= dirty, on each replica."""
    for _, sight in case.sights.values():
        if not (
            sight.start <= sight.committed + 1
            and sight.committed <= sight.flushed <= sight.dirty
            and sight.visible <= sight.dirty
        ):
            yield (
                f"{sight.vnode} has start={sight.start} committed={sight.committed} "
                f"flushed={sight.flushed} dirty={sight.dirty} visible={sight.visible}"
            )
        end = case.truth.replica(sight.vnode).lineage.dirty
        if sight.dirty != end:
            yield f"{sight.vnode} says that its log ends at {sight.dirty}; it ends at {end}"


def invariant_04_commit_never_falls(case: Case) -> Iterator[str]:
    """The commit index never decreases while a replica is up, and starts within what is durable."""
    for before, sight in case.sights.values():
        if before is not None and sight.committed < before.committed:
            yield (
                f"the commit index of {sight.vnode} fell from {before.committed} to "
                f"{sight.committed}"
            )
    for opening in case.openings:
        found = case.sights.get(opening.vnode)
        if found is None:
            continue
        entry = case.truth.replica(opening.vnode).lineage.at(found[1].committed)
        if entry is not None and not case.disks.holds(opening.vnode, entry):
            yield f"{opening.vnode} opened with {entry} committed, which is not on its disk"


def invariant_09_leaders_are_complete(case: Case) -> Iterator[str]:
    """Whoever leads holds every entry that was ever committed by an earlier leader."""
    truth = case.truth
    judged = [elected.first for elected in case.elected]
    # An old leader may still commit when a new one is elected already: then the new one has it.
    for committed in case.committed:
        term = committed.entries[-1].term
        judged += [won for won in truth.leaders.values() if won.term > term]
    for won in judged:
        earlier = (e for e in reversed(truth.ledger.entries) if (e.decided or 0) < won.term)
        owed = next(earlier, None)
        if owed is None:
            continue
        tip = won.tip
        if tip is None or tip.depth < owed.depth or tip.ancestor(owed.depth) is not owed:
            yield (
                f"{won.vnode} won term {won.term} with a log that ended in {tip} and lacked the "
                f"committed {owed}"
            )


def invariant_25_match_is_what_the_follower_holds(case: Case) -> Iterator[str]:
    """A stale reply changes nothing; `match` never exceeds what the follower has held."""
    for step in case.steps:
        reply = step.event
        if not isinstance(reply, AppendReply) or step.was.marks is None:
            continue
        stale = reply.seq < step.was.marks.received_seq or reply.term < step.was.term
        if stale and step.now.marks is not None and step.now.marks != step.was.marks:
            yield (
                f"{step.vnode} let reply {reply.seq} of {reply.source} change {step.was.marks} "
                f"to {step.now.marks}"
            )
    for _, sight in case.sights.values():
        lineage = case.truth.replica(sight.vnode).lineage
        for follower, match in sight.matches.items():
            entry = lineage.at(match)
            if entry is not None and follower not in entry.held_by:
                yield (
                    f"{sight.vnode} believes that {follower} matches up to {match}; it never "
                    f"held {entry}"
                )
