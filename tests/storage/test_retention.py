"""Retention: the first offset to keep, by size and by time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.batches import batch, configuration, open_log
from tests.storage.faultdisk import FaultDisk

from tidelog.records import NO_TIMESTAMP, Offset
from tidelog.storage import LogConfig
from tidelog.storage.retention import Retainable, retention_bound


def segments(*sizes_and_times: tuple[int, int]) -> list[Retainable]:
    """Return segments of ten offsets each."""
    return [
        Retainable(Offset(10 * number + 9), size, time)
        for number, (size, time) in enumerate(sizes_and_times)
    ]


@pytest.mark.parametrize(
    ("retention_bytes", "bound"),
    [(1, 30), (40, 30), (99, 20), (100, 20), (249, 10), (300, 10), (310, 0), (1000, 0)],
)
def test_by_size_the_log_never_holds_less_than_it_was_asked_to(
    retention_bytes: int, bound: int
) -> None:
    found = retention_bound(
        Offset(0),
        segments((10, 1), (200, 1), (60, 1), (40, 1)),
        now=0,
        retention_bytes=retention_bytes,
        retention_ms=None,
    )
    assert found == bound


@pytest.mark.parametrize(
    ("now", "bound"), [(100, 0), (150, 0), (151, 10), (251, 20), (301, 20), (401, 40), (900, 50)]
)
def test_by_time_segments_go_once_their_newest_record_is_too_old(now: int, bound: int) -> None:
    found = retention_bound(
        Offset(0),
        segments((1, 100), (1, 200), (1, NO_TIMESTAMP), (1, 350), (1, 600)),
        now=now,
        retention_bytes=None,
        retention_ms=50,
    )
    assert found == bound


def test_a_time_in_the_far_future_keeps_nothing_that_is_too_old() -> None:
    hour = 3_600_000
    now = 100 * hour

    def bound(*times: int) -> int:
        return retention_bound(
            Offset(0),
            segments(*((1, time) for time in times)),
            now=now,
            retention_bytes=None,
            retention_ms=hour,
        )

    never = 1 << 62
    assert bound(1, never, 2, now) == 30
    assert bound(1, now + hour, 2, now) == 10, "a clock may be ahead"
    assert bound(1, never) == 10, "it goes when what follows is too old, not before"
    assert bound(1, never, now) == 10


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(-1, 50)), max_size=8),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(1, 60),
)
def test_the_bound_is_the_start_or_the_end_of_a_segment(
    sizes: list[tuple[int, int]], retention_bytes: int | None, retention_ms: int | None
) -> None:
    found = retention_bound(
        Offset(0),
        segments(*sizes),
        now=50,
        retention_bytes=retention_bytes,
        retention_ms=retention_ms,
    )
    assert found in range(0, 10 * len(sizes) + 1, 10)
    if retention_bytes is None and retention_ms is None:
        assert found == 0


def test_a_log_knows_its_own_segments() -> None:
    disk = FaultDisk()
    config = LogConfig(segment_bytes=200, retention_ms=1000)
    log = open_log(disk, config)
    log.append([batch(0, time=100), batch(1, time=200), batch(2, time=300)])
    log.append([configuration(3), batch(4, time=5000)])
    for each in (log, open_log(disk.killed(), config)):
        assert each.retention_bound(1000) == 0
        assert each.retention_bound(1250) == 2
        assert each.retention_bound(1301) == 3
        assert each.retention_bound(9000) == 5
        assert each.retention_bound(0, retention_bytes=1) == 3
