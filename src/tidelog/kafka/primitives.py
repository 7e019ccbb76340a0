"""Kafka's lengths, strings and tags by hand, for the two messages that carry records.

Produce and Fetch are read and written without `kio`, because their records must not be copied and
their fields are few. As in `tidelog.kafka.reading`, no count and no length is believed. Functions
that read take the body and a position and return what they found and the position after it.

The two forms of the protocol differ in their lengths only: before a message's *flexible* versions a
string has two bytes of length and an array four; since then both have a varint that is one more
than the length (0 is null), and every structure ends in tagged fields.
"""

import struct
from typing import Final

from tidelog.kafka.reading import MAX_ELEMENTS, Malformed

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
_VARINT_BYTES: Final = 5
NO_TAGS: Final = b"\x00"
# Of one structure. No client sends more than a few; Kafka's bound of 10,000 would add up, since
# these are passed over one by one for each partition.
MAX_TAGS: Final = 100


def read_varint(body: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; `IndexError` if the body ends inside of it."""
    byte = body[position]
    if byte < 0x80:  # nearly all of them
        return byte, position + 1
    value = 0
    for index in range(_VARINT_BYTES):
        byte = body[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= 1 << 32:
                break
            return value, position + index + 1
    raise Malformed(f"a number at {position} is too long")


def read_count(body: memoryview, position: int, flexible: bool, least: int) -> tuple[int, int]:
    """Read the length of an array (-1: null) whose elements take at least so many bytes each."""
    if flexible:
        count, position = read_varint(body, position)
        count -= 1
    else:
        count = INT32.unpack_from(body, position)[0]
        position += 4
    if count < -1 or count * least > len(body) - position or count > MAX_ELEMENTS:
        raise Malformed(f"{count} elements promised, {len(body) - position} bytes left")
    return count, position


def read_string(body: memoryview, position: int, flexible: bool) -> tuple[str | None, int]:
    """Read a string; `UnicodeDecodeError` if it is none."""
    if flexible:
        length, position = read_varint(body, position)
        length -= 1
    else:
        length = INT16.unpack_from(body, position)[0]
        position += 2
    if length < 0:
        if length < -1:
            raise Malformed(f"a string of {length} bytes")
        return None, position
    end = position + length
    if end > len(body):
        raise Malformed(f"a string of {length} bytes, {len(body) - position} left")
    return str(body[position:end], "utf-8"), end


def read_name(body: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    """Read a string that must be there."""
    name, position = read_string(body, position, flexible)
    if name is None:
        raise Malformed("a topic without a name")
    return name, position


def read_records(body: memoryview, position: int, flexible: bool) -> tuple[memoryview | None, int]:
    """View the records of a partition where they are."""
    if flexible:
        length, position = read_varint(body, position)
        length -= 1
    else:
        length = INT32.unpack_from(body, position)[0]
        position += 4
    if length < 0:
        if length < -1:
            raise Malformed(f"{length} bytes of records")
        return None, position
    end = position + length
    if end > len(body):
        raise Malformed(f"{length} bytes of records, {len(body) - position} left")
    return body[position:end], end


def skip_tags(body: memoryview, position: int) -> int:
    """Pass over the tagged fields at the end of a structure."""
    if body[position] == 0:  # hardly anybody sends any
        return position + 1
    count, position = read_varint(body, position)
    if count > MAX_TAGS:
        raise Malformed(f"{count} tagged fields, more than {MAX_TAGS}")
    for _ in range(count):
        _, position = read_varint(body, position)
        size, position = read_varint(body, position)
        position += size
        if position > len(body):
            raise Malformed(f"a tagged field of {size} bytes goes past the end")
    return position


def varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def array_length(count: int, flexible: bool) -> bytes:
    return varint(count + 1) if flexible else INT32.pack(count)


def string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = text.encode()
    return (varint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


def tagged(fields: dict[int, bytes]) -> bytes:
    """The tagged fields of a structure, in the order of their numbers."""
    if not fields:
        return NO_TAGS
    parts = [varint(len(fields))]
    for tag, data in sorted(fields.items()):
        parts += (varint(tag), varint(len(data)), data)
    return b"".join(parts)
