"""Values that nobody changes, cheap to make.

A batch passes through a dozen messages, events and outputs on its way to a majority. A dataclass
that is frozen at run time sets each field through `object.__setattr__`, which makes constructing it
five times as dear. These are frozen for the type checker, which sees every assignment there is.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots, compared and hashed by its fields, never assigned to."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
