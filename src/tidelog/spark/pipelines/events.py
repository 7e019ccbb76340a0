"""What a run tells while it runs: lines of JSON from the process of Spark to who shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TextIO


@dataclass(frozen=True, slots=True)
class Stage:
    """What is being done."""

    text: str


@dataclass(frozen=True, slots=True)
class FlowState:
    """A flow is queued, running, completed, failed, ..."""

    flow: str
    state: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch of a flow is done."""

    flow: str
    batch: int
    rows: int  # that were read
    rows_per_second: float
    lag: int  # records that were in the topics and not read yet
    milliseconds: int
    written: int | None = None  # None where nobody counts
    rules: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # view: rule: rows


@dataclass(frozen=True, slots=True)
class Filled:
    """A table of the pipeline has rows."""

    table: str
    rows: int
    added: int


@dataclass(frozen=True, slots=True)
class Published:
    """A table of the pipeline was written to the lake."""

    table: str
    lake: str
    rows: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with the project, or went wrong."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is over; with `--continuous` there is another one."""

    ok: bool


Event = Stage | FlowState | Progress | Filled | Published | Problem | Ended
_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Stage, FlowState, Progress, Filled, Published, Problem, Ended)
}


def send(stream: TextIO, event: Event) -> None:
    """Write an event as one line."""
    stream.write(to_line(event))
    stream.flush()


def to_line(event: Event) -> str:
    """Return an event as one line of JSON."""
    return json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n"


def from_line(line: str) -> Event:
    """Read an event."""
    found = json.loads(line)
    event: Event = _KINDS[found.pop("event")](**found)
    return event
