"""Leader epochs on nodes that are killed and restarted, asked with raw requests (KIP-101, KIP-320).

The epoch of a client is compared before anything else, on every node. Where an epoch ends is the
same answer on every node that leads, before and after restarts, and after a log was cut.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from tests.system.proxy import Proxy
from tests.system.system import System, until
from tests.system.wire import Wire, values_of

LATEST, EARLIEST = -1, -2


def answers(wire: Wire, epoch: int) -> dict[str, ErrorCode]:
    """Ask in every API that takes a client's epoch."""
    return {
        "fetch": wire.fetch("t", 0, epoch=epoch).error_code,
        "list offsets": wire.list_offset("t", LATEST, epoch=epoch).error_code,
        "epoch end": wire.epoch_end("t", epoch, epoch=epoch).error_code,
    }


def every(code: ErrorCode) -> dict[str, ErrorCode]:
    return dict.fromkeys(("fetch", "list offsets", "epoch end"), code)


def restart_all(cluster: System) -> None:
    cluster.kill(*cluster.addresses)
    cluster.start(*cluster.addresses)


def write(cluster: System, *values: bytes, acks: int = -1) -> tuple[int, int]:
    """Write to whoever leads; return the epoch and the offset."""

    def attempt() -> tuple[int, int] | None:
        leader, epoch = cluster.leader("t")
        with cluster.wire(leader) as wire:
            answer = wire.produce("t", *values, acks=acks)
        if answer.error_code is ErrorCode.none:
            return epoch, int(answer.base_offset)
        assert answer.error_code is ErrorCode.not_leader_or_follower
        return None

    found: tuple[int, int] = until(attempt, "a write")
    return found


def test_epochs_are_compared_before_leadership_on_every_node(steady: System) -> None:
    steady.create("t")
    write(steady, b"a")
    leader, epoch = steady.leader("t")
    for number in steady.addresses:
        with steady.wire(number) as wire:
            assert answers(wire, epoch - 1) == every(ErrorCode.fenced_leader_epoch)
            assert answers(wire, epoch + 1) == every(ErrorCode.unknown_leader_epoch)
            here = ErrorCode.none if number == leader else ErrorCode.not_leader_or_follower
            assert answers(wire, epoch) == every(here)
            assert answers(wire, -1)["fetch"] == here  # who says nothing is not compared


def test_a_client_with_an_old_epoch_is_fenced_after_a_restart(steady: System) -> None:
    steady.create("t")
    first, offset = write(steady, b"a", b"b")
    assert offset == 0
    restart_all(steady)
    second, offset = write(steady, b"c")
    assert offset == 2
    assert second > first
    leader, epoch = steady.leader("t")
    with steady.wire(leader) as wire:
        assert answers(wire, first) == every(ErrorCode.fenced_leader_epoch)
        assert answers(wire, epoch) == every(ErrorCode.none)


def test_the_ends_of_epochs_are_the_same_after_restarts_and_on_every_leader(
    steady: System,
) -> None:
    steady.create("t")
    ends: dict[int, int] = {}  # of each epoch that has records
    end = 0
    for number in range(2):
        epoch, offset = write(steady, *(b"%d-%d" % (number, each) for each in range(number + 2)))
        assert offset == end
        end = ends[epoch] = end + number + 2
        restart_all(steady)

    def check(leader: int, epoch: int) -> None:
        with steady.wire(leader) as wire:
            for asked in range(epoch + 1):
                answer = wire.epoch_end("t", asked, epoch=epoch)
                assert answer.error_code is ErrorCode.none
                below = [each for each in ends if each <= asked]
                # Kafka's floor rule: the largest epoch that is not above, up to the next.
                expected = ends[max(below)] if below else 0
                assert answer.end_offset == expected, f"epoch {asked}, on node {leader}"
            beyond = wire.epoch_end("t", epoch + 1)
            assert (beyond.leader_epoch, beyond.end_offset) == (-1, -1)
            found = wire.list_offset("t", EARLIEST, epoch=epoch)
            assert (found.offset, found.leader_epoch) == (0, min(ends))

    leader, epoch = steady.leader("t")
    check(leader, epoch)
    # The next leader answers the same from its own log.
    steady.stop(leader)
    successor, epoch = steady.leader("t", after=epoch)
    assert successor != leader
    check(successor, epoch)
    steady.start(leader)


def cut_dirty_data(cluster: System, proxy: Proxy) -> tuple[int, int, int]:
    """Let a leader acknowledge what nobody else has and die; return it, its epoch and the end.

    The end is where what the others have of that epoch ends. The old leader is back and follows.
    """
    cluster.create("t")
    epoch, offset = write(cluster, b"safe-0", b"safe-1", b"safe-2")
    assert offset == 0
    leader, _ = cluster.leader("t")
    proxy.cut(leader, *(number for number in cluster.addresses if number != leader))
    with cluster.wire(leader) as wire:
        for number in range(5):
            answer = wire.produce("t", b"dirty-%d" % number, acks=1)
            assert answer.error_code is ErrorCode.none
            assert answer.base_offset == 3 + number
        # What the leader alone has is not shown.
        assert len(values_of(wire.fetch("t", 0, epoch=epoch))) == 3
    cluster.kill(leader)
    proxy.drop(leader)
    proxy.heal()
    cluster.leader("t", after=epoch)
    cluster.start(leader)
    return leader, epoch, 3


def test_dirty_data_that_was_cut_off_diverges(
    steady_network: tuple[System, Proxy],
) -> None:
    """A consumer that had read what went with a leader is told where to go back to."""
    steady, proxy = steady_network
    old, epoch, end = cut_dirty_data(steady, proxy)
    later, offset = write(steady, b"new-0", b"new-1")
    assert later > epoch
    assert offset == end

    def check(asked: int) -> None:
        leader, now = steady.leader("t", by=[asked])
        with steady.wire(leader) as wire:
            answer = wire.epoch_end("t", epoch, epoch=now)
            assert (answer.leader_epoch, answer.end_offset) == (epoch, end)
            for position in (end + 1, end + 4):
                fetched = wire.fetch("t", position, epoch=now, last_epoch=epoch)
                assert diverging(fetched) == (epoch, end)
                assert not fetched.records
            # Whoever stood before the cut goes on, and sees what is there now.
            fetched = wire.fetch("t", end, epoch=now, last_epoch=epoch)
            assert diverging(fetched) is None
            assert values_of(fetched)[:2] == [(end, b"new-0"), (end + 1, b"new-1")]

    check(steady.leader("t")[0])
    # The one that had written the dirty data has cut its own log and, as a leader, says the same.
    lead(steady, old)
    check(old)


def diverging(fetched: Any) -> tuple[int, int] | None:
    """Return the epoch and the offset at which the client's log and the leader's part."""
    found = fetched.diverging_epoch
    return None if found.end_offset < 0 else (found.epoch, found.end_offset)


def lead(cluster: System, wanted: int) -> None:
    """Stop whoever leads until the wanted node does."""
    for _ in range(10):
        leader, epoch = cluster.leader("t")
        if leader == wanted:
            return
        cluster.stop(leader)
        cluster.leader("t", after=epoch)
        cluster.start(leader)
        elect(cluster, wanted)
    raise AssertionError(f"node {wanted} never leads")


def elect(cluster: System, wanted: int) -> None:
    """Ask for the preferred leader; nothing happens if that is another node or leads already."""
    with cluster.wire(wanted) as wire:
        wire.ask(
            43,
            2,
            election_type=0,
            topic_partitions=[{"topic": "t", "partitions": (0,)}],
            timeout=timedelta(seconds=10),
        )


def test_a_leader_that_lost_its_majority_stops_leading(steady: System) -> None:
    steady.create("t")
    epoch, _ = write(steady, b"a")
    leader, _ = steady.leader("t")
    others = [number for number in steady.addresses if number != leader]
    for number in others:
        steady.pause(number)
    with steady.wire(leader) as wire:

        def sent_away() -> bool:
            fetched = wire.fetch("t", 0, epoch=epoch)
            return fetched.error_code is ErrorCode.not_leader_or_follower

        until(sent_away, "the leader to step down")
        assert wire.produce("t", b"b", acks=1).error_code is ErrorCode.not_leader_or_follower
        [partition] = wire.metadata("t").topics[0].partitions
        assert partition.leader_id != leader
    for number in others:
        steady.resume(number)
    assert write(steady, b"c")[1] == 1
