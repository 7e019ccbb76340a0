"""Which release this is, as features count, and what it says when another one is needed."""

from typing import Final

from tidelog.machines import CannotApply

RELEASE: Final = 1
# Features that this release has, switched on when every member has them: name -> release needed.
FEATURES: Final = {"side-snapshots": 1}


class NeedsRelease(CannotApply):
    """A newer release goes on from here; the message says which one."""

    def __init__(self, what: str, release: int | None) -> None:
        """`release` is None, or is not newer than this one, where it cannot be told."""
        known = release is not None and release > RELEASE
        which = f"release {release}" if known else f"a newer release than {RELEASE}"
        super().__init__(f"{what}: upgrade this node to {which}")
        self.release = release if known else None
