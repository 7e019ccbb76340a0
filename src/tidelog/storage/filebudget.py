"""How the file descriptors of one process are divided: logs, peers, clients.

A process that has used up its descriptors can neither flush a new segment nor save a vote, so
connections are refused long before that. Each share has a bound, and the bounds of all shares
together stay below the limit of the process:

    own       the loop, log output, votes, snapshots, compaction, directories that are synced
    backlog   connections that the kernel completed and nobody has counted yet
    peers     connections between nodes
    clients   connections of clients
    ends      segments that logs append to
    segments  closed segments that were read last
    marks     flush marks that were written last
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from typing import Final

# Enough for a small node: some 15 peers, 40 clients, and as many partitions as one likes, the busy
# ones among them held open.
MIN_FILES: Final = 256
_OWN: Final = 64
# Of what is left, in per cent. The bounds are what a node with many descriptors needs at most.
_SHARES: Final = {"backlog": 15, "peers": 20, "clients": 25, "ends": 20, "segments": 12, "marks": 8}
_MOST: Final = {
    "backlog": 1024,
    "peers": 1024,
    "clients": 20_000,
    "ends": 20_000,
    "segments": 1024,
    "marks": 128,
}


@dataclass(frozen=True, slots=True)
class FileBudget:
    """The share of each user of descriptors."""

    limit: int
    backlog: int
    peers: int
    clients: int
    ends: int
    segments: int
    marks: int

    @classmethod
    def of(cls, limit: int) -> FileBudget:
        """Divide a limit; raises `ValueError` if it is too low for a node."""
        if limit < MIN_FILES:
            raise ValueError(
                f"this process may open {limit} files, and a node needs {MIN_FILES}: raise the"
                " limit, for example with `ulimit -n 4096` or LimitNOFILE= in the systemd unit"
            )
        left = limit - _OWN
        shares = {name: min(left * share // 100, _MOST[name]) for name, share in _SHARES.items()}
        return cls(limit, **shares)

    @property
    def own(self) -> int:
        """What no share takes."""
        shares = (self.backlog, self.peers, self.clients, self.ends, self.segments, self.marks)
        return self.limit - sum(shares)


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows it; return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit


_UNLIMITED: Final = 1 << 20
