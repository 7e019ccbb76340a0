"""Frames: whatever way the bytes come in, the frames come out whole, or it is `CorruptFrame`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.raft.types import NodeId
from tidelog.rpc.errors import CorruptFrame
from tidelog.rpc.frames import (
    HEADER_SIZE,
    HELLO_LIMIT,
    SCRATCH_SIZE,
    Assembler,
    Frame,
    Hello,
    Kind,
    Lane,
    check_name,
    frame,
)

LIMIT = 1 << 20
LENGTH_AT = 8  # where a header has the length of the body
Told = tuple[Kind, int, bytes]


def wire(kind: Kind, call_id: int, *parts: bytes) -> bytes:
    return b"".join(map(bytes, frame(kind, call_id, parts)))


def told(frames: list[Frame]) -> list[Told]:
    return [(each.kind, each.call_id, bytes(each.body)) for each in frames]


def feed(assembler: Assembler, data: bytes) -> list[Frame]:
    """Give bytes as a socket would: as many at a time as there is room for."""
    frames: list[Frame] = []
    while data:
        room = assembler.buffer()
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        frames += assembler.received(count)
        data = data[count:]
    return frames


def with_length(data: bytes, length: int) -> bytes:
    return data[:LENGTH_AT] + length.to_bytes(4, "big") + data[LENGTH_AT + 4 :]


PATTERN = bytes(range(251))
bodies = st.one_of(
    st.binary(max_size=100),
    st.integers(0, 3 * SCRATCH_SIZE).map(lambda size: (PATTERN * (size // 251 + 1))[:size]),
)
frames_of_all_sizes = st.lists(
    st.tuples(st.sampled_from(Kind), st.integers(0, 2**64 - 1), bodies), min_size=1, max_size=8
)


class TestWhole:
    def test_a_frame_split_at_every_position_comes_out_the_same(self) -> None:
        sent: list[Told] = [
            (Kind.CALL, 7, b"payload"),
            (Kind.PING, 0, b""),
            (Kind.MESSAGE, 0, bytes(range(256))),
        ]
        data = b"".join(wire(*each) for each in sent)
        for cut in range(len(data) + 1):
            assembler = Assembler(LIMIT)
            frames = feed(assembler, data[:cut]) + feed(assembler, data[cut:])
            assert told(frames) == sent

    def test_a_large_body_split_around_its_edges_comes_out_the_same(self) -> None:
        body = bytes(i % 253 for i in range(SCRATCH_SIZE * 2))
        data = wire(Kind.MESSAGE, 0, body) + wire(Kind.PONG, 3, b"after")
        edges = (0, HEADER_SIZE, SCRATCH_SIZE, HEADER_SIZE + len(body), len(data))
        for edge in edges:
            for cut in range(max(0, edge - 3), min(len(data), edge + 3) + 1):
                assembler = Assembler(LIMIT)
                frames = feed(assembler, data[:cut]) + feed(assembler, data[cut:])
                assert told(frames) == [(Kind.MESSAGE, 0, body), (Kind.PONG, 3, b"after")]

    @given(frames_of_all_sizes, st.lists(st.integers(1, 2 * SCRATCH_SIZE), min_size=1, max_size=20))
    def test_frames_of_all_sizes_come_out_in_order_however_they_are_cut(
        self, sent: list[Told], cuts: list[int]
    ) -> None:
        data = b"".join(wire(*each) for each in sent)
        assembler = Assembler(LIMIT)
        frames: list[Frame] = []
        position = turn = 0
        while position < len(data):
            size = cuts[turn % len(cuts)]
            frames += feed(assembler, data[position : position + size])
            position += size
            turn += 1
        assert told(frames) == sent
        assert not assembler.within_frame

    def test_the_parts_of_a_body_are_not_copied(self) -> None:
        part = bytearray(b"batch")
        assert frame(Kind.MESSAGE, 0, [part])[1] is part

    def test_a_body_is_memory_of_its_frame_alone(self) -> None:
        assembler = Assembler(LIMIT)
        for size in (10, SCRATCH_SIZE * 2):
            first, second = feed(assembler, wire(Kind.MESSAGE, 0, b"a" * size) * 2)
            first.body[0] = ord("b")
            assert second.body[0] == ord("a")
            assert first.body.nbytes == len(first.body.obj) == size  # type: ignore[arg-type]

    def test_a_frame_that_has_begun_is_known_to_be_unfinished(self) -> None:
        for size in (10, SCRATCH_SIZE * 2):
            assembler = Assembler(LIMIT)
            data = wire(Kind.MESSAGE, 0, b"a" * size)
            assert not assembler.within_frame
            for stop in (1, HEADER_SIZE, len(data) - 1):
                assembler = Assembler(LIMIT)
                assert not feed(assembler, data[:stop])
                assert assembler.within_frame


class TestDamaged:
    def test_any_flipped_bit_of_a_short_frame_is_noticed(self) -> None:
        data = wire(Kind.CALL, 7, b"payload") + wire(Kind.PING, 0) * 20
        for bit in range((HEADER_SIZE + len(b"payload")) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            frames: list[Frame] = []
            with suppress(CorruptFrame):
                frames = feed(Assembler(LIMIT), bytes(flipped))
            # A longer length waits for bytes that never come; nothing else goes unnoticed.
            assert not frames, f"bit {bit}"

    @given(st.data())
    def test_any_flipped_bit_of_a_long_frame_is_noticed(self, data: st.DataObject) -> None:
        sent = wire(Kind.MESSAGE, 0, bytes(SCRATCH_SIZE * 2))
        bit = data.draw(st.integers(0, len(sent) * 8 - 1))
        flipped = bytearray(sent)
        flipped[bit // 8] ^= 1 << bit % 8
        frames: list[Frame] = []
        with suppress(CorruptFrame):
            frames = feed(Assembler(LIMIT), bytes(flipped))
        assert not frames

    @given(st.binary(max_size=200))
    def test_garbage_is_corrupt_as_soon_as_it_fills_a_header(self, garbage: bytes) -> None:
        assembler = Assembler(LIMIT)
        if len(garbage) < HEADER_SIZE:
            assert feed(assembler, garbage) == []
        elif garbage[:4] != b"TIDE":
            with pytest.raises(CorruptFrame, match="no node of Tidelog"):
                feed(assembler, garbage)

    @pytest.mark.parametrize("length", [LIMIT + 1, 2**31 - 1, 2**31, 2**32 - 1])
    def test_a_length_beyond_the_limit_is_refused_before_memory_is_taken(self, length: int) -> None:
        assembler = Assembler(LIMIT)
        with pytest.raises(CorruptFrame, match=f"{length} bytes is beyond {LIMIT}"):
            feed(assembler, with_length(wire(Kind.MESSAGE, 0), length))

    def test_before_the_hello_only_little_is_taken(self) -> None:
        assert feed(Assembler(), wire(Kind.HELLO, 0, bytes(HELLO_LIMIT)))
        with pytest.raises(CorruptFrame, match="beyond"):
            feed(Assembler(), wire(Kind.HELLO, 0, bytes(HELLO_LIMIT + 1)))

    @pytest.mark.parametrize(
        ("position", "value", "says"),
        [(4, 2, "version 2"), (5, 99, "kind 99"), (6, 1, "flags 0x0100"), (7, 4, "flags 0x0004")],
    )
    def test_what_a_newer_node_may_say_is_told_apart(
        self, position: int, value: int, says: str
    ) -> None:
        data = bytearray(wire(Kind.PING, 0))
        data[position] = value
        with pytest.raises(CorruptFrame, match=says):
            feed(Assembler(LIMIT), bytes(data))


class TestHello:
    @given(st.sampled_from(Lane), st.integers(-1, 2**31 - 1), st.text(max_size=60))
    def test_a_hello_says_what_it_was_told(self, lane: Lane, node: int, cluster: str) -> None:
        hello = Hello(lane, NodeId(node), cluster)
        assert Hello.decode(memoryview(hello.encode())) == hello

    @given(st.binary(max_size=100))
    def test_garbage_is_no_hello(self, garbage: bytes) -> None:
        with suppress(CorruptFrame):
            hello = Hello.decode(memoryview(garbage))
            assert garbage.startswith(hello.encode())

    def test_every_part_of_a_hello_is_too_short(self) -> None:
        data = Hello(Lane.DATA, NodeId(3), "harbour").encode()
        for length in range(len(data)):
            with pytest.raises(CorruptFrame):
                Hello.decode(memoryview(data[:length]))

    @pytest.mark.parametrize(
        ("position", "value", "says"),
        [
            (1, 9, "versions 9 to 1 and this one 1 to 1: upgrade this node"),
            (3, 0, "versions 1 to 0 and this one 1 to 1: upgrade the other node"),
            (4, 4, "lane 4"),
            (5, 0x80, "node -"),
            (42, 0xFF, "not text"),
            (41, 0xFF, "ends within a name"),
        ],
    )
    def test_a_hello_with_a_wrong_field_says_which(
        self, position: int, value: int, says: str
    ) -> None:
        data = bytearray(Hello(Lane.DATA, NodeId(3), "harbour").encode())
        data[position] = value
        with pytest.raises(CorruptFrame, match=says):
            Hello.decode(memoryview(data))

    def test_a_release_that_speaks_ours_among_others_is_understood(self) -> None:
        newer = Hello(Lane.DATA, NodeId(3), "harbour", "id", oldest=1, newest=7)
        body = memoryview(newer.encode() + b"a field that this release does not know")
        assert Hello.decode(body) == newer

    def test_the_longest_hello_fits_before_the_handshake(self) -> None:
        assert len(Hello(Lane.DATA, NodeId(3), "x" * 255, "y" * 255).encode()) <= HELLO_LIMIT

    def test_a_cluster_id_that_fits_in_no_hello_is_refused(self) -> None:
        check_name("x" * 255)
        with pytest.raises(ValueError, match="255 bytes"):
            check_name("é" * 128)
