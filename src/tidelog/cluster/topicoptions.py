"""Every setting of a topic and of the cluster, with its default and what it does here.

The names are Kafka's, so that its tools work. Settings of Kafka's that change nothing here are
taken with those values that ask for nothing else; a setting that is not listed is refused.
"""

from collections.abc import Mapping
from typing import Final

from tidelog.cluster.options import (
    MAX_LONG,
    UNLIMITED,
    Option,
    OptionType,
    choice,
    cleanup_policy,
    compression_level,
    fixed,
    fraction,
    number,
    replication_factor,
    switch,
    throttled_replicas,
)

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_MS: Final = 24 * 3_600_000

_TOPIC_OPTIONS: Final = (
    Option(
        "cleanup.policy",
        OptionType.LIST,
        "delete",
        cleanup_policy,
        "delete, compact or both, with a comma between them",
        "What happens to old records: delete removes old segments, compact keeps the newest record"
        " of each key.",
        "log.cleanup.policy",
    ),
    number(
        "retention.ms",
        OptionType.LONG,
        7 * DAY_MS,
        UNLIMITED,
        "log.retention.ms",
        "How old a segment may get before the delete policy removes it.",
        no_limit=True,
    ),
    number(
        "retention.bytes",
        OptionType.LONG,
        UNLIMITED,
        UNLIMITED,
        "log.retention.bytes",
        "How large a partition may get before the delete policy removes its oldest segments.",
        no_limit=True,
    ),
    number(
        "segment.bytes",
        OptionType.INT,
        128 * MIB,
        KIB,
        "log.segment.bytes",
        "How large a segment gets before the next one begins. Retention and compaction work on"
        " whole segments.",
    ),
    number(
        "segment.ms",
        OptionType.LONG,
        7 * DAY_MS,
        1,
        "log.roll.ms",
        "How old a segment gets before the next one begins, even if it is small.",
    ),
    number(
        "delete.retention.ms",
        OptionType.LONG,
        DAY_MS,
        0,
        "log.cleaner.delete.retention.ms",
        "How long compaction keeps the tombstone of a key, so that readers see the deletion.",
    ),
    number(
        "min.compaction.lag.ms",
        OptionType.LONG,
        0,
        0,
        "log.cleaner.min.compaction.lag.ms",
        "How long a record stays at least before compaction may remove it. It counts from the"
        " newest record of a segment, and holds up the segments after it too.",
    ),
    number(
        "max.compaction.lag.ms",
        OptionType.LONG,
        MAX_LONG,
        1,
        "log.cleaner.max.compaction.lag.ms",
        "How long a record may wait at most until compaction looks at it. A log that has grown is"
        " compacted once a minute, so only less than that has an effect; it is looked at every ten"
        " seconds.",
    ),
    Option(
        "min.cleanable.dirty.ratio",
        OptionType.DOUBLE,
        "0.5",
        fraction,
        "a number from 0 to 1",
        "No effect here: a log that has grown is compacted once a minute, however much of it is"
        " new.",
        "log.cleaner.min.cleanable.ratio",
    ),
    number(
        "max.message.bytes",
        OptionType.INT,
        1_048_588,
        0,
        "message.max.bytes",
        "How large a batch of records, compressed as it comes, may be.",
    ),
    choice(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "Whether the time of a record is the producer's or that of its arrival.",
    ),
    choice(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "compression.type",
        "How records are compressed in the log; producer keeps them as they come.",
    ),
    compression_level("gzip", -1, 1, 9, or_minus_one=True),
    compression_level("lz4", 9, 1, 17),
    compression_level("zstd", 3, -(2**17), 22),
    number(
        "min.insync.replicas",
        OptionType.INT,
        1,
        1,
        "min.insync.replicas",
        "How many replicas must have a write before acks=all is answered. It is never less than a"
        " majority of the replicas, whatever is set here.",
    ),
    switch(
        "write.caching",
        "false",
        "log.write.caching",
        "Whether acks=all is answered when a majority has the write in memory instead of on disk."
        " Faster; what was acknowledged can be lost if a majority loses power at once.",
    ),
    number(
        "flush.ms",
        OptionType.LONG,
        100,
        1,
        "log.flush.interval.ms",
        "How long a write that nobody asked to have flushed may stay in memory only.",
    ),
    number(
        "flush.bytes",
        OptionType.LONG,
        1 * MIB,
        1,
        "log.flush.interval.bytes",
        "Start a flush once this many bytes are waiting to be flushed.",
    ),
    number(
        "flush.messages",
        OptionType.LONG,
        MAX_LONG,
        1,
        "log.flush.interval.messages",
        "Kafka's name for flushing by count. 1 flushes after every write; other values have no"
        " effect here: use flush.bytes.",
    ),
    fixed(
        "unclean.leader.election.enable",
        OptionType.BOOLEAN,
        "false",
        "unclean.leader.election.enable",
        "Always false: a replica that lacks committed records is never elected.",
    ),
    # How Kafka lays out its files. Nothing of a topic's behaviour depends on these, so scripts that
    # set them work as they are.
    number(
        "file.delete.delay.ms",
        OptionType.LONG,
        60_000,
        0,
        "log.segment.delete.delay.ms",
        "No effect here: a file goes when its last reader does.",
    ),
    number(
        "index.interval.bytes",
        OptionType.INT,
        4096,
        0,
        "log.index.interval.bytes",
        "No effect here: there is an entry for every 32 KiB.",
    ),
    number(
        "segment.index.bytes",
        OptionType.INT,
        10 * MIB,
        4,
        "log.index.size.max.bytes",
        "No effect here: an index is as large as its segment needs.",
    ),
    number(
        "segment.jitter.ms",
        OptionType.LONG,
        0,
        0,
        "log.roll.jitter.ms",
        "No effect here.",
    ),
    # What Kafka has and this store does not: taken only where it is switched off.
    fixed(
        "remote.storage.enable",
        OptionType.BOOLEAN,
        "false",
        "remote.storage.enable",
        "Always false: there is no tiered storage.",
    ),
    fixed(
        "remote.log.copy.disable",
        OptionType.BOOLEAN,
        "false",
        "remote.log.copy.disable",
        "Always false, and without effect: there is no tiered storage.",
    ),
    fixed(
        "remote.log.delete.on.disable",
        OptionType.BOOLEAN,
        "false",
        "remote.log.delete.on.disable",
        "Always false, and without effect: there is no tiered storage.",
    ),
    fixed(
        "local.retention.ms",
        OptionType.LONG,
        "-2",
        "log.local.retention.ms",
        "Always -2, which means as long as retention.ms says: there is no tiered storage.",
    ),
    fixed(
        "local.retention.bytes",
        OptionType.LONG,
        "-2",
        "log.local.retention.bytes",
        "Always -2, which means as much as retention.bytes says: there is no tiered storage.",
    ),
    fixed(
        "message.timestamp.before.max.ms",
        OptionType.LONG,
        str(MAX_LONG),
        "log.message.timestamp.before.max.ms",
        "Always without limit: records may be of any time in the past.",
    ),
    fixed(
        "message.timestamp.after.max.ms",
        OptionType.LONG,
        str(MAX_LONG),
        "log.message.timestamp.after.max.ms",
        "Always without limit: records may be of any time in the future.",
    ),
    throttled_replicas("leader.replication.throttled.replicas"),
    throttled_replicas("follower.replication.throttled.replicas"),
    switch(
        "preallocate",
        "false",
        "log.preallocate",
        "No effect here: files grow as they are written.",
    ),
)

_CLUSTER_OPTIONS: Final = (
    switch(
        "auto.create.topics.enable",
        "true",
        "",
        "Whether a topic that a client asks for is created if it does not exist.",
    ),
    number(
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
        replication_factor,
        "-1 or a whole number from 1 to 32767",
        "Replicas of a partition of a topic that is created without a number. -1 means three, or"
        " one where there are fewer than three nodes.",
    ),
)

TOPIC_OPTIONS: Final[Mapping[str, Option]] = {each.name: each for each in _TOPIC_OPTIONS}
CLUSTER_OPTIONS: Final[Mapping[str, Option]] = {each.name: each for each in _CLUSTER_OPTIONS}
# Cluster-wide settings that are the defaults of topics.
TOPIC_DEFAULTS: Final[Mapping[str, Option]] = {each.cluster_name: each for each in _TOPIC_OPTIONS}
