"""What one setting is: its name, its type, how a text becomes its value, and what it is for.

The settings themselves are in `topicoptions`, what is made of them in `configs`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tidelog.cluster.errors import ClusterError, Problem

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
UNLIMITED: Final = -1
_REPLICAS: Final = re.compile(r"\d{1,9}:\d{1,9}(\s*,\s*\d{1,9}:\d{1,9})*", re.ASCII)


class OptionType(Enum):
    BOOLEAN = "boolean"
    STRING = "string"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


Parser = Callable[[str], Any]  # raises ValueError


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    type: OptionType
    default: str
    parse: Parser
    allowed: str  # the end of the sentence "<name> must be ..."
    doc: str
    # The cluster-wide setting that is the default of a topic's; "" for one that is cluster-wide.
    cluster_name: str = ""

    def read(self, text: str) -> Any:
        """The value of a text; raises `ClusterError`."""
        return self._read(self.name, text)

    def read_default(self, text: str) -> Any:
        """The value of the cluster-wide default of a topic's setting."""
        return self._read(self.cluster_name, text)

    def _read(self, name: str, text: str) -> Any:
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise ClusterError(
                Problem.INVALID_CONFIG, f"{name} is {text[:80]!r}; it must be {self.allowed}"
            ) from error


# --- Parsers ------------------------------------------------------------------------------------


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def whole(low: int, high: int) -> Parser:
    def parse(text: str) -> int:
        if len(text) > 20 or not text.isascii() or "_" in text:
            raise ValueError(text)
        number = int(text)
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return parse


def fraction(text: str) -> float:
    if len(text) > 40 or not text.isascii() or "_" in text:
        raise ValueError(text)
    number = float(text)
    if not 0.0 <= number <= 1.0:  # false for "nan" as well
        raise ValueError(text)
    return number


def replication_factor(text: str) -> int:
    number: int = whole(UNLIMITED, 2**15 - 1)(text)
    if number == 0:
        raise ValueError(text)
    return number


def one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return parse


def cleanup_policy(text: str) -> frozenset[str]:
    policies = frozenset(item.strip() for item in text.split(","))
    if not policies <= {"delete", "compact"}:
        raise ValueError(text)
    return policies


# --- Options of a kind --------------------------------------------------------------------------


def number(
    name: str,
    type: OptionType,
    default: int,
    low: int,
    cluster_name: str,
    doc: str,
    *,
    no_limit: bool = False,
) -> Option:
    high = {OptionType.SHORT: 2**15 - 1, OptionType.INT: MAX_INT}.get(type, MAX_LONG)
    allowed = f"a whole number from {low} to {high}"
    if no_limit:
        allowed += f", where {UNLIMITED} means no limit"
    return Option(name, type, str(default), whole(low, high), allowed, doc, cluster_name)


def choice(name: str, default: str, choices: tuple[str, ...], cluster: str, doc: str) -> Option:
    allowed = "one of " + ", ".join(choices)
    return Option(name, OptionType.STRING, default, one_of(*choices), allowed, doc, cluster)


def switch(name: str, default: str, cluster_name: str, doc: str) -> Option:
    return Option(name, OptionType.BOOLEAN, default, boolean, "true or false", doc, cluster_name)


def fixed(name: str, type: OptionType, value: str, cluster_name: str, doc: str) -> Option:
    """A setting that is taken with one value only, the one that changes nothing."""
    return Option(name, type, value, one_of(value), f"{value}, and nothing else", doc, cluster_name)


def compression_level(
    codec: str, default: int, low: int, high: int, *, or_minus_one: bool = False
) -> Option:
    name = f"compression.{codec}.level"
    in_range = whole(low, high)
    allowed = f"a whole number from {low} to {high}"
    if or_minus_one:
        allowed += ", or -1 for the codec's own choice"

    def parse(text: str) -> Any:
        return -1 if or_minus_one and text == "-1" else in_range(text)

    return Option(
        name,
        OptionType.INT,
        str(default),
        parse,
        allowed,
        f"How hard records are compressed when compression.type is {codec} and they come in"
        " another form.",
        name,
    )


def throttled_replicas(name: str) -> Option:
    """Which replicas Kafka's tools for reassignments want to be copied slowly."""

    def parse(text: str) -> str:
        if text not in ("", "*") and not _REPLICAS.fullmatch(text):
            raise ValueError(text)
        return text

    return Option(
        name,
        OptionType.LIST,
        "",
        parse,
        "*, or partition:node pairs with commas between them",
        "No effect here: there are no rates to throttle replication to.",
        name,
    )
