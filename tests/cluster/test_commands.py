"""Commands as bytes, and the strict JSON under them."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cluster.orders import commands, create, token

from tidelog.cluster import commands as cmd
from tidelog.cluster import strictjson
from tidelog.cluster.strictjson import MAX_TEXT, NotThis
from tidelog.raft.types import NodeId, Vnode


class Colour(Enum):
    RED = "r"
    BLUE = "b"


@dataclass(frozen=True, slots=True)
class Leaf:
    number: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Tree:
    flag: bool
    colour: Colour
    id: UUID
    node: NodeId
    leaves: tuple[Leaf, ...]
    places: tuple[Vnode, ...]
    names: Mapping[str, int]


numbers = st.integers(-(2**63) + 1, 2**63 - 1)
texts = st.text(max_size=20)
vnodes = st.builds(Vnode, numbers.map(NodeId), numbers)
leaves = st.builds(Leaf, numbers, st.none() | texts)
trees = st.builds(
    Tree,
    st.booleans(),
    st.sampled_from(Colour),
    st.uuids(),
    numbers.map(NodeId),
    st.lists(leaves, max_size=3).map(tuple),
    st.lists(vnodes, max_size=3).map(tuple),
    st.dictionaries(texts, numbers, max_size=3),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)

SOME = Tree(
    True, Colour.RED, token(1), NodeId(1), (Leaf(1, None),), (Vnode(NodeId(2), 3),), {"a": 1}
)


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(strictjson.write(SOME)), **fields}).encode()


class TestStrictJson:
    @given(trees)
    def test_what_is_written_is_read(self, tree: Tree) -> None:
        assert strictjson.read(Tree, strictjson.write(tree)) == tree

    @given(st.dictionaries(texts, numbers, min_size=2, max_size=5))
    def test_equal_values_give_equal_bytes(self, names: dict[str, int]) -> None:
        backwards = dict(reversed(names.items()))
        one = Tree(False, Colour.BLUE, token(2), NodeId(0), (), (), names)
        two = Tree(False, Colour.BLUE, token(2), NodeId(0), (), (), backwards)
        assert strictjson.write(one) == strictjson.write(two)

    @given(st.binary(max_size=60))
    def test_garbage_is_not_this(self, garbage: bytes) -> None:
        with pytest.raises(NotThis):
            strictjson.read(Tree, garbage)

    @given(plain)
    def test_any_other_json_is_not_this(self, value: object) -> None:
        with pytest.raises(NotThis):
            strictjson.read(Tree, json.dumps(value).encode())

    @given(st.sampled_from(sorted(json.loads(strictjson.write(SOME)))), plain)
    def test_a_field_of_another_type_is_not_this_or_reads_as_it_is_written(
        self, name: str, value: object
    ) -> None:
        data = changed(**{name: value})
        with suppress(NotThis):
            tree = strictjson.read(Tree, data)
            assert json.loads(strictjson.write(tree)) == json.loads(data)

    @pytest.mark.parametrize(
        "fields",
        [
            {"flag": 1},
            {"flag": None},
            {"colour": "r"},
            {"colour": "GREEN"},
            {"id": "not a uuid"},
            {"id": str(token(1)).replace("-", "")},
            {"node": True},
            {"node": 1.0},
            {"node": 2**63},
            {"node": -(2**63)},
            {"leaves": {}},
            {"leaves": [{"number": 1}]},
            {"leaves": [{"number": 1, "text": None, "more": 1}]},
            {"leaves": [{"number": 1, "text": "x" * (MAX_TEXT + 1)}]},
            {"leaves": [{"number": 1, "text": "\ud800"}]},
            {"places": [[1]]},
            {"places": [[1, 2, 3]]},
            {"names": []},
            {"names": {"a": None}},
            {"another": 1},
        ],
        ids=str,
    )
    def test_a_wrong_field_is_not_this(self, fields: dict[str, object]) -> None:
        with pytest.raises(NotThis):
            strictjson.read(Tree, changed(**fields))

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
    def test_no_number_is_not_this(self, number: str) -> None:
        data = strictjson.write(SOME).replace(b'"node":1', f'"node":{number}'.encode())
        with pytest.raises(NotThis):
            strictjson.read(Tree, data)

    def test_json_of_any_depth_is_not_this(self) -> None:
        # Where parsing goes just deep enough, printing what was found goes too deep.
        for depth in (*range(700, 1001), 10_000, 200_000):
            deep = b"[" * depth + b"]" * depth
            with pytest.raises(NotThis):
                strictjson.read(Tree, deep)
            with pytest.raises(NotThis):
                strictjson.read(
                    Tree, strictjson.write(SOME).replace(b'"number":1', b'"number":' + deep)
                )

    def test_a_type_that_has_no_json_is_a_mistake_of_ours(self) -> None:
        with pytest.raises(TypeError):
            strictjson.write([1])
        with pytest.raises(TypeError):
            strictjson.from_plain(float, 1.0)


class TestCommands:
    @given(commands)
    def test_every_command_is_read_as_it_was_written(self, command: cmd.Command) -> None:
        assert cmd.decode(cmd.encode(command)) == command

    def test_every_command_has_been_thought_of(self) -> None:
        kinds = {kind.__name__ for kind in cmd.Command.__args__}
        assert set(cmd._KINDS) == kinds

    @given(st.binary(max_size=80))
    def test_garbage_is_corrupt(self, garbage: bytes) -> None:
        with pytest.raises(cmd.CorruptCommand):
            cmd.decode(garbage)

    @given(commands, st.data())
    def test_a_damaged_command_is_corrupt_or_another_command(
        self, command: cmd.Command, data: st.DataObject
    ) -> None:
        damaged = bytearray(cmd.encode(command))
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        with suppress(cmd.CorruptCommand):
            cmd.decode(bytes(damaged))

    @given(commands, st.data())
    def test_a_part_of_a_command_is_corrupt(
        self, command: cmd.Command, data: st.DataObject
    ) -> None:
        whole = cmd.encode(command)
        with pytest.raises(cmd.CorruptCommand):
            cmd.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])

    @given(plain)
    @example({"version": 1, "kind": "CreateTopic", "command": {}})
    @example({"version": True, "kind": "CreateTopic", "command": {}})
    @example({"version": 1, "kind": ["CreateTopic"], "command": {}})
    def test_any_other_json_is_corrupt(self, value: object) -> None:
        with pytest.raises(cmd.CorruptCommand):
            cmd.decode(json.dumps(value).encode())

    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("version", 2, "reads version 1 of commands"),
            ("kind", "Sink", "no command that this release knows"),
            ("needs", 2, "this is release 1, and CreateTopic is of another one"),
            ("needs", None, "of another one"),
            ("beside", 1, "has other fields"),
        ],
    )
    def test_what_a_newer_release_may_say_is_told_apart(
        self, field: str, value: object, says: str
    ) -> None:
        envelope = json.loads(cmd.encode(create("tide", (1,))))
        with pytest.raises(cmd.CorruptCommand, match=says):
            cmd.decode(json.dumps({**envelope, field: value}).encode())

    def test_what_needs_a_later_release_says_which_whatever_else_it_says(self) -> None:
        for envelope in ({"needs": 7}, {"needs": 7, "kind": []}, {"version": 2, "needs": 7}):
            with pytest.raises(cmd.CorruptCommand) as caught:
                cmd.decode(json.dumps(envelope).encode())
            assert caught.value.needs == 7

    def test_a_command_that_does_not_say_what_it_needs_is_of_the_first_release(self) -> None:
        command = create("tide", (1,))
        envelope = json.loads(cmd.encode(command))
        del envelope["needs"]
        assert cmd.decode(json.dumps(envelope).encode()) == command

    def test_a_command_that_is_too_long_is_corrupt(self) -> None:
        with pytest.raises(cmd.CorruptCommand, match="more than a command may have"):
            cmd.decode(b" " * (cmd.MAX_COMMAND_BYTES + 1))

    def test_the_largest_topic_fits_in_a_command(self) -> None:
        command = create("t" * 249, *[tuple(range(2**30, 2**30 + 7))] * 10_000)
        assert len(cmd.encode(command)) < cmd.MAX_COMMAND_BYTES / 2
