"""The checker finds what it is there to find: each of these histories is impossible in one way."""

from __future__ import annotations

import pytest
from tests.system.history import KINDS, History, Logs, check, count_kinds, find_faults

LOG = [(0, b"a"), (1, b"b"), (2, b"c")]


def honest() -> History:
    """Two writers, one reader, one question: all as it should be."""
    history = History()
    history.begin("w1", 0, b"a")
    history.acknowledge(b"a", 0)
    history.begin("w1", 0, b"b")
    history.begin("w2", 0, b"c")
    history.acknowledge(b"b", 1)
    history.acknowledge(b"c", 2)
    for offset, value in LOG:
        history.read("r1", 0, offset, value)
    history.end(0, 2, 3)
    return history


def faults(history: History, logs: Logs) -> str:
    found = list(find_faults(history, logs))
    assert found
    with pytest.raises(AssertionError, match=f"{len(found)} faults"):
        check(history, logs)
    assert {each.kind for each in found} <= KINDS.keys()
    return "\n".join(each.text for each in found)


def test_an_honest_history_is_believed() -> None:
    check(honest(), {0: LOG})


def test_a_failed_write_may_be_there_once_or_not_at_all() -> None:
    history = honest()
    history.begin("w2", 0, b"d")
    history.fail(b"d", "timed out")
    check(history, {0: LOG})
    check(history, {0: LOG + [(3, b"d")]})
    assert "is at 3 and at 4" in faults(history, {0: LOG + [(3, b"d"), (4, b"d")]})
    assert history.failures() == ["timed out"]


def test_a_lost_write_is_found() -> None:
    history = honest()
    history.begin("w2", 0, b"d")
    history.acknowledge(b"d", 3)
    assert "b'd', acknowledged at (0, 3), is lost" in faults(history, {0: LOG})


def test_a_write_that_is_elsewhere_is_found() -> None:
    found = faults(honest(), {0: [(0, b"b"), (1, b"a"), (2, b"c")]})
    assert "b'a' was acknowledged at (0, 0), where b'b' is" in found
    assert "w1 wrote b'a' before b'b', but partition 0 has it after" in found


def test_a_doubled_write_is_found() -> None:
    assert "b'a' is at 0 and at 3" in faults(honest(), {0: LOG + [(3, b"a")]})


def test_a_shared_offset_is_found() -> None:
    history = honest()
    history.begin("w2", 0, b"d")
    history.acknowledge(b"d", 2)
    assert "b'd' and b'c' were both acknowledged at (0, 2)" in faults(history, {0: LOG})


def test_a_hole_in_the_offsets_is_found() -> None:
    assert "offset 4 in place 3" in faults(honest(), {0: LOG + [(4, b"d")]})


def test_what_nobody_wrote_is_found() -> None:
    assert "nobody wrote b'x'" in faults(honest(), {0: LOG + [(3, b"x")]})


def test_what_was_written_elsewhere_is_found() -> None:
    history = honest()
    history.begin("w2", 1, b"d")
    assert "b'd' was written to 1 and is in 0" in faults(history, {0: LOG + [(3, b"d")]})


@pytest.mark.parametrize("outcome", ["acknowledged", "failed"])
def test_a_write_that_went_back_in_time_is_found(outcome: str) -> None:
    history = honest()
    history.read("r2", 0, 0, b"a")
    history.begin("w1", 1, b"x")
    history.begin("w3", 0, b"late")
    if outcome == "acknowledged":
        history.acknowledge(b"late", 2)
    else:
        history.fail(b"late", "timed out")
    found = faults(history, {0: [(0, b"a"), (1, b"b"), (2, b"late")]})
    assert "b'late' is at 2 of partition 0, but 2 was known before it was written" in found


def test_a_reader_that_jumps_repeats_or_goes_back_is_found() -> None:
    for second in (0, 2):
        history = honest()
        history.read("r2", 0, 0, b"a")
        history.read("r2", 0, second, LOG[second][1])
        assert f"r2 was given {second} of partition 0 as its 1." in faults(history, {0: LOG})


def test_a_reader_of_another_log_is_found() -> None:
    history = honest()
    history.read("r2", 0, 0, b"b")
    assert "r2 read b'b' at 0 of partition 0, where b'a' is" in faults(history, {0: LOG})


def test_a_record_that_was_read_and_is_gone_is_found() -> None:
    history = honest()
    history.begin("w2", 0, b"d")
    history.fail(b"d", "timed out")
    history.read("r1", 0, 3, b"d")
    assert "r1 read b'd' at 3 of 0, and it is gone" in faults(history, {0: LOG})


def test_a_reader_that_is_never_given_the_end_is_found() -> None:
    history = honest()
    history.readers = ("r1", "r2")
    for offset, value in LOG[:2]:
        history.read("r2", 0, offset, value)
    found = list(find_faults(history, {0: LOG}))
    assert [each.text for each in found] == ["r2 was given 2 of 3 records of partition 0"]
    assert count_kinds(found) == {**dict.fromkeys(KINDS, 0), "unseen": 1}


def test_an_end_that_was_taken_back_is_found() -> None:
    history = honest()
    history.end(0, history.known(0), 2)
    assert "said to end at 2 when its offset 2 was known" in faults(history, {0: LOG})


def test_a_relaxed_write_may_go_with_its_leader_but_not_move() -> None:
    history = honest()
    history.relaxed = True
    history.begin("w2", 0, b"d")
    history.acknowledge(b"d", 3)
    history.end(0, history.known(0), 3)  # it was not shown yet
    assert "b'd', acknowledged at (0, 3), is lost" in faults(history, {0: LOG})
    history.leaders_die = True
    history.begin("w2", 0, b"e")
    history.acknowledge(b"e", 4)
    check(history, {0: LOG})
    moved = faults(history, {0: LOG + [(3, b"e")]})
    assert "b'e' was acknowledged at 4 of 0, not at 3" in moved
    history.read("r1", 0, 3, b"d")
    assert "r1 read b'd' at 3 of 0, and it is gone" in faults(history, {0: LOG})
