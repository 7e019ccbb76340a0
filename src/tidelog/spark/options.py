"""What a user asked for: the options of a read or a write, checked before anything is opened.

The names and meanings are those of Spark's own Kafka source and sink, so that a query moves here by
one word; then come a few of ours. Spark hands option names over in lower case, and so they are
kept; messages spell them as the documentation does. An option that cannot be obeyed is refused with
a sentence that names it and says what to do: an option that is ignored in silence is worse.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from tidelog.client import TopicPartition

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1

# Options of reads and writes, as they are written; anything close to one of these is a slip.
SPELLINGS: Final = (
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
    "topic",
    "columns",
    "rowLimit",
    "keyFormat",
    "valueFormat",
    "avroSchema",
    "keyAvroSchema",
    "avroFraming",
    "mode",
    "txnAppId",
    "txnVersion",
)
_SPELLED: Final = {name.lower(): name for name in SPELLINGS}
# Added by Spark, or by those who build on this source.
_EXPECTED: Final = frozenset({"path", "checkpointlocation", "queryname", "lake"})

# Client options that have no meaning here, and what to do instead.
REFUSED: Final = {
    "key.deserializer": "keys come as bytes; decode them with `keyFormat` or in the query",
    "value.deserializer": "values come as bytes; decode them with `valueFormat` or in the query",
    "key.serializer": "give column `key` as binary or string",
    "value.serializer": "give column `value` as binary or string",
    "auto.offset.reset": "use `startingOffsets`",
    "enable.auto.commit": "offsets are kept in the query's checkpoint, not in a consumer group",
    "interceptor.classes": "there are no interceptors; transform the rows in the query",
    "partitioner.class": "give column `partition` to choose partitions yourself",
    "transactional.id": "this sink has no transactions; docs/spark.md says what it guarantees",
}
_SECURE: Final = ("ssl.", "sasl.")


class OptionError(ValueError):
    """An option is missing, misspelled, impossible or contradicts another."""


class Format(Enum):
    """What the bytes of a key or a value are."""

    BINARY = "binary"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"


class Mode(Enum):
    """What happens to a value that does not decode."""

    PERMISSIVE = "permissive"
    DROP = "dropmalformed"
    FAIL = "failfast"


class Strategy(Enum):
    """What a starting time means in a partition where no record is as young."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Client:
    """How the cluster is reached."""

    bootstrap: str
    client_id: str
    timeout: float  # seconds a call may take


@dataclass(frozen=True, slots=True)
class Topics:
    """Which partitions are read: one of the three is given."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a read begins or ends: the same for all partitions, or by partition."""

    option: str  # for messages
    everywhere: int | None  # EARLIEST, LATEST, or a time if `is_time`
    each: Mapping[TopicPartition, int]
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class Formats:
    """How keys and values are decoded."""

    key: Format
    value: Format
    key_schema: str | None  # Avro schemas, as JSON
    value_schema: str | None
    framed: bool  # whether five bytes of Confluent's registry come before each Avro value
    mode: Mode


@dataclass(frozen=True, slots=True)
class ReadOptions:
    client: Client
    topics: Topics
    start: Place
    strategy: Strategy
    end: Place
    fail_on_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay: float  # seconds
    min_partitions: int | None
    max_records: int | None
    headers: bool
    columns: tuple[str, ...] | None
    row_limit: int | None
    formats: Formats
    poll_seconds: float
    metadata_seconds: float  # how long the list of partitions is believed; at most 0: not at all
    committed: bool
    max_partition_bytes: int
    max_wait: float  # seconds


@dataclass(frozen=True, slots=True)
class WriteOptions:
    client: Client
    topic: str | None
    headers: bool
    acks: int
    codec: str
    batch_bytes: int
    max_buffered: int
    delivery_seconds: float
    app: str | None  # txnAppId
    version: int | None  # txnVersion


class Options:
    """The options as they came, and how they are read."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        for name in self._given:
            _check_name(name)

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return None if value is None else str(value).strip()

    def has(self, *names: str) -> list[str]:
        """Return those of these options that were given."""
        return [name for name in names if self.text(name) is not None]

    def number(self, name: str, default: T, *, least: int = 1) -> int | T:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?\d+", value) or int(value) < least:
            raise OptionError(f"`{name}` is {value!r}: give a whole number, at least {least}.")
        return int(value)

    def seconds(self, name: str, default_ms: int, *, least: int = 1) -> float:
        return self.number(name, default_ms, least=least) / 1000

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"`{name}` is {value!r}: give true or false.")
        return value.lower() == "true"

    def choice(self, name: str, kind: Callable[[str], T], choices: list[str], default: T) -> T:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in choices:
            raise OptionError(f"`{name}` is {value!r}: give one of {', '.join(choices)}.")
        return kind(value.lower())

    def refuse(self, names: tuple[str, ...], where: str) -> None:
        found = self.has(*names)
        if found:
            raise OptionError(f"`{found[0]}` has no meaning in {where}: leave it out.")


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a read; raises `OptionError`."""
    options = Options(given)
    if streaming:
        options.refuse(
            ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
            "a stream, which has no end",
        )
        options.refuse(("rowLimit",), "a stream (use `maxOffsetsPerTrigger`)")
    max_offsets = options.number("maxOffsetsPerTrigger", None)
    min_offsets = options.number("minOffsetsPerTrigger", None)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise OptionError(
            f"`minOffsetsPerTrigger` ({min_offsets}) is more than `maxOffsetsPerTrigger` "
            f"({max_offsets}): a batch cannot be as large."
        )
    default = LATEST if streaming else EARLIEST
    return ReadOptions(
        client=_client(options, "kafka.default.api.timeout.ms"),
        topics=_topics(options),
        start=_place(options, "starting", default, latest=streaming),
        strategy=options.choice(
            "startingOffsetsByTimestampStrategy", Strategy, ["error", "latest"], Strategy.ERROR
        ),
        end=_place(options, "ending", LATEST, latest=True),
        fail_on_loss=options.flag("failOnDataLoss", default=True),
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_delay=duration("maxTriggerDelay", options.text("maxTriggerDelay") or "15m"),
        min_partitions=options.number("minPartitions", None),
        max_records=options.number("maxRecordsPerPartition", None),
        headers=options.flag("includeHeaders", default=False),
        columns=_columns(options),
        row_limit=options.number("rowLimit", None, least=0),
        formats=_formats(options),
        poll_seconds=options.seconds("kafkaConsumer.pollTimeoutMs", 120_000),
        metadata_seconds=options.seconds("partition.metadata.cache.ttl.ms", -1, least=-1),
        committed=options.choice(
            "kafka.isolation.level",
            lambda level: level == "read_committed",
            ["read_committed", "read_uncommitted"],
            False,
        ),
        max_partition_bytes=options.number("kafka.max.partition.fetch.bytes", 4 * 1024 * 1024),
        max_wait=options.seconds("kafka.fetch.max.wait.ms", 500, least=0),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write; raises `OptionError`."""
    options = Options(given)
    app, version = options.text("txnAppId"), options.number("txnVersion", None, least=0)
    if (app is None) != (version is None):
        raise OptionError("`txnAppId` and `txnVersion` belong together: give both or neither.")
    acks = options.choice(
        "kafka.acks", {"all": -1, "-1": -1, "1": 1, "0": 0}.__getitem__, ["all", "-1", "1", "0"], -1
    )
    if options.flag("kafka.enable.idempotence", default=acks == -1) != (acks == -1):
        raise OptionError(
            "`kafka.enable.idempotence` goes with `kafka.acks`: true with all, false with 0 and 1."
        )
    return WriteOptions(
        client=_client(options, "kafka.request.timeout.ms"),
        topic=options.text("topic"),
        headers=options.flag("includeHeaders", default=True),
        acks=acks,
        codec=options.choice(
            "kafka.compression.type", str, ["none", "gzip", "snappy", "lz4", "zstd"], "none"
        ),
        batch_bytes=options.number("kafka.max.request.size", 1024 * 1024, least=1024),
        max_buffered=options.number("kafka.buffer.memory", 32 * 1024 * 1024),
        delivery_seconds=options.seconds("kafka.delivery.timeout.ms", 120_000),
        app=app,
        version=version,
    )


def duration(name: str, text: str) -> float:
    """Read a length of time such as 15m, in seconds; raises `OptionError`."""
    units = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)?", text.strip().lower())
    if found is None:
        raise OptionError(f"`{name}` is {text!r}: give a number and a unit, such as 30s or 15m.")
    return int(found[1]) * units[found[2] or "ms"]


def _check_name(name: str) -> None:
    if name.startswith("kafka."):
        option = name.removeprefix("kafka.")
        if option in REFUSED:
            raise OptionError(f"`{name}` cannot be set: {REFUSED[option]}.")
        if option.startswith(_SECURE):
            raise OptionError(
                f"`{name}` cannot be set: this source talks to listeners without encryption and "
                "without passwords. Use a PLAINTEXT listener inside a trusted network."
            )
        return
    if name in _SPELLED or name in _EXPECTED:
        return
    close = difflib.get_close_matches(name, _SPELLED, n=1, cutoff=0.85)
    if close:
        raise OptionError(f"There is no option `{name}`. Did you mean `{_SPELLED[close[0]]}`?")


def _client(options: Options, timeout: str) -> Client:
    bootstrap = options.text("kafka.bootstrap.servers")
    if not bootstrap:
        raise OptionError(
            'Where is the cluster? Give .option("kafka.bootstrap.servers", "host:port").'
        )
    protocol = options.text("kafka.security.protocol")
    if protocol is not None and protocol.upper() != "PLAINTEXT":
        raise OptionError(
            f"`kafka.security.protocol` is {protocol!r}: only PLAINTEXT can be spoken. Use such a "
            "listener inside a trusted network."
        )
    client_id = options.text("kafka.client.id") or "tidelog-spark"
    return Client(bootstrap, client_id, options.seconds(timeout, 60_000))


def _topics(options: Options) -> Topics:
    given = options.has("subscribe", "subscribePattern", "assign")
    if len(given) != 1:
        raise OptionError(
            f"Which topics? Give one of `subscribe`, `subscribePattern` and `assign`, not "
            f"{' and '.join(f'`{name}`' for name in given) or 'none of them'}."
        )
    text = options.text(given[0]) or ""
    if given[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise OptionError("`subscribe` names no topic: give names with commas between them.")
        return Topics(names=names)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"`subscribePattern` is no regular expression: {error}.") from None
        return Topics(pattern=text)
    assigned = _json("assign", text, '{"orders": [0, 1]}')
    if not all(isinstance(indexes, list) for indexes in assigned.values()):
        raise OptionError('`assign` takes lists of partitions, such as {"orders": [0, 1]}.')
    partitions = tuple(
        TopicPartition(topic, int(index))
        for topic, indexes in assigned.items()
        for index in indexes
    )
    return Topics(partitions=partitions)


def _place(options: Options, which: str, default: int, *, latest: bool) -> Place:
    """Read where a read begins or ends; a time for all beats times by partition beat offsets."""
    name = f"{which}Timestamp"
    if options.has(name):
        return Place(name, options.number(name, 0, least=0), {}, is_time=True)
    name = f"{which}OffsetsByTimestamp"
    text = options.text(name)
    if text is not None:
        return Place(name, None, _by_partition(name, text, least=0), is_time=True)
    name = f"{which}Offsets"
    text = options.text(name)
    if text is None:
        return Place(name, default, {})
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        where = words[text.lower()]
        if where == EARLIEST and which == "ending":
            raise OptionError("`endingOffsets` is 'earliest': a read cannot end before it begins.")
        if where == LATEST and not latest:
            raise OptionError("`startingOffsets` is 'latest': a batch read would find nothing.")
        return Place(name, where, {})
    each = _by_partition(name, text, least=EARLIEST)
    for partition, offset in each.items():
        if offset == EARLIEST and which == "ending":
            raise OptionError(
                f"`endingOffsets` has -2 (earliest) for {partition}: a read cannot end there."
            )
        if offset == LATEST and not latest:
            raise OptionError(
                f"`startingOffsets` has -1 (latest) for {partition}: a batch read finds nothing."
            )
    return Place(name, None, each)


def _by_partition(name: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    found = {}
    for topic, places in _json(name, text, '{"orders": {"0": 23}}').items():
        if not isinstance(places, dict):
            raise OptionError(
                f'`{name}` takes numbers by partition, as in {{"orders": {{"0": 23}}}}'
            )
        for index, place in places.items():
            if not str(index).isdigit() or not isinstance(place, int) or place < least:
                raise OptionError(
                    f"`{name}` has {index!r}: {place!r}, which is no place in {topic}."
                )
            found[TopicPartition(topic, int(index))] = place
    return found


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"`{name}` is {text!r}: give a JSON object such as {example}.")
    return found


def _columns(options: Options) -> tuple[str, ...] | None:
    text = options.text("columns")
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) != len(names):
        raise OptionError("`columns` takes different names with commas between them.")
    return names


def _formats(options: Options) -> Formats:
    kinds = [each.value for each in Format]
    key = options.choice("keyFormat", Format, kinds, Format.BINARY)
    value = options.choice("valueFormat", Format, kinds, Format.BINARY)
    key_schema, value_schema = options.text("keyAvroSchema"), options.text("avroSchema")
    for kind, schema, name, of in (
        (key, key_schema, "keyAvroSchema", "keyFormat"),
        (value, value_schema, "avroSchema", "valueFormat"),
    ):
        if (kind is Format.AVRO) != (schema is not None):
            raise OptionError(f"`{name}` and `{of}` = avro belong together: give both or neither.")
    return Formats(
        key,
        value,
        key_schema,
        value_schema,
        options.choice(
            "avroFraming", lambda text: text == "confluent", ["none", "confluent"], False
        ),
        options.choice("mode", Mode, [each.value for each in Mode], Mode.PERMISSIVE),
    )
