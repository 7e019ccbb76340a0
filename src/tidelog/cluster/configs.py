"""The settings of topics and of the cluster as they are in force.

A topic's value comes from the first of: the topic's own setting, the cluster-wide setting under the
name that Kafka gives a broker's default, the default here. The names are Kafka's, so that its tools
work; `write.caching` and `flush.bytes` are ours:

    write.caching   acknowledge acks=all when a majority has the write in memory
    flush.bytes     flush when so many bytes wait that nobody asked to have flushed
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.options import UNLIMITED, Option
from tidelog.cluster.topicoptions import CLUSTER_OPTIONS, TOPIC_DEFAULTS, TOPIC_OPTIONS
from tidelog.storage import LogConfig


class Source(Enum):
    """Where a value comes from."""

    DEFAULT = "default"
    CLUSTER = "dynamic cluster setting"
    TOPIC = "dynamic topic setting"


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """A setting as it is in force, and all that was or would be in force instead."""

    option: Option
    name: str
    value: str
    source: Source
    synonyms: tuple[Synonym, ...]  # the one in force first


# --- Checking -----------------------------------------------------------------------------------


def check_topic_config(overrides: Mapping[str, str]) -> None:
    """Raise unless a topic can have these settings."""
    for name, text in overrides.items():
        option = TOPIC_OPTIONS.get(name)
        if option is None:
            raise _unknown(name, "a topic", TOPIC_OPTIONS)
        option.read(text)
    least, most = (
        TOPIC_OPTIONS[name].read(overrides.get(name, TOPIC_OPTIONS[name].default))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if most < least:
        raise ClusterError(
            Problem.INVALID_CONFIG,
            f"max.compaction.lag.ms is {most} and min.compaction.lag.ms is {least}; the former must"
            " not be less",
        )


def check_cluster_config(settings: Mapping[str, str]) -> None:
    """Raise unless the cluster can have these settings."""
    for name, text in settings.items():
        if name in TOPIC_DEFAULTS:
            TOPIC_DEFAULTS[name].read_default(text)
        elif name in CLUSTER_OPTIONS:
            CLUSTER_OPTIONS[name].read(text)
        else:
            raise _unknown(name, "the cluster", {**CLUSTER_OPTIONS, **TOPIC_DEFAULTS})


def _unknown(name: str, what: str, known: Mapping[str, Option]) -> ClusterError:
    return ClusterError(
        Problem.INVALID_CONFIG,
        f"{name[:80]!r} is no setting of {what}; there are {', '.join(sorted(known))}",
    )


# --- Typed values -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic as they are in force. -1 became None where it means no limit."""

    cleanup_policy: frozenset[str]
    retention_ms: int | None
    retention_bytes: int | None
    segment_bytes: int
    segment_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    max_message_bytes: int
    message_timestamp_type: str
    compression_type: str
    compression_level: int | None  # of that codec; None: its own choice
    min_insync_replicas: int
    write_caching: bool
    flush_ms: int
    flush_bytes: int  # already 1 if flush.messages asks for a flush after every write

    @classmethod
    def from_strings(
        cls, overrides: Mapping[str, str], cluster: Mapping[str, str]
    ) -> "TopicConfig":
        """Read the settings that are in force; raises `ClusterError` for a bad value.

        Names that this release does not know are left alone: a newer one may have set them.
        """
        values = {
            option.name: _in_force(option, overrides, cluster) for option in TOPIC_OPTIONS.values()
        }
        codec = values["compression.type"]
        return cls(
            cleanup_policy=values["cleanup.policy"],
            retention_ms=_limit(values["retention.ms"]),
            retention_bytes=_limit(values["retention.bytes"]),
            segment_bytes=values["segment.bytes"],
            segment_ms=values["segment.ms"],
            delete_retention_ms=values["delete.retention.ms"],
            min_compaction_lag_ms=values["min.compaction.lag.ms"],
            max_compaction_lag_ms=values["max.compaction.lag.ms"],
            min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
            max_message_bytes=values["max.message.bytes"],
            message_timestamp_type=values["message.timestamp.type"],
            compression_type=codec,
            compression_level=_limit(values.get(f"compression.{codec}.level", UNLIMITED)),
            min_insync_replicas=values["min.insync.replicas"],
            write_caching=values["write.caching"],
            flush_ms=values["flush.ms"],
            flush_bytes=1 if values["flush.messages"] == 1 else values["flush.bytes"],
        )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    def log_config(self) -> LogConfig:
        """What of this concerns the log on disk. A limit of 0 becomes the smallest there is."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            retention_bytes=_at_least_one(self.retention_bytes) if self.deletes else None,
            retention_ms=_at_least_one(self.retention_ms) if self.deletes else None,
            delete_retention_ms=max(1, self.delete_retention_ms),
            min_compaction_lag_ms=self.min_compaction_lag_ms or None,
        )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The settings of the cluster itself as they are in force."""

    auto_create_topics: bool
    num_partitions: int
    default_replication_factor: int | None  # None: as many as the nodes allow, up to three

    @classmethod
    def from_strings(cls, settings: Mapping[str, str]) -> "ClusterConfig":
        values = {
            name: option.read(settings.get(name, option.default))
            for name, option in CLUSTER_OPTIONS.items()
        }
        return cls(
            auto_create_topics=values["auto.create.topics.enable"],
            num_partitions=values["num.partitions"],
            default_replication_factor=_limit(values["default.replication.factor"]),
        )


def _in_force(option: Option, overrides: Mapping[str, str], cluster: Mapping[str, str]) -> Any:
    if option.name in overrides:
        return option.read(overrides[option.name])
    if option.cluster_name in cluster:
        return option.read_default(cluster[option.cluster_name])
    return option.read(option.default)


def _limit(number: int) -> int | None:
    return None if number == UNLIMITED else number


def _at_least_one(number: int | None) -> int | None:
    return None if number is None else max(1, number)


# --- Describing ---------------------------------------------------------------------------------


def describe_topic(overrides: Mapping[str, str], cluster: Mapping[str, str]) -> Iterator[Described]:
    """All settings of a topic, by name in order."""
    for name in sorted(TOPIC_OPTIONS):
        option = TOPIC_OPTIONS[name]
        synonyms = [*_default_synonyms(option, cluster)]
        if name in overrides:
            synonyms.insert(0, Synonym(name, overrides[name], Source.TOPIC))
        yield _described(option, name, synonyms)


def describe_cluster(cluster: Mapping[str, str]) -> Iterator[Described]:
    """All cluster-wide settings, by name in order."""
    for name in sorted({*CLUSTER_OPTIONS, *TOPIC_DEFAULTS}):
        if name in TOPIC_DEFAULTS:
            option = TOPIC_DEFAULTS[name]
            yield _described(option, name, [*_default_synonyms(option, cluster)])
        else:
            option = CLUSTER_OPTIONS[name]
            synonyms = [Synonym(name, option.default, Source.DEFAULT)]
            if name in cluster:
                synonyms.insert(0, Synonym(name, cluster[name], Source.CLUSTER))
            yield _described(option, name, synonyms)


def _default_synonyms(option: Option, cluster: Mapping[str, str]) -> Iterator[Synonym]:
    name = option.cluster_name
    if name in cluster:
        yield Synonym(name, cluster[name], Source.CLUSTER)
    yield Synonym(name, option.default, Source.DEFAULT)


def _described(option: Option, name: str, synonyms: list[Synonym]) -> Described:
    first = synonyms[0]
    return Described(option, name, first.value, first.source, tuple(synonyms))
