"""Log lines about what strangers do, at a rate that no stranger can raise.

The first line about a source is logged at once. More of the same within `INTERVAL_S` are counted
and mentioned in the next line. Sources beyond `MAX_SOURCES` share one entry, so a flood from many
addresses fills neither the log nor memory.
"""

import logging
from collections.abc import Hashable
from typing import Final

INTERVAL_S: Final = 10.0
MAX_SOURCES: Final = 64

_OTHERS: Final = object()


class Complaints:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # By source: when its last line was logged, and how many were left out since.
        self._sources: dict[Hashable, tuple[float, int]] = {}

    def warn(self, source: Hashable, now: float, message: str) -> None:
        """Log a warning about `source`, or count it if one was logged a moment ago."""
        if source not in self._sources and len(self._sources) >= MAX_SOURCES:
            self._forget(now)
            if len(self._sources) >= MAX_SOURCES:
                source = _OTHERS
        last, left_out = self._sources.get(source, (now - INTERVAL_S, 0))
        if now - last < INTERVAL_S:
            self._sources[source] = (last, left_out + 1)
            return
        self._sources[source] = (now, 0)
        more = f" ({left_out} more warnings like this were left out)" if left_out else ""
        self._log.warning("%s%s", message, more)

    def _forget(self, now: float) -> None:
        for source, (last, _) in tuple(self._sources.items()):
            if now - last >= INTERVAL_S:
                del self._sources[source]
