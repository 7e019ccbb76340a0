"""What groups need to know about topics, and from whom: the node's metadata, behind a protocol."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol
from uuid import UUID

from tidelog.kafka.groups.topicregex import TopicPattern

_HASHED: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    partitions: int


class TopicSource(Protocol):
    """The topics as this node knows them now."""

    @property
    def version(self) -> int:
        """Return a number that changes whenever a topic or its partition count may have changed."""

    def topics(self) -> Iterable[Topic]: ...

    def by_name(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: UUID) -> Topic | None: ...


def matching(pattern: TopicPattern, topics: Mapping[str, Topic]) -> frozenset[UUID]:
    """Return the topics that a pattern means: internal ones as well, as with Kafka."""
    return frozenset(topic.id for topic in topics.values() if pattern.matches(topic.name))


def hash_topics(topics: Iterable[Topic]) -> int:
    """Return a number that differs when topics differ; 0 for none, as in a group without a look."""
    digest = blake2b(digest_size=_HASHED.size)
    empty = True
    for topic in sorted(topics, key=lambda topic: topic.name):
        digest.update(topic.id.bytes)
        digest.update(_HASHED.pack(topic.partitions))
        empty = False
    return 0 if empty else int(_HASHED.unpack(digest.digest())[0])
