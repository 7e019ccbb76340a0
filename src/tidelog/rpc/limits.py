"""The bounds of everything that could grow between two nodes, and the counters beside them."""

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    # A frame's body. Must hold the largest append that the core sends, which is one batch if that
    # is large, and a client may write one of 100 MiB.
    frame_bytes: int = 128 * MIB
    # Bytes that wait on one connection. Beyond them a new frame is dropped, except that a frame
    # of any allowed size may go when nothing waits: otherwise one larger than this never could.
    control_bytes: int = 4 * MIB
    data_bytes: int = 32 * MIB
    # Connections that others opened. A node opens two, so this is a cluster of 500.
    inbound_connections: int = 1024
    # Those of them that have not proven the secret. Beyond it the oldest of the host that has the
    # most is closed, so that strangers who hold connections keep nobody else out.
    strangers: int = 128
    # A guest asks whether a node is there. Neither its calls nor the answers that it does not read
    # need more room than this.
    guest_frame_bytes: int = 1 * KIB
    guest_queue_bytes: int = 16 * KIB
    # Calls under way to one peer, and calls served for one connection.
    calls: int = 1024
    # Seconds from the start of a connection to the end of the handshake.
    handshake: float = 5.0
    # Seconds without a sign of life, while one is due, after which a connection is given up.
    silence: float = 10.0
    # Seconds between two attempts to connect: doubles from the first to the second, with jitter.
    backoff_first: float = 0.05
    backoff_most: float = 1.0


@dataclass(slots=True)
class Stats:
    """Plain counters, never reset; `cluster status` shows them for each node."""

    messages_sent: int = 0  # queued on a connection; a broken connection may still lose them
    messages_received: int = 0
    beats_sent: int = 0
    beats_received: int = 0
    calls_made: int = 0
    calls_served: int = 0
    bytes_queued: int = 0
    bytes_received: int = 0
    dropped_unreachable: int = 0  # messages and beats that met no connection, or died with one
    dropped_full: int = 0  # frames that met a full queue
    dropped_unsendable: int = 0  # frames that are too large, and messages that cannot be encoded
    connects: int = 0  # handshakes that this node began and that succeeded
    connect_failures: int = 0
    accepts: int = 0  # handshakes that others began and that succeeded
    refused_connections: int = 0  # beyond the bound
    evicted_strangers: int = 0  # closed to make room, before they had proven anything
    wrong_secrets: int = 0  # handshakes, from either end, in which the other's proof was wrong
    corrupt_connections: int = 0  # closed for what came over them, wrong proofs included
    silent_connections: int = 0  # closed because nothing came over them
    handler_errors: int = 0
    # What came from nodes that have no part in it (`cluster.gate`).
    refused_calls: int = 0  # that their lane, or a node that is not a member, may not make
    refused_claims: int = 0  # of leadership, by a node that cannot have it, or in an absurd term
    refused_beats: int = 0  # from nodes that are not members, and answers to none of ours
    # Raft messages that were dropped, by why (`raft.admission`). A few are late and no offence.
    refused_sources: int = 0
    refused_terms: int = 0
    refused_contradictions: int = 0
