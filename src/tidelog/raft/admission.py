"""Which messages a replica heeds at all, judged before anything in them is believed.

Nearly all that a message says is compared with the log of the replica that hears it. A term is not:
Raft takes over any higher one, so one message from a node that takes no part could depose every
leader, and one of the last term there is could end the group for good. So a message may raise the
term of a replica only if this replica has reason to hear from its source:

    message                                 admitted if its source is
    VoteRequest, AppendRequest              anybody
    VoteReply                               a voter that this replica asked, while it stands
    AppendReply, SnapshotStored             a follower of this replica, while it leads
    TimeoutNow, SnapshotOffer               the leader, or a member while there is none
    SnapshotFound, SnapshotChunk            a member, or the leader
    SnapshotQuery, SnapshotRequest          a member or the leader; anybody in the present term

Requests for votes and appends are never dropped for their source: a replica that is behind does not
know yet who is a member, and the group may need its vote, or its copy, all the same (thesis 4.2.2).
Nothing is lost by dropping the rest. A leader that missed a higher term in an answer meets it again
in the answers of that voter to its appends; a candidate, in the answers to its next campaign; and a
follower, in the next append.

How far a term may rise at once is bounded too, against a flipped bit, or a source that is believed
and wrong. A term is won or wasted in an election, and that takes an election timeout: 1.5 s or
more, so fewer than one a second go by. A replica that was away is `MAX_LEAP` behind after 194 days
of nothing but elections; until then none is locked out, and afterwards its directory is emptied
and it comes back as a newcomer. A newcomer (no configuration: it takes part in nothing yet) may
have any term to catch up with, and takes it from the first leader that appends to it. It could do
the group no harm: those who know a term bound what it tells them by theirs.

`MAX_TERM` is the last term that the messages, the batches and Kafka's leader epochs have room for:
68 years of elections. A replica that has got there stands no more.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tidelog.raft import messages as msg

if TYPE_CHECKING:
    from tidelog.raft.core import Core

MAX_TERM: Final = 2**31 - 1
MAX_LEAP: Final = 2**24


class Objection(Enum):
    """Why a message was dropped."""

    SOURCE = "source"  # this replica has no reason to hear that from its source
    TERM = "term"  # no replica can have its term
    CONTRADICTION = "contradiction"  # of what this replica knows, or did not ask


def is_absurd(term: int, ours: int) -> bool:
    """Whether no sound replica can have this term while another one has `ours`."""
    return term > MAX_TERM or term > ours + MAX_LEAP


def objection(core: "Core", message: msg.Message) -> Objection | None:
    """Return why the core must not heed a message of its term or a later one; None if it may."""
    if message.term > core.term and is_absurd(message.term, core.term):
        newcomer = not core.configuration.voters
        is_append = isinstance(message, msg.AppendRequest)
        if message.term > MAX_TERM or not (newcomer and is_append):
            return Objection.TERM
    return _RULES[type(message)](core, message)


def _vote_request(_core: "Core", _message: msg.VoteRequest) -> Objection | None:
    return None


def _append_request(core: "Core", message: msg.AppendRequest) -> Objection | None:
    """A term has one leader, so no other replica appends in it."""
    if message.term == core.term and core.leader not in (None, message.source):
        return Objection.CONTRADICTION
    return None


def _vote_reply(core: "Core", message: msg.VoteReply) -> Objection | None:
    campaign = core.voter.campaign
    if campaign is not None:
        return None if campaign.configuration.is_voter(message.source) else Objection.SOURCE
    promises = message.ballot is msg.Ballot.PREVOTE and message.granted  # it tells no term
    if message.term > core.term and not promises:
        return Objection.CONTRADICTION
    return None  # a late vote, after the campaign was decided


def _to_the_leader(core: "Core", message: msg.Message) -> Objection | None:
    if core.leading is None:
        return Objection.CONTRADICTION if message.term > core.term else None
    return None if message.source in core.leading.progress else Objection.SOURCE


def _of_the_leader(core: "Core", message: msg.Message) -> Objection | None:
    if message.term == core.term and core.leader is not None:
        return None if message.source == core.leader else Objection.CONTRADICTION
    return _of_a_member(core, message)


def _of_a_member(core: "Core", message: msg.Message) -> Objection | None:
    known = message.source == core.leader or message.source in core.configuration.members
    return None if known else Objection.SOURCE


def _snapshot_of_the_leader(core: "Core", message: msg.SnapshotOffer) -> Objection | None:
    return _impossible_snapshot(message) or _of_the_leader(core, message)


def _snapshot_of_a_member(core: "Core", message: msg.SnapshotFound) -> Objection | None:
    return _impossible_snapshot(message) or _of_a_member(core, message)


def _impossible_snapshot(message: msg.SnapshotOffer | msg.SnapshotFound) -> Objection | None:
    """What a replica holds is of its own term or an earlier one."""
    return Objection.CONTRADICTION if message.snapshot.term > message.term else None


def _question(core: "Core", message: msg.Message) -> Objection | None:
    return None if message.term == core.term else _of_a_member(core, message)


_RULES: Final[dict[type[msg.Message], Callable[["Core", Any], Objection | None]]] = {
    msg.VoteRequest: _vote_request,
    msg.VoteReply: _vote_reply,
    msg.AppendRequest: _append_request,
    msg.AppendReply: _to_the_leader,
    msg.TimeoutNow: _of_the_leader,
    msg.SnapshotOffer: _snapshot_of_the_leader,
    msg.SnapshotStored: _to_the_leader,
    msg.SnapshotQuery: _question,
    msg.SnapshotFound: _snapshot_of_a_member,
    msg.SnapshotRequest: _question,
    msg.SnapshotChunk: _of_a_member,
}
