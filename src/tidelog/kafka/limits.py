"""What a Kafka listener allows its clients, and what it counts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of a listener. The defaults are meant for a node of a gigabyte or more."""

    # A Produce request: 100 MiB of batches, as Kafka's `socket.request.max.bytes`, and its fields.
    max_produce_bytes: int = 100 * MIB + 64 * KIB
    # Any other request. They become Python objects, so they cost many times their size.
    max_request_bytes: int = 16 * MIB
    # Requests of one connection that are worked on at the same time. Clients send five.
    max_inflight_requests: int = 64
    # Bytes of requests, arriving or worked on, over all connections. Beyond this, large requests
    # wait for each other; small ones may use the reserve on top of it (see `arrivals`).
    max_inflight_bytes: int = 256 * MIB
    small_reserve_bytes: int = 64 * MIB
    # The largest request that counts as small: heartbeats, fetches, commits, most writes.
    small_request_bytes: int = 64 * KIB
    # Bytes a second that a request has to bring once it has begun, in the long run. A client that
    # is slower has given up a request of a few megabytes itself (`request.timeout.ms` is 30 s).
    least_rate: int = 64 * KIB
    # Seconds that a request may be behind that rate before its connection is closed, and the same
    # while requests hold more than `max_inflight_bytes`.
    request_patience: float = 30.0
    stall_timeout: float = 10.0
    # Bytes of answers that wait for one client before it is not read from any more.
    response_high_water: int = 256 * KIB
    # Bytes of answers that wait for all clients that do not read. Beyond, the slowest is closed.
    max_unread_bytes: int = 256 * MIB
    max_connections: int = 20_000
    # Kafka's `connections.max.idle.ms`.
    idle_timeout: float = 600.0
    # How often the timeouts above are looked after.
    sweep_interval: float = 2.0
    # How long `stop` waits for requests that are worked on.
    drain_timeout: float = 2.0


@dataclass(slots=True)
class Stats:
    """Counters of one listener since its start, and what is there now."""

    connections: int = 0
    accepted: int = 0
    requests: int = 0
    responses: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    # Closed because of: more connections than allowed, bytes that are no request, a version that is
    # not served, an error of ours, silence, answers left unread, a request that came too slowly.
    refused: int = 0
    malformed: int = 0
    unsupported: int = 0
    failed: int = 0
    idle: int = 0
    unread: int = 0
    stalled: int = 0
    requests_by_api: Counter[int] = field(default_factory=Counter)
