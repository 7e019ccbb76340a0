"""Subscription by pattern, in time linear in the length of a topic's name.

Clients send patterns in the syntax of RE2, and a pattern is input like any other: one that makes a
backtracking engine run for a year must not stop a node. So patterns are compiled to a
nondeterministic automaton whose size is bounded, and names are matched by following all its states
at once; the sets of states that occur are remembered, so that a second name costs one lookup a
character.

Names of topics are ASCII, so a class of characters is a number with one bit for each of 128.

Understood: literals, `.`, `[a-z]`, `[^a-z]`, `[[:alpha:]]`, `\\d \\w \\s` and their opposites,
`\\Q..\\E`, `( )`, `(?: )`, `(?P<name> )`, `|`, `* + ? {n} {n,} {n,m}` greedy or not,
`^ $ \\A \\z`, and `(?i)` in front.
A pattern matches whole names.
"""

import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

MAX_PATTERN: Final = 1_000  # characters
MAX_STATES: Final = 5_000  # of the automaton, repetitions written out
MAX_DEPTH: Final = 50  # groups within groups
MAX_REPEAT: Final = 1_000  # as in RE2
_MAX_SETS: Final = 4_096  # remembered steps of one pattern

_ASCII: Final = 128
_ALL: Final = 2**_ASCII - 1


class InvalidPattern(Exception):
    """The message says what is wrong with the pattern, in a sentence."""


def _mask(characters: Iterable[str]) -> int:
    mask = 0
    for character in characters:
        if ord(character) < _ASCII:
            mask |= 1 << ord(character)
    return mask


_DIGIT: Final = _mask(string.digits)
_WORD: Final = _mask(string.ascii_letters + string.digits + "_")
_SPACE: Final = _mask("\t\n\f\r ")
_ESCAPES: Final = {
    "d": _DIGIT,
    "D": _ALL ^ _DIGIT,
    "w": _WORD,
    "W": _ALL ^ _WORD,
    "s": _SPACE,
    "S": _ALL ^ _SPACE,
    "t": _mask("\t"),
    "n": _mask("\n"),
    "r": _mask("\r"),
    "f": _mask("\f"),
}
_POSIX: Final = {
    "alpha": _mask(string.ascii_letters),
    "digit": _DIGIT,
    "alnum": _mask(string.ascii_letters + string.digits),
    "upper": _mask(string.ascii_uppercase),
    "lower": _mask(string.ascii_lowercase),
    "punct": _mask(string.punctuation),
    "space": _SPACE,
    "word": _WORD,
    "xdigit": _mask(string.hexdigits),
}
_NEWLINE: Final = _mask("\n")
# What an edge without a character may ask for.
_ALWAYS: Final = 0
_AT_START: Final = 1
_AT_END: Final = 2


@dataclass(slots=True)
class _State:
    mask: int = 0  # of the characters that lead on to `target`
    target: int = -1
    free: list[tuple[int, int]] = field(default_factory=list)  # (condition, target)


class TopicPattern:
    """A pattern, ready to match names."""

    def __init__(self, text: str) -> None:
        self.text = text
        compiler = _Compiler(text)
        start, self._accept = compiler.compile()
        self._states = compiler.states
        self._start = self._close({start}, {_ALWAYS, _AT_START})
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        current = self._start
        for character in name:
            current = self._step(current, character)
            if not current:
                return False
        conditions = {_ALWAYS, _AT_END} if name else {_ALWAYS, _AT_START, _AT_END}
        return self._accept in self._close(set(current), conditions)

    def _step(self, current: frozenset[int], character: str) -> frozenset[int]:
        known = self._steps.get((current, character))
        if known is not None:
            return known
        bit = 1 << ord(character) if ord(character) < _ASCII else 0
        reached = {
            self._states[state].target for state in current if self._states[state].mask & bit
        }
        following = self._close(reached, {_ALWAYS})
        if len(self._steps) >= _MAX_SETS:
            self._steps.clear()
        self._steps[current, character] = following
        return following

    def _close(self, states: set[int], conditions: set[int]) -> frozenset[int]:
        """Follow all edges without a character whose condition holds."""
        found = set(states)
        work = list(states)
        while work:
            for condition, target in self._states[work.pop()].free:
                if condition in conditions and target not in found:
                    found.add(target)
                    work.append(target)
        return frozenset(found)


class _Compiler:
    """Reads a pattern from left to right and builds states; a fragment is its first and last."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise InvalidPattern(f"a pattern has at most {MAX_PATTERN} characters")
        self._text = text
        self._position = 0
        self._depth = 0
        self._any_case = False
        self.states: list[_State] = []

    def compile(self) -> tuple[int, int]:
        if self._text.startswith("(?i)"):
            self._any_case = True
            self._position = 4
        fragment = self._alternatives()
        if self._position < len(self._text):
            raise InvalidPattern(f"there is a ) too many at {self._position}")
        return fragment

    def _alternatives(self) -> tuple[int, int]:
        fragments = [self._sequence()]
        while self._skip("|"):
            fragments.append(self._sequence())
        if len(fragments) == 1:
            return fragments[0]
        first, last = self._state(), self._state()
        for start, end in fragments:
            self._link(first, start)
            self._link(end, last)
        return first, last

    def _sequence(self) -> tuple[int, int]:
        first = last = self._state()
        while self._position < len(self._text) and self._text[self._position] not in "|)":
            start, end = self._repeated()
            self._link(last, start)
            last = end
        return first, last

    def _repeated(self) -> tuple[int, int]:
        begin = self._position
        fragment = self._atom()
        after = self._position
        bounds = self._bounds()
        if bounds is None:
            return fragment
        self._skip("?")  # not greedy: the same names match
        end = self._position
        if self._bounds() is not None:
            raise InvalidPattern(f"nothing can be repeated at {end}")
        low, high = bounds
        return self._repeat(fragment, begin, after, end, low, high)

    def _repeat(
        self,
        fragment: tuple[int, int],
        begin: int,
        after: int,
        end: int,
        low: int,
        high: int | None,
    ) -> tuple[int, int]:
        """Write a repetition out: `low` copies, then optional ones or a loop."""
        copies = [fragment]
        wanted = max(low + 1, 1) if high is None else max(high, 1)
        copies.extend(self._again(begin, after) for _ in range(wanted - 1))
        self._position = end
        first = last = self._state()
        for number, (start, stop) in enumerate(copies):
            self._link(last, start)
            joint = self._state()
            self._link(stop, joint)
            if number >= low:
                self._link(last, joint)
            last = joint
        if high is None:
            start, stop = copies[-1]
            self._link(stop, start)
        if high == 0:
            skipped = self._state(), self._state()
            self._link(*skipped)
            return skipped
        return first, last

    def _again(self, begin: int, after: int) -> tuple[int, int]:
        self._position = begin
        fragment = self._atom()
        if self._position != after:
            raise InvalidPattern(f"the repetition at {begin} cannot be read")
        return fragment

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._skip("*"):
            return 0, None
        if self._skip("+"):
            return 1, None
        if self._skip("?"):
            return 0, 1
        if not self._text.startswith("{", self._position):
            return None
        end = self._text.find("}", self._position)
        low, comma, high = self._text[self._position + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(low) or (high and not _is_number(high)):
            raise InvalidPattern(
                f"the repetition at {self._position} is not {{n}}, {{n,}} or {{n,m}}"
            )
        bounds = int(low), (int(high) if high else None) if comma else int(low)
        if max(bounds[0], bounds[1] or 0) > MAX_REPEAT:
            raise InvalidPattern(f"more than {MAX_REPEAT} repetitions are not allowed")
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise InvalidPattern(f"the repetition at {self._position} ends before it begins")
        self._position = end + 1
        return bounds

    def _atom(self) -> tuple[int, int]:
        at = self._position
        character = self._next()
        if character == "(":
            return self._group(at)
        if character == "[":
            return self._character(self._class(at))
        if character == ".":
            return self._character(_ALL ^ _NEWLINE)
        if character == "^":
            return self._assertion(_AT_START)
        if character == "$":
            return self._assertion(_AT_END)
        if character == "\\":
            return self._escape(at)
        if character in "*+?{":
            raise InvalidPattern(f"there is nothing to repeat at {at}")
        return self._character(self._literal(character))

    def _group(self, at: int) -> tuple[int, int]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidPattern(f"groups are nested more than {MAX_DEPTH} deep")
        if self._skip("?"):
            if self._skip("P<") or (self._skip("<") and self._text[self._position :][:1].isalpha()):
                end = self._text.find(">", self._position)
                if end < 0 or not self._text[self._position : end].isidentifier():
                    raise InvalidPattern(f"the name of the group at {at} is not valid")
                self._position = end + 1
            elif not self._skip(":"):
                raise InvalidPattern(f"the kind of group at {at} is not supported")
        fragment = self._alternatives()
        if not self._skip(")"):
            raise InvalidPattern(f"the group at {at} is not closed")
        self._depth -= 1
        return fragment

    def _escape(self, at: int) -> tuple[int, int]:
        character = self._next()
        if character == "A":
            return self._assertion(_AT_START)
        if character == "z":
            return self._assertion(_AT_END)
        if character == "Q":
            end = self._text.find("\\E", self._position)
            quoted = self._text[self._position : end if end >= 0 else None]
            self._position = end + 2 if end >= 0 else len(self._text)
            first = last = self._state()
            for one in quoted:
                start, stop = self._character(self._literal(one))
                self._link(last, start)
                last = stop
            return first, last
        return self._character(self._escaped(character, at))

    def _escaped(self, character: str, at: int) -> int:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character.isalnum():
            raise InvalidPattern(f"the escape at {at} is not supported")
        return self._literal(character)

    def _class(self, at: int) -> int:
        inverted = self._skip("^")
        mask = 0
        first = True
        while first or not self._skip("]"):
            first = False
            if self._skip("[:"):
                mask |= self._posix(at)
                continue
            low, single = self._class_end(at)
            if single is not None and self._ranges():
                self._skip("-")
                _, high = self._class_end(at)
                if high is None or ord(high) < ord(single):
                    raise InvalidPattern(f"a range in the class at {at} is not valid")
                low = self._literals(ord(single), ord(high))
            mask |= low
        return _ALL ^ mask if inverted else mask

    def _ranges(self) -> bool:
        return self._text.startswith("-", self._position) and not self._text.startswith(
            "-]", self._position
        )

    def _class_end(self, at: int) -> tuple[int, str | None]:
        """Read one character of a class, or an escape that stands for many."""
        if self._position >= len(self._text):
            raise InvalidPattern(f"the class at {at} is not closed")
        character = self._next()
        if character != "\\":
            return self._literal(character), character
        character = self._next()
        mask = self._escaped(character, at)
        return mask, None if character in _ESCAPES else character

    def _posix(self, at: int) -> int:
        end = self._text.find(":]", self._position)
        name = self._text[self._position : max(end, 0)]
        inverted = name.startswith("^")
        mask = _POSIX.get(name.removeprefix("^"))
        if mask is None:
            raise InvalidPattern(f"the class at {at} names characters that are not known")
        self._position = end + 2
        return _ALL ^ mask if inverted else mask

    def _literal(self, character: str) -> int:
        if self._any_case:
            return _mask((character.lower(), character.upper())) if character.isascii() else 0
        return _mask(character)

    def _literals(self, low: int, high: int) -> int:
        mask = 0
        for code in range(low, min(high, _ASCII - 1) + 1):
            mask |= self._literal(chr(code))
        return mask

    def _character(self, mask: int) -> tuple[int, int]:
        first, last = self._state(), self._state()
        self.states[first].mask = mask
        self.states[first].target = last
        return first, last

    def _assertion(self, condition: int) -> tuple[int, int]:
        first, last = self._state(), self._state()
        self.states[first].free.append((condition, last))
        return first, last

    def _state(self) -> int:
        if len(self.states) >= MAX_STATES:
            raise InvalidPattern("the pattern is too large once its repetitions are written out")
        self.states.append(_State())
        return len(self.states) - 1

    def _link(self, source: int, target: int) -> None:
        self.states[source].free.append((_ALWAYS, target))

    def _next(self) -> str:
        if self._position >= len(self._text):
            raise InvalidPattern("the pattern ends too early")
        self._position += 1
        return self._text[self._position - 1]

    def _skip(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._position):
            return False
        self._position += len(expected)
        return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
