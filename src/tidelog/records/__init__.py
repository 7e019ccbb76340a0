"""Record batches as bytes: header, records, CRC, compression, ghosts and internal batch types.

Columns of records are in `tidelog.records.arrow`, which is imported by name: only those who want
Arrow pay for it.
"""

from tidelog.records.batch import HEADER_SIZE, Batch, parse_batches
from tidelog.records.builder import (
    Marker,
    build_batch,
    empty_like,
    filter_batch,
    ghost,
    internal_batch,
    internal_payload,
    placeholder,
    read_marker,
    read_records,
    recompress,
    transaction_marker,
)
from tidelog.records.codecs import MAX_DECOMPRESSED
from tidelog.records.errors import CorruptBatch, OldFormat, OverLimit, RefusedBatch
from tidelog.records.intake import Survey, accept_batch, survey_records
from tidelog.records.types import (
    NO_OFFSET,
    NO_PRODUCER,
    NO_TERM,
    NO_TIMESTAMP,
    BatchType,
    Buffer,
    Codec,
    MarkerType,
    Offset,
    Record,
    Term,
    TimestampType,
)

__all__ = [
    "HEADER_SIZE",
    "MAX_DECOMPRESSED",
    "NO_OFFSET",
    "NO_PRODUCER",
    "NO_TERM",
    "NO_TIMESTAMP",
    "Batch",
    "BatchType",
    "Buffer",
    "Codec",
    "CorruptBatch",
    "Marker",
    "MarkerType",
    "Offset",
    "OldFormat",
    "OverLimit",
    "Record",
    "RefusedBatch",
    "Survey",
    "Term",
    "TimestampType",
    "accept_batch",
    "build_batch",
    "empty_like",
    "filter_batch",
    "ghost",
    "internal_batch",
    "internal_payload",
    "parse_batches",
    "placeholder",
    "read_marker",
    "read_records",
    "recompress",
    "survey_records",
    "transaction_marker",
]
