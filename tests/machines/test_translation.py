from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machines.batches import internal, wide

from tidelog.machines import CorruptSnapshot, Translation, UnknownOffset
from tidelog.machines.encoding import Writer
from tidelog.records import NO_OFFSET, Batch, BatchType, Offset, Term, ghost

INTERNAL = [BatchType.CONFIGURATION, BatchType.SNAPSHOT, BatchType.CHANGELOG]


@dataclass
class Twin:
    """The naive map: one entry for each offset of the log that is internal."""

    internal: set[int]
    end: int

    def to_client(self, log_offset: int) -> int:
        return log_offset - sum(1 for offset in self.internal if offset < log_offset)

    def data(self) -> list[int]:
        return [offset for offset in range(self.end + 1) if offset not in self.internal]


def twin(batches: list[Batch]) -> Twin:
    holes = {
        offset
        for batch in batches
        if batch.type in INTERNAL
        for offset in range(batch.base_offset, batch.last_offset + 1)
    }
    return Twin(holes, batches[-1].last_offset if batches else -1)


@st.composite
def logs(draw: st.DrawFn, min_size: int = 0) -> list[Batch]:
    """A log without gaps."""
    batches: list[Batch] = []
    base = 0
    kinds = st.sampled_from([BatchType.DATA, BatchType.DATA, *INTERNAL])
    for kind, length in draw(
        st.lists(st.tuples(kinds, st.integers(1, 4)), min_size=min_size, max_size=25)
    ):
        batches.append(wide(base, base + length - 1, kind))
        base += length
    return batches


@st.composite
def compactions(draw: st.DrawFn, batches: list[Batch]) -> list[Batch]:
    """What may be left of a log: any data may go or become a ghost, but never the last batch."""
    left: list[Batch] = []
    for batch in batches:
        fates = ["keep"]
        if batch.type is BatchType.DATA:
            fates += ["placeholder"] if batch is batches[-1] else ["drop", "ghost", "placeholder"]
        match draw(st.sampled_from(fates)):
            case "keep":
                left.append(batch)
            case "ghost":
                left.append(ghost(batch.base_offset, batch.last_offset, Term(1)))
            case "placeholder":
                left.append(wide(batch.base_offset, batch.last_offset, BatchType.PLACEHOLDER))
    return left


def follow(batches: list[Batch], start: int = 0) -> Translation:
    translation = Translation(Offset(start))
    for batch in batches:
        translation.append(batch)
        translation.check_invariants()
    return translation


def agree(translation: Translation, model: Twin, start: int = 0) -> None:
    """The two agree on every offset from `start` on, in both directions."""
    assert translation.end == model.end
    for offset in range(start, model.end + 2):
        assert translation.to_client(Offset(offset)) == model.to_client(offset)
    for offset in model.data():
        if offset >= start:
            client = translation.to_client(Offset(offset))
            assert translation.to_log(client) == offset


def test_the_example_of_the_module_docstring_holds() -> None:
    batches = [internal(0), wide(1, 2), internal(3), internal(4), wide(5, 5), wide(7, 7)]
    translation = follow(batches)
    assert [translation.to_client(Offset(offset)) for offset in (1, 2, 5, 7)] == [0, 1, 2, 4]
    assert [translation.to_log(Offset(client)) for client in range(5)] == [1, 2, 5, 6, 7]
    assert str(translation) == "[0, 7] before=0 internal=(0-0 3-4)"


@given(logs())
def test_data_offsets_and_client_offsets_are_a_bijection(batches: list[Batch]) -> None:
    translation, model = follow(batches), twin(batches)
    agree(translation, model)
    clients = [translation.to_client(Offset(offset)) for offset in model.data()]
    assert clients == list(range(len(clients)))


@given(st.data())
def test_a_compacted_log_gives_the_map_of_the_full_one(data: st.DataObject) -> None:
    batches = data.draw(logs(min_size=1))
    agree(follow(data.draw(compactions(batches))), twin(batches))


@given(st.data())
def test_truncation_leaves_the_map_of_the_shorter_log(data: st.DataObject) -> None:
    batches = data.draw(logs(min_size=1))
    translation = follow(data.draw(compactions(batches)))
    cut = data.draw(st.integers(0, len(batches) - 1))
    translation.truncate(batches[cut].base_offset)
    translation.check_invariants()
    kept = batches[:cut]
    agree(translation, twin(kept))
    # Another leader's batches take the place of what was cut.
    for batch in data.draw(logs()):
        kept.append(batch.stamp(Offset(translation.end + 1), Term(2)))
        translation.append(kept[-1])
        translation.check_invariants()
    agree(translation, twin(kept))


@given(st.data())
def test_what_lies_below_the_log_start_is_forgotten_and_still_counted(data: st.DataObject) -> None:
    batches = data.draw(logs(min_size=1))
    translation, model = follow(batches), twin(batches)
    starts = data.draw(st.lists(st.integers(0, model.end + 1), max_size=4).map(sorted))
    for start in starts:
        translation.truncate_prefix(Offset(start))
        translation.check_invariants()
        agree(translation, model, start)
        if start:
            with pytest.raises(UnknownOffset, match=f"log offset {start - 1} is not in the log"):
                translation.delta(Offset(start - 1))


def test_memory_does_not_grow_with_the_history_below_the_log_start() -> None:
    translation = Translation()
    for base in range(0, 20_000, 2):
        translation.append(internal(base))
        translation.append(wide(base + 1, base + 1))
        translation.truncate_prefix(Offset(max(0, base - 10)))
    assert str(translation).count("-") < 10
    assert translation.to_client(Offset(19_999)) == 9_999


@given(st.data())
def test_a_snapshot_is_the_same_bytes_wherever_the_log_begins(data: st.DataObject) -> None:
    batches = data.draw(logs(min_size=1))
    upto = data.draw(st.sampled_from(batches)).last_offset
    translation = follow(batches)
    whole = translation.snapshot(upto)
    translation.truncate_prefix(Offset(data.draw(st.integers(0, upto + 1))))
    assert translation.snapshot(upto) == whole
    assert follow(data.draw(compactions(batches))).snapshot(upto) == whole


@given(st.data())
def test_a_restart_learns_the_map_from_a_snapshot_and_the_log_in_either_order(
    data: st.DataObject,
) -> None:
    batches = data.draw(logs(min_size=1))
    model = twin(batches)
    # The log begins somewhere, and the snapshot reaches at least the offset before that.
    first = data.draw(st.integers(0, len(batches) - 1))
    start = batches[first].base_offset
    taken = data.draw(st.integers(first - 1, len(batches) - 1))
    offset = batches[taken].last_offset if taken >= 0 else NO_OFFSET
    state = follow(batches).snapshot(offset)

    after = follow(batches[first:], start)
    after.restore(state, offset)
    after.check_invariants()
    agree(after, model, start)

    before = Translation(start)
    before.restore(state, offset)
    for batch in batches[first:]:
        before.append(batch)
        before.check_invariants()
    agree(before, model, start)


@given(st.data())
def test_an_installed_snapshot_replaces_a_log_of_another_history(data: st.DataObject) -> None:
    batches = data.draw(logs(min_size=1))
    taken = data.draw(st.integers(0, len(batches) - 1))
    offset = batches[taken].last_offset
    state = follow(batches).snapshot(offset)
    start = Offset(offset + 1)

    for reset_first in (True, False):
        translation = follow(data.draw(logs()))
        if reset_first:
            translation.reset(start)
            translation.restore(state, offset)
        else:
            # A log that ends below the snapshot is told of the two in either order.
            translation.truncate(Offset(0))
            translation.restore(state, offset)
            translation.reset(start)
        for batch in batches[taken + 1 :]:
            translation.append(batch)
        translation.check_invariants()
        agree(translation, twin(batches), start)


def test_a_snapshot_ahead_of_the_log_is_kept_until_the_log_gets_there() -> None:
    batches = [internal(0), wide(1, 3), internal(4), wide(5, 8)]
    state = follow(batches).snapshot(Offset(8))
    behind = follow(batches[:2])
    behind.restore(state, Offset(8))
    assert behind.snapshot(Offset(8)) == state  # the machines already stand there
    assert behind.to_client(Offset(3)) == 2  # and the log is served as before
    behind.append(batches[2])
    behind.append(batches[3])
    agree(behind, twin(batches))


@pytest.mark.parametrize("start", [0, 3])
def test_a_snapshot_of_another_history_is_refused_and_changes_nothing(start: int) -> None:
    translation = follow([internal(0), wide(1, 5)])
    translation.truncate_prefix(Offset(start))
    before = str(translation)
    writer = Writer(1)
    writer.number(2)
    with pytest.raises(CorruptSnapshot, match="counts 2 internal offsets up to 5 and the log"):
        translation.restore(writer.finish(), Offset(5))
    assert str(translation) == before


def test_a_snapshot_that_a_newer_one_overtook_is_forgotten_with_the_log() -> None:
    batches = [internal(0), wide(1, 3), internal(4), wide(5, 8), wide(9, 9)]
    source = follow(batches)
    translation = follow(batches[:1])
    translation.restore(source.snapshot(Offset(3)), Offset(3))
    translation.reset(Offset(9))
    translation.restore(source.snapshot(Offset(8)), Offset(8))
    translation.append(batches[4])
    translation.check_invariants()
    agree(translation, twin(batches), 9)


def test_a_log_that_contradicts_the_snapshot_ahead_of_it_is_noticed() -> None:
    translation = follow([internal(0)])
    other = follow([internal(0), internal(1), wide(2, 5)])
    translation.restore(other.snapshot(Offset(5)), Offset(5))
    with pytest.raises(CorruptSnapshot, match="not of the same history"):
        translation.append(wide(1, 5))


def test_a_log_that_begins_late_cannot_be_translated_before_its_snapshot() -> None:
    translation = follow([wide(10, 12)], start=10)
    with pytest.raises(UnknownOffset, match="before a snapshot that reaches 9 is restored"):
        translation.to_client(Offset(11))
    with pytest.raises(CorruptSnapshot, match="use one that reaches 9"):
        translation.restore(follow([wide(0, 4)]).snapshot(Offset(4)), Offset(4))
    translation.restore(follow([internal(0), wide(1, 9)]).snapshot(Offset(9)), Offset(9))
    assert translation.to_client(Offset(11)) == 10


def test_offsets_outside_of_the_log_are_refused_with_what_it_holds() -> None:
    translation = follow([internal(0), wide(1, 3)])
    assert translation.to_log(Offset(3)) == 4  # one past the end: where the next data may come
    with pytest.raises(UnknownOffset, match=r"client offset 4 is not in the log: \[0, 3\)"):
        translation.to_log(Offset(4))
    with pytest.raises(UnknownOffset, match=r"client offset -1 is not in the log"):
        translation.to_log(Offset(-1))
    with pytest.raises(UnknownOffset, match=r"log offset 5 is not in the log: \[0, 4\)"):
        translation.to_client(Offset(5))
    with pytest.raises(ValueError, match="not beyond offset 3"):
        translation.append(wide(3, 3))


@given(st.binary(max_size=12), st.integers(-1, 20))
def test_hostile_bytes_raise_the_one_error_or_are_a_count_that_fits(
    state: bytes, offset: int
) -> None:
    translation = follow([internal(0), wide(1, 5)])
    before = str(translation)
    try:
        translation.restore(state, Offset(offset))
    except CorruptSnapshot:
        assert str(translation) == before
    translation.check_invariants()


@given(st.data())
def test_a_map_that_was_saved_and_loaded_goes_on_like_the_one_it_was_saved_from(
    data: st.DataObject,
) -> None:
    batches = data.draw(logs(min_size=1))
    translation = follow(data.draw(compactions(batches)))
    start = data.draw(st.integers(0, translation.end + 1))
    translation.truncate_prefix(Offset(start))
    ends = [batch.last_offset for batch in batches if batch.last_offset >= start - 1]
    upto = data.draw(st.sampled_from([Offset(start - 1), *ends]))
    loaded = Translation.load(translation.save(upto))
    loaded.check_invariants()
    # The log loses its end past the checkpoint, or its beginning, and grows again.
    translation.truncate(Offset(upto + 1))
    assert str(loaded) == str(translation)
    first = Offset(data.draw(st.integers(start, upto + 1)))
    for each in (loaded, translation):
        each.truncate_prefix(first)
    for batch in data.draw(logs()):
        for each in (loaded, translation):
            each.append(batch.stamp(Offset(each.end + 1), Term(2)))
            each.check_invariants()
    assert str(loaded) == str(translation)
    for offset in range(first, loaded.end + 2):
        client = loaded.to_client(Offset(offset))
        assert client == translation.to_client(Offset(offset))
        assert loaded.to_log(client) == translation.to_log(client)


def test_only_what_the_log_holds_can_be_saved() -> None:
    translation = follow([internal(0), wide(1, 3)])
    with pytest.raises(UnknownOffset):
        translation.save(Offset(4))
    with pytest.raises(UnknownOffset):
        follow([wide(10, 12)], start=10).save(Offset(11))
    # A snapshot ahead of the log counts up to its own end, but knows no places.
    whole = follow([internal(0), wide(1, 3), internal(4), wide(5, 8)])
    translation.restore(whole.snapshot(Offset(8)), Offset(8))
    with pytest.raises(UnknownOffset):
        translation.save(Offset(8))


@given(st.data())
def test_a_saved_map_that_was_changed_is_refused_or_is_another_sound_map(
    data: st.DataObject,
) -> None:
    state = follow([internal(0), wide(1, 3), internal(4), wide(5, 8)]).save(Offset(8))
    with pytest.raises(CorruptSnapshot):
        Translation.load(state[: data.draw(st.integers(0, len(state) - 1))])
    with pytest.raises(CorruptSnapshot):
        Translation.load(state + b"\0")
    changed = bytearray(state)
    changed[data.draw(st.integers(0, len(state) - 1))] = data.draw(st.integers(0, 255))
    try:
        loaded = Translation.load(bytes(changed))
    except CorruptSnapshot:
        return
    loaded.check_invariants()
