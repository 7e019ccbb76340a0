"""Messages and heartbeats between two nodes, over real sockets."""

import asyncio
import logging
from dataclasses import replace

import pytest
from tests.rpc.ends import CLUSTER, HOST, End, Run, two_ends, until
from tests.rpc.letters import append, data_batch, large_append

from tidelog.raft.groupset import CorruptBeat
from tidelog.raft.types import NodeId, Vnode
from tidelog.rpc import Limits
from tidelog.rpc.frames import HEADER_SIZE

ONE, TWO = NodeId(1), NodeId(2)
QUICK = Limits(backoff_first=0.01, backoff_most=0.05)


def test_messages_arrive_in_order_on_both_lanes(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            for seq in range(0, 1000, 2):
                one.network.send(TWO, append(1, 2, seq))
                one.network.send(TWO, append(1, 2, seq + 1, data_batch(seq, [b"v" * (seq % 99)])))
            await until(lambda: len(two.ear.heard) == 1000)
            assert [seq for seq in two.ear.seqs if seq % 2 == 0] == list(range(0, 1000, 2))
            assert [seq for seq in two.ear.seqs if seq % 2 == 1] == list(range(1, 1000, 2))
            assert one.stats.messages_sent == two.stats.messages_received == 1000
            assert one.stats.bytes_queued < two.stats.bytes_received  # which counts the HELLOs too

    run(main())


def test_batches_of_all_sizes_arrive_as_they_were(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            sizes = [0, 1, 1000, 16 * 1024, 17 * 1024, 100_000, 3_000_000, 5]
            for seq, size in enumerate(sizes):
                batch = data_batch(seq, [bytes(i % 251 for i in range(size))])
                one.network.send(TWO, append(1, 2, seq, batch, batch))
            await until(lambda: len(two.ear.heard) == len(sizes))
            for message, size in zip(two.ear.heard, sizes, strict=True):
                batch = data_batch(message.seq, [bytes(i % 251 for i in range(size))])  # type: ignore[attr-defined]
                assert message.batches == (batch, batch)  # type: ignore[attr-defined]

    run(main())


def test_both_nodes_send_at_once(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            for seq in range(100):
                one.network.send(TWO, large_append(1, 2, seq, 10_000))
                two.network.send(ONE, large_append(2, 1, seq, 10_000))
            await until(lambda: len(one.ear.seqs) == len(two.ear.seqs) == 100)
            assert one.ear.seqs == two.ear.seqs == list(range(100))

    run(main())


def test_control_overtakes_data(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            one.network.send(TWO, append(1, 2, 0))
            one.network.send(TWO, large_append(1, 2, 1, 10))
            await until(lambda: len(two.ear.seqs) == 2)
            for seq in range(2, 32):
                one.network.send(TWO, large_append(1, 2, seq, 1 << 20))
            one.network.send(TWO, append(1, 2, 99))
            one.network.send_beat(TWO, b"beat")
            await until(lambda: len(two.ear.seqs) == 33)
            assert two.ear.seqs.index(99) < 31
            assert two.ear.beats == [(ONE, b"beat")]

    run(main())


def test_a_beat_is_answered(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            one.network.send_beat(TWO, b"abc")
            await until(lambda: one.ear.replies)
            assert two.ear.beats == [(ONE, b"abc")]
            assert one.ear.replies == [(TWO, b"cba")]
            assert one.stats.beats_sent == two.stats.beats_received == 1

    run(main())


def test_a_beat_that_the_handler_drops_is_not_answered(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            two.ear.answers_beats = False
            one.network.send_beat(TWO, b"abc")
            await until(lambda: two.ear.beats)
            two.ear.answers_beats = True
            one.network.send_beat(TWO, b"def")
            await until(lambda: one.ear.replies)
            assert one.ear.replies == [(TWO, b"fed")]
            assert one.ear.peers == ["+2"], "and the connection stays"

    run(main())


@pytest.mark.parametrize("at_sender", [True, False])
def test_a_beat_that_is_none_ends_the_connection_and_the_next_is_a_new_one(
    run: Run, at_sender: bool
) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            judge = one if at_sender else two
            judge.ear.beat_error = CorruptBeat("no such beat")
            one.network.send_beat(TWO, b"abc")
            await until(lambda: one.ear.peers == ["+2", "-2"])
            assert judge.stats.corrupt_connections == 1
            judge.ear.beat_error = None
            one.ear.replies.clear()

            def answered() -> bool:
                one.network.send_beat(TWO, b"again")
                return bool(one.ear.replies)

            await until(answered)

    run(main())


def test_a_handler_that_raises_harms_only_what_it_handled(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            one.ear.peer_error = KeyError("peer")
            two.ear.message_error = KeyError("message")
            two.ear.beat_error = KeyError("beat")
            one.network.send(TWO, append(1, 2, 1))
            one.network.send_beat(TWO, b"beat")
            await until(lambda: two.stats.handler_errors == 2)
            two.ear.message_error = None
            one.network.send(TWO, append(1, 2, 2))
            await until(lambda: two.ear.seqs == [2])
            assert one.ear.peers == ["+2"]
            assert one.stats.handler_errors == 1

    run(main())
    assert sum("failed" in record.message for record in caplog.records) == 3


# --- Bounds -------------------------------------------------------------------------------------


def test_what_a_full_queue_does_not_take_is_dropped_and_counted(run: Run) -> None:
    async def main() -> None:
        limits = replace(QUICK, data_bytes=1 << 20, control_bytes=1000)
        async with two_ends(limits) as (one, two):
            for seq in range(100):
                one.network.send(TWO, large_append(1, 2, seq, 100_000))
                one.network.send(TWO, append(1, 2, 1000 + seq))
            waiting = sum(each.waiting_bytes for each in one.network._local.connections)
            assert waiting <= limits.data_bytes + limits.control_bytes + 2 * HEADER_SIZE
            assert one.stats.messages_sent + one.stats.dropped_full == 200
            await until(lambda: len(two.ear.seqs) == one.stats.messages_sent)
            data = [seq for seq in two.ear.seqs if seq < 1000]
            assert data == list(range(10))  # the newest are dropped, so what arrives has no holes
            assert 0 < len(two.ear.seqs) - 10 < 20
            one.network.send(TWO, large_append(1, 2, 500, 100_000))
            await until(lambda: 500 in two.ear.seqs)  # and then there is room again

    run(main())


def test_a_frame_larger_than_the_queue_goes_when_nothing_waits(run: Run) -> None:
    async def main() -> None:
        async with two_ends(replace(QUICK, data_bytes=1000)) as (one, two):
            one.network.send(TWO, large_append(1, 2, 1, 200_000))
            one.network.send(TWO, large_append(1, 2, 2, 200_000))
            await until(lambda: two.ear.seqs == [1])
            assert one.stats.dropped_full == 1

    run(main())


def test_a_frame_that_nobody_would_take_is_not_sent(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(replace(QUICK, frame_bytes=10_000)) as (one, two):
            one.network.send(TWO, large_append(1, 2, 1, 10_000))
            one.network.send(TWO, replace(append(1, 2, 2), seq=2**63))
            one.network.send(TWO, large_append(1, 2, 3, 9_000))
            await until(lambda: two.ear.seqs == [3])
            assert one.stats.dropped_unsendable == 2

    run(main())
    assert any("too large to send" in record.message for record in caplog.records)
    assert any("cannot be encoded" in record.message for record in caplog.records)


def test_a_message_to_nobody_is_dropped_and_counted(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            one.network.remove_peer(TWO)
            one.network.send(TWO, append(1, 2, 1))
            one.network.send_beat(TWO, b"beat")
            assert one.stats.dropped_unreachable == 2
            assert one.stats.messages_sent == one.stats.beats_sent == 0
            assert not two.ear.heard

    run(main())


# --- Peers that come and go ---------------------------------------------------------------------


def test_a_peer_that_restarts_is_connected_with_again(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            one.network.send(TWO, append(1, 2, 1))
            one.network.send(TWO, large_append(1, 2, 2, 10))
            await until(lambda: len(two.ear.seqs) == 2)
            await two.close()
            await until(lambda: one.ear.peers == ["+2", "-2"])

            again = End(2)
            await again.listen(two.port)
            seq = 2

            def heard() -> bool:
                nonlocal seq
                seq += 1
                one.network.send(TWO, append(1, 2, seq))
                one.network.send(TWO, large_append(1, 2, seq + 100_000, 10))
                return any(s > 100_000 for s in again.ear.seqs) and min(again.ear.seqs) < 100_000

            await until(heard)
            assert one.ear.peers == ["+2", "-2", "+2"]
            assert one.stats.connects == 4  # two lanes, twice
            assert one.stats.dropped_unreachable > 0
            await again.close()

    run(main())


def test_a_peer_that_was_never_there_is_not_lost(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            await two.close()

            def tried() -> bool:
                one.network.send(TWO, append(1, 2, 1))
                return one.stats.connect_failures > 2

            await until(tried)
            assert one.ear.peers == []

    run(main())
    # Trouble that goes on is one line, not one for each attempt.
    assert sum("no connection with n2" in record.message for record in caplog.records) == 1


def test_a_peer_that_we_give_up_is_not_lost(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            one.network.send(TWO, append(1, 2, 1))
            await until(lambda: two.ear.seqs == [1])
            one.network.remove_peer(TWO)
            await until(lambda: two.network._keeper.open == 0)
            assert one.ear.peers == ["+2"]

    run(main())


def test_a_peer_that_moves_is_found_at_its_new_address(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            one.network.send(TWO, append(1, 2, 1))
            await until(lambda: two.ear.seqs == [1])
            moved = End(2)
            await moved.listen()
            one.knows(moved)
            one.network.send(TWO, append(1, 2, 2))
            await until(lambda: moved.ear.seqs == [2])
            one.knows(moved)  # nothing new
            one.network.send(TWO, append(1, 2, 3))
            await until(lambda: moved.ear.seqs == [2, 3])
            assert two.ear.seqs == [1]
            assert one.stats.connects == 2
            await moved.close()

    run(main())


def test_an_address_that_cannot_be_is_tried_like_any_other(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, _):
            one.network.set_peer(NodeId(3), "no\0host", 9000)
            one.network.set_peer(NodeId(4), HOST, 70_000)
            for node in (3, 4):
                one.network.send(NodeId(node), append(1, node, 1))
            await until(lambda: one.stats.connect_failures == 2)

    run(main())


# --- Strangers ----------------------------------------------------------------------------------


def test_a_node_of_another_cluster_is_refused_by_both(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two):
            stranger = End(3, "elsewhere", QUICK)
            stranger.knows(two)
            stranger.network.send(TWO, append(3, 2, 1))
            await until(lambda: stranger.stats.connect_failures and two.stats.corrupt_connections)
            assert not two.ear.heard
            assert two.stats.accepts == 0
            assert stranger.ear.peers == []
            await stranger.close()

    run(main())
    text = caplog.text
    assert f"n3 belongs to cluster 'elsewhere' and this node to '{CLUSTER}'" in text
    assert f"it belongs to cluster '{CLUSTER}' and this node to 'elsewhere'" in text


def test_a_node_that_is_somebody_else_is_refused(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            one.network.set_peer(NodeId(7), HOST, two.port)
            one.network.send(NodeId(7), append(1, 7, 1))
            await until(lambda: one.stats.connect_failures)
            assert not two.ear.heard

    run(main())
    assert "it is n2" in caplog.text


def test_nobody_may_speak_for_us_or_for_somebody_else(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            twin = End(2, limits=QUICK)
            twin.knows(two)
            twin.network.send(TWO, append(2, 2, 1))
            await until(lambda: two.stats.corrupt_connections == 1)
            await twin.close()

            forged = replace(append(1, 2, 1), source=Vnode(NodeId(5), 0))
            one.network.send(TWO, forged)
            await until(lambda: two.stats.corrupt_connections == 2)
            assert not two.ear.heard

    run(main())
    assert "another node may not call itself n2" in caplog.text
    assert "n1 sent a message of n5" in caplog.text


def test_clusters_of_one_name_and_secret_are_told_apart_by_their_ids(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            one.network.identify("first")
            two.network.identify("second")
            one.network.send(TWO, append(1, 2, 1))
            await until(lambda: one.stats.connect_failures and two.stats.corrupt_connections)
            assert not two.ear.heard

    run(main())
    assert "its id is 'second' and ours 'first'" in caplog.text


def test_a_node_that_does_not_know_the_id_of_its_cluster_yet_is_welcome(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            two.network.identify("first")
            one.network.send(TWO, append(1, 2, 1))
            await until(lambda: two.ear.seqs == [1])

    run(main())


# --- The end ------------------------------------------------------------------------------------


# asyncio's own server forgets a socket that it accepts while it closes; nodes run on uvloop.
@pytest.mark.parametrize("run", ["uvloop"], indirect=True)
def test_a_network_closes_in_any_state(run: Run) -> None:
    async def main() -> None:
        for pause in range(30):
            async with two_ends(QUICK) as (one, two):
                one.network.set_peer(NodeId(3), HOST, 1)  # nobody listens there
                for seq in range(40):
                    one.network.send(TWO, large_append(1, 2, seq, 100_000))
                    one.network.send(TWO, append(1, 2, seq))
                    one.network.send(NodeId(3), append(1, 3, seq))
                    two.network.send(ONE, large_append(2, 1, seq, 100_000))
                for _ in range(pause):
                    await asyncio.sleep(0)

    run(main())


def test_a_closed_network_sends_nothing_and_may_be_closed_again(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            await one.network.close()
            one.network.send(TWO, append(1, 2, 1))
            one.network.send_beat(TWO, b"beat")
            assert one.stats.dropped_unreachable == 2
            one.knows(two)
            one.network.send(TWO, append(1, 2, 1))
            assert one.stats.dropped_unreachable == 3
            assert not one.network._local.connections
            assert two.stats.accepts == 0

    run(main())


def test_a_connection_that_is_accepted_while_the_network_closes_is_not_kept(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, _):
            await one.network.close()
            assert one.network._keeper.admit().closed
            await until(lambda: one.network._keeper.open == 0)

    run(main())
