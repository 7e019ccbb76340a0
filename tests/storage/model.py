"""What a log must hold, kept in plain lists: the twin that random tests compare the log with.

The model knows every *history*: the batches as they were appended, one list per branch (a suffix
truncation begins a new branch). Compaction may thin a batch out but not change what it covers, so
what a log holds is compared through the records of the history.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.storage.batches import read_all, records_of

from tidelog.records import NO_TERM, Batch, Offset, Term
from tidelog.storage import Log

Cell = tuple[int, tuple[bytes | None, bytes | None] | None]  # term and record of an offset


@dataclass(slots=True)
class Branch:
    """One history: for each offset its term, and its record if it is client data."""

    cells: dict[int, Cell] = field(default_factory=dict)
    ends: set[int] = field(default_factory=set)  # last offsets of batches that are stored

    def put(self, batch: Batch) -> None:
        """Append a batch or a ghost."""
        records = records_of([batch])
        for offset in range(batch.base_offset, batch.last_offset + 1):
            self.cells[offset] = (batch.term, records.get(offset))
        if not batch.is_ghost:
            self.ends.add(batch.last_offset)

    def upto(self, dirty: int) -> Branch:
        """Return the history cut after an offset."""
        cells = {offset: cell for offset, cell in self.cells.items() if offset <= dirty}
        return Branch(cells, {end for end in self.ends if end <= dirty})


class Model:
    """The log as it should be."""

    def __init__(self) -> None:
        self.branch = Branch()
        # Branches that a crash may bring back, newest last; only what is past `flushed` differs.
        self.branches = [self.branch]
        self.start = 0
        self.dirty = -1
        self.flushed = -1
        self.prefix_term = NO_TERM
        # The newest record of each key at or below this offset must exist; older ones need not.
        self.compacted = -1

    @property
    def last_term(self) -> Term:
        return (
            Term(self.branch.cells[self.dirty][0]) if self.dirty >= self.start else self.prefix_term
        )

    def append(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.branch.put(batch)
        self.dirty = batches[-1].last_offset

    def truncate_suffix(self, first_removed: int) -> None:
        if first_removed > self.dirty:
            return
        self.branch = self.branch.upto(first_removed - 1)
        self.branches.append(self.branch)
        self.dirty = first_removed - 1
        # A cut at the end of a gap leaves a placeholder there, which is not flushed yet.
        stored = max(self.branch.ends, default=-1)
        self.flushed = max(min(self.flushed, stored), self.start - 1)
        self.branch.ends.add(self.dirty)

    def truncate_prefix(self, first_kept: int, term: Term) -> None:
        if first_kept > self.start:
            self.start = first_kept
            self.prefix_term = term
            self.flushed = max(self.flushed, first_kept - 1)

    def reset(self, start: int, term: Term) -> None:
        self.branch = Branch()
        self.branches = [self.branch]
        self.start = start
        self.prefix_term = term
        self.dirty = self.flushed = start - 1
        self.compacted = -1

    def flush(self) -> None:
        self.flushed = self.dirty

    # --- Comparison ------------------------------------------------------------------------------

    def check(self, log: Log) -> None:
        """Raise AssertionError unless the log is what the model says."""
        log.check_invariants()
        assert (log.start, log.dirty, log.flushed) == (self.start, self.dirty, self.flushed)
        assert log.last_term == self.last_term
        self.check_content(log, self.branch)

    def check_content(self, log: Log, branch: Branch) -> None:
        """Compare terms and records, offset by offset, with one history."""
        expected = log.start
        for batch in read_all(log, fill_gaps=True):
            assert batch.base_offset == expected or batch.base_offset <= log.start
            expected = Offset(batch.last_offset + 1)
            for offset in range(max(batch.base_offset, log.start), batch.last_offset + 1):
                assert branch.cells[offset][0] == batch.term == log.term_of(Offset(offset))
        assert expected == log.dirty + 1
        found = records_of(read_all(log))
        newest: dict[bytes | None, int] = {
            cell[1][0]: offset
            for offset, cell in sorted(branch.cells.items())
            if cell[1] is not None and cell[1][0] is not None and offset <= self.compacted
        }
        for offset in range(log.start, log.dirty + 1):
            record = branch.cells[offset][1]
            if offset in found:
                assert found[offset] == record
            elif record is not None:
                assert offset <= self.compacted, f"the record at {offset} is gone"
                key, value = record
                assert newest[key] > offset or value is None, f"the newest {key!r} is gone"

    def adopt(self, log: Log) -> None:
        """Check a log that was opened after a crash, and go on from what it holds."""
        log.check_invariants()
        log.verify()
        assert log.start == self.start
        assert log.flushed == log.dirty >= self.flushed, "flushed offsets are gone"
        for branch in reversed(self.branches):
            end = max(branch.cells, default=self.start - 1)
            same = all(
                branch.cells.get(offset) == self.branch.cells[offset]
                for offset in range(self.start, self.flushed + 1)
            )
            if log.dirty <= max(end, self.start - 1) and same:
                try:
                    self.check_content(log, branch)
                except (AssertionError, KeyError):
                    continue
                break
        else:
            raise AssertionError(f"{log.draw()} is none of the logs that ever were")
        self.branch = branch.upto(log.dirty)
        self.branches = [self.branch]
        self.dirty = self.flushed = log.dirty
