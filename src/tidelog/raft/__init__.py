"""Consensus: a sans-IO Raft core that steps. Leaf modules first; `core` puts them together."""

from tidelog.raft.configuration import Configuration, InvalidConfiguration
from tidelog.raft.core import Core, Options
from tidelog.raft.types import (
    GroupId,
    HardState,
    Level,
    NodeId,
    Role,
    ShippingMode,
    Vnode,
)

__all__ = [
    "Configuration",
    "Core",
    "GroupId",
    "HardState",
    "InvalidConfiguration",
    "Level",
    "NodeId",
    "Options",
    "Role",
    "ShippingMode",
    "Vnode",
]
