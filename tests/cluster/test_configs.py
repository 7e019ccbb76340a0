"""Settings: each of them, where its value comes from, and what it must be."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cluster.configs import (
    ClusterConfig,
    Source,
    TopicConfig,
    check_cluster_config,
    check_topic_config,
    describe_cluster,
    describe_topic,
)
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.options import Option, OptionType
from tidelog.cluster.topicoptions import CLUSTER_OPTIONS, TOPIC_DEFAULTS, TOPIC_OPTIONS

# By setting: values that are taken, and values that are not.
GOOD_AND_BAD: dict[str, tuple[list[str], list[str]]] = {
    "cleanup.policy": (
        ["delete", "compact", "compact,delete", " compact , delete "],
        ["", "x", "delete,"],
    ),
    "retention.ms": (["-1", "0", "9223372036854775807"], ["-2", "9223372036854775808", "1d", ""]),
    "retention.bytes": (["-1", "0", "1000"], ["-2", "1.5", "1_000"]),
    "segment.bytes": (["1024", "2147483647"], ["1023", "2147483648", "-1"]),
    "segment.ms": (["1", " 5 "], ["0", "-1"]),
    "delete.retention.ms": (["0", "5"], ["-1"]),
    "min.compaction.lag.ms": (["0", "5"], ["-1"]),
    "max.compaction.lag.ms": (["1", "9223372036854775807"], ["0", "-1"]),
    "compression.gzip.level": (["-1", "1", "9"], ["0", "10", "-2", ""]),
    "compression.lz4.level": (["1", "17"], ["0", "18", "-1"]),
    "compression.zstd.level": (["-131072", "22"], ["-131073", "23", "x"]),
    "remote.storage.enable": (["false"], ["true", ""]),
    "remote.log.copy.disable": (["false"], ["true"]),
    "remote.log.delete.on.disable": (["false"], ["true"]),
    "local.retention.ms": (["-2"], ["-1", "1000"]),
    "local.retention.bytes": (["-2"], ["-1", "1000"]),
    "message.timestamp.before.max.ms": (["9223372036854775807"], ["1", "3600000"]),
    "message.timestamp.after.max.ms": (["9223372036854775807"], ["1", "3600000"]),
    "leader.replication.throttled.replicas": (
        ["", "*", "0:1, 12:3"],
        ["1", "0:", "x", "**"],
    ),
    "follower.replication.throttled.replicas": (["", "*", "0:1,1:2"], ["all", "0:1,"]),
    "min.cleanable.dirty.ratio": (["0", "0.5", "1"], ["-0.1", "1.1", "nan", "inf", "x", "0_1", ""]),
    "max.message.bytes": (["0", "1048588"], ["-1", "2147483648"]),
    "message.timestamp.type": (["CreateTime", "LogAppendTime"], ["createtime", ""]),
    "compression.type": (["producer", "zstd", "uncompressed"], ["brotli", ""]),
    "min.insync.replicas": (["1", "3"], ["0", "-1"]),
    "write.caching": (["true", "FALSE"], ["yes", "1", ""]),
    "flush.ms": (["1", "9223372036854775807"], ["0"]),
    "flush.bytes": (["1"], ["0"]),
    "flush.messages": (["1", "9223372036854775807"], ["0"]),
    "unclean.leader.election.enable": (["false"], ["true", ""]),
    "file.delete.delay.ms": (["0", "60000"], ["-1"]),
    "index.interval.bytes": (["0", "4096"], ["-1"]),
    "segment.index.bytes": (["4", "10485760"], ["3"]),
    "segment.jitter.ms": (["0", "5"], ["-1"]),
    "preallocate": (["true", "FALSE"], ["yes", ""]),
    "auto.create.topics.enable": (["true", "false"], ["maybe"]),
    "num.partitions": (["1", "2147483647"], ["0", "-1"]),
    "default.replication.factor": (["-1", "1", "32767"], ["0", "-2", "32768"]),
}
ALL = {**TOPIC_OPTIONS, **CLUSTER_OPTIONS}


def refused(check: object, settings: dict[str, str]) -> str:
    with pytest.raises(ClusterError) as caught:
        check(settings)  # type: ignore[operator]
    assert caught.value.problem is Problem.INVALID_CONFIG
    return caught.value.message


def test_every_setting_is_tried_here() -> None:
    assert GOOD_AND_BAD.keys() == ALL.keys()


@pytest.mark.parametrize("name", TOPIC_OPTIONS)
def test_a_setting_of_a_topic_takes_what_it_says_and_nothing_else(name: str) -> None:
    good, bad = GOOD_AND_BAD[name]
    default = TOPIC_OPTIONS[name].cluster_name
    for value in good:
        check_topic_config({name: value})
        check_cluster_config({default: value})
        TopicConfig.from_strings({name: value}, {})
        TopicConfig.from_strings({}, {default: value})
    for value in bad:
        assert f"{name} is {value!r}; it must be" in refused(check_topic_config, {name: value})
        assert f"{default} is {value!r}" in refused(check_cluster_config, {default: value})
        with pytest.raises(ClusterError):
            TopicConfig.from_strings({name: value}, {})


@pytest.mark.parametrize("name", CLUSTER_OPTIONS)
def test_a_setting_of_the_cluster_takes_what_it_says_and_nothing_else(name: str) -> None:
    good, bad = GOOD_AND_BAD[name]
    for value in good:
        check_cluster_config({name: value})
        ClusterConfig.from_strings({name: value})
    for value in bad:
        assert f"{name} is {value!r}; it must be" in refused(check_cluster_config, {name: value})


@pytest.mark.parametrize("option", ALL.values(), ids=lambda option: option.name)
def test_every_default_is_allowed_and_every_setting_explains_itself(option: Option) -> None:
    option.read(option.default)
    assert option.doc.endswith(".")
    assert option.allowed


@given(st.sampled_from(sorted(ALL)), st.text(max_size=50))
def test_any_text_is_a_value_or_refused(name: str, text: str) -> None:
    with suppress(ClusterError):
        ALL[name].read(text)


def test_the_longest_wait_for_compaction_is_not_below_the_shortest() -> None:
    settings = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}
    check_topic_config(settings)
    message = refused(check_topic_config, settings | {"max.compaction.lag.ms": "4"})
    assert "max.compaction.lag.ms is 4 and min.compaction.lag.ms is 5" in message


def test_the_level_is_that_of_the_codec_in_force() -> None:
    levels = {"compression.gzip.level": "9", "compression.zstd.level": "19"}
    known = {"gzip": 9, "zstd": 19, "lz4": 9, "snappy": None, "producer": None}
    for codec, level in known.items():
        settings = levels | {"compression.type": codec}
        assert TopicConfig.from_strings(settings, {}).compression_level == level
    defaults = TopicConfig.from_strings({"compression.type": "gzip"}, {})
    assert defaults.compression_level is None


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    message = refused(check_topic_config, {"retention": "1"})
    assert "'retention' is no setting of a topic" in message
    assert "retention.ms" in message
    assert "no setting of the cluster" in refused(check_cluster_config, {"retention.ms": "1"})
    # What a newer release may have set harms nobody who reads.
    assert TopicConfig.from_strings({"new.thing": "1"}, {"new.too": "2"}) == DEFAULT


DEFAULT = TopicConfig.from_strings({}, {})


def test_the_nearest_value_is_in_force() -> None:
    cluster = {"log.retention.ms": "5000", "log.flush.interval.ms": "7"}
    config = TopicConfig.from_strings({"retention.ms": "1000"}, cluster)
    assert (config.retention_ms, config.flush_ms) == (1000, 7)
    assert config.segment_bytes == DEFAULT.segment_bytes


def test_no_limit_is_none() -> None:
    config = TopicConfig.from_strings({"retention.ms": "-1"}, {})
    assert config.retention_ms is None
    assert config.retention_bytes is None
    assert ClusterConfig.from_strings({}).default_replication_factor is None
    assert ClusterConfig.from_strings({"default.replication.factor": "2"}) == ClusterConfig(
        True, 1, 2
    )


def test_a_flush_after_every_message_is_a_flush_after_every_byte() -> None:
    assert TopicConfig.from_strings({"flush.messages": "1"}, {}).flush_bytes == 1
    assert TopicConfig.from_strings({"flush.messages": "2"}, {}).flush_bytes == DEFAULT.flush_bytes


def test_the_log_keeps_what_the_policy_keeps() -> None:
    limits = {"retention.ms": "0", "retention.bytes": "500", "delete.retention.ms": "0"}
    deletes = TopicConfig.from_strings(limits, {})
    assert deletes.deletes
    assert not deletes.compacts
    assert deletes.log_config().retention_ms == 1
    assert deletes.log_config().retention_bytes == 500
    assert deletes.log_config().delete_retention_ms == 1
    compacts = TopicConfig.from_strings({**limits, "cleanup.policy": "compact"}, {})
    assert compacts.compacts
    assert compacts.log_config().retention_ms is compacts.log_config().retention_bytes is None
    both = TopicConfig.from_strings({**limits, "cleanup.policy": "compact,delete"}, {})
    assert both.compacts
    assert both.log_config().retention_bytes == 500


class TestDescribe:
    def test_a_topic_shows_what_is_in_force_and_what_would_be_instead(self) -> None:
        told = {
            each.name: each
            for each in describe_topic({"retention.ms": "1"}, {"log.retention.ms": "2"})
        }
        assert list(told) == sorted(TOPIC_OPTIONS)
        retention = told["retention.ms"]
        assert (retention.value, retention.source) == ("1", Source.TOPIC)
        assert [(each.name, each.value, each.source) for each in retention.synonyms] == [
            ("retention.ms", "1", Source.TOPIC),
            ("log.retention.ms", "2", Source.CLUSTER),
            ("log.retention.ms", retention.option.default, Source.DEFAULT),
        ]
        assert told["segment.ms"].source is Source.DEFAULT
        assert told["segment.ms"].option.type is OptionType.LONG

    def test_the_cluster_shows_its_own_settings_and_the_defaults_of_topics(self) -> None:
        settings = {"num.partitions": "4", "log.retention.ms": "2"}
        told = {each.name: each for each in describe_cluster(settings)}
        assert list(told) == sorted({*CLUSTER_OPTIONS, *TOPIC_DEFAULTS})
        assert (told["num.partitions"].value, told["num.partitions"].source) == (
            "4",
            Source.CLUSTER,
        )
        assert [each.value for each in told["log.retention.ms"].synonyms] == ["2", "604800000"]
        assert told["log.roll.ms"].source is Source.DEFAULT

    def test_what_is_described_as_in_force_is_in_force(self) -> None:
        overrides, cluster = {"segment.ms": "9"}, {"log.segment.bytes": "2048"}
        config = TopicConfig.from_strings(overrides, cluster)
        told = {each.name: each.value for each in describe_topic(overrides, cluster)}
        assert told["segment.ms"] == str(config.segment_ms)
        assert told["segment.bytes"] == str(config.segment_bytes)
