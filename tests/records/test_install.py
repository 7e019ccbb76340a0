"""What an install does without a C compiler, and what runs then."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.records.forms import NAMES, ROOM

ROOT = Path(__file__).parents[2]

ROUND_TRIP = """
from tidelog.records import Codec, Record, build_batch, survey_records
from tidelog.records import framing, kernels, scanning
from tidelog.records.arrow import from_arrow, read_arrow, to_arrow
table = to_arrow([build_batch([Record(0, 5, b"key", b"value")], codec=Codec.ZSTD)])
(batch,) = from_arrow(table)
print(framing.__file__, kernels.__file__, scanning.__file__)
print(survey_records(batch).max_timestamp, to_arrow([batch]) == read_arrow(batch.data) == table)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What an install needs of the project, with nothing compiled in it."""
    records = tmp_path / "src" / "tidelog" / "records"
    shutil.copytree(ROOM, records, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOM.parent / "__init__.py", records.parent)
    shutil.copy(ROOT / "setup.py", tmp_path)
    return tmp_path


def build(project: Path, **environment: str) -> str:
    """Build the compiled modules as an install does; return what was said."""
    pytest.importorskip("Cython")
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=project,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_without_a_c_compiler_the_install_succeeds_and_compiles_nothing(project: Path) -> None:
    said = build(project, CC="no-such-compiler", TIDELOG_PURE_PYTHON="0")
    assert all(name in said for name in NAMES)
    assert "no-such-compiler" in said
    assert not list(project.rglob("*.so"))


def test_an_install_can_leave_the_compiler_out(project: Path) -> None:
    build(project, CC="no-such-compiler", TIDELOG_PURE_PYTHON="1")
    assert not (project / "build").exists()


def test_without_compiled_modules_the_whole_room_runs_as_plain_python(project: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    said = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split() == [
        *(str(project / "src" / "tidelog" / "records" / f"{name}.py") for name in NAMES),
        "5",
        "True",
    ]
