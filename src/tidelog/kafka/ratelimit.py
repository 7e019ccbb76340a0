"""A log that hostile clients cannot fill."""

import logging
import time
from collections.abc import Callable
from typing import Final

BURST: Final = 20
LINES_A_SECOND: Final = 1.0


class RateLimited:
    """Writes warnings, at most a burst and then one a second, and says how many it left out."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._allowed = float(BURST)
        self._last = clock()
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        now = self._clock()
        self._allowed = min(BURST, self._allowed + (now - self._last) * LINES_A_SECOND)
        self._last = now
        if self._allowed < 1:
            self._left_out += 1
            return
        self._allowed -= 1
        if self._left_out:
            text += " (%d lines like this were left out)"
            values = (*values, self._left_out)
            self._left_out = 0
        self._logger.warning(text, *values)
