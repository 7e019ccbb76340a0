"""The cluster's secret on disk and in join tokens: kept private, and never mistaken for another."""

import asyncio
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.nodes import HOST, TOKEN, free_ports

from tidelog.cluster.config import NodeConfig, Seed
from tidelog.cluster.errors import StartFailed
from tidelog.cluster.jointoken import (
    SECRET_FILE,
    InvalidToken,
    JoinToken,
    Kept,
    Place,
    SecretTrouble,
    keep_secret,
    read_secret,
    settle_secret,
)
from tidelog.cluster.model import Address
from tidelog.cluster.node import Node
from tidelog.rpc import Secret

SECRET = Secret(bytes(range(32)))
FULL = JoinToken(SECRET, "a cluster", (Place(1, "host", 9192), Place(2, "::1", 9193)))


class TestTokens:
    @pytest.mark.parametrize("token", [FULL, JoinToken(SECRET)])
    def test_a_token_says_what_it_was_told(self, token: JoinToken) -> None:
        text = token.encode()
        assert text.isascii()
        assert text.replace("_", "").replace("-", "").isalnum()
        assert JoinToken.decode(f"  {text}\n") == token

    def test_any_character_that_is_lost_or_changed_is_noticed(self) -> None:
        text = FULL.encode()
        for place in range(len(text)):
            for wrong in (
                text[:place],
                text[:place] + text[place + 1 :],
                text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :],
            ):
                with pytest.raises(InvalidToken):
                    JoinToken.decode(wrong)

    @given(st.text())
    def test_garbage_is_not_a_token(self, garbage: str) -> None:
        for text in (garbage, "tidelog1_" + garbage):
            with pytest.raises(InvalidToken):
                JoinToken.decode(text)

    def test_a_token_is_not_printed_with_its_secret(self) -> None:
        text = TOKEN
        assert "Secret(...)" in repr(FULL)
        config = NodeConfig(id=1, data=Path("d"), token=text)
        assert text not in repr(config)


class TestTheFile:
    def test_only_its_owner_may_read_it(self, tmp_path: Path) -> None:
        (tmp_path / f"{SECRET_FILE}.partial").write_text("left over, readable by all")
        keep_secret(tmp_path, Kept(SECRET, "id", FULL.seeds))
        assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600
        assert read_secret(tmp_path) == Kept(SECRET, "id", FULL.seeds)
        assert [each.name for each in tmp_path.iterdir()] == [SECRET_FILE]

    def test_a_directory_without_one_has_none(self, tmp_path: Path) -> None:
        assert read_secret(tmp_path) is None

    @pytest.mark.parametrize(
        "content", ["", "{}", "[]", '{"version": 1, "secret": "AAAA"}', "\xff"]
    )
    def test_a_damaged_one_says_what_to_do(self, tmp_path: Path, content: str) -> None:
        (tmp_path / SECRET_FILE).write_text(content)
        with pytest.raises(SecretTrouble, match="Remove it and start the node with a join token"):
            read_secret(tmp_path)

    def test_one_of_a_later_release_asks_for_an_upgrade(self, tmp_path: Path) -> None:
        (tmp_path / SECRET_FILE).write_text('{"version": 2}')
        with pytest.raises(SecretTrouble, match="upgrade this node"):
            read_secret(tmp_path)


class TestTheStart:
    def test_a_founder_alone_makes_a_secret_and_finds_it_again(self, tmp_path: Path) -> None:
        made = settle_secret(tmp_path, None, alone=True)
        assert settle_secret(tmp_path, None, alone=True) == made
        assert settle_secret(tmp_path, None, alone=False) == made

    def test_founders_without_a_token_are_told_what_to_run(self, tmp_path: Path) -> None:
        with pytest.raises(SecretTrouble, match="tidelog node token"):
            settle_secret(tmp_path, None, alone=False)
        assert not list(tmp_path.iterdir())

    def test_a_token_is_needed_once(self, tmp_path: Path) -> None:
        settle_secret(tmp_path, FULL, alone=False)
        found = settle_secret(tmp_path, None, alone=False)
        assert found == Kept(SECRET, "a cluster", FULL.seeds)

    def test_a_token_of_another_cluster_is_refused(self, tmp_path: Path) -> None:
        settle_secret(tmp_path, FULL, alone=False)
        for other in (JoinToken(Secret.new()), JoinToken(SECRET, "elsewhere")):
            with pytest.raises(SecretTrouble, match="leave the token out"):
                settle_secret(tmp_path, other, alone=False)

    def test_the_members_that_a_token_names_take_the_place_of_seeds(self, tmp_path: Path) -> None:
        config = NodeConfig(id=2, data=tmp_path).with_seeds(FULL.seeds)
        assert [seed.id for seed in config.seeds] == [1]
        assert not config.founds
        seeded = NodeConfig(id=2, data=tmp_path, seeds=(Seed(id=7, host="h", port=1),))
        assert seeded.with_seeds(FULL.seeds) == seeded


def start(config: NodeConfig) -> Node:
    """Start a node that founds a cluster alone, and stop it once it knows which."""

    async def main() -> Node:
        node = Node(config)
        await node.start(Address(HOST, 20_000))
        await node.stop()
        return node

    return asyncio.run(main())


def test_a_node_alone_starts_without_a_token_and_keeps_the_id_of_its_cluster(
    tmp_path: Path,
) -> None:
    node = start(NodeConfig(id=1, data=tmp_path))
    kept = read_secret(tmp_path)
    assert kept is not None
    assert kept.cluster_id == node.state.cluster_id != ""


def test_founders_without_a_token_do_not_start(tmp_path: Path) -> None:
    seeds = tuple(
        Seed(id=number, host=HOST, port=port) for number, port in enumerate(free_ports(2), start=1)
    )
    with pytest.raises(StartFailed, match="run `tidelog node token --new` once"):
        start(NodeConfig(id=1, data=tmp_path, seeds=seeds))


def test_a_token_file_may_go_after_the_first_start(tmp_path: Path) -> None:
    path = tmp_path / "token"
    config = NodeConfig(id=1, data=tmp_path / "data", token_file=path)
    with pytest.raises(StartFailed, match="cannot be read"):
        start(config)
    path.write_text(TOKEN)
    start(config)
    path.unlink()
    start(config)


def test_a_token_that_is_not_one_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="not a join token"):
        start(NodeConfig(id=1, data=tmp_path, token="password"))
