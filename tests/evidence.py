"""What tests counted, kept for the page that says how Tidelog was tested.

A test that counts something worth telling (writes, faults, losses) notes it here. If
`TIDELOG_EVIDENCE` names a file, each note becomes a line of JSON in it. `make evidence` sets it and
turns the lines into `docs/evidence.md`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "TIDELOG_EVIDENCE"


def note(what: str, **figures: int | str | Mapping[str, int]) -> None:
    """Keep what the running test counted."""
    path = os.environ.get(VARIABLE)
    if path:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
        with Path(path).open("a") as file:
            file.write(json.dumps({"what": what, "test": test, **figures}) + "\n")
