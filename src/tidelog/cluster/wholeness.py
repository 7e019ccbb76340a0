"""What the files of a replica that took part must at least be: there.

Storage tells damage inside of them. What is missing as a whole looks like a beginning, and only a
host that remembers the replica can tell the difference.
"""

from tidelog.records import NO_OFFSET
from tidelog.storage import DamagedLog, Disk

# The log's state, its flush mark, the vote and the place of snapshots: a replica has all of them
# before it takes part.
NEEDED = ("log/log.state", "log/log.flushed", "vote", "snapshots")


def check_whole(disk: Disk, directory: str) -> None:
    """Raise `DamagedLog` unless the directory of a replica has all that it began with."""
    for name in ("", *NEEDED):
        path = f"{directory}/{name}".rstrip("/")
        if not disk.exists(path):
            raise DamagedLog(path, 0, NO_OFFSET, "it is missing")
