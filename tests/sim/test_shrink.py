"""A failing world is made smaller, and what is left of it still fails, in the same way."""

from tidelog.sim import Failing, Plan, run_plan, shrink
from tidelog.sim.plan import parse_ranges, ranges
from tidelog.sim.shrink import kind


def failing(plan: Plan) -> Failing | None:
    report = run_plan(plan)
    if report.failure is None:
        return None
    return Failing(report.failure, report.events, report.happenings, tuple(report.happened))


def test_a_world_shrinks_to_what_makes_it_fail() -> None:
    needed = {11, 30}

    def fails(plan: Plan) -> Failing | None:
        if needed & set(plan.skip) or "crash" in plan.without:
            return None
        return Failing("invariant 9, leaders: n1", 500, 40, ("crash", "wipe", "clock"))

    start = fails(Plan(1))
    assert start is not None
    smallest, found = shrink(Plan(1), start, fails)
    assert set(range(1, 41)) - set(smallest.skip) == needed
    assert smallest.without == ("clock", "wipe")
    assert dict(smallest.knobs)["readers"] == 0
    assert found.failure == start.failure


def test_a_smaller_world_that_fails_otherwise_does_not_count() -> None:
    def fails(plan: Plan) -> Failing | None:
        number = 9 if plan == Plan(1) else 12
        return Failing(f"invariant {number}, something: n1", 500, 6, ("crash",))

    start = fails(Plan(1))
    assert start is not None
    assert shrink(Plan(1), start, fails)[0] == Plan(1)


def test_the_shrinker_stops_after_so_many_runs() -> None:
    runs = 0

    def never(plan: Plan) -> Failing | None:
        nonlocal runs
        runs += 1
        return None

    shrink(Plan(1), Failing("invariant 9, x: y", 500, 1_000, ("crash",)), never, max_runs=20)
    assert runs == 20


def test_a_real_world_shrinks_and_its_plan_replays_it() -> None:
    plan = next(
        plan for seed in range(1, 20) if failing(plan := Plan(seed, "commit-on-dirty")) is not None
    )
    first = failing(plan)
    assert first is not None
    smallest, found = shrink(plan, first, failing, max_runs=30)
    assert kind(found.failure) == kind(first.failure)
    assert failing(smallest) == found
    assert smallest != plan
    assert found.events <= first.events


def test_what_is_left_out_leaves_what_comes_later_as_it_was() -> None:
    """The numbers and names of happenings do not depend on those that were left out."""
    lines: list[str] = []
    run_plan(Plan(4), trace=lines.append)
    drawn = happenings(lines)
    gone = tuple(drawn)[::3]
    lines.clear()
    run_plan(Plan(4, skip=gone), trace=lines.append)
    left = happenings(lines)
    assert not set(gone) & set(left)
    both = drawn.keys() & left.keys()
    assert both
    assert {number: drawn[number] for number in both} == {number: left[number] for number in both}


def happenings(trace: list[str]) -> dict[int, str]:
    """The happenings of a trace: number -> name and time."""
    found = {}
    for line in trace:
        time, who, *words = line.split()
        if who == "nemesis" and words[0].removesuffix(":").isdecimal():
            found[int(words[0].removesuffix(":"))] = f"{words[1]} at {time}"
    return found


def test_failures_are_of_one_kind_whatever_their_numbers() -> None:
    assert kind("invariant 9, leaders are complete: n1") == "invariant 9"
    assert kind("n1 raised KeyError : 7\nTraceback") == kind("n3 raised KeyError while it started")
    assert kind("not alive: heal took more than 7 ms") == kind("not alive: quiet took 3 ms")
    assert kind("n2 found damage that nobody did: x") == kind("n3 found damage that nobody did: y")


def test_a_plan_is_a_command_line() -> None:
    plan = Plan(7, "forget-the-vote", ("crash", "wipe"), (1, 2, 3, 9), (("writers", 1),))
    assert plan.command() == (
        "tidelog sim --seed 7 --trace --plant forget-the-vote "
        "--without crash --without wipe --skip 1-3,9 --set writers=1"
    )
    for numbers in ((), (4,), (1, 2, 3, 9), (2, 4, 6)):
        assert parse_ranges(ranges(numbers)) == numbers
