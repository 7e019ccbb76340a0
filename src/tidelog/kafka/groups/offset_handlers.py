"""What is asked about committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.

Topics go by name up to version 9 of OffsetCommit and OffsetFetch and by id from version 10 on; here
they have names throughout, since that is how the log keeps them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.groups.member_handlers import MILLISECOND
from tidelog.kafka.groups.records import NO_EPOCH, OffsetValue
from tidelog.kafka.groups.shard_types import (
    Commit,
    CommittedOffset,
    DeleteOffsetsAnswer,
    Fetch,
    FetchAnswer,
)
from tidelog.kafka.groups.unavailable import Unavailable
from tidelog.kafka.turns import TURN, Turns
from tidelog.kafka.versions import NO_THROTTLE

if TYPE_CHECKING:
    from tidelog.kafka.groups.coordinator import Coordinator

NO_OFFSET: Final = -1
# Offsets of one request that are dealt with in one step of the coordinator, at about 10 us each.
STEP: Final = 500
# From these versions on ...
_TOPIC_IDS: Final = 10
_FETCH_GROUP_ERROR: Final = 2  # an error of the group has a field of its own
_FETCH_MANY: Final = 8  # one request asks about several groups

_T = TypeVar("_T")


class OffsetHandlers:
    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator

    # --- OffsetCommit -----------------------------------------------------------------------------

    async def commit(self, context: Context, request: Any) -> Any:
        turns = Turns()
        names = await turns.map(lambda topic: _name(context, request, topic), request.topics)
        known = await _offsets(request, names, turns)
        errors = await self._commit(request, known)
        return await _committed(request, names, errors, turns)

    async def _commit(self, request: Any, offsets: Sequence[CommittedOffset]) -> list[ErrorCode]:
        """Commit offsets in steps that others can get between; return an error for each."""
        group: str = request.group_id
        if len(offsets) > self._coordinator.config.max_offsets_per_commit:
            return [ErrorCode.invalid_commit_offset_size] * len(offsets)
        retention = getattr(request, "retention_time", -MILLISECOND) // MILLISECOND
        commit = Commit(
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id_or_member_epoch,
            request.__version__,
            (),
            None if retention < 0 else retention,
        )
        errors: list[ErrorCode] = []
        for part in _in_steps(offsets):
            step = replace(commit, offsets=tuple(part))
            try:
                errors += await self._commit_step(group, step)
            except Unavailable as error:
                return errors + [error.code] * (len(offsets) - len(errors))
        return errors

    async def _commit_step(self, group: str, commit: Commit) -> tuple[ErrorCode, ...]:
        return await self._coordinator.ask(
            group, lambda shard, now: shard.commit(group, commit, now)
        )

    # --- OffsetFetch ------------------------------------------------------------------------------

    async def fetch(self, context: Context, request: Any) -> Any:
        answers = Answers.to(request)
        turns = Turns()
        if request.__version__ >= _FETCH_MANY:
            return answers(
                "OffsetFetchResponse",
                throttle_time=NO_THROTTLE,
                groups=await turns.wait(
                    lambda group: self._fetch_group(context, request, group, turns), request.groups
                ),
            )
        answer = await self._fetch(context, request, request, turns)
        if answer.error is not ErrorCode.none and request.__version__ < _FETCH_GROUP_ERROR:
            topics = await turns.wait(
                lambda topic: _fetched_topic(
                    answers, topic.name, None, topic.partition_indexes, answer.error, "Topic", turns
                ),
                request.topics,
            )
        else:
            topics = await _fetched(context, request, request, answer, turns)
        return answers(
            "OffsetFetchResponse",
            throttle_time=NO_THROTTLE,
            topics=topics,
            error_code=answer.error,
        )

    async def _fetch_group(self, context: Context, request: Any, group: Any, turns: Turns) -> Any:
        answer = await self._fetch(context, request, group, turns)
        return Answers.to(request)(
            "OffsetFetchResponseGroup",
            group_id=group.group_id,
            topics=await _fetched(context, request, group, answer, turns),
            error_code=answer.error,
        )

    async def _fetch(self, context: Context, request: Any, group: Any, turns: Turns) -> FetchAnswer:
        group_id: str = group.group_id
        fetch = Fetch(getattr(group, "member_id", None), getattr(group, "member_epoch", -1), None)
        steps: Sequence[Fetch] = (fetch,)
        if group.topics is not None:
            wanted = await _wanted(context, request, group.topics, turns)
            steps = [replace(fetch, wanted=tuple(part)) for part in _in_steps(wanted)]
        offsets: list[tuple[str, int, OffsetValue | None]] = []
        try:
            # What is not committed in the log is not told, so all that is told is stable.
            for step in steps:
                answer = await self._fetch_step(group_id, step)
                if answer.error is not ErrorCode.none:
                    return answer
                offsets += answer.offsets
                await turns.done(TURN)
        except Unavailable as error:
            return FetchAnswer(error.code)
        return FetchAnswer(ErrorCode.none, tuple(offsets))

    async def _fetch_step(self, group: str, fetch: Fetch) -> FetchAnswer:
        return await self._coordinator.ask(group, lambda shard, _: shard.fetch(group, fetch))

    # --- OffsetDelete -----------------------------------------------------------------------------

    async def delete(self, _context: Context, request: Any) -> Any:
        group: str = request.group_id
        answers = Answers.to(request)
        turns = Turns()
        partitions = await turns.each(
            (topic.name, one.partition_index)
            for topic in request.topics
            for one in topic.partitions
        )
        errors: list[ErrorCode] = []
        answer = DeleteOffsetsAnswer(ErrorCode.none)
        for part in _in_steps(partitions):
            try:
                answer = await self._delete_step(group, part)
            except Unavailable as error:
                answer = DeleteOffsetsAnswer(error.code)
            if answer.error is not ErrorCode.none:
                break
            errors += answer.partitions
        left = iter(errors)

        async def told(topic: Any) -> Any:
            return answers(
                "OffsetDeleteResponseTopic",
                name=topic.name,
                partitions=await turns.map(
                    lambda one: answers(
                        "OffsetDeleteResponsePartition",
                        partition_index=one.partition_index,
                        error_code=next(left),
                    ),
                    topic.partitions,
                ),
            )

        succeeded = answer.error is ErrorCode.none
        return answers(
            "OffsetDeleteResponse",
            error_code=answer.error,
            throttle_time=NO_THROTTLE,
            topics=await turns.wait(told, request.topics) if succeeded else (),
        )

    async def _delete_step(
        self, group: str, partitions: Sequence[tuple[str, int]]
    ) -> DeleteOffsetsAnswer:
        return await self._coordinator.ask(
            group, lambda shard, _: shard.delete_offsets(group, partitions)
        )


def _in_steps(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Cut what a request names into what one step of the coordinator takes; at least one part."""
    return (items[start : start + STEP] for start in range(0, max(1, len(items)), STEP))


async def _offsets(
    request: Any, names: Sequence[str | None], turns: Turns
) -> list[CommittedOffset]:
    """The offsets of a commit whose topics exist."""
    offsets: list[CommittedOffset] = []
    for name, topic in zip(names, request.topics, strict=True):
        await turns.done()
        if name is not None:
            offsets += await turns.map(partial(_offset, name), topic.partitions)
    return offsets


def _offset(name: str, one: Any) -> CommittedOffset:
    return CommittedOffset(
        name,
        one.partition_index,
        one.committed_offset,
        getattr(one, "committed_leader_epoch", NO_EPOCH),
        one.committed_metadata or "",
    )


async def _wanted(
    context: Context, request: Any, topics: Iterable[Any], turns: Turns
) -> list[tuple[str, int]]:
    """The partitions that a request asks about, of topics whose names are known."""
    wanted: list[tuple[str, int]] = []
    for topic in topics:
        await turns.done()
        name = _name_of(context, request, topic)
        if name is not None:
            wanted += await turns.map(partial(_place, name), topic.partition_indexes)
    return wanted


def _place(name: str, partition: int) -> tuple[str, int]:
    return name, partition


def _name_of(context: Context, request: Any, topic: Any) -> str | None:
    """Return the name of a topic in a request; None if its id is not known."""
    if request.__version__ < _TOPIC_IDS:
        return str(topic.name)
    found = context.node.state.topics_by_id.get(topic.topic_id)
    return None if found is None else found.name


def _name(context: Context, request: Any, topic: Any) -> str | None:
    """Return the name of a topic that exists."""
    name = _name_of(context, request, topic)
    return name if name in context.node.state.topics else None


async def _committed(
    request: Any, names: Sequence[str | None], errors: Sequence[ErrorCode], turns: Turns
) -> Any:
    answers = Answers.to(request)
    by_id = request.__version__ >= _TOPIC_IDS
    unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    left = iter(errors)

    async def told(of: tuple[str | None, Any]) -> Any:
        name, topic = of
        return answers(
            "OffsetCommitResponseTopic",
            name=name if by_id else topic.name,
            topic_id=getattr(topic, "topic_id", None),
            partitions=await turns.map(
                lambda one: answers(
                    "OffsetCommitResponsePartition",
                    partition_index=one.partition_index,
                    error_code=unknown if name is None else next(left),
                ),
                topic.partitions,
            ),
        )

    return answers(
        "OffsetCommitResponse",
        throttle_time=NO_THROTTLE,
        topics=await turns.wait(told, zip(names, request.topics, strict=True)),
    )


async def _fetched(
    context: Context, request: Any, group: Any, answer: FetchAnswer, turns: Turns
) -> tuple[Any, ...]:
    """Return the offsets by topic, in the order of the request."""
    if answer.error is not ErrorCode.none:
        return ()
    answers = Answers.to(request)
    kind = "Topics" if request.__version__ >= _FETCH_MANY else "Topic"
    offsets: dict[str, dict[int, OffsetValue | None]] = {}
    for topic, partition, value in answer.offsets:
        offsets.setdefault(topic, {})[partition] = value
        await turns.done()
    found = []
    if group.topics is not None:
        for asked in group.topics:
            name = _name_of(context, request, asked)
            topic_id = getattr(asked, "topic_id", None)
            indexes = asked.partition_indexes
            await turns.done()
            if name is None:
                unknown = ErrorCode.unknown_topic_id
                told = await _fetched_topic(answers, "", topic_id, indexes, unknown, kind, turns)
            else:
                known = offsets.get(name, {})
                # A topic may have come into being since the offsets were read.
                part = [(index, known.get(index)) for index in indexes]
                told = await _fetched_offsets(answers, name, topic_id, part, kind, turns)
            found.append(told)
        return tuple(found)
    for name, known in offsets.items():
        state = context.node.state.topics.get(name)
        if state is not None or request.__version__ < _TOPIC_IDS:
            topic_id = None if state is None else state.id
            all_of_it = tuple(known.items())
            found.append(await _fetched_offsets(answers, name, topic_id, all_of_it, kind, turns))
    return tuple(found)


async def _fetched_offsets(
    answers: Answers,
    name: str,
    topic_id: object,
    offsets: Sequence[tuple[int, OffsetValue | None]],
    kind: str,
    turns: Turns,
) -> Any:
    none = OffsetValue(NO_OFFSET)
    return answers(
        f"OffsetFetchResponse{kind}",
        name=name,
        topic_id=topic_id,
        partitions=await turns.map(
            lambda one: _fetched_partition(answers, one[0], one[1] or none, ErrorCode.none, kind),
            offsets,
        ),
    )


async def _fetched_topic(
    answers: Answers,
    name: str,
    topic_id: object,
    partitions: Sequence[int],
    error: ErrorCode,
    kind: str,
    turns: Turns,
) -> Any:
    """Return a topic of which nothing can be told."""
    none = OffsetValue(NO_OFFSET)
    return answers(
        f"OffsetFetchResponse{kind}",
        name=name,
        topic_id=topic_id,
        partitions=await turns.map(
            lambda index: _fetched_partition(answers, index, none, error, kind), partitions
        ),
    )


def _fetched_partition(
    answers: Answers, index: int, value: OffsetValue, error: ErrorCode, kind: str
) -> Any:
    return answers(
        "OffsetFetchResponsePartitions" if kind == "Topics" else "OffsetFetchResponsePartition",
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=error,
    )
