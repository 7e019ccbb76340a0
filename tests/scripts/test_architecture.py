"""The tables at the end of the architecture page name only what exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.scripts.runner import DIRECTORY, scripts

from bench.__main__ import benchmarks
from tidelog.sim.plants import PLANTS

ROOT = DIRECTORY.parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TABLES = PAGE[PAGE.index("## Where each part of the papers lives") :]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLES.splitlines()
    if line.startswith("| ") and not line.startswith("| part of the paper")
]
NAMED = re.compile(r"`([^`]+)`")


def named(column: int) -> list[str]:
    """Return everything that a column of the tables names."""
    return list(dict.fromkeys(name for row in ROWS for name in NAMED.findall(row[column])))


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the classes and functions of a module, and the methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
    return frozenset(found)


@cache
def names_of_tests() -> frozenset[str]:
    paths = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for path in paths for name in definitions(path))


def test_every_row_has_a_part_its_code_and_its_proof() -> None:
    assert len(ROWS) > 30
    assert all(len(row) == 3 and NAMED.search(row[1]) and NAMED.search(row[2]) for row in ROWS)


@pytest.mark.parametrize("name", named(1))
def test_code_that_is_named_exists(name: str) -> None:
    file, _, what = name.partition(": ")
    path = ROOT / "src" / "tidelog" / file
    assert path.exists()
    assert not what or what in definitions(path)


@pytest.mark.parametrize("name", named(2))
def test_proof_that_is_named_exists(name: str) -> None:
    if name.startswith("test_"):
        assert name in names_of_tests()
    elif name.endswith(".txt"):
        assert (DIRECTORY / name).exists()
    else:
        assert name in benchmarks() or name in PLANTS


def test_every_script_proves_something() -> None:
    assert {path.name for path in scripts()} <= set(named(2))
