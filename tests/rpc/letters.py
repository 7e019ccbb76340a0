"""Every kind of Raft message, by hand and by chance."""

from hypothesis import strategies as st

from tidelog.raft.configuration import Configuration
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
from tidelog.records import Batch, Offset, Record, Term, build_batch, ghost

INT32 = 2**31 - 1
INT64 = 2**63 - 1

naturals = st.integers(0, INT64)
offsets = st.integers(-1, INT64).map(Offset)
terms = st.integers(0, INT32).map(Term)
crcs = st.integers(0, 2**32 - 1)
vnodes = st.builds(Vnode, st.integers(0, INT32).map(NodeId), st.integers(0, INT32))


def data_batch(base: int, values: list[bytes], term: int = 1) -> Batch:
    records = [Record(delta, 0, None, value) for delta, value in enumerate(values)]
    return build_batch(records, base_offset=Offset(base), term=Term(term))


batches = st.one_of(
    st.builds(
        data_batch, st.integers(0, 2**40), st.lists(st.binary(max_size=50), min_size=1, max_size=5)
    ),
    st.builds(
        lambda base, length: ghost(Offset(base), Offset(base + length), Term(3)),
        st.integers(0, 2**40),
        st.integers(0, 2**40),
    ),
)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    nodes = draw(st.lists(vnodes, max_size=8, unique_by=lambda node: node.id))
    voters, old = sorted(draw(st.tuples(st.integers(0, 8), st.integers(0, 8))))
    return Configuration(tuple(nodes[:voters]), tuple(nodes[voters:old]), tuple(nodes[old:]))


metas = st.builds(SnapshotMeta, offsets, terms, configurations(), naturals, crcs)


def _of(kind: type[Message], *fields: st.SearchStrategy[object]) -> st.SearchStrategy[Message]:
    return st.builds(kind, naturals.map(GroupId), vnodes, vnodes, terms, *fields)


messages: st.SearchStrategy[Message] = st.one_of(
    _of(VoteRequest, st.sampled_from(Ballot), offsets, terms),
    _of(VoteReply, st.sampled_from(Ballot), st.booleans()),
    _of(TimeoutNow),
    _of(
        AppendRequest,
        naturals,
        offsets,
        terms,
        st.lists(batches, max_size=4).map(tuple),
        offsets,
        offsets,
        offsets,
        st.booleans(),
    ),
    _of(
        AppendReply,
        naturals,
        st.sampled_from(Status),
        offsets,
        offsets,
        offsets,
        offsets,
        terms,
        offsets,
    ),
    _of(SnapshotOffer, metas, st.sampled_from(Purpose)),
    _of(SnapshotStored, offsets, st.booleans()),
    _of(SnapshotQuery, offsets),
    _of(SnapshotFound, metas),
    _of(SnapshotRequest, offsets, naturals),
    _of(SnapshotChunk, offsets, naturals, st.binary(max_size=100), crcs),
)


def append(source: int, target: int, seq: int, *batches: Batch) -> AppendRequest:
    """An append of a group that tests talk about; without batches, a full heartbeat."""
    return AppendRequest(
        GroupId(1),
        Vnode(NodeId(source), 0),
        Vnode(NodeId(target), 0),
        Term(1),
        seq,
        Offset(-1),
        Term(0),
        batches,
        Offset(-1),
        Offset(-1),
        Offset(-1),
        True,
    )


def large_append(source: int, target: int, seq: int, size: int) -> AppendRequest:
    return append(source, target, seq, data_batch(0, [bytes(size)]))
