"""What the core may ask of its log, and where two logs could still agree.

The core reads through this view and never writes: what is to be written leaves it as outputs.
"""

from typing import Protocol

from tidelog.records import NO_OFFSET, NO_TERM, Batch, Offset, Term


class LogView(Protocol):
    """The part of `storage.Log` that consensus depends on."""

    @property
    def start(self) -> Offset: ...

    @property
    def dirty(self) -> Offset: ...

    @property
    def flushed(self) -> Offset: ...

    @property
    def last_term(self) -> Term: ...

    def term_of(self, offset: Offset) -> Term | None:
        """None for what the log does not reach; the last offset before `start` is reached."""

    def first_of_term_at(self, offset: Offset) -> Offset:
        """The first offset of the log with the term that `offset` has."""

    def read(
        self,
        start: Offset,
        max_bytes: int,
        *,
        upto: Offset | None = None,
        fill_gaps: bool = False,
    ) -> list[Batch]: ...

    def last_configuration(self, upto: Offset) -> Batch | None: ...


def term_at(log: LogView, offset: Offset) -> Term | None:
    """The term of an offset, where the place before the first is agreed on by everybody."""
    return NO_TERM if offset == NO_OFFSET else log.term_of(offset)


def last_not_above(log: LogView, offset: Offset, term: Term) -> tuple[Offset, Term]:
    """The largest offset up to `offset` whose term is at most `term`: a whole term is one step.

    A follower names this place of its log in a refusal, and the leader looks for the same in its
    own, so that finding agreement takes a round a term instead of a round a batch.
    """
    while offset > NO_OFFSET:
        found = log.term_of(offset)
        if found is None:
            break
        if found <= term:
            return offset, found
        offset = Offset(log.first_of_term_at(offset) - 1)
    return offset, NO_TERM
