"""What is asked about committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.

Topics go by name up to version 9 of OffsetCommit and OffsetFetch and by id from version 10 on; here
they have names throughout, since that is how the log keeps them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

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
from tidelog.kafka.groups.turns import in_turns
from tidelog.kafka.groups.unavailable import Unavailable
from tidelog.kafka.versions import NO_THROTTLE

if TYPE_CHECKING:
    from tidelog.kafka.groups.coordinator import Coordinator

NO_OFFSET: Final = -1
# From these versions on ...
_TOPIC_IDS: Final = 10
_FETCH_GROUP_ERROR: Final = 2  # an error of the group has a field of its own
_FETCH_MANY: Final = 8  # one request asks about several groups


class OffsetHandlers:
    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator

    # --- OffsetCommit -----------------------------------------------------------------------------

    async def commit(self, context: Context, request: Any) -> Any:
        group: str = request.group_id
        names = [_name(context, request, topic) for topic in request.topics]
        known = tuple(
            CommittedOffset(
                name,
                one.partition_index,
                one.committed_offset,
                getattr(one, "committed_leader_epoch", NO_EPOCH),
                one.committed_metadata or "",
            )
            for name, topic in zip(names, request.topics, strict=True)
            if name is not None
            for one in topic.partitions
        )
        retention = getattr(request, "retention_time", -MILLISECOND) // MILLISECOND
        commit = Commit(
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id_or_member_epoch,
            request.__version__,
            known,
            None if retention < 0 else retention,
        )
        try:
            errors = await self._coordinator.ask(
                group, lambda shard, now: shard.commit(group, commit, now)
            )
        except Unavailable as error:
            errors = (error.code,) * len(known)
        return _committed(request, names, errors)

    # --- OffsetFetch ------------------------------------------------------------------------------

    async def fetch(self, context: Context, request: Any) -> Any:
        answers = Answers.to(request)
        if request.__version__ >= _FETCH_MANY:
            return answers(
                "OffsetFetchResponse",
                throttle_time=NO_THROTTLE,
                groups=await in_turns(
                    request.groups, lambda group: self._fetch_group(context, request, group)
                ),
            )
        answer = await self._fetch(context, request, request)
        if answer.error is not ErrorCode.none and request.__version__ < _FETCH_GROUP_ERROR:
            topics = tuple(
                _fetched_topic(
                    answers, topic.name, None, topic.partition_indexes, answer.error, "Topic"
                )
                for topic in request.topics
            )
        else:
            topics = _fetched(context, request, request, answer)
        return answers(
            "OffsetFetchResponse",
            throttle_time=NO_THROTTLE,
            topics=topics,
            error_code=answer.error,
        )

    async def _fetch_group(self, context: Context, request: Any, group: Any) -> Any:
        answer = await self._fetch(context, request, group)
        return Answers.to(request)(
            "OffsetFetchResponseGroup",
            group_id=group.group_id,
            topics=_fetched(context, request, group, answer),
            error_code=answer.error,
        )

    async def _fetch(self, context: Context, request: Any, group: Any) -> FetchAnswer:
        group_id: str = group.group_id
        wanted = None
        if group.topics is not None:
            wanted = tuple(
                (name, partition)
                for topic in group.topics
                if (name := _name_of(context, request, topic)) is not None
                for partition in topic.partition_indexes
            )
        fetch = Fetch(getattr(group, "member_id", None), getattr(group, "member_epoch", -1), wanted)
        try:
            # What is not committed in the log is not told, so all that is told is stable.
            return await self._coordinator.ask(
                group_id, lambda shard, _: shard.fetch(group_id, fetch)
            )
        except Unavailable as error:
            return FetchAnswer(error.code)

    # --- OffsetDelete -----------------------------------------------------------------------------

    async def delete(self, _context: Context, request: Any) -> Any:
        group: str = request.group_id
        answers = Answers.to(request)
        partitions = [
            (topic.name, one.partition_index)
            for topic in request.topics
            for one in topic.partitions
        ]
        try:
            answer = await self._coordinator.ask(
                group, lambda shard, _: shard.delete_offsets(group, partitions)
            )
        except Unavailable as error:
            answer = DeleteOffsetsAnswer(error.code)
        errors = iter(answer.partitions)
        return answers(
            "OffsetDeleteResponse",
            error_code=answer.error,
            throttle_time=NO_THROTTLE,
            topics=()
            if answer.error is not ErrorCode.none
            else tuple(
                answers(
                    "OffsetDeleteResponseTopic",
                    name=topic.name,
                    partitions=tuple(
                        answers(
                            "OffsetDeleteResponsePartition",
                            partition_index=one.partition_index,
                            error_code=next(errors),
                        )
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )


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


def _committed(request: Any, names: Sequence[str | None], errors: Sequence[ErrorCode]) -> Any:
    answers = Answers.to(request)
    by_id = request.__version__ >= _TOPIC_IDS
    unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    left = iter(errors)
    return answers(
        "OffsetCommitResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(
            answers(
                "OffsetCommitResponseTopic",
                name=name if by_id else topic.name,
                topic_id=getattr(topic, "topic_id", None),
                partitions=tuple(
                    answers(
                        "OffsetCommitResponsePartition",
                        partition_index=one.partition_index,
                        error_code=unknown if name is None else next(left),
                    )
                    for one in topic.partitions
                ),
            )
            for name, topic in zip(names, request.topics, strict=True)
        ),
    )


def _fetched(context: Context, request: Any, group: Any, answer: FetchAnswer) -> tuple[Any, ...]:
    """Return the offsets by topic, in the order of the request."""
    if answer.error is not ErrorCode.none:
        return ()
    answers = Answers.to(request)
    kind = "Topics" if request.__version__ >= _FETCH_MANY else "Topic"
    offsets: dict[str, dict[int, OffsetValue | None]] = {}
    for topic, partition, value in answer.offsets:
        offsets.setdefault(topic, {})[partition] = value
    found = []
    if group.topics is not None:
        for asked in group.topics:
            name = _name_of(context, request, asked)
            topic_id = getattr(asked, "topic_id", None)
            indexes = asked.partition_indexes
            if name is None:
                unknown = ErrorCode.unknown_topic_id
                found.append(_fetched_topic(answers, "", topic_id, indexes, unknown, kind))
            else:
                part = {index: offsets[name][index] for index in indexes}
                found.append(_fetched_offsets(answers, name, topic_id, part, kind))
        return tuple(found)
    for name, part in offsets.items():
        state = context.node.state.topics.get(name)
        if state is not None or request.__version__ < _TOPIC_IDS:
            topic_id = None if state is None else state.id
            found.append(_fetched_offsets(answers, name, topic_id, part, kind))
    return tuple(found)


def _fetched_offsets(
    answers: Answers,
    name: str,
    topic_id: object,
    offsets: dict[int, OffsetValue | None],
    kind: str,
) -> Any:
    none = OffsetValue(NO_OFFSET)
    return answers(
        f"OffsetFetchResponse{kind}",
        name=name,
        topic_id=topic_id,
        partitions=tuple(
            _fetched_partition(answers, index, value or none, ErrorCode.none, kind)
            for index, value in offsets.items()
        ),
    )


def _fetched_topic(
    answers: Answers,
    name: str,
    topic_id: object,
    partitions: Sequence[int],
    error: ErrorCode,
    kind: str,
) -> Any:
    """Return a topic of which nothing can be told."""
    return answers(
        f"OffsetFetchResponse{kind}",
        name=name,
        topic_id=topic_id,
        partitions=tuple(
            _fetched_partition(answers, index, OffsetValue(NO_OFFSET), error, kind)
            for index in partitions
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
