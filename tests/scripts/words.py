"""How things look in a script: a message, a batch, an outcome in one line; a log as a drawing.

A log is drawn as the papers draw it, with the marks of its replica below:

    n1 leader     t1 [0,0][1,2][3,5][6,7][8,9][10,12]
                                      CVF           D

C is committed, V visible, F flushed, D dirty: each stands under the end of the batch it reaches. A
mark that is not there has reached nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidelog.cluster.host import Outcome
from tidelog.cluster.replica import Replica
from tidelog.machines import Balances
from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset

NAME_WIDTH = 16
_PIECE = re.compile(r"\[(\d+),(\d+)\]|<--gap (\d+)\.\.(\d+)-->")
_KINDS = {
    BatchType.CONFIGURATION: "config",
    BatchType.SNAPSHOT: "snapshot",
    BatchType.PLACEHOLDER: "placeholder",
    BatchType.GHOST: "ghost",
    BatchType.CHANGELOG: "changelog",
    BatchType.DATA: "",
}


def batch_in_words(batch: Batch) -> str:
    """Name a batch: `[1,3]t1`, or with what it is if it is no client's data."""
    return f"{_KINDS[batch.type]}[{batch.base_offset},{batch.last_offset}]t{batch.term}"


def batches_in_words(batches: Iterable[Batch]) -> str:
    return "{" + " ".join(map(batch_in_words, batches)) + "}"


def message_in_words(message: msg.Message) -> str:
    """Say who tells whom what."""
    return f"{message.source} -> {message.target}  {_content(message)}"


def _content(message: msg.Message) -> str:
    match message:
        case msg.AppendRequest():
            return _append(message)
        case msg.AppendReply():
            return _reply(message)
        case msg.VoteRequest(ballot=ballot, last_offset=last, last_term=term):
            return f"{ballot.value} in term {message.term}? my log ends at {last}/t{term}"
        case msg.VoteReply(ballot=ballot, granted=granted):
            return f"{ballot.value} {'granted' if granted else 'refused'}, term {message.term}"
        case msg.TimeoutNow():
            return "stand for election now"
        case msg.SnapshotOffer(snapshot=snapshot, purpose=purpose):
            return f"{purpose.value} {snapshot}"
        case msg.SnapshotStored(offset=offset, installed=installed):
            return f"snapshot@{offset} {'installed' if installed else 'stored'}"
        case msg.SnapshotQuery(at_least=at_least):
            return f"who has a snapshot at {at_least} or later?"
        case msg.SnapshotFound(snapshot=snapshot):
            return f"I have {snapshot}"
        case msg.SnapshotRequest(offset=offset, position=position):
            return f"send snapshot@{offset} from byte {position}"
        case msg.SnapshotChunk(offset=offset, position=position, data=data):
            end = position + len(data)
            return f"snapshot@{offset} bytes {position}..{end}" if data else f"no snapshot@{offset}"
    raise AssertionError(f"nobody has said how a {type(message).__name__} is written")


def _append(request: msg.AppendRequest) -> str:
    parts = [
        f"append prev={_place(request.prev_offset, request.prev_term)}",
        batches_in_words(request.batches),
    ]
    if request.batches:
        parts.append(f"flush={'yes' if request.flush else 'no'}")
    parts.append(f"committed={_offset(request.committed)}")
    if request.visible != request.committed:
        parts.append(f"visible={request.visible}")
    if request.compacted != NO_OFFSET:
        parts.append(f"compacted={request.compacted}")
    return " ".join(parts)


def _reply(reply: msg.AppendReply) -> str:
    parts = [reply.status.value]
    if reply.status is msg.Status.SUCCESS:
        parts.append(f"match={_offset(reply.match)}")
    if reply.status is msg.Status.MISMATCH:
        parts.append(f"hint={_place(reply.hint_offset, reply.hint_term)}")
    parts.append(f"dirty={_offset(reply.dirty)} flushed={_offset(reply.flushed)}")
    if reply.snapshot != NO_OFFSET:
        parts.append(f"snapshot={reply.snapshot}")
    return " ".join(parts)


def _offset(offset: Offset) -> str:
    return "-" if offset == NO_OFFSET else str(offset)


def _place(offset: Offset, term: int) -> str:
    return "-" if offset == NO_OFFSET else f"{offset}/t{term}"


def outcome_in_words(name: str, outcome: Outcome) -> str:
    """Say what a client hears about its request."""
    match outcome:
        case ev.Accepted(base=base, last=last, term=term):
            return f"{name}: accepted as [{base},{last}]t{term}"
        case ev.Done(offset=offset):
            return f"{name}: done at {offset}"
        case ev.Refused(why=why):
            return f"{name}: refused, {why.value}"


def role_in_words(name: str, change: ev.RoleChanged) -> str:
    follows = change.leader is not None and name != str(change.leader)
    whom = f" of {change.leader}" if follows else ""
    return f"{name} is {change.role.value}{whom} in term {change.term}"


# --- Replicas --------------------------------------------------------------------------------


def drawing(replica: Replica) -> list[str]:
    """Draw a log and, below it, how far it is safe."""
    core = replica.core
    picture = replica.log.draw()
    marks = _marks(
        picture,
        {"C": core.committed, "V": core.visible, "F": core.flushed, "D": core.dirty},
    )
    title = f"{core.vnode} {core.role.value}".ljust(NAME_WIDTH)
    lines = [title + picture]
    if marks:
        lines.append(" " * NAME_WIDTH + marks)
    return lines


def _marks(picture: str, offsets: dict[str, Offset]) -> str:
    line: list[str] = []
    for piece in _PIECE.finditer(picture):
        first, last = (int(number) for number in piece.groups() if number is not None)
        letters = [letter for letter, offset in offsets.items() if first <= offset <= last]
        if letters:
            end = piece.end()
            if piece.group(3) is not None and all(offsets[each] < last for each in letters):
                end = (piece.start() + piece.end()) // 2  # somewhere inside a gap
            text = "".join(letters)
            line += " " * (end - len(text) - len(line)) + text
    return "".join(line)


def machines_line(replica: Replica) -> str:
    """Say what the machines of a replica know, and how much of it may be read there."""
    core = replica.core
    parts = [f"{core.vnode} applied={_offset(core.applied)} readable={_offset(core.readable)}"]
    if core.read_lag:
        parts.append(f"lag={core.read_lag}")
    if core.snapshot is not None:
        parts.append(f"snapshot={core.snapshot.offset}")
    if core.hard.compacted != NO_OFFSET:
        parts.append(f"compacted={core.hard.compacted}")
    if core.tainted:
        parts.append("tainted")
    for machine in replica.machines.machines:
        if isinstance(machine, Balances):
            sums = [
                f"{key.decode()}={account.balance}" for key, account in machine.accounts().items()
            ]
            parts.append(f"accounts ({' '.join(sums)})")
    return " ".join(parts)
