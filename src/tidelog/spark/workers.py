"""The processes in which Spark runs Python: they do one small piece of work after the other."""

from __future__ import annotations

import gc
import os
from functools import cache

# Spark sets this for processes that do more than one piece of work, and for no others.
_REUSED = "SPARK_REUSE_WORKER"


@cache
def settle() -> None:
    """Take all that is loaded out of garbage collection, if this process is one of Spark's.

    Such a process collects garbage after every piece of work. With Spark, Arrow and this package
    loaded that is some 50 ms, which is as much as a small batch takes, for objects that live as
    long as the process.
    """
    if _REUSED in os.environ:
        gc.freeze()
