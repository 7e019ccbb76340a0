"""Compression of the records section: five codecs, and a bound on what they may unpack to.

Rules:
- What we write, Kafka's Java client and librdkafka read: snappy in the block framing of Java's
  library, LZ4 frames of independent blocks (Java's reader knows no others), plain gzip and zstd.
- What either of them writes, we read: snappy also without framing.
- Nothing unpacks past the caller's limit. The output buffer is allocated before the first byte is
  unpacked, is never larger than the limit, and a codec that would write past its end fails. Sizes
  that compressed bytes claim about themselves only ever make the buffer smaller.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

import cramjam
import numpy as np

from tidelog.records.errors import CorruptBatch, OverLimit
from tidelog.records.types import Buffer, Codec

# Kafka brokers take requests of up to 100 MB by default, so no client of theirs needs more.
MAX_DECOMPRESSED: Final = 128 * 1024 * 1024

# The first buffer fits what shrank to a sixteenth, which is nearly everything; what does not fit
# there gets a buffer of the whole limit. Pages that nobody writes to cost nothing.
_FIRST_GUESS: Final = 16

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = Struct(">8sii")  # magic, version, lowest version that can read it
_XERIAL_BLOCK: Final = 32 * 1024  # block size of Java's library
_BLOCK_LENGTH: Final = Struct(">i")
# A snappy copy of 64 bytes takes at least 3; a block that claims to unpack to more is lying.
_SNAPPY_MAX_RATIO: Final = 22

# Where no level is asked for. LZ4 begins to search harder above 3; producers that want small
# batches choose zstd.
_LEVELS: Final = {Codec.LZ4: 1, Codec.ZSTD: 3, Codec.GZIP: 6}


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """Return `data` as `codec` stores it; None is the codec's own choice of a level."""
    if level is None:
        level = _LEVELS.get(codec, 0)
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return memoryview(cramjam.gzip.compress(data, level=level))
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            packer = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            packer.compress(bytes(data))  # it takes no other buffer
            return memoryview(packer.finish())
        case Codec.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=level))


def decompress(codec: Codec, data: Buffer, limit: int = MAX_DECOMPRESSED) -> memoryview:
    """Return what `codec` stored; raise `CorruptBatch` if it is damaged.

    If it is larger than `limit`, that is `OverLimit`. Positions in the error count from the start
    of `data`.
    """
    view = memoryview(data)
    match codec:
        case Codec.NONE:
            if len(view) > limit:
                raise OverLimit(0, f"{len(view)} bytes of records, more than the {limit} allowed")
            return view
        case Codec.GZIP:
            return _unpack(cramjam.gzip.decompress_into, view, limit, codec)
        case Codec.SNAPPY:
            if bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                return _decompress_xerial(view, limit)
            return _decompress_snappy(view, 0, limit)
        case Codec.LZ4:
            return _unpack(cramjam.lz4.decompress_into, view, limit, codec)
        case Codec.ZSTD:
            return _unpack(cramjam.zstd.decompress_into, view, limit, codec)


def _unpack(
    decompress_into: Callable[[Buffer, Buffer], int], view: memoryview, limit: int, codec: Codec
) -> memoryview:
    """Unpack a stream that does not say reliably how large it is."""
    guess = min(limit, len(view) * _FIRST_GUESS)
    for size in (guess, limit) if guess < limit else (limit,):
        output = np.empty(size, np.uint8).data
        try:
            return output[: decompress_into(view, output)]
        except cramjam.DecompressionError as error:
            if not _is_full(error):
                raise CorruptBatch(0, f"damaged {codec.name.lower()} data: {error}") from None
    raise OverLimit(0, f"{codec.name.lower()} data unpacks to more than the {limit} bytes allowed")


def _is_full(error: Exception) -> bool:
    """Tell a full output buffer from damaged input, which only the text of the error does."""
    return "failed to write whole buffer" in str(error)


def _compress_xerial(view: memoryview) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_xerial(view: memoryview, limit: int) -> memoryview:
    output = bytearray()
    position = _XERIAL_HEADER.size
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise CorruptBatch(position, "snappy data ends inside the length of a block")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if not 0 <= length <= len(view) - position:
            raise CorruptBatch(
                position, f"a snappy block of {length} bytes where {len(view) - position} are left"
            )
        output += _decompress_snappy(
            view[position : position + length], position, limit - len(output)
        )
        position += length
    return memoryview(output)


def _decompress_snappy(block: memoryview, position: int, limit: int) -> memoryview:
    """Unpack one raw snappy block, which begins with its unpacked size."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > limit:
            raise OverLimit(
                position, f"snappy data unpacks to {size} bytes, more than the {limit} allowed"
            )
        if size > len(block) * _SNAPPY_MAX_RATIO:
            raise CorruptBatch(position, f"{len(block)} bytes of snappy data claim to be {size}")
        output = np.empty(size, np.uint8).data
        return output[: cramjam.snappy.decompress_raw_into(block, output)]
    except cramjam.DecompressionError as error:
        raise CorruptBatch(position, f"damaged snappy data: {error}") from None
