"""Proofs: worth something on one connection, between two ends, in one direction."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rpc.ends import (
    ECHO,
    HOST,
    PATIENCE,
    SECRET,
    End,
    Run,
    hello_body,
    read_frame,
    shake,
    two_ends,
    until,
    wire,
)
from tests.rpc.letters import append
from tests.rpc.test_strangers import closed, dial

from tidelog.raft.types import NodeId
from tidelog.rpc import Lane, Limits, Secret, Unreachable
from tidelog.rpc.complaints import INTERVAL_S, MAX_SOURCES, Complaints
from tidelog.rpc.frames import Kind
from tidelog.rpc.secret import PROOF_SIZE, Side

TWO = NodeId(2)
QUICK = Limits(backoff_first=0.01, backoff_most=0.05)
OTHER = Secret(bytes(32))


class TestProofs:
    def test_each_end_takes_the_proof_of_the_other(self) -> None:
        for side in Side:
            proof = SECRET.prove(side, b"dialed", b"answered")
            assert len(proof) == PROOF_SIZE
            assert SECRET.accepts(proof, side, b"dialed", b"answered")

    def test_a_proof_sent_back_is_none(self) -> None:
        proof = SECRET.prove(Side.LISTENER, b"dialed", b"answered")
        assert not SECRET.accepts(proof, Side.DIALER, b"dialed", b"answered")
        assert not SECRET.accepts(proof, Side.LISTENER, b"answered", b"dialed")

    def test_a_proof_of_another_secret_is_none(self) -> None:
        proof = OTHER.prove(Side.DIALER, b"dialed", b"answered")
        assert not SECRET.accepts(proof, Side.DIALER, b"dialed", b"answered")

    def test_what_is_covered_cannot_be_cut_elsewhere(self) -> None:
        proof = SECRET.prove(Side.DIALER, b"dial", b"edanswered")
        assert not SECRET.accepts(proof, Side.DIALER, b"dialed", b"answered")

    @given(st.binary(max_size=64))
    def test_garbage_proves_nothing(self, garbage: bytes) -> None:
        assert not SECRET.accepts(garbage, Side.DIALER, b"dialed", b"answered")

    @pytest.mark.parametrize("change", ["lane", "node", "cluster", "nonce"])
    def test_every_field_of_a_hello_is_covered(self, change: str) -> None:
        said = hello_body(Lane.CONTROL, 9)
        changed = {
            "lane": said[:4] + bytes([Lane.DATA]) + said[5:],
            "node": said[:8] + b"\x08" + said[9:],
            "cluster": said.replace(b"harbour", b"hamburg"),
            "nonce": said[:9] + bytes(32) + said[41:],
        }[change]
        assert changed != said
        proof = SECRET.prove(Side.DIALER, said, b"answered")
        assert not SECRET.accepts(proof, Side.DIALER, changed, b"answered")

    def test_two_hellos_never_have_the_same_nonce(self) -> None:
        assert len({hello_body() for _ in range(100)}) == 100

    def test_a_secret_is_never_printed(self) -> None:
        assert str(SECRET) == repr(SECRET) == f"{SECRET}" == "Secret(...)"

    def test_a_secret_of_another_size_is_refused(self) -> None:
        with pytest.raises(ValueError, match="32 bytes"):
            Secret(b"password")


def test_a_node_with_another_secret_is_refused_by_both_and_both_say_why(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            stranger = End(3, limits=QUICK, secret=OTHER)
            stranger.knows(two)
            stranger.network.send(TWO, append(3, 2, 1))
            await until(lambda: stranger.stats.wrong_secrets and two.stats.wrong_secrets)
            with pytest.raises(Unreachable, match="its secret is not that of this node"):
                await stranger.network.call_address(HOST, two.port, ECHO, b"", PATIENCE)
            assert not two.ear.heard
            assert not two.ear.callers
            assert two.stats.accepts == 0
            assert stranger.ear.peers == []
            await stranger.close()

    run(main())
    assert "n3 (127.0.0.1:" in caplog.text
    assert "it does not know the secret of this node's cluster" in caplog.text
    assert "its secret is not that of this node" in caplog.text


def test_a_recorded_handshake_is_worth_nothing_on_the_next_connection(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            said = hello_body()
            async with dial(two) as (reader, writer):
                writer.write(wire(Kind.HELLO, said))
                heard = bytes((await read_frame(reader)).body)
                recorded = wire(Kind.PROOF, SECRET.prove(Side.DIALER, said, heard))
                writer.write(recorded)
                await until(lambda: two.stats.accepts == 1)
            async with dial(two) as (reader, writer):
                writer.write(wire(Kind.HELLO, said) + recorded + wire(Kind.BEAT, b"x"))
                await closed(reader)
            assert two.stats.accepts == 1
            assert two.stats.wrong_secrets == 1
            assert not two.ear.beats

    run(main())


def test_a_listeners_own_proof_does_not_let_anyone_in(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two), dial(two) as (reader, writer):
            writer.write(wire(Kind.HELLO, hello_body()))
            assert (await read_frame(reader)).kind is Kind.HELLO
            writer.write(wire(Kind.PROOF, bytes((await read_frame(reader)).body)))
            await closed(reader)
            assert two.stats.wrong_secrets == 1

    run(main())


def test_the_secret_never_travels(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            async with dial(two) as (reader, writer):
                writer.write(wire(Kind.HELLO, hello_body()))
                answer = bytes((await read_frame(reader)).body) + (await read_frame(reader)).body
                assert SECRET.reveal() not in answer
            async with dial(two) as (reader, writer):
                writer.write(wire(Kind.HELLO, hello_body(Lane.GUEST)))
                writer.write_eof()
                answer = await closed(reader)
                # A guest is told nothing that was made with the secret, either.
                assert answer.count(b"TIDE") == 1

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_a_handshake_with_any_byte_changed_lets_nobody_in(run: Run, seed: int) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            said = hello_body()
            async with dial(two) as (reader, writer):
                writer.write(wire(Kind.HELLO, said))
                heard = bytes((await read_frame(reader)).body)
                proof = bytearray(SECRET.prove(Side.DIALER, said, heard))
                proof[seed * 31 % len(proof)] ^= 1 << seed % 8
                writer.write(wire(Kind.PROOF, bytes(proof)) + wire(Kind.BEAT, b"x"))
                await closed(reader)
            assert two.stats.accepts == 0
            assert not two.ear.beats

    run(main())


def test_a_handshake_in_single_bytes_is_a_handshake(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two), dial(two) as (reader, writer):
            said = hello_body()
            for byte in wire(Kind.HELLO, said):
                writer.write(bytes([byte]))
                await writer.drain()
            heard = bytes((await read_frame(reader)).body)
            assert (await read_frame(reader)).kind is Kind.PROOF
            for byte in wire(Kind.PROOF, SECRET.prove(Side.DIALER, said, heard)):
                writer.write(bytes([byte]))
                await writer.drain()
            writer.write(wire(Kind.BEAT, b"ab"))
            assert (await read_frame(reader)).body == b"ba"

    run(main())


def test_a_handshake_by_hand_is_taken_on_every_lane(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            for lane in (Lane.CONTROL, Lane.DATA, Lane.NEWCOMER):
                accepted = two.stats.accepts
                async with dial(two) as (reader, writer):
                    await shake(reader, writer, lane)
                    await until(lambda: two.stats.accepts == accepted + 1)  # noqa: B023

    run(main())


class TestComplaints:
    def test_a_source_is_heard_at_once_and_then_at_intervals(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        complaints = Complaints(logging.getLogger("test"))
        for number in range(100):
            complaints.warn("one", 0.0, f"line {number}")
        complaints.warn("two", 1.0, "another")
        complaints.warn("one", INTERVAL_S, "again")
        assert [record.message for record in caplog.records] == [
            "line 0",
            "another",
            "again (99 more warnings like this were left out)",
        ]

    def test_many_sources_fill_neither_the_log_nor_memory(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        complaints = Complaints(logging.getLogger("test"))
        for number in range(10_000):
            complaints.warn(number, 0.0, "a line")
        assert len(caplog.records) == MAX_SOURCES + 1
        assert len(complaints._sources) == MAX_SOURCES + 1
