"""The simulated network: loss, order, doubling, cuts and clogs, and copies of everything."""

import random
from dataclasses import replace

from tidelog.raft.messages import AppendRequest
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import NO_OFFSET, NO_TERM, Offset, Record, Term, build_batch
from tidelog.sim.network import CALM, MAX_ON_LINK, Network, NetworkKnobs
from tidelog.sim.scheduler import Scheduler

ONE, TWO = NodeId(1), NodeId(2)


class Bench:
    """A network on which the numbers that arrive are written down."""

    def __init__(self, knobs: NetworkKnobs, seed: int = 0) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random.Random(seed), knobs)
        self.network.deliver = lambda source, target, payload: self.arrived.append(payload)
        self.arrived: list[object] = []

    def send(self, *numbers: int, source: NodeId = ONE, target: NodeId = TWO) -> None:
        for number in numbers:
            self.network.send(source, target, "message", number)

    def run(self) -> list[object]:
        while self.scheduler.step() is not None:
            pass
        return self.arrived


def test_a_pipe_keeps_the_order_of_its_messages() -> None:
    bench = Bench(replace(CALM, delay=(1, 10_000), pipes=True))
    bench.send(*range(100))
    assert bench.run() == list(range(100))


def test_without_pipes_messages_overtake_each_other() -> None:
    bench = Bench(replace(CALM, delay=(1, 10_000), pipes=False))
    bench.send(*range(100))
    assert bench.run() != list(range(100))
    assert sorted(bench.arrived, key=str) == sorted(range(100), key=str)


def test_loss_takes_its_share() -> None:
    bench = Bench(replace(CALM, loss=0.5))
    bench.send(*range(1000))
    assert 300 < len(bench.run()) < 700
    assert bench.network.lost == 1000 - len(bench.arrived)


def test_duplication_delivers_twice() -> None:
    bench = Bench(replace(CALM, duplication=1.0))
    bench.send(7)
    assert bench.run() == [7, 7]


def test_a_cut_is_one_way_and_counted() -> None:
    bench = Bench(CALM)
    link = [(ONE, TWO)]
    bench.network.cut(link)
    bench.network.cut(link)
    bench.send(1)
    bench.send(2, source=TWO, target=ONE)
    bench.network.mend(link)
    assert bench.network.is_cut(ONE, TWO)
    bench.send(3)
    bench.network.mend(link)
    assert not bench.network.is_cut(ONE, TWO)
    bench.send(4)
    assert sorted(map(str, bench.run())) == ["2", "4"]


def test_a_clog_holds_messages_and_lets_all_go() -> None:
    bench = Bench(CALM)
    link = [(ONE, TWO)]
    bench.network.clog(link)
    bench.send(1, 2)
    assert bench.run() == []
    bench.network.unclog(link)
    bench.send(3)
    assert bench.run() == [1, 2, 3]


def test_a_link_holds_a_bounded_number_of_messages() -> None:
    bench = Bench(CALM)
    bench.network.clog([(ONE, TWO)])
    bench.send(*range(MAX_ON_LINK + 10))
    bench.network.unclog([(ONE, TWO)])
    assert bench.run() == list(range(MAX_ON_LINK))
    assert bench.network.lost == 10


def test_healing_ends_cuts_clogs_and_storms() -> None:
    bench = Bench(replace(CALM, loss=1.0))
    bench.network.cut([(ONE, TWO)])
    bench.network.clog([(ONE, TWO)])
    bench.network.clog([(ONE, TWO)])
    bench.network.heal()
    bench.send(1)
    assert bench.run() == [1]


def test_a_message_is_what_it_was_when_it_left() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v")]).stamp(Offset(5), Term(1))
    request = AppendRequest(
        GroupId(1),
        Vnode(ONE, 0),
        Vnode(TWO, 0),
        Term(1),
        1,
        Offset(4),
        NO_TERM,
        (batch,),
        NO_OFFSET,
        NO_OFFSET,
        NO_OFFSET,
        False,
    )
    bench = Bench(replace(CALM, duplication=1.0))
    bench.network.send(ONE, TWO, "append", request)
    batch.stamp(Offset(900), Term(9))
    arrived = bench.run()
    assert len(arrived) == 2
    for message in arrived:
        assert isinstance(message, AppendRequest)
        assert message.batches[0].base_offset == 5
        assert message.batches[0].data.readonly, "a receiver that writes has to copy"
