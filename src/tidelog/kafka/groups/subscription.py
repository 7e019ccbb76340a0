"""The topics in the metadata that a classic consumer sends with its join."""

from tidelog.kafka.groups.wire import CorruptRecord, Reader


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Return the topics; none when this is no subscription: the bytes are the clients' affair."""
    source = Reader(metadata)
    try:
        source.int16()  # the version; all have the topics first
        return frozenset(source.string() for _ in range(source.length()))
    except CorruptRecord:
        return frozenset()
