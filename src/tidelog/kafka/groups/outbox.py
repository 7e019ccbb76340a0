"""What a step of the core leaves behind: records to write, then answers to give.

A *ticket* stands for a request that waits. The core never looks into it: the driver hands in a
future, a test a number.
"""

from dataclasses import dataclass, field

Ticket = object
Record = tuple[bytes, bytes | None]  # a key, and a value or a tombstone


@dataclass(slots=True)
class Step:
    """The answers may go out once these records, and all of earlier steps, are committed."""

    records: list[Record] = field(default_factory=list)
    answers: list[tuple[Ticket, object]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self.records)


class Outbox:
    """Collects the step that is being taken."""

    def __init__(self) -> None:
        self._step = Step()

    def write(self, record: Record) -> None:
        self._step.records.append(record)

    def answer(self, ticket: Ticket, answer: object) -> None:
        self._step.answers.append((ticket, answer))

    def take(self) -> Step:
        step, self._step = self._step, Step()
        return step
