"""Subscription by pattern: RE2's syntax (KIP-848), in bounded memory and time.

Clients send patterns, and a pattern is input like any other: one that makes a backtracking engine
run for a year must not stop a node. RE2 matches in time linear in the length of a topic's name, and
refuses a pattern that needs more memory than it is given. A pattern matches whole names.
"""

from typing import Final

import re2

MAX_PATTERN: Final = 1_000  # characters
# Of a compiled pattern: RE2 gives two thirds to the program, 16 bytes an instruction, and the rest
# to the states it remembers. So a program has at most 11,000 instructions, and a name of 249
# characters costs at most 3 million steps. What people write takes a few kilobytes.
MAX_MEMORY_BYTES: Final = 256 * 1024


class InvalidPattern(Exception):
    """The message says what is wrong with the pattern, in a sentence."""


class TopicPattern:
    """A pattern, ready to match names."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise InvalidPattern(f"a pattern has at most {MAX_PATTERN} characters")
        self.text = text
        try:
            self._compiled = re2.compile(text, _OPTIONS)
        except UnicodeEncodeError as error:
            raise InvalidPattern("the pattern holds half of a surrogate pair") from error
        except re2.error as error:
            raise InvalidPattern(f"RE2 cannot compile the pattern: {_reason(error)}") from error

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.never_capture = True
    options.log_errors = False  # the client gets them; RE2 would write them to the error stream
    return options


_OPTIONS: Final = _options()


def _reason(error: Exception) -> str:
    """Return what RE2 says, which is bytes as Python's wrapper hands it on."""
    (reason,) = error.args
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
