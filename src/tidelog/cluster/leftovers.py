"""What a crash, or a replica that was replaced, left in a node's directory, and nothing else names.

Replicas of topics are `Hosting`'s to delete; what a log leaves beside its segments is swept when it
is opened. Here go replicas of group 0 under revisions that this node has no more, and directories
of topics that have nothing in them.
"""

import contextlib
import re
import shutil
from pathlib import Path
from typing import Final

_CONTROLLER: Final = re.compile(r"controller(?:-r(\d+))?", re.ASCII)


def former_controllers(data: Path, revision: int) -> list[tuple[int, Path]]:
    """Return replicas of group 0 under older revisions, which can never take part again."""
    found = []
    for path in data.iterdir():
        match = _CONTROLLER.fullmatch(path.name)
        if match is not None and path.is_dir() and int(match[1] or 0) < revision:
            found.append((int(match[1] or 0), path))
    return found


def remove(former: list[tuple[int, Path]], topics: Path) -> None:
    """Remove former replicas of group 0, and directories of topics that are empty."""
    for _, path in former:
        shutil.rmtree(path)
    if topics.is_dir():
        for path in topics.iterdir():
            with contextlib.suppress(OSError):  # it has replicas in it
                path.rmdir()
