"""The requests of consumer groups: the table of what is served, and who serves it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.kafka.dispatch import Handler
from tidelog.kafka.groups.admin_handlers import AdminHandlers
from tidelog.kafka.groups.member_handlers import MemberHandlers
from tidelog.kafka.groups.offset_handlers import OffsetHandlers

if TYPE_CHECKING:
    from tidelog.kafka.groups.coordinator import Coordinator


def handlers(coordinator: "Coordinator") -> Mapping[int, tuple[int, int, Handler]]:
    """Return API key to oldest version, newest version, handler."""
    members = MemberHandlers(coordinator)
    offsets = OffsetHandlers(coordinator)
    admin = AdminHandlers(coordinator)
    return {
        8: (2, 10, offsets.commit),
        9: (1, 10, offsets.fetch),
        10: (0, 6, admin.find_coordinator),
        11: (0, 9, members.join),
        12: (0, 4, members.heartbeat),
        13: (0, 5, members.leave),
        14: (0, 5, members.sync),
        15: (0, 6, admin.describe),
        16: (0, 5, admin.list),
        42: (0, 2, admin.delete),
        47: (0, 0, offsets.delete),
        68: (0, 1, members.consumer_heartbeat),
        69: (0, 1, admin.consumer_describe),
    }
