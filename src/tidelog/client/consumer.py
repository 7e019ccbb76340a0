"""A member of a classic group of consumers: joins, is given partitions, reads and commits them.

Theory of operation. A member joins with the topics it wants. The coordinator picks one member to
share out all partitions (the *range* assignor: each topic's partitions in even runs, as Kafka's
clients do it), and hands each member its share. From then on the member sends heartbeats; when one
is answered with "rebalance", it commits what it handed out, gives up its share and joins again.

Rules:
- What was handed out before the last `next` is taken as done, and is what a commit covers: a crash
  repeats records and never skips one.
- Offsets are committed every `commit_seconds`, before each rebalance, and on `close`.
- A member that does not call `next` still sends heartbeats. A slow caller keeps its share, until a
  rebalance that it holds up for `REBALANCE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self

from kio.schema.consumer_protocol_assignment.v0 import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_assignment.v0.data import TopicPartition as AssignedTopic
from kio.schema.consumer_protocol_subscription.v0 import ConsumerProtocolSubscription
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, UnknownTopic, check
from tidelog.client.fetcher import Fetched, Fetcher, positions_at
from tidelog.client.groups import commit, committed_offsets, read_assignment
from tidelog.client.messages import Api, Build, decode, encode
from tidelog.client.model import TopicPartition
from tidelog.client.offsets import EARLIEST
from tidelog.client.retry import Deadline

SESSION_SECONDS: Final = 10.0
REBALANCE_SECONDS: Final = 60.0
HEARTBEAT_SECONDS: Final = 3.0
COMMIT_SECONDS: Final = 5.0
# Joining waits for the other members, who have a rebalance timeout to come.
JOIN_PATIENCE: Final = REBALANCE_SECONDS + 30.0
ASSIGNOR: Final = "range"
CONSUMER: Final = "consumer"
LANE: Final = "group"  # joining waits, so it must not hold up others
_VERSION: Final = b"\0\0"  # of subscriptions and assignments

_REJOIN: Final = frozenset({ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation})
_NEW_MEMBER: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id})


class GroupConsumer:
    """Reads topics as a member of a group; an async context manager."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        *,
        start: int = EARLIEST,
        committed: bool = False,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        """Join `group` for these topics; `start` is where it begins in what it never read."""
        self.group = group
        self.assignment: tuple[TopicPartition, ...] = ()
        self._cluster = cluster
        self._topics = tuple(dict.fromkeys(topics))
        self._start = start
        self._read_committed = committed
        self._commit_seconds = commit_seconds
        self._member_id = ""
        self._generation = -1
        self._fetcher: Fetcher | None = None
        self._done: dict[TopicPartition, int] = {}  # to commit: what was handed out before
        self._sent: dict[TopicPartition, int] = {}  # as last committed
        self._handed: Fetched | None = None  # what the caller works on
        self._next_commit = 0.0
        self._heart: asyncio.Task[None] | None = None
        self._rejoin = asyncio.Event()  # set when the share is no longer ours
        self._failure: ClientError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def next(self, timeout: float | None = None) -> Fetched | None:
        """Return what came next, joining first if need be; None if `timeout` brought nothing."""
        self._finish()
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        while True:
            if self._failure is not None:
                raise self._failure
            if self._fetcher is None or self._rejoin.is_set():
                await self._join()
            assert self._fetcher is not None
            now = loop.time()
            if now >= self._next_commit:
                await self.commit()
                self._next_commit = now + self._commit_seconds
            # Short turns, so that a rebalance or a commit never waits long for data.
            turn = HEARTBEAT_SECONDS / 6 if end is None else min(HEARTBEAT_SECONDS / 6, end - now)
            part = await self._fetcher.next(max(0.0, turn))
            if part is not None and not self._rejoin.is_set():
                self._handed = part
                return part
            if end is not None and loop.time() >= end:
                return None

    def done(self, partition: TopicPartition, offset: int) -> None:
        """Say that of what was handed out last, only what is before `offset` is done."""
        if self._handed is not None and self._handed.partition == partition:
            self._handed = None
            self._done[partition] = offset

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition of this member's share."""
        return {} if self._fetcher is None else dict(self._fetcher.positions)

    async def commit(self) -> None:
        """Commit what was handed out before the last `next`."""
        news = {p: offset for p, offset in self._done.items() if self._sent.get(p) != offset}
        if not news or self._generation < 0:
            return
        try:
            await commit(
                self._cluster,
                self.group,
                news,
                self._cluster.deadline(),
                member=self._member_id,
                generation=self._generation,
            )
        except Refused as error:
            if error.code not in _REJOIN | _NEW_MEMBER:
                raise
            self._rejoin.set()  # the share went to somebody else, who reads it again
            return
        self._sent.update(news)

    async def close(self) -> None:
        """Commit, leave the group, and stop."""
        self._finish()
        try:
            if not self._rejoin.is_set() and self._failure is None:
                await self.commit()
        finally:
            await self._give_up_share()
            if self._member_id:
                await self._leave()

    def _finish(self) -> None:
        """Take what was handed out last as done."""
        if self._handed is not None:
            self._done[self._handed.partition] = self._handed.next
            self._handed = None

    # --- Joining ----------------------------------------------------------------------------------

    async def _join(self) -> None:
        if self._fetcher is not None:
            await self.commit()
        await self._give_up_share()
        deadline = Deadline(JOIN_PATIENCE)
        while True:
            try:
                self.assignment = await self._join_once(deadline)
                break
            except Refused as error:
                if error.code is ErrorCode.member_id_required:
                    continue
                if error.code in _NEW_MEMBER:
                    self._member_id = ""
                elif error.code not in _REJOIN:
                    raise
                if not deadline.left:
                    raise
                await asyncio.sleep(HEARTBEAT_SECONDS / 30)
        positions = await self._positions(self.assignment)
        self._sent = dict(positions)
        self._rejoin.clear()
        self._fetcher = Fetcher(
            self._cluster, positions, reset=self._start, committed=self._read_committed
        )
        self._heart = asyncio.create_task(self._beat(), name=f"heartbeat of group {self.group}")

    async def _join_once(self, deadline: Deadline) -> tuple[TopicPartition, ...]:
        subscription = ConsumerProtocolSubscription(
            topics=tuple(TopicName(topic) for topic in self._topics), user_data=None
        )

        def judge(answer: Any) -> None:
            if answer.error_code is ErrorCode.member_id_required:
                self._member_id = answer.member_id
            check(answer.error_code, f"group {self.group}")

        answer = await self._ask(
            Api.JOIN_GROUP,
            lambda make: make(
                "JoinGroupRequest",
                group_id=self.group,
                session_timeout=timedelta(seconds=SESSION_SECONDS),
                rebalance_timeout=timedelta(seconds=REBALANCE_SECONDS),
                member_id=self._member_id,
                group_instance_id=None,
                protocol_type=CONSUMER,
                protocols=(
                    make(
                        "JoinGroupRequestProtocol",
                        name=ASSIGNOR,
                        metadata=_VERSION + encode(subscription),
                    ),
                ),
                reason=None,
            ),
            deadline,
            judge,
        )
        self._member_id, self._generation = answer.member_id, answer.generation_id
        shares: Mapping[str, Sequence[TopicPartition]] = {}
        if answer.leader == answer.member_id and not getattr(answer, "skip_assignment", False):
            shares = await self._share_out(
                {member.member_id: read_subscription(member.metadata) for member in answer.members}
            )
        return await self._sync(shares, deadline)

    async def _sync(
        self, shares: Mapping[str, Sequence[TopicPartition]], deadline: Deadline
    ) -> tuple[TopicPartition, ...]:
        answer = await self._ask(
            Api.SYNC_GROUP,
            lambda make: make(
                "SyncGroupRequest",
                group_id=self.group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
                protocol_type=CONSUMER,
                protocol_name=ASSIGNOR,
                assignments=tuple(
                    make(
                        "SyncGroupRequestAssignment",
                        member_id=member,
                        assignment=write_assignment(share),
                    )
                    for member, share in shares.items()
                ),
            ),
            deadline,
        )
        return read_assignment(answer.assignment)

    async def _share_out(
        self, wanted: Mapping[str, Sequence[str]]
    ) -> dict[str, list[TopicPartition]]:
        counts: dict[str, int] = {}
        for topic in sorted({topic for topics in wanted.values() for topic in topics}):
            try:
                info = await self._cluster.topic(topic, fresh=True)
            except UnknownTopic:
                continue
            counts[topic] = len(info.partitions)
        return assign_ranges(wanted, counts)

    async def _positions(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        deadline = self._cluster.deadline()
        found = await committed_offsets(self._cluster, self.group, deadline, partitions)
        new = [partition for partition in partitions if partition not in found]
        if new:
            found.update(await positions_at(self._cluster, new, self._start))
        return found

    # --- Staying and leaving ----------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._ask(
                    Api.HEARTBEAT,
                    lambda make: make(
                        "HeartbeatRequest",
                        group_id=self.group,
                        generation_id=self._generation,
                        member_id=self._member_id,
                        group_instance_id=None,
                    ),
                    Deadline(SESSION_SECONDS),
                )
            except Refused as error:
                if error.code in _NEW_MEMBER:
                    self._member_id = ""
                elif error.code not in _REJOIN:
                    self._failure = error
                self._rejoin.set()
                return
            except ClientError:
                # The session may be over: joining tells, and says what is wrong if that fails.
                self._rejoin.set()
                return

    async def _leave(self) -> None:
        member, self._member_id = self._member_id, ""
        try:
            await self._ask(
                Api.LEAVE_GROUP,
                lambda make: make(
                    "LeaveGroupRequest",
                    group_id=self.group,
                    member_id=member,
                    members=(
                        make(
                            "MemberIdentity",
                            member_id=member,
                            group_instance_id=None,
                            reason=None,
                        ),
                    )
                    if make.version >= 3
                    else (),
                ),
                Deadline(SESSION_SECONDS / 2),
            )
        except ClientError:
            return  # the session's end removes the member as well, only later

    async def _give_up_share(self) -> None:
        heart, fetcher = self._heart, self._fetcher
        self._heart = self._fetcher = None
        self._handed = None
        self._done.clear()
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
        if fetcher is not None:
            await fetcher.close()

    async def _ask(self, api: Api, build: Build, deadline: Deadline, judge: Any = None) -> Any:
        def judge_code(answer: Any) -> None:
            check(answer.error_code, f"group {self.group}")

        return await self._cluster.ask_coordinator(
            self.group,
            api,
            build,
            deadline,
            judge or judge_code,
            lane=LANE,
            patience=deadline.left,
        )


def assign_ranges(
    wanted: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Share out topics of so many partitions to members that want some of them, in even runs."""
    shares: dict[str, list[TopicPartition]] = {member: [] for member in wanted}
    for topic, count in counts.items():
        members = sorted(member for member, topics in wanted.items() if topic in topics)
        begin = 0
        for place, member in enumerate(members):
            size = count // len(members) + (place < count % len(members))
            shares[member] += [TopicPartition(topic, begin + index) for index in range(size)]
            begin += size
    return shares


def read_subscription(data: bytes) -> tuple[str, ...]:
    """Return the topics that a member wants; later versions only add fields at the end."""
    return tuple(decode(ConsumerProtocolSubscription, data, len(_VERSION)).topics)


def write_assignment(share: Iterable[TopicPartition]) -> bytes:
    """Return a member's share as the bytes that it gets."""
    by_topic: defaultdict[str, list[i32]] = defaultdict(list)
    for partition in share:
        by_topic[partition.topic].append(i32(partition.index))
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            AssignedTopic(topic=TopicName(topic), partitions=tuple(indexes))
            for topic, indexes in by_topic.items()
        ),
        user_data=None,
    )
    return _VERSION + encode(assignment)
