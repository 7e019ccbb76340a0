"""One heap for all deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.kafka.groups.timers import Timers

steps = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.integers(0, 50), st.integers(0, 5)), max_size=60
)


@given(steps)
def test_a_timer_fires_once_at_the_time_that_was_set_last(
    steps: list[tuple[int, int | None, int]],
) -> None:
    timers = Timers()
    fired: list[tuple[int, int]] = []
    all_timers = [
        timers.new(lambda now, number=number: fired.append((now, number)))  # type: ignore[misc]
        for number in range(5)
    ]
    due: dict[int, int] = {}
    now = 0
    for number, delay, pause in steps:
        if delay is None:
            all_timers[number].cancel()
            due.pop(number, None)
        else:
            all_timers[number].set(now + delay)
            due[number] = now + delay
        now += pause
        expected = {number for number, when in due.items() if when <= now}
        following = timers.next()
        assert not due or (following is not None and following <= min(due.values()))
        fired.clear()
        timers.run(now)
        assert {number for _, number in fired} == expected
        assert len(fired) == len(expected)
        for number in expected:
            del due[number]
    assert due or timers.next() is None


def test_a_timer_that_is_postponed_for_ever_takes_one_place() -> None:
    timers = Timers()
    timer = timers.new(lambda _: None)
    for now in range(10_000):
        timer.set(now + 1_000)
    assert len(timers) == 1


def test_timers_that_nobody_waits_for_are_swept_out() -> None:
    timers = Timers()
    for now in range(10_000):
        timer = timers.new(lambda _: None)
        timer.set(1_000_000 + now)
        timer.cancel()
    assert len(timers) < 2_000


def test_a_timer_may_set_itself_again() -> None:
    timers = Timers()
    fired: list[int] = []

    def fire(now: int) -> None:
        fired.append(now)
        timer.set(now + 10)

    timer = timers.new(fire)
    timer.set(5)
    for now in (4, 5, 14, 15, 40):
        timers.run(now)
    assert fired == [5, 15, 40]
    assert timers.next() == 50
