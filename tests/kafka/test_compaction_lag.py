"""A topic says how long a record may wait until compaction looks at it."""

from __future__ import annotations

from pathlib import Path

from kio.schema.errors import ErrorCode
from tests.cluster.nodes import until
from tests.kafka.broker import PATIENCE, batch, broker, run

CREATE_TOPICS = 19
# What MirrorMaker copies from a compacted topic of a Kafka with its defaults.
MIRRORED = {
    "cleanup.policy": "compact",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "min.compaction.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
}


def test_a_record_is_compacted_when_its_longest_wait_is_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, cleanup_policy="compact", max_compaction_lag_ms="100")
            for value in (b"old" * 1000, b"new" * 1000):  # 3,000 bytes each
                await node.produce(batch(value))
            log = node.partition().replica.log
            # Without the setting the first round comes after a minute, longer than a test waits.
            await until(lambda: log.size() < 5000, "the old record to go")

    run(story())


def test_a_topic_tells_its_log_how_long_a_record_stays_at_least(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            settings = {"cleanup_policy": "compact", "max_compaction_lag_ms": "3600000"}
            await node.create("kept", 1, **settings, min_compaction_lag_ms="3600000")
            config = node.partition("kept").replica.log.config
            assert config.min_compaction_lag_ms == 3_600_000
            await node.node.controller.set_topic_config("kept", {"min.compaction.lag.ms": "0"})
            await until(
                lambda: node.partition("kept").replica.log.config.min_compaction_lag_ms is None,
                "the change",
            )

    run(story())


def test_a_mirrored_compacted_topic_can_be_created(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            settings = [{"name": name, "value": value} for name, value in MIRRORED.items()]
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            answer = await node.ask(
                CREATE_TOPICS,
                7,
                topics=[topic | {"assignments": [], "configs": settings}],
                timeout=PATIENCE,
                validate_only=False,
            )
            assert answer.topics[0].error_code == ErrorCode.none
            told = {each.name: each.value for each in answer.topics[0].configs}
            assert MIRRORED.items() <= told.items()

    run(story())
