"""Messages that no sound member of a group sends: a stranger's, and those of an impossible term.

None of them is one that the receiver would answer: nothing listens where a stranger says it is.
"""

from __future__ import annotations

from random import Random

from tidelog.raft.admission import MAX_LEAP, MAX_TERM
from tidelog.raft.core import Core
from tidelog.raft.messages import (
    AppendReply,
    Ballot,
    Message,
    SnapshotStored,
    Status,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tidelog.raft.types import Vnode
from tidelog.records import NO_OFFSET, NO_TERM, Offset, Term


def forge(rng: Random, core: Core, stranger: Vnode) -> list[Message]:
    """Return messages for this replica, each of which would raise its term if it was believed."""
    # Twice the leap: the replica may be a few terms further when the message arrives.
    terms = [core.term + 1, core.term + 3, core.term + 2 * MAX_LEAP, MAX_TERM]
    head = (core.group, stranger, core.vnode, Term(rng.choice(terms)))
    end = core.dirty
    forged: list[Message] = [
        VoteReply(*head, rng.choice((Ballot.VOTE, Ballot.TRANSFER)), granted=rng.random() < 0.5),
        VoteReply(*head, Ballot.PREVOTE, granted=False),
        AppendReply(*head, 1, Status.SUCCESS, end, end, end, NO_OFFSET, NO_TERM, NO_OFFSET),
        SnapshotStored(*head, end, installed=True),
        TimeoutNow(*head),
    ]
    members = [each for each in core.configuration.members if each != core.vnode]
    if members:
        absurd = Term(rng.choice(terms[2:]))
        candidate = (core.group, rng.choice(members), core.vnode, absurd)
        forged.append(VoteRequest(*candidate, Ballot.TRANSFER, Offset(end + 1), absurd))
    return rng.sample(forged, rng.randint(1, len(forged)))
