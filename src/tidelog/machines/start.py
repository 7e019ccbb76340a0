"""Where a log begins for its readers: DeleteRecords, remembered by every replica alike.

A replica removes files when it can (its snapshots, its segments), at a time of its own. What a
user deleted must be gone for good, whoever leads next, so the new beginning is a batch of the log.
"""

from struct import Struct
from typing import Final

from tidelog.machines.encoding import MAX_OFFSET, Reader, Writer
from tidelog.machines.machine import NO_OBJECTION
from tidelog.records import Batch, BatchType, CorruptBatch, Offset, internal_batch, internal_payload

_PAYLOAD: Final = Struct(">4sq")
_MAGIC: Final = b"TLLS"
_VERSION: Final = 1


def start_batch(offset: Offset) -> Batch:
    """A batch that makes the log begin at this log offset."""
    return internal_batch(BatchType.CHANGELOG, _PAYLOAD.pack(_MAGIC, offset))


class LogStart:
    """The first log offset that readers may ask for, as far as deletions are concerned."""

    name = "start"

    def __init__(self) -> None:
        self.offset = Offset(0)

    def apply(self, batch: Batch) -> None:
        if batch.type is not BatchType.CHANGELOG:
            return
        try:
            payload = internal_payload(batch)
        except CorruptBatch:
            return  # whatever it is, every replica skips it
        if len(payload) == _PAYLOAD.size:
            magic, offset = _PAYLOAD.unpack(payload)
            if magic == _MAGIC and self.offset < offset <= batch.base_offset:
                self.offset = Offset(offset)

    def snapshot(self) -> bytes:
        writer = Writer(_VERSION)
        writer.number(self.offset)
        return writer.finish()

    def restore(self, state: bytes) -> None:
        offset = 0
        if state:
            reader = Reader(state, "the start of the log", _VERSION)
            offset = reader.number(MAX_OFFSET)
            reader.finish()
        self.offset = Offset(offset)

    def collectible(self) -> Offset:
        return NO_OBJECTION
