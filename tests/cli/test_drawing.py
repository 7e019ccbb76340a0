"""`tidelog log show` as a picture: what stands where, for logs in every state they can be in."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.drawing import Style, draw, plain


def replica(node: int, segments: list[tuple[int, int, int]], **facts: Any) -> dict[str, Any]:
    """Describe a replica whose marks are all at the end of its log, unless told otherwise."""
    dirty = segments[-1][1] if segments else -1
    marks = dict.fromkeys(
        ("dirty", "flushed", "committed", "visible", "applied", "readable"), dirty
    )
    described: dict[str, Any] = {
        "node": node,
        "alive": True,
        "role": "follower",
        "term": segments[-1][2] if segments else 1,
        "start": segments[0][0] if segments else 0,
        "collectible": -1,
        "compacted": -1,
        "snapshot": None,
        "failed": None,
        "log_start": 0,
        "high_watermark": dirty + 1,
        "end": dirty + 1,
        "segments": [{"base": b, "last": e, "term": t, "bytes": 1} for b, e, t in segments],
        "gaps": [],
        **marks,
    }
    return {**described, **facts}


def picture(*replicas: dict[str, Any], width: int = 100) -> str:
    answer = {"topic": "orders", "partition": 0, "group": 12, "replicas": list(replicas)}
    return plain(draw(answer, width))


PAPER = [(0, 10, 1), (11, 20, 1), (21, 40, 3), (41, 49, 3)]


def test_a_leader_with_a_gap_and_dirty_records_is_drawn_as_the_papers_draw_it() -> None:
    leader = replica(
        1,
        PAPER,
        role="leader",
        gaps=[[21, 32]],
        flushed=45,
        committed=40,
        visible=40,
        applied=40,
        readable=40,
        high_watermark=38,
        end=46,
    )
    behind = replica(2, [(0, 10, 1), (11, 20, 1)])
    assert (
        picture(behind, leader, {"node": 3, "alive": False})
        == """\
orders/0   group 12, led by node 1 in term 3
clients see from 0 to 37; the next record gets 46

offset           0          11         21         33         41         46

node 1 leader    [t1========|==========|<- gap -->t3=========|----------~~~~~~~~~~~]
                 ^                                          ^          ^          ^
                 start=0                                    |          flushed=45 dirty=49
                                                            committed=visible=applied=40

node 2 follower  [t1========|==========]
                 ^                    ^
                 start=0              dirty=...=applied=20

node 3           does not answer

= committed and on disk   - on disk   ~ in memory   <--> compacted away   t3 term 3 begins"""
    )


def test_a_replica_that_begins_with_a_snapshot_starts_further_right() -> None:
    leader = replica(1, PAPER, role="leader")
    moved = replica(
        4, [(21, 40, 3), (41, 49, 3)], snapshot={"offset": 20, "size": 12000}, compacted=20
    )
    assert (
        picture(leader, moved)
        == """\
orders/0   group 12, led by node 1 in term 3
clients see from 0 to 49; the next record gets 50

offset           0               11              21              41

node 1 leader    [t1=============|===============|t3=============|===============]
                 ^                                                              ^
                 start=0                                                        dirty=...=applied=49

node 4 follower                                  [t3=============|===============]
                                                ^^                              ^
                                                |start=21                       dirty=...=applied=49
                                                compacted=20, snapshot=20 (12,000 bytes)

= committed and on disk   - on disk   ~ in memory   <--> compacted away   t3 term 3 begins"""
    )


def test_an_empty_log_says_that_it_is_empty() -> None:
    empty = replica(1, [], role="leader")
    assert (
        picture(empty)
        == """\
orders/0   group 12, led by node 1 in term 1
clients see nothing; the next record gets 0

node 1 leader  [] empty from 0 on"""
    )


def test_a_partition_without_a_leader_and_a_broken_replica_say_so() -> None:
    broken = replica(2, [(0, 5, 1)], failed="the disk refused: no space left on device")
    text = picture(broken, {"node": 1, "alive": False})
    assert "group 12, no leader" in text
    assert "failed: the disk refused: no space left on device" in text
    assert "node 1           does not answer" in text


def test_a_tainted_replica_shows_how_far_it_may_be_read() -> None:
    assert "readable=3" in picture(replica(1, [(0, 9, 1)], readable=3))


def test_logs_that_part_show_their_own_terms() -> None:
    """Two replicas with another term at the same offset: that is what an election leaves."""
    leader = replica(1, [(0, 9, 1), (10, 14, 3)], role="leader")
    other = replica(2, [(0, 9, 1), (10, 12, 2)], committed=9, visible=9, applied=9, readable=9)
    lines = picture(leader, other).splitlines()
    bars = [line for line in lines if "[t1" in line]
    assert "|t3" in bars[0]
    assert "|t2---" in bars[1]
    assert bars[0].index("|t3") == bars[1].index("|t2")


def test_old_segments_make_way_when_there_are_too_many_for_the_width() -> None:
    many = [(n * 10, n * 10 + 9, 1) for n in range(60)]
    lines = picture(replica(1, many, role="leader"), width=80).splitlines()
    bar = next(line for line in lines if "[t1" in line)
    assert len(bar) <= 80
    labels = next(line for line in lines if line.startswith("offset")).split()
    assert (labels[1], labels[-1]) == ("0", "590")
    assert len(labels) > 5


def _lay_out(steps: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    base, term = 0, 1
    for size, step in steps:
        term += step
        found.append((base, base + size - 1, term))
        base += size
    return found


segments = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1)), min_size=1, max_size=12).map(
    _lay_out
)


@given(st.lists(segments, min_size=1, max_size=3), st.data(), st.integers(40, 160))
def test_whatever_the_replicas_are_like_marks_stand_under_their_offsets(
    logs: list[list[tuple[int, int, int]]], data: st.DataObject, width: int
) -> None:
    replicas = []
    for node, log in enumerate(logs):
        last = log[-1][1]
        flushed = data.draw(st.integers(-1, last))
        committed = data.draw(st.integers(-1, last))
        facts = {"flushed": flushed, "committed": committed, "applied": committed}
        gaps = [[log[0][0], log[0][1] - 1]] if log[0][1] > log[0][0] else []
        replicas.append(replica(node, log, gaps=gaps, readable=committed, **facts))
    answer = {"topic": "t", "partition": 0, "group": 1, "replicas": replicas}
    lines = draw(answer, width)
    text = plain(lines).splitlines()
    bars = [n for n, line in enumerate(text) if line.startswith("node ")]
    assert len(bars) == len(logs)
    for place in bars:
        bar, carets = text[place], text[place + 1]
        begin, end = bar.index("["), bar.index("]")
        assert bar.rindex("]") == end
        for column, mark in enumerate(carets):
            if mark == "^":
                assert begin - 1 <= column < end
        below = text[place + 2 :][: [*text[place + 2 :], ""].index("")]
        for name in ("start", "dirty", "flushed", "committed", "applied"):
            assert sum(line.count(name) for line in below) <= 1
        assert any("dirty" in line for line in below)


def test_each_part_of_a_log_has_the_look_of_how_safe_it_is() -> None:
    log = replica(1, [(0, 9, 1)], committed=2, flushed=6, visible=2, applied=2, readable=2)
    answer = {"topic": "t", "partition": 0, "group": 1, "replicas": [log]}
    bar = next(line for line in draw(answer, 80) if line and line[0][0].startswith("node"))
    fills = {"=": Style.COMMITTED, "-": Style.FLUSHED, "~": Style.DIRTY}
    looks = [look for text, look in bar if fills.get(text[0]) is look]
    assert list(dict.fromkeys(looks)) == [Style.COMMITTED, Style.FLUSHED, Style.DIRTY]
