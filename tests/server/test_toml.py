"""What is written into a node's file is what `tomllib` reads from it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.server.toml import NotToml, dump

TEXT = st.text(st.characters(codec="utf-8"))
VALUES = (
    TEXT
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.lists(st.integers() | TEXT, max_size=3)
)
TABLES = st.recursive(
    st.dictionaries(TEXT, VALUES, max_size=4),
    lambda below: st.dictionaries(
        TEXT, VALUES | below | st.lists(below, min_size=1, max_size=3), max_size=4
    ),
    max_leaves=8,
)


@given(TABLES)
def test_every_document_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    assert tomllib.loads(dump(document)) == document


def test_a_node_file_is_pleasant_to_read() -> None:
    document = {
        "id": 1,
        "rack": 'the "left" one',
        "kafka": {"host": "127.0.0.1", "port": 9092},
        "seeds": [{"id": 1, "port": 1}, {"id": 2, "port": 2}],
    }
    assert dump(document) == (
        'id = 1\nrack = "the \\"left\\" one"\n'
        '\n[kafka]\nhost = "127.0.0.1"\nport = 9092\n'
        "\n[[seeds]]\nid = 1\nport = 1\n"
        "\n[[seeds]]\nid = 2\nport = 2\n"
    )


@pytest.mark.parametrize("value", [None, b"bytes", "\udcff"])
def test_what_toml_has_no_place_for_is_refused(value: object) -> None:
    with pytest.raises(NotToml):
        dump({"a": value})
