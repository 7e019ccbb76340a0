"""What tests measured, kept for the page that says how Tidelog was tested.

A test that counts something worth telling (writes, faults, losses) notes it with the `evidence`
fixture. With `--evidence FILE` each note becomes a line of JSON in that file; without, it goes
nowhere. `python -m tools.evidence` collects them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where one test notes what it counted."""

    test: str
    path: Path | None

    def note(self, what: str, **figures: int | str) -> None:
        print(f"evidence: {what}:", ", ".join(f"{name} {figures[name]}" for name in figures))
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"what": what, "test": self.test, **figures}) + "\n")
