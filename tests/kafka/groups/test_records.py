"""Keys and values of the internal topic: Kafka's bytes, both ways, and nothing else."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.kafka.groups.hashing import java_hash, partition_for
from tidelog.kafka.groups.loading import Loading
from tidelog.kafka.groups.records import (
    ClassicKey,
    ClassicMemberValue,
    ClassicValue,
    CurrentKey,
    CurrentValue,
    GroupEpochKey,
    GroupEpochValue,
    Key,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
    Value,
    decode_key,
    decode_value,
    encode,
    encode_key,
    encode_value,
)
from tidelog.kafka.groups.wire import CorruptRecord

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = texts | st.none()
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
blobs = st.binary(max_size=30)
partitions = st.frozensets(st.tuples(st.uuids(), st.integers(0, 2**31 - 1)), max_size=10)
members = st.builds(ClassicMemberValue, texts, names, texts, texts, int32, int32, blobs, blobs)
classic_values = st.builds(
    ClassicValue,
    texts,
    int32,
    names,
    names,
    int64,
    st.lists(
        members,
        max_size=4,
        unique_by=(lambda one: one.member_id, lambda one: one.instance_id or one),
    ).map(tuple),
)
pairs: st.SearchStrategy[tuple[Key, Value]] = st.one_of(
    st.tuples(
        st.builds(OffsetKey, texts, texts, int32),
        st.builds(OffsetValue, int64, int32, texts, int64)
        | st.builds(OffsetValue, int64, st.just(-1), texts, int64, st.integers(0, 2**63 - 1)),
    ),
    st.tuples(st.builds(ClassicKey, texts), classic_values),
    st.tuples(st.builds(GroupEpochKey, texts), st.builds(GroupEpochValue, int32, int64)),
    st.tuples(
        st.builds(MemberKey, texts, texts),
        st.builds(
            MemberValue,
            names,
            names,
            texts,
            texts,
            st.lists(texts, max_size=5).map(tuple),
            names,
            int32,
            names,
        ),
    ),
    st.tuples(st.builds(TargetEpochKey, texts), st.builds(TargetEpochValue, int32)),
    st.tuples(st.builds(TargetKey, texts, texts), st.builds(TargetValue, partitions)),
    st.tuples(
        st.builds(CurrentKey, texts, texts),
        st.builds(CurrentValue, int32, int32, st.integers(0, 127), partitions, partitions),
    ),
)


@given(pairs)
def test_what_is_written_is_read(pair: tuple[Key, Value]) -> None:
    key, value = pair
    written_key, written_value = encode(key, value)
    assert decode_key(written_key) == key
    assert written_value is not None
    assert decode_value(key, written_value) == value


@given(pairs, st.data())
def test_bytes_that_are_no_record_are_refused_and_nothing_worse(
    pair: tuple[Key, Value], data: st.DataObject
) -> None:
    key, value = encode(*pair)
    assert value is not None
    place = data.draw(st.integers(0, len(value) - 1))
    change = data.draw(st.binary(min_size=1, max_size=4))
    broken = value[:place] + change + value[place + data.draw(st.integers(0, 4)) :]
    loading = Loading()
    loading.take(key, broken)
    loading.take(key[: data.draw(st.integers(0, len(key)))], value)
    loading.take(broken, key)
    loading.take(None, value)
    assert loading.records == 4
    for group_id, group in loading.groups():
        assert isinstance(group_id, str)
        assert not group.is_nothing


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_can_be_loaded(key: bytes, value: bytes) -> None:
    loading = Loading()
    loading.take(key, value)
    loading.take(key, None)
    assert not list(loading.groups())


T = UUID(int=0x0102)
GOLDENS: list[tuple[Key, Value, str, str]] = [
    (
        OffsetKey("g", "t", 5),
        OffsetValue(42, 3, "m", 1000),
        "0001 0001 67 0001 74 00000005",
        "0003 000000000000002a 00000003 0001 6d 00000000000003e8",
    ),
    (
        OffsetKey("g", "t", 5),
        OffsetValue(42, -1, "", 1000, 2000),
        "0001 0001 67 0001 74 00000005",
        "0001 000000000000002a 0000 00000000000003e8 00000000000007d0",
    ),
    (
        ClassicKey("g"),
        ClassicValue(
            "consumer",
            7,
            "range",
            "m",
            9,
            (ClassicMemberValue("m", None, "c", "/h", 300, 100, b"S", b"AA"),),
        ),
        "0002 0001 67",
        "0003 0008 636f6e73756d6572 00000007 0005 72616e6765 0001 6d 0000000000000009 00000001"
        " 0001 6d ffff 0001 63 0002 2f68 0000012c 00000064 00000001 53 00000002 4141",
    ),
    (GroupEpochKey("g"), GroupEpochValue(3), "0003 0001 67", "0000 00000003 00"),
    (
        GroupEpochKey("g"),
        GroupEpochValue(3, 5),
        "0003 0001 67",
        "0000 00000003 01 00 08 0000000000000005",
    ),
    (
        MemberKey("g", "m"),
        MemberValue(None, "r", "c", "h", ("t",), None, 9, "range"),
        "0005 0001 67 0001 6d",
        "0000 00 02 72 02 63 02 68 02 02 74 00 00000009 06 72616e6765 00",
    ),
    (TargetEpochKey("g"), TargetEpochValue(4), "0006 0001 67", "0000 00000004 00"),
    (
        TargetKey("g", "m"),
        TargetValue(frozenset({(T, 1), (T, 0)})),
        "0007 0001 67 0001 6d",
        "0000 02 00000000000000000000000000000102 03 00000000 00000001 00 00",
    ),
    (
        CurrentKey("g", "m"),
        CurrentValue(2, 1, 1, frozenset({(T, 0)}), frozenset()),
        "0008 0001 67 0001 6d",
        "0000 00000002 00000001 01 02 00000000000000000000000000000102 02 00000000 00 01 00",
    ),
]


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), GOLDENS)
def test_the_bytes_are_those_of_kafka(
    key: Key, value: Value, key_bytes: str, value_bytes: str
) -> None:
    assert encode_key(key).hex() == key_bytes.replace(" ", "")
    assert encode_value(value).hex() == value_bytes.replace(" ", "")


def test_values_that_older_releases_of_kafka_wrote_are_read() -> None:
    key = OffsetKey("g", "t", 0)
    version_0 = bytes.fromhex("0000 000000000000002a 0001 6d 00000000000003e8")
    assert decode_value(key, version_0) == OffsetValue(42, -1, "m", 1000)
    version_2 = bytes.fromhex("0002 000000000000002a 0001 6d 00000000000003e8")
    assert decode_value(key, version_2) == OffsetValue(42, -1, "m", 1000)
    group = bytes.fromhex("0000 0001 63 00000001 ffff ffff 00000001 0001 6d 0001 63 0001 68")
    group += bytes.fromhex("00000064 00000000 00000000")
    assert decode_value(ClassicKey("g"), group) == ClassicValue(
        "c", 1, None, None, -1, (ClassicMemberValue("m", None, "c", "h", 100, 100, b"", b""),)
    )


def test_keys_of_other_kinds_are_passed_over_and_versions_of_the_future_are_not_guessed() -> None:
    assert decode_key(bytes.fromhex("0010 0001 67")) is None
    with pytest.raises(CorruptRecord, match="version 9"):
        decode_value(TargetEpochKey("g"), bytes.fromhex("0009 00000004 00"))
    with pytest.raises(CorruptRecord, match="left over"):
        decode_value(TargetEpochKey("g"), bytes.fromhex("0000 00000004 00 00"))


def test_a_group_lives_where_kafka_would_look_for_it() -> None:
    # String.hashCode() as Java computes it.
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("\N{GRINNING FACE}") == 1772899
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello", 50) == 22
    with pytest.raises(ValueError, match="at least one"):
        partition_for("g", 0)
