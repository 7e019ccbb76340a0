"""What the leader knows of one follower, and what it may send next.

    PROBE      one request at a time, to find where the logs agree; without news, one a heartbeat
    REPLICATE  the logs agree up to `match`; requests are pipelined, `next` runs ahead
    SNAPSHOT   the follower's log ends before the leader's begins; it is installing a snapshot

                 success                    nothing came back for a whole heartbeat, or mismatch
        PROBE -----------> REPLICATE  ----------------------------------------------> PROBE
          ^  next below the leader's start                  snapshot installed
          +------------------------------> SNAPSHOT ---------------------------> PROBE

Two marks of the follower are kept apart (seed 1): `dirty` decides what is sent and what relaxed
writes may show, `flushed` decides what is committed. Both count only as far as `match`: what a
follower has beyond that may be anything.
"""

from collections import deque
from enum import Enum

from tidelog.records import NO_OFFSET, Offset


class State(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    __slots__ = (
        "beat_oldest",
        "dirty",
        "flush_asked",
        "flushed",
        "inflight",
        "inflight_bytes",
        "match",
        "next",
        "received_match",
        "received_seq",
        "refused",
        "sent_seq",
        "state",
        "stored",
        "success_seq",
        "told",
        "waiting",
    )

    def __init__(self, next_offset: Offset, after_seq: int = 0) -> None:
        self.state = State.PROBE
        # Last offset where follower and leader are known to agree. It falls only when a follower
        # lost dirty data in a crash. Invariant: match < next.
        self.match = NO_OFFSET
        # First offset to send next; in REPLICATE everything below it is acknowledged or in flight.
        self.next = next_offset
        # The follower's own marks, as of the newest reply.
        self.dirty = NO_OFFSET
        self.flushed = NO_OFFSET
        # Sequence numbers of the newest request sent, reply received, and success received.
        # Invariant: success_seq <= received_seq <= sent_seq.
        self.sent_seq = after_seq
        self.received_seq = after_seq
        self.success_seq = 0
        # How far the newest reply said that the logs agree; NO_OFFSET: it refused.
        self.received_match = NO_OFFSET
        # End of the oldest request in flight at the last heartbeat; NO_OFFSET: none was.
        self.beat_oldest = NO_OFFSET
        # Unacknowledged requests with batches: (last offset, bytes). Empty but in REPLICATE.
        self.inflight: deque[tuple[Offset, int]] = deque()
        self.inflight_bytes = 0
        # PROBE: a request is out; wait for its reply or the next heartbeat.
        self.waiting = False
        # Its disk took nothing of the newest request with batches.
        self.refused = False
        # Highest offset that a request of this stream asked the follower to flush.
        self.flush_asked = NO_OFFSET
        # The leader's committed, visible and compacted marks as the follower was told them last;
        # when they are current and the logs are equal, a lightweight heartbeat says it all.
        self.told = (NO_OFFSET, NO_OFFSET, NO_OFFSET)
        # Offset of the newest snapshot that the follower has on disk, as far as it told us.
        self.stored = NO_OFFSET

    @property
    def durable(self) -> Offset:
        """What of the leader's log this follower holds on disk: all that a commit may count."""
        return min(self.flushed, self.match)

    @property
    def replicated(self) -> Offset:
        """What of the leader's log this follower holds, perhaps only in memory."""
        return min(self.dirty, self.match)

    def may_send(self, max_inflight_bytes: int) -> bool:
        if self.state is State.REPLICATE:
            return self.inflight_bytes < max_inflight_bytes
        return self.state is State.PROBE and not self.waiting

    def next_seq(self) -> int:
        self.sent_seq += 1
        return self.sent_seq

    def sent(self, last: Offset, size: int) -> None:
        """A request with batches up to `last` left."""
        if self.state is State.PROBE:
            self.waiting = True
            return
        self.next = Offset(last + 1)
        self.inflight.append((last, size))
        self.inflight_bytes += size

    def is_stuck(self) -> bool:
        """At a heartbeat: whether the oldest request was in flight at the last one already.

        Heartbeats are answered with what arrived, so such a request, or its follower, is lost.
        """
        before = self.beat_oldest
        self.beat_oldest = self.inflight[0][0] if self.inflight else NO_OFFSET
        return self.beat_oldest != NO_OFFSET and self.beat_oldest == before

    def is_news(self, seq: int, match: Offset) -> bool:
        """Whether no newer reply came before: what an old one says may no longer be true.

        A follower may answer one request twice: when its flush completes after the first answer,
        when the data that the request overtook arrives, or when the request itself arrives twice.
        Later answers match more. One that matches less was given before its log agreed, and names
        an end that may be in the middle of one of ours.
        """
        if seq > self.sent_seq or (seq, match) < (self.received_seq, self.received_match):
            return False
        self.received_seq, self.received_match = seq, match
        return True

    def saw(self, dirty: Offset, flushed: Offset) -> None:
        """Take over the follower's marks. A log shorter than `match` lost its dirty end."""
        self.dirty = dirty
        self.flushed = flushed
        self.match = min(self.match, dirty)

    def matched(self, upto: Offset) -> None:
        """The follower confirmed the logs equal up to here."""
        self.success_seq = self.received_seq
        if upto > self.match:
            self.match = upto
            self.refused = False
        if self.state is State.PROBE:
            self.become_replicate()
        self.next = max(self.next, Offset(self.match + 1))
        while self.inflight and self.inflight[0][0] <= self.match:
            self.inflight_bytes -= self.inflight.popleft()[1]

    def become_replicate(self) -> None:
        self._restart(State.REPLICATE, Offset(self.match + 1))

    def become_probe(self, next_offset: Offset) -> None:
        """Look for the place where the logs agree, at `next_offset` or below; never below match."""
        self._restart(State.PROBE, max(next_offset, Offset(self.match + 1)))

    def become_snapshot(self) -> None:
        self._restart(State.SNAPSHOT, self.next)

    def _restart(self, state: State, next_offset: Offset) -> None:
        self.state = state
        self.next = next_offset
        self.inflight.clear()
        self.inflight_bytes = 0
        self.waiting = False
        # What was asked of a stream that broke may never have arrived.
        self.flush_asked = self.durable

    def check_invariants(self) -> None:
        assert self.match < self.next, self
        assert self.success_seq <= self.received_seq <= self.sent_seq, self
        assert self.inflight_bytes == sum(size for _, size in self.inflight), self
        assert self.state is State.REPLICATE or not self.inflight, self

    def __str__(self) -> str:
        text = (
            f"{self.state.value} match={self.match} next={self.next}"
            f" dirty={self.dirty} flushed={self.flushed}"
        )
        if self.inflight:
            text += f" inflight={len(self.inflight)}/{self.inflight_bytes}B"
        return text + (" waiting" if self.waiting else "")
