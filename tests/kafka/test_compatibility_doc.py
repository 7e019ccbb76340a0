"""What docs/compatibility.md says is served is what a node announces.

`pytest tests/kafka/test_compatibility_doc.py --rewrite` writes the tables anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidelog.cluster.options import Option
from tidelog.cluster.topicoptions import CLUSTER_OPTIONS, TOPIC_OPTIONS
from tidelog.kafka.apis import default_table
from tidelog.kafka.groups.handlers import handlers

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def apis() -> Iterator[str]:
    """One line for each API: what a node with its coordinator announces."""
    yield "| key | API | versions |"
    yield "|---|---|---|"
    table = default_table()
    table.add_all(handlers(cast(Any, None)))
    for api in table.announced:
        newest = "" if api.max_version == api.min_version else f" - {api.max_version}"
        name = "".join(word.capitalize() for word in api.name.split("_"))
        yield f"| {api.key} | {name} | {api.min_version}{newest} |"


def topic_settings() -> Iterator[str]:
    """One line for each setting of a topic."""
    yield "| setting | default | cluster-wide default | |"
    yield "|---|---|---|---|"
    for option in sorted(TOPIC_OPTIONS.values(), key=_name):
        yield f"| `{option.name}` | {option.default} | `{option.cluster_name}` | {option.doc} |"


def cluster_settings() -> Iterator[str]:
    """One line for each setting of the cluster."""
    yield "| setting | default | |"
    yield "|---|---|---|"
    for option in sorted(CLUSTER_OPTIONS.values(), key=_name):
        yield f"| `{option.name}` | {option.default} | {option.doc} |"


def _name(option: Option) -> str:
    return option.name


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "apis": apis,
    "topic settings": topic_settings,
    "cluster settings": cluster_settings,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_document_is_what_the_code_says(
    name: str, request: pytest.FixtureRequest
) -> None:
    wanted = "\n".join(TABLES[name]())
    text = DOCUMENT.read_text()
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    between = re.compile(re.escape(begin) + "(.*?)" + re.escape(end), re.DOTALL)
    found = between.search(text)
    assert found is not None, f"{DOCUMENT.name} has no table between the marks of {name!r}"
    if request.config.getoption("--rewrite"):
        DOCUMENT.write_text(between.sub(lambda _: begin + wanted + end, text))
    else:
        assert found[1] == wanted, f"write it anew: pytest {Path(__file__).name} --rewrite"
