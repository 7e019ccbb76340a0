"""When a peer counts as warm, and what the table says of one that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from bench._clients import Load, Produced
from bench._clusters import Cluster, Tidelog
from bench._compare import NOT_STEADY, Row, Side, Values, table
from bench._warming import (
    MILLION,
    PASSES_A_TOPIC,
    PATTERNS,
    STEADY_PASSES,
    Pattern,
    Progress,
    Warmth,
    is_steady,
    warm_up,
)

FLAT = [500.0] * STEADY_PASSES


def test_a_peer_is_warm_when_ten_passes_bring_nothing() -> None:
    rising = [100.0 * each for each in range(1, 6)]
    assert not is_steady(rising)
    assert not is_steady([*rising, *FLAT])  # the first of them shows that the best was no luck
    assert is_steady([*rising, 500.0, *FLAT])


def test_one_faster_pass_begins_the_count_again() -> None:
    steady = [500.0, 500.0, *FLAT]
    assert is_steady(steady)
    assert not is_steady([*steady, 560.0])
    assert not is_steady([*steady, 560.0, *FLAT[1:]])
    assert is_steady([*steady, 560.0, *FLAT])


def test_many_small_gains_are_a_gain() -> None:
    creeping = [500.0 * 1.005**each for each in range(40)]
    assert not is_steady(creeping)


def test_a_lucky_pass_does_not_make_a_young_peer_warm() -> None:
    lucky = [900.0, 300.0, 300.0, 310.0, 330.0, 350.0, 370.0, 400.0, 450.0, 480.0, 500.0]
    assert max(lucky[1:]) < lucky[0]
    assert not is_steady([*lucky, *FLAT[1:]])
    assert is_steady([*lucky, *FLAT])


def test_a_peer_that_is_as_fast_as_it_gets_goes_on_to_its_least_number_of_records() -> None:
    progress = Progress(Pattern("100 B", 100, MILLION, 15 * MILLION), [500.0] * 14)
    assert is_steady(progress.rates)
    assert not progress.is_warm
    progress.rates.append(500.0)
    assert progress.is_warm


def test_the_first_pattern_has_at_least_fifteen_million_records() -> None:
    assert PATTERNS[0].size == 100
    assert PATTERNS[0].least == 15 * MILLION


# --- The warming ----------------------------------------------------------------------------------


@dataclass
class FakeCluster:
    name: str = "Kafka"
    nodes: int = 3
    bootstrap: str = "nowhere"
    created: int = 0
    deleted: int = 0

    def create_topic(self, partitions: int, config: Mapping[str, str]) -> str:
        self.created += 1
        return f"topic-{self.created}"

    def delete_topic(self, name: str) -> None:
        self.deleted += 1


@dataclass
class FakeLoad:
    """Each pattern gets faster in a way of its own, and every pass takes ten seconds."""

    rate: Callable[[int, int], float]  # by size and number of the pass
    passes: dict[tuple[int, bool], int] = field(default_factory=dict)
    written: int = 0
    read: int = 0
    now: float = 0.0

    def produce(
        self, bootstrap: str, topic: str, records: int, size: int, settings: Mapping[str, str]
    ) -> Produced:
        pattern = size, settings["linger.ms"] == "0"
        self.passes[pattern] = self.passes.get(pattern, 0) + 1
        self.written += records
        self.now += 10.0
        return Produced(self.rate(size, self.passes[pattern]), ())

    def consume(self, bootstrap: str, topic: str, records: int, consumers: int) -> float:
        self.read += records
        return 1.0


SMALL = (Pattern("100 B", 100, 1000, 15_000), Pattern("1 KiB", 1024, 100))


def warm(load: FakeLoad, cluster: object, max_s: float = 1e6) -> Warmth:
    return warm_up(
        cast(Cluster, cluster), cast(Load, load), SMALL, max_s=max_s, clock=lambda: load.now
    )


def test_warming_goes_on_until_every_pattern_is_steady() -> None:
    load = FakeLoad(lambda size, number: 1000.0 * min(number, 20 if size == 1024 else 3))
    cluster = FakeCluster()
    warmth = warm(load, cluster)
    assert warmth.is_steady
    assert load.passes == {(100, False): 31, (1024, False): 31}
    assert load.read == load.written
    assert cluster.created == cluster.deleted == -(-31 // PASSES_A_TOPIC)
    first, small, large = warmth.lines
    assert "Kafka, nodes: 3, was warmed for 620 s and is steady" in first
    assert "100 B: 31,000 records in 31 passes, 1,000 msg/s in the first" in small
    assert "the last 27 brought nothing" in small
    assert "20 k msg/s in the best, the last 10 brought nothing" in large


def test_a_peer_has_its_least_number_of_records_however_steady_it_is() -> None:
    load = FakeLoad(lambda size, number: 1000.0)
    assert warm(load, FakeCluster()).is_steady
    assert load.passes[100, False] == 15


def test_warming_ends_after_its_time_and_says_so() -> None:
    load = FakeLoad(lambda size, number: 1000.0 * number)
    warmth = warm(load, FakeCluster(), max_s=300.0)
    assert not warmth.is_steady
    assert "is NOT YET STEADY" in warmth.lines[0]
    assert load.passes[100, False] == 15


def test_tidelog_gets_one_pass_of_each_pattern() -> None:
    load = FakeLoad(lambda size, number: 1000.0)

    class Ours(Tidelog):
        def __init__(self) -> None:
            self.nodes, self.bootstrap = 3, ""

        def create_topic(self, partitions: int, config: Mapping[str, str]) -> str:
            return "topic"

        def delete_topic(self, name: str) -> None: ...

    assert warm(load, Ours()).is_steady
    assert load.passes == {(100, False): 1, (1024, False): 1}


# --- The table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fake:
    def measure(self, cluster: Cluster, load: Load, *, quick: bool) -> Values:
        raise NotImplementedError


@pytest.fixture
def sides() -> tuple[Side, Side]:
    ours, theirs = Side("Tidelog"), Side("Kafka")
    for side in (ours, theirs):
        side.found = {(3, Fake()): {"rate": 5.0}, (1, Fake()): {"rate": 6.0}}
    return ours, theirs


def test_figures_of_a_peer_that_was_not_steady_are_marked(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    rows = [Row(f"{nodes} nodes", "rate", "msg/s", Fake(), Fake(), nodes) for nodes in (3, 1)]
    theirs.warmth = {3: Warmth((), is_steady=True), 1: Warmth((), is_steady=False)}
    _, three, one = table(rows, ours, theirs)
    assert NOT_STEADY not in three
    assert NOT_STEADY in one


def test_what_needs_no_warming_is_not_marked(sides: tuple[Side, Side]) -> None:
    rows = [Row("killed", "rate", "ms", Fake(), Fake())]
    assert NOT_STEADY not in "".join(table(rows, *sides))
