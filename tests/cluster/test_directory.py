"""Who holds a node's directory: the lock decides, and a signal reaches its holder or no process."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cluster.directory import LOCK, Held, Process, Taken, look, take


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with Tidelog."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_directory_without_a_lock_is_free(tmp_path: Path) -> None:
    assert look(tmp_path) is None
    assert look(tmp_path / "nowhere") is None


def test_the_holder_is_known_by_its_pid_and_its_start(tmp_path: Path) -> None:
    with take(tmp_path):
        held = look(tmp_path)
        assert held == Held(Process(os.getpid(), started(os.getpid())))
        assert str(held) == f"process {os.getpid()}"
        with pytest.raises(Taken, match=f"process {os.getpid()}"):
            take(tmp_path)
    assert look(tmp_path) is None
    take(tmp_path).close()


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys, time; from tidelog.cluster.directory import take\n"
            "lock = take(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(600)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        held = look(tmp_path)
        assert held is not None
        assert held.process is not None
        assert held.process.pid == holder.pid
        assert held.process.send(signal.SIGKILL)
        assert holder.wait(30) == -signal.SIGKILL
        assert look(tmp_path) is None
        assert not held.process.send(signal.SIGKILL)


def test_what_the_file_says_counts_for_nothing_while_the_lock_is_free(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    said = {"pid": stranger.pid, "started": started(stranger.pid)}
    (tmp_path / LOCK).write_text(json.dumps(said))
    assert look(tmp_path) is None


def test_a_pid_that_was_given_out_again_is_not_the_holder(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    said = {"pid": stranger.pid, "started": started(stranger.pid) - 1}
    with (tmp_path / LOCK).open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(json.dumps(said))
        lock.flush()
        assert look(tmp_path) == Held(None)


def test_a_signal_never_reaches_a_later_process_of_the_same_pid(
    stranger: subprocess.Popen[bytes],
) -> None:
    real = Process(stranger.pid, started(stranger.pid))
    assert not dataclasses.replace(real, started=real.started + 1).send(signal.SIGKILL)
    assert stranger.poll() is None
    assert real.send(signal.SIGKILL)
    assert stranger.wait(30) == -signal.SIGKILL
    assert not real.send(signal.SIGKILL)


@pytest.mark.parametrize(
    "text", ["", "12", "{}", '{"pid": 0, "started": 1}', '{"pid": "1", "started": 1}', "\x00\xff"]
)
def test_a_lock_file_may_hold_anything(tmp_path: Path, text: str) -> None:
    with (tmp_path / LOCK).open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(text)
        lock.flush()
        assert look(tmp_path) == Held(None)
