"""The one error this room raises about bytes that came from somewhere else.

Misuse by the caller (an offset that does not fit, a column of the wrong type) is `ValueError`: it
is a bug on this side. Bytes that are no valid batch are `CorruptBatch`: somebody else's bug.
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
