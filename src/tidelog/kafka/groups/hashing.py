"""Which partition of the internal topic a group belongs to: Kafka's rule, so that tools agree."""

from typing import Final

GROUPS_TOPIC: Final = "__consumer_offsets"

_INT_BITS: Final = 32
_INT_MASK: Final = 2**_INT_BITS - 1
_INT_SIGN: Final = 2 ** (_INT_BITS - 1)


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: a polynomial over UTF-16 units, in 32 bits with a sign."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (low | high << 8)) & _INT_MASK
    return value - 2**_INT_BITS if value & _INT_SIGN else value


def partition_for(group: str, partitions: int) -> int:
    """Return the partition of `GROUPS_TOPIC` whose leader coordinates this group."""
    if partitions <= 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    value = java_hash(group)
    # The smallest number has no positive twin; Kafka takes 0 for it.
    return 0 if value == -_INT_SIGN else abs(value) % partitions
