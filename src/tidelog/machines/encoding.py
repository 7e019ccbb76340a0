"""How machines write their state into a snapshot, and read it back from bytes they do not trust.

Rules:
- Equal states give equal bytes: numbers are shortest varints, maps are written sorted. The reader
  refuses a longer spelling of a number, so unequal bytes mean unequal states as well.
- A snapshot comes from a disk or, in chunks, from another node. Whatever is wrong with it is one
  error, `CorruptSnapshot`, raised before the machine has changed anything.
- Nothing is allocated on the word of a length alone: it must fit in the bytes that are left.
"""

from typing import Final

from tidelog.records import Buffer

MAX_OFFSET: Final = 2**63 - 1
MAX_VARINT_BYTES: Final = 19  # 128 bits and a sign: more than any state needs


class CorruptSnapshot(Exception):
    """Bytes that are no snapshot of these machines; the message says why, in a sentence."""


class Writer:
    """Collects the bytes of one machine's state."""

    def __init__(self, version: int) -> None:
        self._out = bytearray()
        self.number(version)

    def number(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"{value} is negative; write it with `signed`")
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)

    def signed(self, value: int) -> None:
        self.number(value << 1 if value >= 0 else ~value << 1 | 1)

    def blob(self, content: Buffer) -> None:
        self.number(len(content))
        self._out += content

    def finish(self) -> bytes:
        return bytes(self._out)


class Reader:
    """Reads what a `Writer` wrote. `what` names the state in the sentences of errors."""

    def __init__(self, data: Buffer, what: str, version: int) -> None:
        self._data = memoryview(data)
        self._position = 0
        self._what = what
        found = self.number(MAX_OFFSET)
        if found != version:
            raise CorruptSnapshot(
                f"the state of {what} has version {found} and this node reads version {version}:"
                " run the same release on all nodes before snapshots move between them"
            )

    def number(self, limit: int) -> int:
        """Read a number from 0 to `limit`."""
        start = self._position
        value = shift = 0
        while True:
            if self._position == len(self._data) or self._position - start == MAX_VARINT_BYTES:
                raise self.corrupt(f"a number at byte {start} does not end")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if byte == 0 and shift:
            raise self.corrupt(f"a number at byte {start} is not in its shortest form")
        if value > limit:
            raise self.corrupt(f"a number at byte {start} is {value}, beyond {limit}")
        return value

    def signed(self, limit: int) -> int:
        """Read a number from -limit - 1 to `limit`."""
        value = self.number(2 * limit + 1)
        return ~(value >> 1) if value & 1 else value >> 1

    def blob(self) -> bytes:
        size = self.number(len(self._data) - self._position)
        if size > len(self._data) - self._position:
            raise self.corrupt(f"it ends in the middle of {size} bytes")
        self._position += size
        return bytes(self._data[self._position - size : self._position])

    def finish(self) -> None:
        left = len(self._data) - self._position
        if left:
            raise self.corrupt(f"{left} bytes are left over")

    def corrupt(self, reason: str) -> CorruptSnapshot:
        """The error to raise for a state that contradicts itself."""
        return CorruptSnapshot(f"the state of {self._what} in the snapshot is damaged: {reason}")
