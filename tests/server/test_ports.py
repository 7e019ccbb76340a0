"""Ports that stay free while a node is down, and who has one that is taken."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.server import ports

HOST = "127.0.0.1"


def test_chosen_ports_are_different_and_outside_the_ephemeral_range() -> None:
    found = ports.choose(40, HOST)
    assert len(set(found)) == 40
    assert not set(found) & set(ports.ephemeral_range())
    assert all(ports.is_free(HOST, port) for port in found)


def test_a_range_that_leaves_no_room_is_no_reason_to_fail() -> None:
    assert len(ports.choose(2, HOST, avoid=range(1024, 65_536))) == 2


@pytest.mark.parametrize("text", [None, "", "1", "one two"])
def test_a_system_that_does_not_tell_its_range_has_the_usual_one(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "range"
    if text is not None:
        file.write_text(text)
    assert ports.ephemeral_range(file) == ports.USUAL_EPHEMERAL


def test_the_ends_of_the_range_belong_to_it(tmp_path: Path) -> None:
    file = tmp_path / "range"
    file.write_text("40000\t41000\n")
    found = ports.ephemeral_range(file)
    assert (40_000 in found, 41_000 in found, 41_001 in found) == (True, True, False)


def test_a_taken_port_is_told_with_its_process() -> None:
    with socket.socket() as here:
        here.bind((HOST, 0))
        here.listen()
        port = here.getsockname()[1]
        assert not ports.is_free(HOST, port)
        owner = ports.owner(port)
        assert owner is not None
        assert owner.pid == os.getpid()
    assert ports.is_free(HOST, port)
    assert ports.owner(port) is None


def test_the_process_may_be_another_one() -> None:
    script = (
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "print(s.getsockname()[1], flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    with other:
        owner = ports.owner(int(other.stdout.readline()))
        assert owner is not None
        assert owner.pid == other.pid
        assert str(owner).startswith(f"process {other.pid} (python")
