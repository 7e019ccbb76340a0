"""When a peer counts as warm."""

from bench._compare import STEADY_PASSES, is_steady


def test_a_peer_is_warm_when_ten_passes_bring_nothing() -> None:
    rising = [100.0 * each for each in range(1, 8)]
    assert not is_steady(rising)
    flat = [690.0] * STEADY_PASSES
    assert not is_steady(rising + flat[1:])
    assert is_steady(rising + flat)


def test_one_faster_pass_begins_the_count_again() -> None:
    flat = [500.0] * STEADY_PASSES
    assert is_steady([500.0, *flat])
    assert not is_steady([500.0, *flat, 560.0])
    assert not is_steady([500.0, *flat, 560.0, *flat[1:]])
    assert is_steady([500.0, *flat, 560.0, *flat])
