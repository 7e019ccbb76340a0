"""How a replica's snapshots and votes are written down: in files, and as a batch of the log.

The core speaks of `SnapshotMeta` and `HardState`, storage of `SnapshotInfo` and `Vote`, and neither
knows the other. A snapshot that travels through the log is one batch with this payload:

    8 bytes offset, 8 bytes term, 8 bytes size, 4 bytes CRC32C of the state,
    4 bytes size of the configuration, configuration, state
"""

import struct

from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration, InvalidConfiguration
from tidelog.raft.types import HardState, NodeId, Vnode
from tidelog.records import CorruptBatch, Offset, Term
from tidelog.storage import SnapshotInfo, Vote

NO_NODE = -1

_SNAPSHOT = struct.Struct(">qqqII")  # offset, term, size, crc, bytes of configuration


def encode_snapshot(snapshot: msg.SnapshotMeta, state: bytes) -> bytes:
    """The payload of a snapshot batch."""
    configuration = snapshot.configuration.encode()
    head = _SNAPSHOT.pack(
        snapshot.offset, snapshot.term, snapshot.size, snapshot.crc, len(configuration)
    )
    return head + configuration + state


def decode_snapshot(payload: bytes) -> tuple[msg.SnapshotMeta, bytes]:
    """What `encode_snapshot` was given; `CorruptBatch` if the payload is something else."""
    try:
        offset, term, size, crc, length = _SNAPSHOT.unpack_from(payload)
        state = payload[_SNAPSHOT.size + length :]
        configuration = Configuration.decode(payload[_SNAPSHOT.size : _SNAPSHOT.size + length])
    except (struct.error, InvalidConfiguration) as error:
        raise CorruptBatch(0, f"the payload of a snapshot batch cannot be read: {error}") from error
    if len(state) != size:
        raise CorruptBatch(0, f"a snapshot batch holds {len(state)} bytes and announces {size}")
    return msg.SnapshotMeta(Offset(offset), Term(term), configuration, size, crc), state


def snapshot_info(snapshot: msg.SnapshotMeta) -> SnapshotInfo:
    """A snapshot as its file describes it."""
    return SnapshotInfo(
        snapshot.offset,
        snapshot.term,
        snapshot.size,
        snapshot.crc,
        snapshot.configuration.encode(),
    )


def snapshot_meta(info: SnapshotInfo) -> msg.SnapshotMeta:
    """A snapshot as the core knows it."""
    configuration = Configuration.decode(info.metadata)
    return msg.SnapshotMeta(info.offset, info.term, configuration, info.size, info.crc)


def vote_of(state: HardState) -> Vote:
    """What the vote file is to say."""
    node, revision = state.voted_for if state.voted_for is not None else (NO_NODE, 0)
    return Vote(state.term, node, revision, state.compacted)


def hard_state(vote: Vote | None) -> HardState:
    """What the vote file says; nothing yet, if there is none."""
    if vote is None:
        return HardState()
    voted_for = None if vote.node == NO_NODE else Vnode(NodeId(vote.node), vote.revision)
    return HardState(vote.term, voted_for, vote.compacted)
