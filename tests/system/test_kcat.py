"""kcat, the client of the command line: what it writes it reads, and it sees the cluster."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.system.system import System

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def kcat(cluster: System, *arguments: str, given: str = "") -> str:
    """Run it and return what it printed."""
    path = shutil.which("kcat") or shutil.which("kafkacat")
    assert path is not None, "kcat is not on this machine: apt-get install kcat"
    done = subprocess.run(
        [path, "-b", cluster.bootstrap, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_reads_what_it_wrote(calm: System, codec: str) -> None:
    topic = f"kcat-{codec}"
    calm.create(topic)
    for acks in ("all", "1"):
        kcat(
            calm, "-P", "-t", topic, "-p", "0", "-K", ":", "-H", "from=kcat", "-z", codec,
            "-X", f"acks={acks}", given="one:1\ntwo:2\n",
        )  # fmt: skip
    lines = kcat(calm, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J")
    found = [json.loads(line) for line in lines.splitlines()]
    assert [(each["offset"], each["key"], each["payload"]) for each in found] == [
        (0, "one", "1"),
        (1, "two", "2"),
        (2, "one", "1"),
        (3, "two", "2"),
    ]
    assert all(each["headers"] == ["from", "kcat"] for each in found)


def test_kcat_lists_the_cluster(calm: System) -> None:
    calm.create("kcat-listed", 3)
    told = json.loads(kcat(calm, "-L", "-J", "-t", "kcat-listed"))
    assert {each["id"]: each["name"] for each in told["brokers"]} == calm.addresses
    [topic] = told["topics"]
    assert len(topic["partitions"]) == 3
    assert all(len(each["replicas"]) == 3 for each in topic["partitions"])


def test_kcat_finds_offsets_by_time(calm: System) -> None:
    calm.create("kcat-times")
    kcat(calm, "-P", "-t", "kcat-times", "-p", "0", given="a\nb\n")
    assert "offset 0" in kcat(calm, "-Q", "-t", "kcat-times:0:1")
