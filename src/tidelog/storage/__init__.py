"""One log on a disk: segments, append, flush, read, truncation, compaction, snapshots, the vote."""

from tidelog.storage.cache import BatchCache
from tidelog.storage.checkpoint import Checkpoint, CheckpointFile
from tidelog.storage.cleaning import AbortedTransaction
from tidelog.storage.compaction import CompactionJob, CompactionResult
from tidelog.storage.config import BATCH_COST, LogConfig
from tidelog.storage.describe import LogDescription, SegmentDescription
from tidelog.storage.disk import Disk, File, RealDisk
from tidelog.storage.errors import DamagedLog, LocalError, StorageError
from tidelog.storage.filebudget import FileBudget, raise_file_limit
from tidelog.storage.flush import FlushJob
from tidelog.storage.flushmark import OPEN_MARKS
from tidelog.storage.handles import OpenEnds
from tidelog.storage.log import Log, wall_ms
from tidelog.storage.merging import MergeJob, SweepJob
from tidelog.storage.sealed import remove_staging, replace_file
from tidelog.storage.segment import SegmentPool
from tidelog.storage.snapshots import SnapshotFiles, SnapshotInfo, SnapshotWriter
from tidelog.storage.verifying import VerifyJob
from tidelog.storage.vote import NO_NODE, NOTHING_PROMISED, Vote, VoteFile

__all__ = [
    "BATCH_COST",
    "NOTHING_PROMISED",
    "NO_NODE",
    "OPEN_MARKS",
    "AbortedTransaction",
    "BatchCache",
    "Checkpoint",
    "CheckpointFile",
    "CompactionJob",
    "CompactionResult",
    "DamagedLog",
    "Disk",
    "File",
    "FileBudget",
    "FlushJob",
    "LocalError",
    "Log",
    "LogConfig",
    "LogDescription",
    "MergeJob",
    "OpenEnds",
    "RealDisk",
    "SegmentDescription",
    "SegmentPool",
    "SnapshotFiles",
    "SnapshotInfo",
    "SnapshotWriter",
    "StorageError",
    "SweepJob",
    "VerifyJob",
    "Vote",
    "VoteFile",
    "raise_file_limit",
    "remove_staging",
    "replace_file",
    "wall_ms",
]
