"""The settings of topics and of the cluster: names, types, defaults, what is allowed.

A topic's value comes from the first of: the topic's own setting, the cluster-wide setting under the
name that Kafka gives a broker's default, the default here. The names are Kafka's, so that its tools
work; `write.caching` and `flush.bytes` are ours:

    write.caching   acknowledge acks=all when a majority has the write in memory
    flush.bytes     flush when so many bytes wait that nobody asked to have flushed
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.storage import LogConfig

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_MS: Final = 24 * 3_600_000
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
UNLIMITED: Final = -1


class OptionType(Enum):
    BOOLEAN = "boolean"
    STRING = "string"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


class Source(Enum):
    """Where a value comes from."""

    DEFAULT = "default"
    CLUSTER = "dynamic cluster setting"
    TOPIC = "dynamic topic setting"


Parser = Callable[[str], Any]  # raises ValueError


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    type: OptionType
    default: str
    parse: Parser
    allowed: str  # the end of the sentence "<name> must be ..."
    doc: str
    # The cluster-wide setting that is the default of a topic's; "" for one that is cluster-wide.
    cluster_name: str = ""

    def read(self, text: str) -> Any:
        """The value of a text; raises `ClusterError`."""
        return self._read(self.name, text)

    def read_default(self, text: str) -> Any:
        """The value of the cluster-wide default of a topic's setting."""
        return self._read(self.cluster_name, text)

    def _read(self, name: str, text: str) -> Any:
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise ClusterError(
                Problem.INVALID_CONFIG, f"{name} is {text[:80]!r}; it must be {self.allowed}"
            ) from error


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


# --- Parsers ------------------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _whole(low: int, high: int) -> Parser:
    def parse(text: str) -> int:
        if len(text) > 20 or not text.isascii() or "_" in text:
            raise ValueError(text)
        number = int(text)
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return parse


def _fraction(text: str) -> float:
    if len(text) > 40 or not text.isascii() or "_" in text:
        raise ValueError(text)
    number = float(text)
    if not 0.0 <= number <= 1.0:  # false for "nan" as well
        raise ValueError(text)
    return number


def _replication_factor(text: str) -> int:
    number: int = _whole(UNLIMITED, 2**15 - 1)(text)
    if number == 0:
        raise ValueError(text)
    return number


def _one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return parse


def _cleanup_policy(text: str) -> frozenset[str]:
    policies = frozenset(item.strip() for item in text.split(","))
    if not policies <= {"delete", "compact"}:
        raise ValueError(text)
    return policies


# --- The schema ---------------------------------------------------------------------------------


def _number(
    name: str,
    type: OptionType,
    default: int,
    low: int,
    cluster_name: str,
    doc: str,
    *,
    no_limit: bool = False,
) -> Option:
    high = {OptionType.SHORT: 2**15 - 1, OptionType.INT: MAX_INT}.get(type, MAX_LONG)
    allowed = f"a whole number from {low} to {high}"
    if no_limit:
        allowed += f", where {UNLIMITED} means no limit"
    return Option(name, type, str(default), _whole(low, high), allowed, doc, cluster_name)


def _choice(name: str, default: str, choices: tuple[str, ...], cluster: str, doc: str) -> Option:
    allowed = "one of " + ", ".join(choices)
    return Option(name, OptionType.STRING, default, _one_of(*choices), allowed, doc, cluster)


def _switch(name: str, default: str, cluster_name: str, doc: str) -> Option:
    return Option(name, OptionType.BOOLEAN, default, _boolean, "true or false", doc, cluster_name)


_TOPIC_OPTIONS: Final = (
    Option(
        "cleanup.policy",
        OptionType.LIST,
        "delete",
        _cleanup_policy,
        "delete, compact or both, with a comma between them",
        "What happens to old records: delete removes old segments, compact keeps the newest record"
        " of each key.",
        "log.cleanup.policy",
    ),
    _number(
        "retention.ms",
        OptionType.LONG,
        7 * DAY_MS,
        UNLIMITED,
        "log.retention.ms",
        "How old a segment may get before the delete policy removes it.",
        no_limit=True,
    ),
    _number(
        "retention.bytes",
        OptionType.LONG,
        UNLIMITED,
        UNLIMITED,
        "log.retention.bytes",
        "How large a partition may get before the delete policy removes its oldest segments.",
        no_limit=True,
    ),
    _number(
        "segment.bytes",
        OptionType.INT,
        128 * MIB,
        KIB,
        "log.segment.bytes",
        "How large a segment gets before the next one begins. Retention and compaction work on"
        " whole segments.",
    ),
    _number(
        "segment.ms",
        OptionType.LONG,
        7 * DAY_MS,
        1,
        "log.roll.ms",
        "How old a segment gets before the next one begins, even if it is small.",
    ),
    _number(
        "delete.retention.ms",
        OptionType.LONG,
        DAY_MS,
        0,
        "log.cleaner.delete.retention.ms",
        "How long compaction keeps the tombstone of a key, so that readers see the deletion.",
    ),
    _number(
        "min.compaction.lag.ms",
        OptionType.LONG,
        0,
        0,
        "log.cleaner.min.compaction.lag.ms",
        "No effect here yet: compaction may remove a record as soon as a newer one is committed and"
        " its segment is closed.",
    ),
    Option(
        "min.cleanable.dirty.ratio",
        OptionType.DOUBLE,
        "0.5",
        _fraction,
        "a number from 0 to 1",
        "No effect here yet: a log that has grown is compacted once a minute.",
        "log.cleaner.min.cleanable.ratio",
    ),
    _number(
        "max.message.bytes",
        OptionType.INT,
        1_048_588,
        0,
        "message.max.bytes",
        "How large a batch of records, compressed as it comes, may be.",
    ),
    _choice(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "Whether the time of a record is the producer's or that of its arrival.",
    ),
    _choice(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "compression.type",
        "How records are compressed in the log; producer keeps them as they come.",
    ),
    _number(
        "min.insync.replicas",
        OptionType.INT,
        1,
        1,
        "min.insync.replicas",
        "How many replicas must have a write before acks=all is answered. It is never less than a"
        " majority of the replicas, whatever is set here.",
    ),
    _switch(
        "write.caching",
        "false",
        "log.write.caching",
        "Whether acks=all is answered when a majority has the write in memory instead of on disk."
        " Faster; what was acknowledged can be lost if a majority loses power at once.",
    ),
    _number(
        "flush.ms",
        OptionType.LONG,
        100,
        1,
        "log.flush.interval.ms",
        "How long a write that nobody asked to have flushed may stay in memory only.",
    ),
    _number(
        "flush.bytes",
        OptionType.LONG,
        1 * MIB,
        1,
        "log.flush.interval.bytes",
        "How many bytes that nobody asked to have flushed start a flush.",
    ),
    _number(
        "flush.messages",
        OptionType.LONG,
        MAX_LONG,
        1,
        "log.flush.interval.messages",
        "Kafka's name for flushing by count. 1 flushes after every write; other values have no"
        " effect here: use flush.bytes.",
    ),
    Option(
        "unclean.leader.election.enable",
        OptionType.BOOLEAN,
        "false",
        _one_of("false"),
        "false: a replica that lacks committed records is never elected",
        "Always false: a replica that lacks committed records is never elected.",
        "unclean.leader.election.enable",
    ),
    # How Kafka lays out its files. Nothing of a topic's behaviour depends on these, so scripts that
    # set them work as they are.
    _number(
        "file.delete.delay.ms",
        OptionType.LONG,
        60_000,
        0,
        "log.segment.delete.delay.ms",
        "No effect here: a file goes when its last reader does.",
    ),
    _number(
        "index.interval.bytes",
        OptionType.INT,
        4096,
        0,
        "log.index.interval.bytes",
        "No effect here: there is an entry for every 32 KiB.",
    ),
    _number(
        "segment.index.bytes",
        OptionType.INT,
        10 * MIB,
        4,
        "log.index.size.max.bytes",
        "No effect here: an index is as large as its segment needs.",
    ),
    _number(
        "segment.jitter.ms",
        OptionType.LONG,
        0,
        0,
        "log.roll.jitter.ms",
        "No effect here.",
    ),
    _switch(
        "preallocate",
        "false",
        "log.preallocate",
        "No effect here: files grow as they are written.",
    ),
)

_CLUSTER_OPTIONS: Final = (
    _switch(
        "auto.create.topics.enable",
        "true",
        "",
        "Whether a topic that a client asks for is created if it does not exist.",
    ),
    _number(
        "num.partitions",
        OptionType.INT,
        1,
        1,
        "",
        "Partitions of a topic that is created without a number.",
    ),
    Option(
        "default.replication.factor",
        OptionType.SHORT,
        str(UNLIMITED),
        _replication_factor,
        "-1 or a whole number from 1 to 32767",
        "Replicas of a partition of a topic that is created without a number. -1 means three, or"
        " one where there are fewer than three nodes.",
    ),
)

TOPIC_OPTIONS: Final[Mapping[str, Option]] = {each.name: each for each in _TOPIC_OPTIONS}
CLUSTER_OPTIONS: Final[Mapping[str, Option]] = {each.name: each for each in _CLUSTER_OPTIONS}
# Cluster-wide settings that are the defaults of topics.
TOPIC_DEFAULTS: Final[Mapping[str, Option]] = {each.cluster_name: each for each in _TOPIC_OPTIONS}


# --- Checking -----------------------------------------------------------------------------------


def check_topic_config(overrides: Mapping[str, str]) -> None:
    """Raise unless a topic can have these settings."""
    for name, text in overrides.items():
        option = TOPIC_OPTIONS.get(name)
        if option is None:
            raise _unknown(name, "a topic", TOPIC_OPTIONS)
        option.read(text)


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
    min_cleanable_dirty_ratio: float
    max_message_bytes: int
    message_timestamp_type: str
    compression_type: str
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
        return cls(
            cleanup_policy=values["cleanup.policy"],
            retention_ms=_limit(values["retention.ms"]),
            retention_bytes=_limit(values["retention.bytes"]),
            segment_bytes=values["segment.bytes"],
            segment_ms=values["segment.ms"],
            delete_retention_ms=values["delete.retention.ms"],
            min_compaction_lag_ms=values["min.compaction.lag.ms"],
            min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
            max_message_bytes=values["max.message.bytes"],
            message_timestamp_type=values["message.timestamp.type"],
            compression_type=values["compression.type"],
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
