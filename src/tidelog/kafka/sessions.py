"""Fetch sessions (KIP-227): clients that read thousands of partitions need not name them each time.

A session remembers what a client asked for. In its next request the client only says what changed,
and in the answer it only gets what changed. Every request of a session carries the next epoch, so
that neither side can miss one:

    session 0, epoch 0     begin a session with all that is named here
    session n, epoch m     go on: m must be the one that is expected
    session n, epoch -1    end the session; this request is complete in itself

A session is a convenience. The listener keeps a bounded number, forgets those that were not used
for long when it needs room, and answers without one when there is none; the client then names
everything again.
"""

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.fetchform import Asked, Fetched, FetchRequest

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1
# As many as Kafka keeps by default, and for how long it keeps one that nobody uses.
MAX_SESSIONS: Final = 1000
KEEP_S: Final = 120.0
# Over all sessions, at about 400 bytes each: 80 MB if clients make use of all of it.
MAX_PARTITIONS: Final = 200_000
MAX_PARTITIONS_EACH: Final = 20_000
# Partitions that a request may add, change or take away; a client that has more begins anew.
MAX_CHANGES: Final = 5_000

Place = tuple[bytes, int]  # what names a topic in requests of this session, and a partition of it


@dataclass(slots=True)
class Followed:
    """One partition of a session: what the client asked for, and what it was told last."""

    key: bytes
    name: str
    asked: Asked
    high_watermark: int = -1
    log_start: int = -1


class Session:
    def __init__(self, session_id: int, version: int, partitions: "OrderedDict[Place, Followed]"):
        self.id = session_id
        self.version = version  # of its requests: names and answers have another form in others
        self.epoch = FIRST_EPOCH + 1  # of the next request
        self.partitions = partitions  # those that had data last come last, so that all get a turn
        self.used = 0.0

    def next_epoch(self) -> None:
        self.epoch = FIRST_EPOCH + 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def news(self, followed: Followed, fetched: Fetched) -> bool:
        """Tell whether the client has to hear this, and remember that it did."""
        marks = (fetched.high_watermark, fetched.log_start)
        changed = marks != (followed.high_watermark, followed.log_start)
        followed.high_watermark, followed.log_start = marks
        if fetched.bytes:
            self.partitions.move_to_end((followed.key, followed.asked.partition))
        return (
            changed
            or fetched.bytes > 0
            or fetched.error is not ErrorCode.none
            or fetched.preferred >= 0
            or fetched.diverging is not None
        )


class Sessions:
    def __init__(self) -> None:
        # The one that was not used for longest first.
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._partitions = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, version: int, followed: Sequence[Followed], now: float) -> Session | None:
        """Begin a session with these partitions; None if there is no room for it."""
        if len(followed) > MAX_PARTITIONS_EACH:
            return None
        partitions = OrderedDict(((each.key, each.asked.partition), each) for each in followed)
        if not partitions or not self._make_room(len(partitions), now):
            return None
        session = Session(self._new_id(), version, partitions)
        session.used = now
        self._sessions[session.id] = session
        self._partitions += len(partitions)
        return session

    def go_on(self, version: int, request: FetchRequest, now: float) -> Session | ErrorCode:
        """Find the session of a request that only says what changed, and change it."""
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.fetch_session_id_not_found
        if request.session_epoch != session.epoch or session.version != version:
            return ErrorCode.invalid_fetch_session_epoch
        if _changes(request) > MAX_CHANGES:
            self.end(session.id)
            return ErrorCode.fetch_session_id_not_found
        before = len(session.partitions)
        for key, indexes in request.forgotten:
            for index in indexes:
                session.partitions.pop((key, index), None)
        for topic in request.topics:
            for asked in topic.partitions:
                known = session.partitions.get((topic.key, asked.partition))
                if known is None:
                    place = (topic.key, asked.partition)
                    session.partitions[place] = Followed(topic.key, topic.name, asked)
                else:
                    known.asked = asked
        self._partitions += len(session.partitions) - before
        too_large = len(session.partitions) > MAX_PARTITIONS_EACH
        if too_large or self._partitions > MAX_PARTITIONS:
            self.end(session.id)
            return ErrorCode.fetch_session_id_not_found
        session.next_epoch()
        session.used = now
        self._sessions.move_to_end(session.id)
        return session

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def _make_room(self, partitions: int, now: float) -> bool:
        while len(self._sessions) >= MAX_SESSIONS or self._partitions + partitions > MAX_PARTITIONS:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used < KEEP_S:
                return False
            self.end(oldest.id)
            self.evicted += 1
        return True

    def _new_id(self) -> int:
        while True:
            session_id = random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id


def _changes(request: FetchRequest) -> int:
    """How many partitions a request names; at least how many, if they are too many."""
    topics = len(request.topics) + len(request.forgotten)
    if topics > MAX_CHANGES:
        return topics
    named = sum(len(topic.partitions) for topic in request.topics)
    return named + sum(len(indexes) for _, indexes in request.forgotten)
