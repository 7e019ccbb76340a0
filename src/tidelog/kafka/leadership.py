"""Where a partition's leader is, told together with "not here" (KIP-951).

A client that came to the wrong node would have to ask for metadata next. Newer answers to Produce
and Fetch carry the leader and its address as tagged fields, which saves it that.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from tidelog.kafka import view
from tidelog.kafka.dispatch import Context
from tidelog.kafka.primitives import INT32, NO_TAGS, array_length, string

_LEADER: Final = Struct(">iiB")  # node, epoch, no tagged fields


def current_leader(context: Context, topic: str, index: int) -> tuple[int, int] | None:
    """Return the leader and its epoch as this node believes; None if it knows of none.

    Nothing is sent then. A leader of -1 would be the field's default, which is never written, and
    librdkafka 2.16 reads memory that it did not fill if one is.
    """
    leader, epoch = context.node.leader_of(topic, index)
    if leader is None or leader not in context.node.state.members:
        return None
    return leader, epoch


def encode_leader(leader: int, epoch: int) -> bytes:
    return _LEADER.pack(leader, epoch, 0)


def encode_endpoints(context: Context, leaders: Iterable[int]) -> bytes:
    """The addresses of these nodes, as far as they are known."""
    members = context.node.state.members
    known = [member for id_, member in sorted(members.items()) if id_ in set(leaders)]
    parts = [array_length(len(known), flexible=True)]
    for member in known:
        where = view.address(context, member.id)
        parts += (
            INT32.pack(member.id),
            string(where.host, flexible=True),
            INT32.pack(where.port),
            string(member.rack, flexible=True),
            NO_TAGS,
        )
    return b"".join(parts)
