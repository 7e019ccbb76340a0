"""Virtual time: order, cancellation, and chance that depends on the seed alone."""

import subprocess
import sys

import pytest

from tidelog.sim.scheduler import MAX_PENDING, Overload, Scheduler, stream


def run_all(scheduler: Scheduler) -> None:
    while scheduler.step() is not None:
        pass


def test_callbacks_run_in_order_of_time_then_of_scheduling() -> None:
    scheduler = Scheduler()
    ran: list[str] = []
    scheduler.at(20, "late", lambda: ran.append("late"))
    scheduler.at(10, "first", lambda: ran.append("first"))
    scheduler.at(10, "second", lambda: ran.append("second"))
    scheduler.at(0, "now", lambda: ran.append("now"))
    run_all(scheduler)
    assert ran == ["now", "first", "second", "late"]
    assert scheduler.executed == 4


def test_time_moves_only_from_callback_to_callback() -> None:
    scheduler = Scheduler()
    seen: list[int] = []
    scheduler.at(7, "a", lambda: seen.append(scheduler.now))
    scheduler.at(1_000_000, "b", lambda: seen.append(scheduler.now))
    assert scheduler.next_time() == 7
    run_all(scheduler)
    assert seen == [7, 1_000_000]
    assert scheduler.next_time() is None


def test_a_callback_schedules_relative_to_its_own_time() -> None:
    scheduler = Scheduler()
    seen: list[int] = []

    def again() -> None:
        scheduler.at(5, "b", lambda: seen.append(scheduler.now))

    scheduler.at(5, "a", again)
    run_all(scheduler)
    assert seen == [10]


def test_a_negative_delay_never_turns_time_back() -> None:
    scheduler = Scheduler()
    seen: list[int] = []

    def again() -> None:
        scheduler.at(-9, "b", lambda: seen.append(scheduler.now))

    scheduler.at(5, "a", again)
    run_all(scheduler)
    assert seen == [5]


def test_a_cancelled_callback_never_runs_and_is_no_event() -> None:
    scheduler = Scheduler()
    ran: list[str] = []
    timer = scheduler.at(1, "cancelled", lambda: ran.append("cancelled"))
    scheduler.at(2, "kept", lambda: ran.append("kept"))
    assert timer.pending
    timer.cancel()
    assert not timer.pending
    assert scheduler.next_time() == 2
    run_all(scheduler)
    assert ran == ["kept"]
    assert scheduler.executed == 1


def test_somebody_who_schedules_without_end_is_stopped() -> None:
    scheduler = Scheduler()
    for _ in range(MAX_PENDING):
        scheduler.at(1, "spin", lambda: None)
    with pytest.raises(Overload, match="the last is one more"):
        scheduler.at(1, "one more", lambda: None)


def test_streams_of_one_seed_are_independent_and_repeat() -> None:
    again = [stream(3, "network").random() for _ in range(2)]
    assert again[0] == again[1]
    assert stream(3, "network").random() != stream(3, "disk").random()
    assert stream(3, "network").random() != stream(4, "network").random()


def test_a_stream_is_the_same_in_a_process_with_another_hash_seed() -> None:
    code = "from tidelog.sim.scheduler import stream; print(stream(11, 'faults').getrandbits(64))"
    numbers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert numbers == {f"{stream(11, 'faults').getrandbits(64)}\n"}
