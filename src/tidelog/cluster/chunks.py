"""Snapshots on their way between replicas, chunk by chunk.

One snapshot comes in at a time. Its file becomes visible when it is whole; a chunk that is damaged
or out of place ends it, and the next attempt begins at the beginning.
"""

from collections.abc import Callable

from crc32c import crc32c

from tidelog.cluster.written import snapshot_info
from tidelog.raft import messages as msg
from tidelog.raft.core import Core
from tidelog.storage import DamagedLog, LocalError, SnapshotFiles, SnapshotWriter, StorageError


class Chunks:
    """What comes to one replica and leaves it."""

    def __init__(self, files: SnapshotFiles) -> None:
        self._files = files
        self._incoming: tuple[msg.SnapshotMeta, SnapshotWriter] | None = None

    def store(self, snapshot: msg.SnapshotMeta, chunk: msg.SnapshotChunk) -> int | None:
        """Write a chunk and return how far the file reaches; None if it could not be taken."""
        try:
            writer = self._writer(snapshot, chunk.position)
            if crc32c(chunk.data) != chunk.crc or writer.position != chunk.position:
                raise StorageError("a chunk of a snapshot was damaged or out of place")
            writer.write(chunk.data)
        except (OSError, LocalError):
            self.abort()
            return None
        return writer.position

    def finish(self) -> Callable[[], None]:
        """Return the job that makes the snapshot visible, all of which was stored."""
        assert self._incoming is not None
        (_, writer), self._incoming = self._incoming, None
        return writer.commit

    def abort(self) -> None:
        """Drop what has come of a snapshot so far."""
        if self._incoming is not None:
            (_, writer), self._incoming = self._incoming, None
            writer.abort()

    def read(self, core: Core, request: msg.SnapshotRequest) -> msg.SnapshotChunk:
        """Return the chunk that somebody asks for; an empty one if it cannot be had here.

        Raises `DamagedLog` if that will not change.
        """
        data = b""
        info = self._files.find(request.offset)
        if info is not None and 0 <= request.position < info.size:
            try:
                data = self._files.read(info, request.position, core.options.snapshot_chunk)
            except DamagedLog:
                raise
            except OSError:
                data = b""  # the other side looks elsewhere
        return msg.SnapshotChunk(
            core.group,
            core.vnode,
            request.source,
            core.term,
            request.offset,
            request.position,
            data,
            crc32c(data),
        )

    def _writer(self, snapshot: msg.SnapshotMeta, position: int) -> SnapshotWriter:
        if position == 0 or self._incoming is None or self._incoming[0] != snapshot:
            self.abort()
            self._incoming = (snapshot, self._files.create(snapshot_info(snapshot)))
        return self._incoming[1]
