"""What is raised about bytes that came from somewhere else.

Misuse by the caller (an offset that does not fit, a column of the wrong type) is `ValueError`: it
is a bug on this side. Bytes that are no valid batch are `CorruptBatch`: somebody else's bug. A
valid batch that a client may not write is a `RefusedBatch`.
"""


class CorruptBatch(Exception):
    """Bytes that are no valid batch: what is wrong with them, and where."""

    position: int  # where, in the bytes that were being read: see `reason`
    reason: str  # what is wrong there, as half a sentence

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"no valid batch at position {self.position}: {self.reason}"


class OldFormat(CorruptBatch):
    """A message of version 0 or 1, as clients wrote it before Kafka 0.11.

    It is a kind of its own because its sender is told to use a newer format, and not that its bytes
    were damaged.
    """


class OverLimit(CorruptBatch):
    """Records that unpack to more bytes than the caller allows.

    They may be sound, and their sender can be told to send fewer of them at a time.
    """


class RefusedBatch(Exception):
    """A valid batch that a client may not write: why not."""

    reason: str  # as a sentence without its full stop

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason
