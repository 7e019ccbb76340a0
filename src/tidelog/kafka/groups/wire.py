"""Kafka's primitive types, for records that are written by hand.

`Writer` and `Reader` know both dialects of Kafka's schemas. The plain one has 16-bit lengths for
strings and 32-bit lengths for bytes and arrays. The *flexible* one has varint lengths, where 0 is
null and n + 1 is n, and ends every structure with its tagged fields.

Whatever is wrong with bytes that are read is one error, `CorruptRecord`. Nothing is allocated on
the word of a length alone: it must fit in the bytes that are left.
"""

import struct
from typing import Final
from uuid import UUID

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_MAX_VARINT_BYTES: Final = 5
_UUID_BYTES: Final = 16
MAX_STRING: Final = 2**15 - 1


class CorruptRecord(Exception):
    """Bytes that are no record of a group; the message says why, in a sentence."""


class Writer:
    """Collects the bytes of one key or value."""

    def __init__(self) -> None:
        self._out = bytearray()

    def int8(self, value: int) -> None:
        self._out += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self._out += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self._out += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self._out += _INT64.pack(value)

    def uuid(self, value: UUID) -> None:
        self._out += value.bytes

    def string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
            return
        content = value.encode("utf-8", "surrogatepass")
        self.int16(len(content))
        self._out += content

    def blob(self, value: bytes) -> None:
        self.int32(len(value))
        self._out += value

    def varint(self, value: int) -> None:
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)

    def compact_string(self, value: str | None) -> None:
        if value is None:
            self.varint(0)
            return
        content = value.encode("utf-8", "surrogatepass")
        self.varint(len(content) + 1)
        self._out += content

    def compact_length(self, count: int) -> None:
        self.varint(count + 1)

    def tags(self, fields: dict[int, bytes] | None = None) -> None:
        """End a flexible structure."""
        self.varint(len(fields or {}))
        for tag, content in sorted((fields or {}).items()):
            self.varint(tag)
            self.varint(len(content))
            self._out += content

    def finish(self) -> bytes:
        return bytes(self._out)


class Reader:
    """Reads what a `Writer`, or Kafka, wrote."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def int8(self) -> int:
        return int(_INT8.unpack(self._take(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(8))[0])

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(_UUID_BYTES))

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._text(length)

    def string(self) -> str:
        return self._present(self.nullable_string())

    def blob(self) -> bytes:
        return self._take(self.int32())

    def length(self) -> int:
        """Read the length of an array. Every element has at least one byte."""
        return self._fits(self.int32())

    def varint(self) -> int:
        value = 0
        for count in range(_MAX_VARINT_BYTES):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return value
        raise CorruptRecord("a number does not end")

    def nullable_compact_string(self) -> str | None:
        length = self.varint() - 1
        return None if length < 0 else self._text(length)

    def compact_string(self) -> str:
        return self._present(self.nullable_compact_string())

    def compact_length(self) -> int:
        return self._fits(self.varint() - 1)

    def tags(self) -> dict[int, bytes]:
        fields = {}
        for _ in range(self._fits(self.varint())):
            tag = self.varint()
            fields[tag] = self._take(self.varint())
        return fields

    def end(self) -> None:
        if self.left:
            raise CorruptRecord(f"{self.left} bytes are left over")

    def _take(self, count: int) -> bytes:
        if count < 0 or count > self.left:
            raise CorruptRecord(f"{count} bytes are wanted and {self.left} are left")
        start = self._position
        self._position += count
        return self._data[start : self._position]

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as problem:
            raise CorruptRecord("a string is not UTF-8") from problem

    def _fits(self, count: int) -> int:
        if count < 0 or count > self.left:
            raise CorruptRecord(f"{count} elements are announced in {self.left} bytes")
        return count

    @staticmethod
    def _present(text: str | None) -> str:
        if text is None:
            raise CorruptRecord("a string is null")
        return text
