"""Invariants of elections and membership: who may lead, and by whose votes."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations

from tidelog.raft.configuration import Configuration
from tidelog.raft.events import Accepted
from tidelog.raft.messages import Ballot, Message, VoteReply, VoteRequest
from tidelog.raft.types import Role, Vnode
from tidelog.records import BatchType
from tidelog.sim.facts import Case, Sent
from tidelog.sim.truth import has_majority


def invariant_05_one_leader_per_term(case: Case) -> Iterator[str]:
    """At most one replica ever leads in a term."""
    for elected in case.elected:
        if elected.first.vnode != elected.vnode:
            yield (
                f"{elected.vnode} leads in term {elected.term}, in which {elected.first.vnode} "
                "already led"
            )


def invariant_06_a_vote_is_durable_and_single(case: Case) -> Iterator[str]:
    """Term and vote are on disk before anything leaves that depends on them; one vote a term."""
    truth = case.truth
    for sent in case.sent:
        message = sent.message
        if getattr(message, "ballot", None) is Ballot.PREVOTE:
            continue  # a question changes nothing, and neither does its answer
        if message.term > sent.persisted:
            yield (
                f"{sent.vnode} sent {type(message).__name__} of term {message.term} and has only "
                f"term {sent.persisted} on disk"
            )
        candidate = _vote_in(message)
        if candidate is None:
            continue
        first = truth.votes[sent.vnode, message.term]
        if first != candidate:
            yield (f"{sent.vnode} voted for {first} and for {candidate} in term {message.term}")
        if isinstance(message, VoteReply):
            yield from _undurable_vote(sent, candidate)
    for opening in case.openings:
        term, chosen = opening.hard.term, opening.hard.voted_for
        given = truth.votes.get((opening.vnode, term), chosen)
        if chosen != given:
            yield f"{opening.vnode} voted for {given} in term {term} and came back with {chosen}"


def _vote_in(message: Message) -> Vnode | None:
    """For whom this message is a vote: a granted one, or a candidate's own."""
    if isinstance(message, VoteReply):
        return message.target if message.granted else None
    return message.source if isinstance(message, VoteRequest) else None


def _undurable_vote(sent: Sent, candidate: Vnode) -> Iterator[str]:
    vote, term = sent.vote, sent.message.term
    if vote is not None and vote.term > term:
        return  # whoever has a newer term on disk never votes in this one again
    if vote is None or (vote.term, vote.node, vote.revision) != (term, *candidate):
        yield f"{sent.vnode} promised {candidate} term {sent.message.term}; its disk has {vote}"


def invariant_07_the_term_on_disk_never_falls(case: Case) -> Iterator[str]:
    """No crash takes a term back that was on disk before."""
    for opening in case.openings:
        vote = case.disks.vote(opening.vnode)
        before = case.truth.replica(opening.vnode).persisted_term
        found = 0 if vote is None else vote.term
        if found < before:
            yield f"{opening.vnode} had term {before} on disk and opened with term {found}"


def invariant_24_configurations_change_one_step_at_a_time(case: Case) -> Iterator[str]:
    """The newest configuration of the log is in force; neighbours' quorums meet; voters decide."""
    truth = case.truth
    for _, sight in case.sights.values():
        found = truth.replica(sight.vnode).lineage.configurations
        expected = found[-1].configuration if found else truth.initial
        if sight.configuration != expected and sight.configuration.voters:
            yield f"{sight.vnode} goes by {sight.configuration}; its log says {expected}"
    for elected in case.elected:
        won = elected.first
        voters = [
            voter
            for (voter, term), chosen in truth.votes.items()
            if term == elected.term and chosen == elected.vnode
        ]
        if won.vnode == elected.vnode and not has_majority(
            won.configuration, {*voters, won.vnode}.__contains__
        ):
            yield (
                f"{won.vnode} leads in term {won.term} with votes from "
                f"({' '.join(map(str, voters))}), which are no majority of {won.configuration}"
            )
    for linked in case.linked:
        entry = linked.entry
        if entry.type is BatchType.CONFIGURATION:
            old, new = truth.configuration_before(entry), entry.configuration
            if old.voters and not quorums_meet(old, new):
                yield f"a quorum of {old} need not meet one of {new}, which follows it at {entry}"
            yield from _changes_at_once(case, linked.vnode)
    for step in case.steps:
        event = step.event
        heeded = step.outputs or step.now != step.was
        if isinstance(event, Message) and event.target != step.vnode and heeded:
            yield f"{step.vnode} heeded a message that was meant for {event.target}: {event}"


def _changes_at_once(case: Case, vnode: Vnode) -> Iterator[str]:
    """More than one change of the voters above what is committed."""
    lineage = case.truth.replica(vnode).lineage
    changes = [
        entry
        for entry in lineage.configurations
        if entry.base > case.truth.ledger.dirty
        and entry.configuration != case.truth.configuration_before(entry)
    ]
    if len(changes) > 1:
        listed = ", ".join(f"{entry.configuration} at {entry.base}" for entry in changes)
        yield f"{vnode} has {len(changes)} changes of the configuration under way: {listed}"


@cache
def quorums_meet(old: Configuration, new: Configuration) -> bool:
    """Whether every quorum of the one shares a voter with every quorum of the other."""
    everyone = sorted({*old.voters, *old.old_voters, *new.voters, *new.old_voters})
    for size in range(len(everyone) + 1):
        for some in combinations(everyone, size):
            rest = [voter for voter in everyone if voter not in some]
            if has_majority(old, some.__contains__) and has_majority(new, rest.__contains__):
                return False
    return True


def invariant_29_no_write_after_the_hand_over(case: Case) -> Iterator[str]:
    """Between timeout-now and step-down a leader accepts no write."""
    for step in case.steps:
        if step.was.handing_over and step.was.role is Role.LEADER:
            for output in step.outputs:
                if isinstance(output, Accepted):
                    yield (
                        f"{step.vnode} accepted [{output.base}, {output.last}] in term "
                        f"{output.term}, after it had handed over"
                    )


def invariant_34_a_term_begins_with_a_candidate(case: Case) -> Iterator[str]:
    """A replica takes over no term that no replica ever stood in."""
    for step in case.steps:
        if step.now.term > step.was.term and step.now.term not in case.truth.stood:
            yield f"{step.vnode} took over term {step.now.term}, in which no replica stood"
