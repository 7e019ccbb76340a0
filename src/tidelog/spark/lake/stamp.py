"""What a snapshot of a lake table says about where its rows come from.

Every snapshot that we write carries all of it, so that the last one is enough:

    tidelog.offsets   {"orders": {"0": 23}}: the next offsets to take over from topics
    tidelog.queries   {"<query>": 7}: the last batch of every streaming query that writes here
    tidelog.epoch     counts our commits that brought rows, from 1
    tidelog.commit    names this commit: whoever lost the answer finds out whether it is there

A commit is allowed only on top of the stamp from which its work began. So of two writers that did
the same work one finds that it is done, and no row is there twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tidelog.client import TopicPartition
from tidelog.spark.ranges import Positions, from_json, to_json

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

OFFSETS: Final = "tidelog.offsets"
QUERIES: Final = "tidelog.queries"
EPOCH: Final = "tidelog.epoch"
COMMIT: Final = "tidelog.commit"
# Queries that a table remembers; the one that wrote longest ago is forgotten first.
MAX_QUERIES: Final = 64


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where the rows of a table come from, up to which point."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    queries: Mapping[str, int] = field(default_factory=dict)  # the last to write is last
    epoch: int = 0
    commit: str = ""

    def moved(self, offsets: Positions) -> Stamp:
        """Return the stamp of the next commit, which takes over records up to `offsets`."""
        return self._next(offsets={**self.offsets, **offsets})

    def wrote(self, query: str, batch: int) -> Stamp:
        """Return the stamp of the next commit, which is a batch of a query."""
        queries = {name: last for name, last in self.queries.items() if name != query}
        queries[query] = batch
        kept = list(queries.items())[-MAX_QUERIES:]
        return self._next(queries=dict(kept))

    def added(self) -> Stamp:
        """Return the stamp of the next commit, whose rows come from elsewhere."""
        return self._next()

    def rearranged(self) -> Stamp:
        """Return the stamp of a commit that changes files and no rows."""
        return replace(self, commit=_name())

    def _next(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        queries: Mapping[str, int] | None = None,
    ) -> Stamp:
        return Stamp(
            self.offsets if offsets is None else offsets,
            self.queries if queries is None else queries,
            self.epoch + 1,
            _name(),
        )

    def properties(self) -> dict[str, str]:
        """Return the stamp as properties of a snapshot."""
        return {
            OFFSETS: json.dumps(to_json(self.offsets)),
            QUERIES: json.dumps(dict(self.queries)),
            EPOCH: str(self.epoch),
            COMMIT: self.commit,
        }


def stamp_of(snapshot: Snapshot) -> Stamp | None:
    """Return what a snapshot says; None if somebody else wrote it."""
    found = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    if COMMIT not in found:
        return None
    return Stamp(
        from_json(json.loads(found[OFFSETS])),
        json.loads(found[QUERIES]),
        int(found[EPOCH]),
        found[COMMIT],
    )


def stamped_snapshot(table: Table) -> Snapshot | None:
    """Return the newest of the current snapshot and its ancestors that we wrote."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if stamp_of(snapshot) is not None:
            return snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return None


def last_stamp(table: Table) -> Stamp:
    """Return how far a table is; raises ValueError if rows are there and nobody can tell."""
    found = stamped_snapshot(table)
    if found is not None:
        return stamp_of(found) or Stamp()
    if table.current_snapshot() is not None:
        raise ValueError(
            f"Table {'.'.join(table.name())} has rows, and none of its snapshots says where they "
            "come from: somebody else wrote it, or expired our snapshots. Use another table."
        )
    return Stamp()


def _name() -> str:
    return uuid.uuid4().hex
