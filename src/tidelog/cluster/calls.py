"""What nodes ask each other besides Raft: the numbers of the calls, and what travels in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tidelog.cluster import strictjson
from tidelog.cluster.errors import ClusterError, Problem
from tidelog.cluster.model import Address
from tidelog.cluster.room import Level
from tidelog.cluster.state import Result
from tidelog.raft.types import NodeId, Vnode
from tidelog.rpc import Lane


class Call(IntEnum):
    """Numbers are the wire format: one is never used again for something else."""

    PING = 1  # are you there?
    JOIN = 2  # `Application`, answered with an `Admission`; passed on to the leader of group 0
    PROPOSE = 3  # a command (`commands.encode`), answered with a `Result`; leader of group 0 only
    CLAIMS = 4  # what the sender leads (`leaders.encode_claims`)
    TRANSFER = 5  # `Handover`: give leadership of a group away; its leader only
    OPERATE = 6  # an operation about the node that is asked (`operations.py`)
    WHO = 7  # who are you, and which cluster is yours? `Who`, answered with the same
    MEMBERS = 8  # who are the members? Answered with `Members`
    ROOM = 9  # `RoomLeft`: how much room the sender's disk has


# What the other end of a connection may ask, by what it has proven. A call that is in none of these
# sets is unknown to this release, and refused as such.
MAY_CALL: Final = {
    Lane.GUEST: frozenset({Call.PING}),
    Lane.NEWCOMER: frozenset({Call.PING, Call.WHO, Call.JOIN}),
    Lane.CONTROL: frozenset(Call),
    Lane.DATA: frozenset[Call](),
}


def forbidden(lane: Lane, method: int) -> ClusterError:
    """Why a call is refused that is not in `MAY_CALL`."""
    if method not in frozenset(Call):
        return ClusterError(
            Problem.UNAVAILABLE, f"there is no call {method} in this release: upgrade this node"
        )
    return ClusterError(
        Problem.FORBIDDEN,
        f"{Call(method).name} is refused to a {lane.name.lower()}: only a node that has joined the"
        " cluster may ask for it",
    )


def stranger(node: NodeId) -> ClusterError:
    """Why a call is refused to a node that knows the secret and is not a member."""
    return ClusterError(
        Problem.FORBIDDEN,
        f"node {node} is not a member of this cluster and changes nothing",
    )


@dataclass(frozen=True, slots=True)
class Application:
    """A node says who it is and where, when it starts."""

    id: NodeId
    rack: str | None
    rpc: Address
    kafka: Address
    version: int
    birth: str  # of its data directory
    cluster_id: str  # "" if it knows none
    revision: int | None  # of its place in group 0; None: it has none, or forgot
    lost: bool  # it cannot go on under that revision
    incarnation: str  # of this process


@dataclass(frozen=True, slots=True)
class Who:
    """What a process says of itself to any other: nothing that is secret."""

    id: NodeId
    birth: str  # "" if it must not found a cluster, because it forgot one
    incarnation: str
    cluster_id: str  # "": none yet
    births: Mapping[str, str]  # with whom it founded that cluster, by id


@dataclass(frozen=True, slots=True)
class Peer:
    id: NodeId
    rpc: Address


@dataclass(frozen=True, slots=True)
class Members:
    version: int  # of the state that names them
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Admission:
    revision: int  # of the node in group 0
    version: int  # of the cluster's state that says so: whoever is older has not caught up yet
    peers: tuple[Peer, ...]
    cluster_id: str


@dataclass(frozen=True, slots=True)
class Handover:
    group: int
    target: Vnode


@dataclass(frozen=True, slots=True)
class RoomLeft:
    level: Level


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a call was refused, in a form that the caller can raise again."""

    problem: Problem
    message: str


def refusal_text(error: ClusterError) -> str:
    """What an `RpcError` says, so that `raise_refusal` finds the problem in it."""
    return strictjson.write(Refused(error.problem, error.message)).decode()


def refusal_of(text: str) -> ClusterError:
    try:
        refused = strictjson.read(Refused, text.encode())
    except strictjson.NotThis:
        return ClusterError(Problem.UNAVAILABLE, text)
    return ClusterError(refused.problem, refused.message)


def encode_result(result: Result) -> bytes:
    return strictjson.write(result)


def decode_result(data: bytes) -> Result:
    return strictjson.read(Result, data)
