"""The file of a node: read whole, or refused with the setting that is wrong."""

from pathlib import Path

import pytest

from tidelog.cluster.config import InvalidNodeConfig, NodeConfig, load_node_config

WHOLE = """
id = 2
data = "/somewhere"
cluster = "orders"
rack = "a"
cache_bytes = 2_000_000

[rpc]
port = 9192
advertised = "node2.example"

[kafka]
host = "0.0.0.0"
port = 9092

[[seeds]]
id = 1
host = "10.0.0.1"
port = 9192

[[seeds]]
id = 2
host = "10.0.0.2"
port = 9192
"""
LEAST = 'id = 1\ndata = "d"\n'


def load(tmp_path: Path, text: str | bytes) -> NodeConfig:
    path = tmp_path / "node.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_node_config(path)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, WHOLE)
    assert (config.id, config.cluster, config.rack) == (2, "orders", "a")
    assert config.data == Path("/somewhere")
    assert config.rpc.public_host == "node2.example"
    assert config.rpc.host == "127.0.0.1"
    assert config.kafka.public_host == "0.0.0.0"
    assert [seed.id for seed in config.seeds] == [1, 2]
    assert config.cache_bytes == 2_000_000
    assert config.founds


def test_an_id_and_a_place_are_enough(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST)
    assert config.founds
    assert config.rack is None
    assert config.rpc.port == config.kafka.port == 0


def test_a_node_that_is_no_seed_joins(tmp_path: Path) -> None:
    assert not load(tmp_path, WHOLE.replace("id = 2", "id = 3", 1)).founds


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("port = 1", "port: Extra inputs"),
        ("[rpc]\nport = 65536", "rpc.port: "),
        ("[rpc]\nport = -1", "rpc.port: "),
        ("[rpc]\nspeed = 9", "rpc.speed: Extra inputs"),
        ('rack = ""', "rack: "),
        ('cluster = ""', "cluster: "),
        ("cache_bytes = 1", "cache_bytes: "),
        ("heartbeat_ms = 400", "the file: .*three times heartbeat_ms"),
        ("housekeeping_s = 0", "housekeeping_s: "),
        ("disk_low_bytes = -1", "disk_low_bytes: "),
        ("disk_low_bytes = 1\ndisk_full_bytes = 2", "must not be below disk_full_bytes"),
        ('[[seeds]]\nid = 1\nhost = "h"\nport = 0', "seeds.0.port: "),
        ('[[seeds]]\nid = 1\nhost = "h"\nport = 1\n' * 2, "two seeds have the same id"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(InvalidNodeConfig, match=f"node.toml: .*{says}"):
        load(tmp_path, LEAST + more)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidNodeConfig, match=r"id: .*; data: .*"):
        load(tmp_path, "id = -1")


@pytest.mark.parametrize("text", [b"id = ", b"\xff\xfe", b"[[", b"id = 1\nid = 2"])
def test_what_is_no_toml_is_said_to_be_none(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(InvalidNodeConfig, match="is not valid TOML"):
        load(tmp_path, text)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidNodeConfig, match="cannot be read: No such file"):
        load_node_config(tmp_path / "none.toml")
    with pytest.raises(InvalidNodeConfig, match="cannot be read: Is a directory"):
        load_node_config(tmp_path)
