import resource
import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.samples import some_batch

from tidelog.records import Batch, Codec, CorruptBatch, read_records
from tidelog.records.codecs import MAX_DECOMPRESSED, compress, decompress

MIB = 1024 * 1024
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]

# Unpacks a file with a limit of 16 MiB and prints how far that raised the most memory it ever had.
UNPACK = """
import resource, sys
from pathlib import Path
from tidelog.records import Codec, CorruptBatch
from tidelog.records.codecs import decompress
codec, data = Codec[sys.argv[1]], Path(sys.argv[2]).read_bytes()
decompress(codec, Path(sys.argv[3]).read_bytes())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, data, 16 * 1024 * 1024)
except CorruptBatch as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error.reason)
"""


def bomb(codec: Codec, size: int) -> bytes:
    """Return few bytes that unpack to so many MiB of zeros."""
    zeros = bytes(MIB)
    match codec:
        case Codec.GZIP:
            packer = zlib.compressobj(wbits=31, level=1)
            return b"".join(packer.compress(zeros) for _ in range(size)) + packer.flush()
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(zeros * size))
        case Codec.LZ4:
            lz4 = cramjam.lz4.Compressor(level=1)
            for _ in range(size):
                lz4.compress(zeros)
            return bytes(lz4.finish())
        case Codec.ZSTD:
            zstd = cramjam.zstd.Compressor(level=1)
            for _ in range(size):
                zstd.compress(zeros)
            return bytes(zstd.finish())
        case Codec.NONE:
            raise AssertionError("what is not compressed does not unpack")


@given(data=st.binary(max_size=2000), times=st.integers(1, 200), codec=st.sampled_from(Codec))
def test_what_was_compressed_is_unpacked(data: bytes, times: int, codec: Codec) -> None:
    whole = data * times
    assert decompress(codec, compress(codec, whole)) == whole


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_met_exactly(codec: Codec) -> None:
    data = bytes(range(256)) * 1000
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    with pytest.raises(CorruptBatch, match="allowed"):
        decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_within_the_memory_of_its_limit(codec: Codec, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(bomb(codec, 128))
    (tmp_path / "harmless").write_bytes(compress(codec, b"loads what the codec needs"))
    paths = [str(tmp_path / name) for name in ("bomb", "harmless")]
    command = [sys.executable, "-c", UNPACK, codec.name, *paths]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    grown, reason = said.split(maxsplit=1)
    assert "allowed" in reason
    # 16 MiB of output, and what a codec needs for itself; the bomb has 128.
    assert int(grown) < 40 * 1024


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_in_a_batch_is_refused_where_its_records_begin(codec: Codec) -> None:
    data = bytearray(some_batch().data[:61]) + bomb(codec, 4)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[22] = codec
    with pytest.raises(CorruptBatch, match="allowed, in data") as raised:
        list(read_records(Batch.parse(data), limit=MIB))
    assert raised.value.position == 61


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("ffffffff0f 00 00", "unpacks to 4294967295 bytes, more than"),
        ("80808040 00 00", f"6 bytes of snappy data claim to be {MAX_DECOMPRESSED}"),
    ],
)
def test_a_snappy_block_that_claims_too_much_allocates_nothing(claim: str, reason: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptBatch, match=reason):
        decompress(Codec.SNAPPY, bytes.fromhex(claim))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024


def test_snappy_is_written_in_the_framing_of_java() -> None:
    data = bytes(range(256)) * 300  # more than two blocks of 32 KiB
    packed = bytes(compress(Codec.SNAPPY, data))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    blocks, position = [], 16
    while position < len(packed):
        length = int.from_bytes(packed[position : position + 4], "big")
        position += 4
        blocks.append(bytes(cramjam.snappy.decompress_raw(packed[position : position + length])))
        position += length
    assert b"".join(blocks) == data
    assert [len(block) for block in blocks] == [32768, 32768, len(data) - 65536]


def test_snappy_is_read_without_framing_as_librdkafka_writes_it() -> None:
    data = b"tide" * 100
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


@pytest.mark.parametrize(
    ("tail", "reason", "position"),
    [
        ("0000", "inside the length", 16),
        ("00000005 01", "block of 5 bytes where 1 are left", 20),
        ("ffffffff", "block of -1 bytes", 20),
        ("00000003 05ff00", "damaged snappy", 20),
    ],
)
def test_a_damaged_frame_of_snappy_says_where(tail: str, reason: str, position: int) -> None:
    framed = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + bytes.fromhex(tail)
    with pytest.raises(CorruptBatch, match=reason) as raised:
        decompress(Codec.SNAPPY, framed)
    assert raised.value.position == position


def test_the_blocks_of_a_snappy_frame_share_one_limit() -> None:
    packed = compress(Codec.SNAPPY, bytes(100_000))
    with pytest.raises(CorruptBatch, match="allowed"):
        decompress(Codec.SNAPPY, packed, 70_000)


def test_lz4_blocks_do_not_depend_on_each_other_as_java_demands() -> None:
    packed = bytes(compress(Codec.LZ4, bytes(10 * MIB)))
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] & 0x20


@pytest.mark.parametrize("codec", COMPRESSING)
def test_compressed_bytes_that_are_cut_are_refused(codec: Codec) -> None:
    packed = bytes(compress(codec, bytes(range(256)) * 4))
    for size in {0, 1, 2, len(packed) // 2, len(packed) - 1}:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:size])
