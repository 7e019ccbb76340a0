"""The reckoning of a soak run: what it must notice, and what it must let pass."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from bench._soak import check
from bench._soak.check import Reading, topic_verdicts
from bench._soak.curves import blocks, panels, svg
from bench._soak.faults import Fault
from bench._soak.load import Writer
from bench._soak.topics import PARTITIONS, SHAPES, Numbers, number_of, value_of
from bench._soak.watch import HANDLES, MEMORY, NodeSample, Sample, Verdict, judge, verdicts

PLAIN, _, _, RETAINED, COMPACTED = SHAPES


def written(shape: int, count: int, *, refused: tuple[int, ...] = ()) -> Writer:
    """A producer to which all was acknowledged, up to a number, but for some."""
    writer = Writer("nowhere:1", SHAPES[shape])
    writer.next = count
    for number in range(count):
        if number in refused:
            writer.failed.add(number)
            continue
        writer.acknowledged.add(number)
        if writer.shape.keys:
            writer.newest[number % writer.shape.keys] = number
    return writer


def read(writer: Writer, numbers: list[int]) -> Reading:
    """What is found if a topic holds these, each partition without a gap."""
    reading = Reading(writer)
    for partition in range(PARTITIONS):
        held = [number for number in numbers if number % PARTITIONS == partition]
        for offset, number in enumerate(held):
            reading.take(partition, offset, value_of(number, 50))
    reading.finish()
    return reading


def sample(at: float, mib: float, segments: int = 100) -> Sample:
    node = NodeSample(1, mib, 30, segments, 11, at)
    return Sample(at, {1: node, 2: node}, 5.0, 20.0, 30.0, int(100 * at), 0, 1.0)


def test_a_value_begins_with_its_number_and_has_its_size() -> None:
    for number in (0, 7, 123_456_789):
        value = value_of(number, 200)
        assert len(value) == 200
        assert number_of(value) == number


def test_numbers_are_a_set() -> None:
    numbers = Numbers()
    assert [numbers.add(each) for each in (3, 100_000, 3)] == [True, True, False]
    assert numbers.count == 2
    assert 3 in numbers
    assert 4 not in numbers
    assert 10**9 not in numbers
    assert numbers.array(6).tolist() == [False, False, False, True, False, False]
    assert numbers.array(200_000).sum() == 2


def test_a_topic_that_holds_all_that_was_acknowledged_is_well() -> None:
    assert read(written(0, 30), list(range(30))).faults == []


def test_a_record_that_was_refused_may_be_there_or_not_and_late() -> None:
    writer = written(0, 30, refused=(6,))
    assert read(writer, [each for each in range(30) if each != 6]).faults == []
    assert read(writer, [*(each for each in range(30) if each != 6), 6]).faults == []


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        ([each for each in range(30) if each != 7], "lost 7"),
        (list(range(29)), "lost 29"),
        ([*range(30), 9], "9 a second time"),
        ([*range(31)], "30 at 10, which nobody wrote there"),
        ([3, 0, 6, *(each for each in range(30) if each not in {0, 3, 6})], "0 at 1, after 3"),
    ],
)
def test_what_is_wrong_with_a_topic_is_said(numbers: list[int], fault: str) -> None:
    reading = read(written(0, 30), numbers)
    assert any(fault in each for each in reading.faults), reading.faults
    assert not all(each.ok for each in topic_verdicts(reading, 600))


def test_an_offset_that_is_missing_is_a_fault() -> None:
    reading = Reading(written(0, 6))
    reading.take(0, 0, value_of(0, 50))
    reading.take(0, 2, value_of(3, 50))
    assert reading.faults == ["plain/0 has nothing between 0 and 2"]


def test_retention_may_take_the_beginning_and_nothing_else() -> None:
    writer = written(SHAPES.index(RETAINED), 30)
    assert read(writer, list(range(12, 30))).faults == []
    assert read(writer, [each for each in range(12, 30) if each != 20]).fault_count == 1


def test_a_compacted_topic_must_have_the_newest_value_of_each_key() -> None:
    keys = COMPACTED.keys
    writer = written(SHAPES.index(COMPACTED), 2 * keys)
    newest = list(range(keys, 2 * keys))
    assert read(writer, newest).faults == []
    assert read(writer, newest[1:]).fault_count == 1
    assert read(writer, [0, *newest[1:]]).fault_count == 1


def test_compaction_and_retention_that_never_happened_are_noticed() -> None:
    writer = written(SHAPES.index(COMPACTED), 2 * COMPACTED.keys)
    whole = read(writer, list(range(2 * COMPACTED.keys)))
    assert [each.ok for each in topic_verdicts(whole, 600)] == [True, False]
    retained = read(written(SHAPES.index(RETAINED), 30), list(range(30)))
    retained.starts = dict.fromkeys(range(PARTITIONS), 0)
    assert [each.ok for each in topic_verdicts(retained, 600)] == [True, False]


def test_a_compacted_topic_may_have_a_few_files_of_each_term(tmp_path: Path) -> None:
    directory = tmp_path / "topics" / "compacted" / "0-7"
    (directory / "log").mkdir(parents=True)
    cluster: Any = SimpleNamespace(
        local=SimpleNamespace(nodes=[SimpleNamespace(directory=tmp_path)])
    )

    def verdict() -> Verdict:
        (only,) = check.file_verdicts(cluster, "compacted")
        return only

    for term in (1, 2, 5):
        for base in range(check.FILES_OF_A_TERM):
            (directory / "log" / f"{100 * term + base}-{term}-v1.log").touch()
            (directory / "log" / f"{100 * term + base}-{term}-v1.index").touch()
    assert verdict().ok
    (directory / "log" / "900-5-v1.log").touch()
    assert not verdict().ok
    assert f"{3 * check.FILES_OF_A_TERM + 1} files" in verdict().text


def test_growth_needs_both_a_share_and_an_amount() -> None:
    assert judge(MEMORY, "it", [100.0], [115.0]).ok
    assert judge(MEMORY, "it", [10.0], [20.0]).ok
    assert not judge(MEMORY, "it", [100.0], [140.0]).ok
    assert not judge(HANDLES, "it", [100.0], [130.0]).ok
    assert not judge(MEMORY, "it", [], [140.0]).ok


def test_the_second_window_is_compared_with_the_last() -> None:
    times = [5.0 * each for each in range(1, 241)]  # twenty minutes, windows of a hundred seconds
    flat = [sample(at, 50 if at < 180 else 100, int(at / 5)) for at in times]
    assert all(each.ok for each in verdicts(flat, 1, 1200))
    rising = [sample(at, 100 + at / 10) for at in times]
    failed = [each.text for each in verdicts(rising, 1, 1200) if not each.ok]
    assert [text.split(":")[0] for text in failed] == [
        "memory of node 1, which lived through it",
        "memory of the others",
    ]


def test_open_segments_may_fill_their_pool_and_no_more() -> None:
    times = [5.0 * each for each in range(1, 241)]
    leaking = [sample(at, 100, int(at)) for at in times]
    failed = [each.text for each in verdicts(leaking, 1, 1200) if not each.ok]
    assert [text.split(":")[0] for text in failed] == ["open segments of a node"]


def test_the_curves_are_drawn_with_holes_where_a_node_was_down() -> None:
    samples = [sample(5.0, 10), sample(10.0, 20), sample(15.0, 5), sample(20.0, 5)]
    del samples[1].nodes[2]
    drawn = svg(panels(samples, [1, 2]), [Fault(7.0, "leader killed", 2, 1.0)], 20.0)
    names = [each.tag.rpartition("}")[2] for each in ElementTree.fromstring(drawn)]
    # Four panels of two nodes, one of them in two parts; latency of two lines; a rate; the load.
    assert names.count("polyline") == 4 * (1 + 2) + 2 + 1 + 1
    assert names.count("line") == 7
    assert blocks([(0.0, 0.0), (1.0, 7.0), (2.0, None), (3.0, 14.0)]) == "▁▄ █ 0 to 14"
