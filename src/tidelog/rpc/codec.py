"""Raft messages as bytes.

    tag 1 | group 8 | source 4+4 | target 4+4 | term 4 | the fields of the message | its payload

Each kind of message has one struct from tag to last field, so both directions are a single call.
The payload is what has no fixed size: batches, one after the other as they lie in the log; a chunk
of a snapshot; the configuration of one.

Rules:
- Encoding copies no batch: its memory is a part of the list that is returned.
- Decoding trusts nothing but the CRC of the frame, which was checked before. Every number is in
  range afterwards and every batch is one; whether they make sense together is for the core to say.
  Whatever is wrong is one error, `CorruptFrame`.
- Decoded batches are views of the body. Their own CRC is not read again: the frame's covers it.
"""

from collections.abc import Callable
from struct import Struct, error
from typing import Any, Final, NamedTuple, NoReturn

from tidelog.raft.configuration import Configuration, InvalidConfiguration
from tidelog.raft.messages import (
    AppendReply,
    AppendRequest,
    Ballot,
    Message,
    Purpose,
    SnapshotChunk,
    SnapshotFound,
    SnapshotMeta,
    SnapshotOffer,
    SnapshotQuery,
    SnapshotRequest,
    SnapshotStored,
    Status,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import Buffer, CorruptBatch, Offset, Term, parse_batches
from tidelog.rpc.errors import CorruptFrame

_COMMON: Final = "Bqiiiii"  # tag, group, source, target, term
_COMMON_FIELDS: Final = len(_COMMON)
_OFFSET: Final = "q"
_TERM: Final = "i"
_FLAG: Final = "B"  # a boolean, or the position of a member in its enum
_SEQ: Final = "q"
_SIZE: Final = "q"
_CRC: Final = "I"

# Positions are the wire format: a new member goes to the end.
_BALLOTS: Final = (Ballot.PREVOTE, Ballot.VOTE, Ballot.TRANSFER)
_STATUSES: Final = (Status.SUCCESS, Status.MISMATCH, Status.UNAVAILABLE, Status.DAMAGED)
_PURPOSES: Final = (Purpose.STORE, Purpose.INSTALL)
_BOOLEANS: Final = (False, True)

Common = tuple[GroupId, Vnode, Vnode, Term]
Fields = tuple[Any, ...]  # as the struct has them: integers, which each decoder checks


class Form(NamedTuple):
    """How one kind of message is written and read."""

    struct: Struct
    encode: Callable[[Struct, tuple[int, ...], Any], list[Buffer]]
    decode: Callable[[Common, Fields, memoryview], Message]


def encode(message: Message) -> list[Buffer]:
    """Return the parts of the body; raise `ValueError` if a number of the message does not fit."""
    tag, form = _BY_TYPE[type(message)]
    source, target = message.source, message.target
    common = (tag, message.group, *source, *target, message.term)
    try:
        return form.encode(form.struct, common, message)
    except error as reason:
        raise ValueError(f"{message} cannot be encoded: {reason}") from None


def decode(body: memoryview) -> Message:
    """Read one message; batches in it are views of `body`."""
    if not len(body):
        raise CorruptFrame("a message without bytes")
    form = _BY_TAG.get(body[0])
    if form is None:
        raise CorruptFrame(f"message tag {body[0]} does not exist")
    size = form.struct.size
    if len(body) < size:
        raise CorruptFrame(f"{len(body)} bytes are too few for message tag {body[0]}")
    fields = form.struct.unpack_from(body)
    _, group, source, source_revision, target, target_revision, term = fields[:_COMMON_FIELDS]
    if group < 0 or term < 0 or source < 0 or target < 0:
        raise CorruptFrame(f"a message of group {group}, term {term}, from {source} to {target}")
    common = (
        GroupId(group),
        Vnode(NodeId(source), source_revision),
        Vnode(NodeId(target), target_revision),
        Term(term),
    )
    try:
        return form.decode(common, fields[_COMMON_FIELDS:], body[size:])
    except IndexError:
        raise CorruptFrame(f"message tag {body[0]} has a choice that does not exist") from None


# --- What the fields must be --------------------------------------------------------------------


def _struct(*fields: str) -> Struct:
    return Struct(">" + _COMMON + "".join(fields))


def _no_payload(payload: memoryview) -> None:
    if len(payload):
        raise CorruptFrame(f"{len(payload)} bytes are left over after a message")


def _offset(value: int) -> Offset:
    if value < -1:
        _out_of_range("offset", value)
    return Offset(value)


def _term(value: int) -> Term:
    if value < 0:
        _out_of_range("term", value)
    return Term(value)


def _natural(value: int) -> int:
    if value < 0:
        _out_of_range("number", value)
    return value


def _out_of_range(what: str, value: int) -> NoReturn:
    raise CorruptFrame(f"the {what} {value} does not exist")


# --- Votes --------------------------------------------------------------------------------------


def _encode_vote_request(
    struct: Struct, common: tuple[int, ...], message: VoteRequest
) -> list[Buffer]:
    ballot = _BALLOTS.index(message.ballot)
    return [struct.pack(*common, ballot, message.last_offset, message.last_term)]


def _decode_vote_request(common: Common, fields: Fields, payload: memoryview) -> VoteRequest:
    _no_payload(payload)
    ballot, last_offset, last_term = fields
    return VoteRequest(*common, _BALLOTS[ballot], _offset(last_offset), _term(last_term))


def _encode_vote_reply(struct: Struct, common: tuple[int, ...], message: VoteReply) -> list[Buffer]:
    return [struct.pack(*common, _BALLOTS.index(message.ballot), message.granted)]


def _decode_vote_reply(common: Common, fields: Fields, payload: memoryview) -> VoteReply:
    _no_payload(payload)
    ballot, granted = fields
    return VoteReply(*common, _BALLOTS[ballot], _BOOLEANS[granted])


def _encode_timeout_now(
    struct: Struct, common: tuple[int, ...], message: TimeoutNow
) -> list[Buffer]:
    del message  # it says all by being there
    return [struct.pack(*common)]


def _decode_timeout_now(common: Common, fields: Fields, payload: memoryview) -> TimeoutNow:
    del fields
    _no_payload(payload)
    return TimeoutNow(*common)


# --- Appends ------------------------------------------------------------------------------------


def _encode_append(struct: Struct, common: tuple[int, ...], message: AppendRequest) -> list[Buffer]:
    fixed = struct.pack(
        *common,
        message.seq,
        message.prev_offset,
        message.prev_term,
        message.committed,
        message.visible,
        message.compacted,
        message.flush,
    )
    return [fixed, *[batch.data for batch in message.batches]]


def _decode_append(common: Common, fields: Fields, payload: memoryview) -> AppendRequest:
    seq, prev_offset, prev_term, committed, visible, compacted, flush = fields
    try:
        batches = tuple(parse_batches(payload))
    except CorruptBatch as reason:
        raise CorruptFrame(f"an append with {reason}") from None
    return AppendRequest(
        *common,
        _natural(seq),
        _offset(prev_offset),
        _term(prev_term),
        batches,
        _offset(committed),
        _offset(visible),
        _offset(compacted),
        _BOOLEANS[flush],
    )


def _encode_append_reply(
    struct: Struct, common: tuple[int, ...], message: AppendReply
) -> list[Buffer]:
    return [
        struct.pack(
            *common,
            message.seq,
            _STATUSES.index(message.status),
            message.match,
            message.dirty,
            message.flushed,
            message.hint_offset,
            message.hint_term,
            message.snapshot,
        )
    ]


def _decode_append_reply(common: Common, fields: Fields, payload: memoryview) -> AppendReply:
    _no_payload(payload)
    seq, status, match, dirty, flushed, hint_offset, hint_term, snapshot = fields
    return AppendReply(
        *common,
        _natural(seq),
        _STATUSES[status],
        _offset(match),
        _offset(dirty),
        _offset(flushed),
        _offset(hint_offset),
        _term(hint_term),
        _offset(snapshot),
    )


# --- Snapshots ----------------------------------------------------------------------------------

_META: Final = _OFFSET + _TERM + _SIZE + _CRC


def _meta_fields(meta: SnapshotMeta) -> tuple[int, int, int, int]:
    return (meta.offset, meta.term, meta.size, meta.crc)


def _meta(fields: Fields, payload: memoryview) -> SnapshotMeta:
    offset, term, size, crc = fields
    try:
        configuration = Configuration.decode(bytes(payload))
    except InvalidConfiguration as reason:
        raise CorruptFrame(f"a snapshot of no configuration: {reason}") from None
    return SnapshotMeta(_offset(offset), _term(term), configuration, _natural(size), crc)


def _encode_offer(struct: Struct, common: tuple[int, ...], message: SnapshotOffer) -> list[Buffer]:
    meta = message.snapshot
    fixed = struct.pack(*common, _PURPOSES.index(message.purpose), *_meta_fields(meta))
    return [fixed, meta.configuration.encode()]


def _decode_offer(common: Common, fields: Fields, payload: memoryview) -> SnapshotOffer:
    purpose, *meta = fields
    return SnapshotOffer(*common, _meta(tuple(meta), payload), _PURPOSES[purpose])


def _encode_found(struct: Struct, common: tuple[int, ...], message: SnapshotFound) -> list[Buffer]:
    meta = message.snapshot
    return [struct.pack(*common, *_meta_fields(meta)), meta.configuration.encode()]


def _decode_found(common: Common, fields: Fields, payload: memoryview) -> SnapshotFound:
    return SnapshotFound(*common, _meta(fields, payload))


def _encode_stored(
    struct: Struct, common: tuple[int, ...], message: SnapshotStored
) -> list[Buffer]:
    return [struct.pack(*common, message.offset, message.installed)]


def _decode_stored(common: Common, fields: Fields, payload: memoryview) -> SnapshotStored:
    _no_payload(payload)
    offset, installed = fields
    return SnapshotStored(*common, _offset(offset), _BOOLEANS[installed])


def _encode_query(struct: Struct, common: tuple[int, ...], message: SnapshotQuery) -> list[Buffer]:
    return [struct.pack(*common, message.at_least)]


def _decode_query(common: Common, fields: Fields, payload: memoryview) -> SnapshotQuery:
    _no_payload(payload)
    return SnapshotQuery(*common, _offset(fields[0]))


def _encode_request(
    struct: Struct, common: tuple[int, ...], message: SnapshotRequest
) -> list[Buffer]:
    return [struct.pack(*common, message.offset, message.position)]


def _decode_request(common: Common, fields: Fields, payload: memoryview) -> SnapshotRequest:
    _no_payload(payload)
    offset, position = fields
    return SnapshotRequest(*common, _offset(offset), _natural(position))


def _encode_chunk(struct: Struct, common: tuple[int, ...], message: SnapshotChunk) -> list[Buffer]:
    fixed = struct.pack(*common, message.offset, message.position, message.crc)
    return [fixed, message.data]


def _decode_chunk(common: Common, fields: Fields, payload: memoryview) -> SnapshotChunk:
    offset, position, crc = fields
    return SnapshotChunk(*common, _offset(offset), _natural(position), bytes(payload), crc)


# --- The table ----------------------------------------------------------------------------------

# Tags are the wire format: one is never used again for something else.
_BY_TYPE: Final[dict[type[Message], tuple[int, Form]]] = {
    VoteRequest: (
        1,
        Form(_struct(_FLAG, _OFFSET, _TERM), _encode_vote_request, _decode_vote_request),
    ),
    VoteReply: (2, Form(_struct(_FLAG, _FLAG), _encode_vote_reply, _decode_vote_reply)),
    TimeoutNow: (3, Form(_struct(), _encode_timeout_now, _decode_timeout_now)),
    AppendRequest: (
        4,
        Form(
            _struct(_SEQ, _OFFSET, _TERM, _OFFSET, _OFFSET, _OFFSET, _FLAG),
            _encode_append,
            _decode_append,
        ),
    ),
    AppendReply: (
        5,
        Form(
            _struct(_SEQ, _FLAG, _OFFSET, _OFFSET, _OFFSET, _OFFSET, _TERM, _OFFSET),
            _encode_append_reply,
            _decode_append_reply,
        ),
    ),
    SnapshotOffer: (6, Form(_struct(_FLAG, _META), _encode_offer, _decode_offer)),
    SnapshotStored: (7, Form(_struct(_OFFSET, _FLAG), _encode_stored, _decode_stored)),
    SnapshotQuery: (8, Form(_struct(_OFFSET), _encode_query, _decode_query)),
    SnapshotFound: (9, Form(_struct(_META), _encode_found, _decode_found)),
    SnapshotRequest: (10, Form(_struct(_OFFSET, _SIZE), _encode_request, _decode_request)),
    SnapshotChunk: (11, Form(_struct(_OFFSET, _SIZE, _CRC), _encode_chunk, _decode_chunk)),
}
_BY_TAG: Final = dict(_BY_TYPE.values())
