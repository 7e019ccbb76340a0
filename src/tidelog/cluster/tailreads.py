"""Reads at the end of a log, kept for the next reader.

Everybody who follows a topic asks for the same bytes in the same moment: a hundred consumers of a
partition wake up for one batch. The first of them reads it and the others are shown what it read,
as one piece.

Only reads that reach as far as readers may see are kept: whoever catches up is alone where it is.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.raft.types import GroupId

# All logs of a node together. A consumer that is a second behind at 4 MB/s still finds it here.
MAX_BYTES: Final = 4 * 1024 * 1024
# What is kept may hold on to the buffer of a whole request, so there is a bound on pieces too.
MAX_READS: Final = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """Batches as a client reads them, in pieces that follow each other."""

    parts: list[bytes | memoryview]
    bytes: int
    next_offset: int  # where to go on reading


class Place(NamedTuple):
    """What a read depends on: whoever reads at an equal place gets the same."""

    group: GroupId
    offset: int
    limit: int  # the first offset that may not be shown
    # Counters of the log's truncations and of changes of the offset map.
    truncations: int
    changes: int


class TailReads:
    """What was read last, oldest first, within the bounds above."""

    __slots__ = ("_bytes", "_most", "_reads")

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self._bytes = 0  # of the chunks below; <= most
        self._reads: dict[Place, Chunk] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def get(self, place: Place) -> Chunk | None:
        """Return what was read there. From the second reader on it is one piece."""
        found = self._reads.get(place)
        if found is not None and len(found.parts) > 1:
            found = Chunk([b"".join(found.parts)], found.bytes, found.next_offset)
            self._reads[place] = found
        return found

    def put(self, place: Place, chunk: Chunk) -> None:
        """Keep what was read, and let go of the oldest that does not fit any more."""
        if chunk.bytes > self._most or place in self._reads:
            return
        self._reads[place] = chunk
        self._bytes += chunk.bytes
        while self._bytes > self._most or len(self._reads) > MAX_READS:
            oldest = next(iter(self._reads))
            self._bytes -= self._reads.pop(oldest).bytes
