"""Scripts: what is done to a group of replicas, and what then happens, as a text that can be read.

A script opens with a paragraph that tells its story. Then come blocks: commands, a line of dashes,
and what they caused, up to a blank line.

    write n1 a quorum 3*k:1
    ----
    n1 -> n2  append prev=0/t1 {[1,3]t1} flush=yes committed=0
    n1 -> n3  append prev=0/t1 {[1,3]t1} flush=yes committed=0

Lines that begin with `#` are told to the reader. What a script says must be what happens, letter by
letter; `pytest tests/scripts --rewrite` writes down what happens now, for a human to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
DASHES = "----"
NOTHING = "nothing happens"


@dataclass(frozen=True, slots=True)
class Block:
    """Commands with what they cause, and the line where they begin."""

    line: int
    commands: tuple[str, ...]
    output: tuple[str, ...]


Part = str | Block  # a line for the reader, or a block


def parse(text: str) -> list[Part]:
    """Take a script apart."""
    parts: list[Part] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        if not lines[number] or lines[number].startswith("#"):
            parts.append(lines[number])
            number += 1
            continue
        first = number
        while number < len(lines) and lines[number] != DASHES:
            if not lines[number] or lines[number].startswith("#"):
                raise ValueError(f"line {number + 1}: commands end with a line of {DASHES}")
            number += 1
        commands = tuple(lines[first:number])
        first_of_output = number + 1
        number = min(first_of_output, len(lines))
        while number < len(lines) and lines[number]:
            number += 1
        parts.append(Block(first + 1, commands, tuple(lines[first_of_output:number])))
    return parts


def story(parts: list[Part]) -> list[str]:
    """Return the paragraph that a script opens with."""
    told: list[str] = []
    for part in parts:
        if not isinstance(part, str) or not part.strip("# "):
            break
        told.append(part.lstrip("# "))
    return told


def play(text: str, stage: Callable[[str], list[str]]) -> str:
    """Run the commands of a script on a stage; return the script as it should read."""
    lines: list[str] = []
    for part in parse(text):
        if isinstance(part, str):
            lines.append(part)
            continue
        output: list[str] = []
        for command in part.commands:
            try:
                output += stage(command)
            except Exception as error:
                error.add_note(f"in line {part.line}: {command}")
                raise
        lines += [*part.commands, DASHES, *(output or [NOTHING])]
    return "\n".join(lines) + "\n"


def scripts() -> list[Path]:
    """Return all scripts, by name."""
    return sorted(DIRECTORY.glob("*.txt"))
