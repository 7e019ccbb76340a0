"""The log of a node: bounded files, written by a thread, complete at the end of the process."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.server import logfile
from tidelog.server.logfile import MAX_LINE_BYTES, BackgroundHandler, RotatingFile

LIMIT = 64 << 10


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("t", logging.INFO, "", 0, text, (), None)


def test_files_are_few_and_small_and_the_newest_lines_are_there(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    file = RotatingFile(path, LIMIT, 3)
    for number in range(10_000):
        file.write(b"%06d %s\n" % (number, b"x" * 100))
    file.close()
    found = sorted(tmp_path.iterdir())
    assert [each.name for each in found] == ["node.log", "node.log.1", "node.log.2"]
    assert all(each.stat().st_size <= LIMIT for each in found)
    kept = [line[:6] for each in reversed(found) for line in lines(each)]
    assert kept == [f"{number:06d}" for number in range(10_000 - len(kept), 10_000)]


def test_one_file_alone_begins_anew(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "node.log", LIMIT, 1)
    for _ in range(3):
        file.write(b"x" * (LIMIT // 2) + b"\n")
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["node.log"]
    assert len(lines(tmp_path / "node.log")) == 1


def test_every_line_is_written_before_the_process_ends(tmp_path: Path) -> None:
    handler = BackgroundHandler(RotatingFile(tmp_path / "node.log", 1 << 20, 2))
    for number in range(1000):
        handler.emit(record(f"line {number}"))
    handler.close()
    assert lines(tmp_path / "node.log") == [f"line {number}" for number in range(1000)]


def test_a_line_is_cut_and_never_outgrows_its_bound(tmp_path: Path) -> None:
    handler = BackgroundHandler(RotatingFile(tmp_path / "node.log", 1 << 20, 2))
    handler.emit(record("x" * (MAX_LINE_BYTES + 7)))
    handler.close()
    (line,) = lines(tmp_path / "node.log")
    assert line == "x" * MAX_LINE_BYTES + " ... (7 bytes more)"


class FullDisk(RotatingFile):
    """Refuses the first lines."""

    refusals = 3

    def write(self, line: bytes) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(28, "No space left on device")
        super().write(line)


def test_lines_that_a_full_disk_refused_are_counted_in_the_log(tmp_path: Path) -> None:
    handler = BackgroundHandler(FullDisk(tmp_path / "node.log", 1 << 20, 2))
    for number in range(5):
        handler.emit(record(f"line {number}"))
    handler.close()
    assert lines(tmp_path / "node.log") == [
        "(3 log lines were lost: the disk did not take them)",
        "line 3",
        "line 4",
    ]


def test_lines_that_a_hung_disk_cannot_take_are_dropped_and_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "MAX_WAITING", 4)
    monkeypatch.setattr(logfile, "CLOSE_S", 0.01)
    monkeypatch.setattr(BackgroundHandler, "_write", lambda _self: None)  # as good as hung
    handler = BackgroundHandler(RotatingFile(tmp_path / "node.log", 1 << 20, 2))
    for number in range(10):
        handler.emit(record(f"line {number}"))
    assert handler.lost == 6
    handler.close()


def test_lines_go_on_in_the_old_file_while_no_new_one_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.log"
    file = RotatingFile(path, LIMIT, 3)
    file.write(b"x" * LIMIT + b"\n")
    with monkeypatch.context() as full:
        full.setattr(logfile, "_open", _refused)
        file.write(b"no descriptor is left\n")
        assert lines(path)[-1] == "no descriptor is left"
        file.write(b"x" * LIMIT + b"\n")
        with pytest.raises(OSError, match="Too many open files"):  # and it stays bounded
            file.write(b"lost\n")
    file.write(b"after\n")
    file.close()
    assert lines(path) == ["after"]
    assert lines(tmp_path / "node.log.1")[1] == "no descriptor is left"
    assert len(list(tmp_path.iterdir())) == 2


def _refused(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rotation_that_fails_half_way_is_done_with_a_later_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    path = tmp_path / "node.log"
    file = RotatingFile(path, LIMIT, 3)
    for number in range(2):
        file.write(b"%d" % number + b"x" * LIMIT + b"\n")
    renames = iter(range(3))
    rename = Path.replace

    def failing(source: Path, target: Path) -> Path:
        if next(renames) == place:
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", failing)
        file.write(b"meanwhile\n")
    for number in range(2, 4):
        file.write(b"%d" % number + b"x" * LIMIT + b"\n")
    file.close()
    assert [each[:1] for each in lines(path)] == ["3"]
    assert [each[:1] for each in lines(tmp_path / "node.log.1")] == ["2"]
    assert [each[:9] for each in lines(tmp_path / "node.log.2")][-1] == "meanwhile"


def test_output_that_is_not_logged_follows_to_the_new_file(tmp_path: Path) -> None:
    """A traceback of the interpreter must not end up in a file that is about to be removed."""
    path = tmp_path / "node.log"
    script = (
        "import os, pathlib, sys; from tidelog.server.logfile import RotatingFile\n"
        f"file = RotatingFile(pathlib.Path(sys.argv[1]), {LIMIT}, 3)\n"
        f"file.write(b'x' * {LIMIT}); file.write(b'after\\n')\n"
        "os.write(2, b'from the interpreter\\n')"
    )
    with path.open("ab") as output:
        subprocess.run(
            [sys.executable, "-c", script, str(path)], stderr=output, check=True, timeout=60
        )
    assert lines(path) == ["after", "from the interpreter"]
