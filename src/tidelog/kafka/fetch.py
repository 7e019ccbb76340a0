"""Fetch: batches of the log to clients, as they lie there.

A request is answered at once if it has enough to show, or something to say (an error, another
replica to go to). Otherwise it waits, without a task of its own: it is a timer and a watcher on
each of its partitions, and whichever of them moves first looks whether there is enough now. Only
those that moved are read again.

What a partition answers, in this order, which is Kafka's:

    no such topic or partition                      UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID
    the client's leader epoch is not ours           FENCED_ or UNKNOWN_LEADER_EPOCH
    this node does not lead, or may not serve       NOT_LEADER_OR_FOLLOWER
    what the client read last is not in this log    the diverging epoch, from version 12 on
    below the start or beyond the end               OFFSET_OUT_OF_RANGE
    another replica is in the client's rack         that replica
    between the high watermark and the end          nothing, without an error
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.cluster.partition import OffsetOutOfRange
from tidelog.kafka import fetchform
from tidelog.kafka.codec import Buffer
from tidelog.kafka.dispatch import Context, RawAnswer
from tidelog.kafka.errors import leader_for
from tidelog.kafka.fetchform import Asked, Fetched, FetchRequest
from tidelog.kafka.large import LIGHT_BYTES
from tidelog.kafka.leadership import current_leader, encode_endpoints
from tidelog.kafka.sessions import FINAL_EPOCH, FIRST_EPOCH, NO_SESSION, Followed, Session, Sessions
from tidelog.kafka.turns import TURN, at_once, in_turns
from tidelog.machines import UnknownOffset
from tidelog.storage import DamagedLog, LocalError

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition

log = logging.getLogger(__name__)

MIN_VERSION: Final = 4
MAX_VERSION: Final = 18
# Of one answer, whatever the client allows: Kafka's `fetch.max.bytes` of a broker.
MAX_BYTES: Final = 55 * 1024 * 1024
MAX_WAIT_S: Final = 600.0
_DEBUGGER: Final = -2  # Kafka's id for tools that read from any replica
_COMMITTED_ONLY: Final = 1
_NONE: Final = ErrorCode.none
# Codes that say who leads.
_ELSEWHERE: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


# Partitions of a request that is answered without turns for others.
AT_ONCE: Final = 200


class Read(NamedTuple):
    """What there is for a request at some moment."""

    fetched: list[Fetched]  # of all partitions
    bytes: int
    urgent: bool  # it is not to wait for more


class Fetcher:
    """The handler of one listener, and the sessions of its clients."""

    def __init__(self) -> None:
        self.sessions = Sessions()

    def handle(
        self, context: Context, version: int, body: memoryview
    ) -> "Awaitable[RawAnswer] | RawAnswer":
        if len(body) > LIGHT_BYTES:
            return self._handle_large(context, version, body)
        request = fetchform.parse(version, body)
        fetch = self._fetch(context, version, request, _named(request))
        if isinstance(fetch, ErrorCode):
            return _refusal(version, fetch)
        return fetch.begin() if fetch.count <= AT_ONCE else fetch.take_turns()

    async def _handle_large(self, context: Context, version: int, body: memoryview) -> RawAnswer:
        def read() -> tuple[FetchRequest, list[Followed]]:
            request = fetchform.parse(version, body)
            return request, _named(request)

        fetch = self._fetch(context, version, *await asyncio.to_thread(read))
        return (
            _refusal(version, fetch) if isinstance(fetch, ErrorCode) else await fetch.take_turns()
        )

    def _fetch(
        self, context: Context, version: int, request: FetchRequest, named: list[Followed]
    ) -> "Fetch | ErrorCode":
        """Find out what a request follows: what it names, or what its session does."""
        if request.session_epoch > FIRST_EPOCH:
            session = self.sessions.go_on(version, request, context.node.loop.time())
            if isinstance(session, ErrorCode):
                return session
            partitions = session.partitions
            if not partitions:
                self.sessions.end(session.id)
            return Fetch(context, version, request, list(partitions.values()), session)
        if request.session_id != NO_SESSION:
            self.sessions.end(request.session_id)
        whole = Fetch(context, version, request, named, None)
        if request.session_epoch != FINAL_EPOCH:
            now = context.node.loop.time()
            whole.new_session = self.sessions.begin(version, named, now)
        return whole


def _named(request: FetchRequest) -> list[Followed]:
    return [
        Followed(topic.key, topic.name, asked)
        for topic in request.topics
        for asked in topic.partitions
    ]


def _refusal(version: int, error: ErrorCode) -> list[Buffer]:
    return fetchform.encode(version, error, NO_SESSION, [], committed_only=False, endpoints=b"")


class Fetch:
    """One request."""

    def __init__(
        self,
        context: Context,
        version: int,
        request: FetchRequest,
        followed: list[Followed],
        session: Session | None,
    ) -> None:
        self._context = context
        self._version = version
        self._request = request
        self._followed = followed
        self._session = session  # that this request goes on with
        self.new_session: Session | None = None  # that this request begins
        self._by_id = version >= fetchform.FIRST_WITH_ID
        self._near = request.rack if request.replica_id == fetchform.CONSUMER else ""
        self._future: asyncio.Future[RawAnswer]
        self._end: Callable[[], None]  # called when the wait is over
        self._timer: asyncio.TimerHandle | None = None
        self._stops: list[Callable[[], None]] = []
        self._bytes = 0  # that a waiting request has seen so far
        self._before: list[Fetched] = []  # what it read when it began to wait
        self._moved: set[int] = set()  # places in that of partitions that moved since

    @property
    def count(self) -> int:
        """How many partitions are read."""
        return len(self._followed)

    def begin(self) -> Awaitable[RawAnswer] | RawAnswer:
        """Answer at once, or promise to; for a request that follows few partitions."""
        read = at_once(self._read())
        if self._is_enough(read):
            return self._encode(at_once(self._tell(read.fetched)))
        self._begin_to_wait(read, self._finish)
        at_once(self._watch(read.fetched))
        return self._future

    async def take_turns(self) -> RawAnswer:
        """Answer a request that follows many partitions, in turns with everybody else."""
        read = await in_turns(self._read())
        if not self._is_enough(read):
            self._begin_to_wait(read, self._end_waiting)
            try:
                await in_turns(self._watch(read.fetched))
                await self._future
            finally:
                self._stop(self._future)
            read = await in_turns(self._read())
        return await asyncio.to_thread(self._encode, await in_turns(self._tell(read.fetched)))

    def _is_enough(self, read: "Read") -> bool:
        """Whether the client wants an answer with no more than that."""
        request = self._request
        return (
            read.urgent
            or read.bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or not read.fetched
        )

    # --- Waiting ----------------------------------------------------------------------------------

    def _begin_to_wait(self, read: "Read", end: Callable[[], None]) -> None:
        loop = self._context.node.loop
        self._end = end
        self._future = loop.create_future()
        self._future.add_done_callback(self._stop)
        self._timer = loop.call_later(min(self._request.max_wait_ms / 1000, MAX_WAIT_S), end)
        self._bytes = read.bytes
        self._before = read.fetched

    def _watch(self, fetched: list[Fetched]) -> Generator[None, None, None]:
        node = self._context.node
        for place, (followed, now) in enumerate(zip(self._followed, fetched, strict=True)):
            partition = node.partition(self._name(followed) or "", followed.asked.partition)
            if partition is not None:
                seen = max(followed.asked.offset, now.high_watermark)
                waiting = _Waiting(self, place, partition, seen)
                self._stops.append(partition.watch(waiting.look))
                if partition.high_watermark > seen:
                    waiting.look()  # it moved since it was read, in the turn of another
            if place % TURN == TURN - 1:
                yield

    def grew(self, place: int, count: int) -> None:
        """One of the partitions has so many bytes more to show."""
        self._moved.add(place)
        self._bytes += count
        if self._bytes >= self._request.min_bytes:
            self._end()

    @property
    def wants_bytes(self) -> bool:
        """Whether it matters how many bytes there are, and not just that there are some."""
        return self._request.min_bytes > 1

    def end_waiting(self, place: int) -> None:
        """One of the partitions has something to say."""
        self._moved.add(place)
        self._end()

    def _finish(self) -> None:
        if self._future.done():
            return
        self._stop(self._future)
        try:
            read = at_once(self._read())
            self._future.set_result(self._encode(at_once(self._tell(read.fetched))))
        except Exception as error:  # noqa: BLE001  # called by a partition, which must not suffer
            self._future.set_exception(error)

    def _end_waiting(self) -> None:
        """Let the one who takes turns go on."""
        if not self._future.done():
            self._future.set_result(None)

    def _stop(self, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stop in self._stops:
            stop()
        self._stops = []

    # --- Reading ----------------------------------------------------------------------------------

    def _read(self) -> "Generator[None, None, Read]":
        """Read what there is now; stops after every turn.

        A request that waited reads what moved meanwhile; the rest is as it was.
        """
        left = max(0, min(self._request.max_bytes, MAX_BYTES))
        total = 0
        urgent = False
        all_fetched: list[Fetched] = []
        waited = bool(self._before)
        for place, followed in enumerate(self._followed):
            if waited and place not in self._moved:
                fetched = self._before[place]
            else:
                fetched = self._read_one(followed, left, total == 0)
            all_fetched.append(fetched)
            left -= fetched.bytes
            total += fetched.bytes
            urgent = urgent or (
                fetched.error is not _NONE
                or fetched.preferred >= 0
                or fetched.diverging is not None
            )
            if place % TURN == TURN - 1:
                yield
        return Read(all_fetched, total, urgent)

    def _read_one(self, followed: Followed, left: int, first: bool) -> Fetched:
        asked = followed.asked
        fetched = Fetched(asked.partition)
        name = self._name(followed)
        if name is None:
            fetched.error = ErrorCode.unknown_topic_id
            return fetched
        try:
            partition = self._partition(name, asked)
            if isinstance(partition, ErrorCode):
                fetched.error = partition
            else:
                self._read_partition(fetched, partition, asked, left, first)
        except OffsetOutOfRange:
            fetched.error = ErrorCode.offset_out_of_range
        except (UnknownOffset, LocalError):
            # A replica that is being restored, or was closed while we looked at it.
            fetched.error = ErrorCode.not_leader_or_follower
        except DamagedLog:
            # The replica is lost, which is logged once and not for each fetch. Clients take this
            # for a reason to ask who leads, and come back.
            fetched.error = ErrorCode.kafka_storage_error
        except OSError as error:
            log.error("%s/%d cannot be read: %s", name, asked.partition, error)
            fetched.error = ErrorCode.kafka_storage_error
        if fetched.error in _ELSEWHERE and self._version >= fetchform.FIRST_FLEXIBLE:
            fetched.leader = current_leader(self._context, name, asked.partition)
        return fetched

    def _name(self, followed: Followed) -> str | None:
        if not self._by_id:
            return followed.name
        topic = self._context.node.state.topics_by_id.get(_topic_id(followed.key))
        return None if topic is None else topic.name

    def _partition(self, name: str, asked: Asked) -> "Partition | ErrorCode":
        """Return the replica to read from; the client's epoch is compared before all else."""
        replica_id = self._request.replica_id
        if replica_id >= 0:  # no replica of ours copies its leader this way
            fenced = asked.epoch >= 0
            return ErrorCode.unknown_leader_epoch if fenced else ErrorCode.not_leader_or_follower
        partition = leader_for(self._context, name, asked.partition, asked.epoch)
        any_replica = self._near or replica_id == _DEBUGGER
        if partition is not ErrorCode.not_leader_or_follower or not any_replica:
            return partition
        follower = self._context.node.partition(name, asked.partition)
        if follower is None or follower.closed or follower.leader is None:
            return partition
        return follower

    def _read_partition(
        self, fetched: Fetched, partition: "Partition", asked: Asked, left: int, first: bool
    ) -> None:
        if (
            partition.config.compression_type == "zstd"
            and self._version < fetchform.FIRST_WITH_ZSTD
        ):
            fetched.error = ErrorCode.unsupported_compression_type
            return
        start, mark, log_end = partition.bounds
        if asked.last_epoch >= 0:
            end = partition.end_of_epoch(asked.last_epoch)
            if end is None or asked.offset < start:
                raise OffsetOutOfRange
            if end[0] < asked.last_epoch or end[1] < asked.offset:
                fetched.diverging = end
        if not start <= asked.offset <= max(mark, log_end):
            raise OffsetOutOfRange
        fetched.high_watermark, fetched.log_start = mark, start
        if fetched.diverging is not None:
            return
        if self._near and partition.is_leader:
            fetched.preferred = nearest(self._context, partition, asked.offset, self._near)
        if fetched.preferred < 0 and asked.offset < mark and (left > 0 or first):
            most = max(1, min(left, asked.max_bytes))
            chunk = partition.read(asked.offset, most)
            # A batch that is too large on its own is shown as the first thing or not at all.
            if first or chunk.bytes <= most:
                fetched.parts, fetched.bytes = chunk.parts, chunk.bytes

    # --- Answering --------------------------------------------------------------------------------

    def _tell(self, fetched: list[Fetched]) -> Generator[None, None, dict[bytes, list[Fetched]]]:
        """Choose what the client is told, by topic: in a session, that is what is news to it."""
        topics: dict[bytes, list[Fetched]] = {}
        for place, (followed, each) in enumerate(zip(self._followed, fetched, strict=True)):
            if self.new_session is not None:
                self.new_session.news(followed, each)
            if self._session is None or self._session.news(followed, each):
                topics.setdefault(followed.key, []).append(each)
            if place % TURN == TURN - 1:
                yield
        return topics

    def _encode(self, topics: dict[bytes, list[Fetched]]) -> list[Buffer]:
        leaders = {
            each.leader[0] for told in topics.values() for each in told if each.leader is not None
        }
        session = self._session or self.new_session
        return fetchform.encode(
            self._version,
            _NONE,
            NO_SESSION if session is None or not session.partitions else session.id,
            list(topics.items()),
            committed_only=self._request.isolation == _COMMITTED_ONLY,
            endpoints=encode_endpoints(self._context, leaders) if leaders else b"",
        )


class _Waiting:
    """One partition of a request that waits."""

    __slots__ = ("_epoch", "_fetch", "_leads", "_partition", "_place", "_seen")

    def __init__(self, fetch: Fetch, place: int, partition: "Partition", seen: int) -> None:
        self._fetch = fetch
        self._place = place  # in the request
        self._partition = partition
        self._seen = seen  # offset up to which its bytes were counted
        self._leads = partition.is_leader
        self._epoch = partition.epoch

    def look(self) -> None:
        """Something moved: end the wait, or count what has come."""
        partition, fetch = self._partition, self._fetch
        try:
            start, mark, _ = partition.bounds
            if (
                partition.closed
                or partition.is_leader != self._leads
                or partition.epoch != self._epoch
                or start > self._seen
            ):
                fetch.end_waiting(self._place)
                return
            if mark <= self._seen:
                return
            if not fetch.wants_bytes:
                fetch.end_waiting(self._place)
                return
            chunk = partition.read(self._seen, MAX_BYTES)
            self._seen = max(chunk.next_offset, mark)
            fetch.grew(self._place, chunk.bytes)
        except (OSError, LookupError, LocalError):
            fetch.end_waiting(self._place)  # which finds out what is wrong, and says so


@lru_cache(maxsize=1024)
def _topic_id(key: bytes) -> UUID:
    return UUID(bytes=key)


def nearest(context: Context, partition: "Partition", offset: int, rack: str) -> int:
    """Return a replica in this rack that can serve the offset; -1 if that is this node, or none."""
    members = context.node.state.members
    here = members.get(context.node.id)
    if here is not None and here.rack == rack:
        return -1
    near = [
        each
        for each in sorted(partition.holders(offset))
        if each in members and members[each].rack == rack and context.node.is_alive(each)
    ]
    # By partition, so that the replicas of a rack share the work.
    return near[partition.index % len(near)] if near else -1
