"""Requests that are arriving: how much memory they take together, and how slowly they may come.

Two rules keep a few slow senders from stopping a node:

- *Small requests pass.* When the requests of all connections hold more than `max_inflight_bytes`,
  only connections in the middle of a large request stop being read, except for the one whose large
  request began first, so that one of them always gets on. Small requests may use
  `small_reserve_bytes` on top of that. When the reserve is used up as well, every connection waits
  except the first.
- *Large or small, a request keeps coming.* Each has a patience in seconds. Time in which the node
  reads from the connection uses it up, bytes that arrive give it back at `least_rate`, and it never
  exceeds `request_patience`, so that sending most of a request quickly does not buy the right to
  trickle the rest. While memory is short it never exceeds `stall_timeout`.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.kafka.connection import Connection
    from tidelog.kafka.limits import Limits

# Reading resumes when this share of a bound is in use, so that it does not flutter.
_RESUME_AT: Final = 0.75


class _Arrival:
    """One request of which a part has arrived."""

    __slots__ = ("counted", "patience")

    def __init__(self, patience: float) -> None:
        self.patience = patience  # seconds that are left
        self.counted = 0  # bytes that the patience already accounts for


class Arrivals:
    def __init__(self, limits: "Limits") -> None:
        self._limits = limits
        self.bytes = 0  # of requests that arrive or are worked on
        # By connection, the request that began first comes first.
        self._large: dict[Connection, _Arrival] = {}
        self._small: dict[Connection, _Arrival] = {}
        self._pressed = False  # large requests wait
        self._choked = False  # all requests wait

    def take(self, count: int) -> None:
        """Count bytes of requests as held."""
        self.bytes += count
        limits = self._limits
        if self.bytes > limits.max_inflight_bytes:
            self._pressed = True
            self._choked |= self.bytes > limits.max_inflight_bytes + limits.small_reserve_bytes

    def give(self, count: int) -> bool:
        """Count bytes as released; tell whether connections that waited may be read again."""
        self.bytes -= count
        limits = self._limits
        relieved = False
        if self._choked:
            reserve = limits.small_reserve_bytes * _RESUME_AT
            self._choked = self.bytes >= limits.max_inflight_bytes + reserve
            relieved = not self._choked
        if self._pressed and self.bytes < limits.max_inflight_bytes * _RESUME_AT:
            self._pressed = self._choked = False
            relieved = True
        return relieved

    def begin(self, connection: "Connection") -> None:
        """Note that a part of a request is here."""
        kind = self._large if self._is_large(connection) else self._small
        kind[connection] = _Arrival(self._limits.request_patience)

    def end(self, connection: "Connection") -> "Connection | None":
        """The rest is here, or will never be; return the connection that may now be read."""
        was_first = self._first() is connection
        self._large.pop(connection, None)
        self._small.pop(connection, None)
        return self._first() if was_first and self._pressed else None

    def must_wait(self, connection: "Connection") -> bool:
        """Tell whether this connection may not be read, for the sake of the others."""
        if not self._pressed or connection is self._first():
            return False
        return self._choked or self._is_large(connection)

    def overdue(self, seconds: float) -> list["Connection"]:
        """Charge for the time since the last call; return connections that ran out of patience."""
        limits = self._limits
        most = min(limits.stall_timeout, limits.request_patience)
        if not self._pressed:
            most = limits.request_patience
        first = self._first()
        found = []
        for kind in (self._large, self._small):
            for connection, arrival in kind.items():
                earned = (connection.arrived_bytes - arrival.counted) / limits.least_rate
                arrival.counted = connection.arrived_bytes
                if self._is_charged(connection, first):
                    arrival.patience -= seconds
                arrival.patience = min(arrival.patience + earned, most)
                if arrival.patience <= 0:
                    found.append(connection)
        return found

    def _is_charged(self, connection: "Connection", first: "Connection | None") -> bool:
        """Tell whether the client is the reason why the request does not get on."""
        if self.must_wait(connection):
            return False
        if connection.ignores_answers:
            return True
        # A request may wait behind another that takes long, but not while it keeps others waiting.
        return not connection.is_held_back or (self._pressed and connection is first)

    def _first(self) -> "Connection | None":
        return next(iter(self._large or self._small), None)

    def _is_large(self, connection: "Connection") -> bool:
        return connection.arriving_length > self._limits.small_request_bytes
