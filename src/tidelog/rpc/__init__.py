"""Frames between nodes: Raft messages, heartbeats and calls, over two connections to each peer."""

from tidelog.rpc.complaints import Complaints
from tidelog.rpc.errors import CorruptFrame, RpcError, RpcTimeout, Unreachable
from tidelog.rpc.frames import Lane
from tidelog.rpc.limits import Limits, Stats
from tidelog.rpc.local import Handler
from tidelog.rpc.network import Network
from tidelog.rpc.secret import Secret

__all__ = [
    "Complaints",
    "CorruptFrame",
    "Handler",
    "Lane",
    "Limits",
    "Network",
    "RpcError",
    "RpcTimeout",
    "Secret",
    "Stats",
    "Unreachable",
]
