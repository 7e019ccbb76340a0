"""Who takes part in a group, and the steps by which that changes.

A configuration is a batch of the log and in force from the moment it is appended, committed or not
(thesis 4.1). A change goes through three of them:

    simple(old) -> simple(old) + learners -> joint(new, old) -> simple(new)

Newcomers first catch up as learners, which count in no quorum. In the joint configuration every
decision needs a majority of both sets. Its quorums intersect those of both neighbours, so a change
is cancelled by leaving it towards the old voters instead of the new.
"""

import struct
from dataclasses import dataclass

from tidelog.raft.types import NodeId, Vnode

_COUNTS = struct.Struct(">BHHH")  # version, voters, old voters, learners
_VNODE = struct.Struct(">ii")
_VERSION = 1


class InvalidConfiguration(ValueError):
    """These bytes, or these sets of nodes, are no configuration."""


@dataclass(frozen=True, slots=True)
class Configuration:
    # The voters after the change, in order of election priority: the first is preferred as leader.
    voters: tuple[Vnode, ...]
    # The voters before the change. Invariant: empty unless joint.
    old_voters: tuple[Vnode, ...] = ()
    # Replicas that receive the log and count nowhere. Invariant: disjoint from both voter sets.
    learners: tuple[Vnode, ...] = ()

    def __post_init__(self) -> None:
        for name in ("voters", "old_voters", "learners"):
            nodes = getattr(self, name)
            if len({node.id for node in nodes}) != len(nodes):
                raise InvalidConfiguration(f"a node is listed twice among the {name} of {self}")
        if any(self.is_voter(learner) for learner in self.learners):
            raise InvalidConfiguration(f"a learner is a voter too in {self}")

    @property
    def is_joint(self) -> bool:
        return bool(self.old_voters)

    @property
    def halves(self) -> tuple[tuple[Vnode, ...], tuple[Vnode, ...]]:
        return (self.voters, self.old_voters)

    @property
    def members(self) -> tuple[Vnode, ...]:
        """Everybody who receives the log, each once."""
        return tuple(dict.fromkeys(self.voters + self.old_voters + self.learners))

    def is_voter(self, node: Vnode) -> bool:
        return node in self.voters or node in self.old_voters

    def priority(self, node: Vnode) -> int:
        """Rank in an election: the higher, the sooner it stands; 0 for those who never do."""
        order = dict.fromkeys(self.voters + self.old_voters)
        for rank, voter in enumerate(order):
            if voter == node:
                return len(order) - rank
        return 0

    def with_learners(self, learners: tuple[Vnode, ...]) -> "Configuration":
        return Configuration(self.voters, self.old_voters, learners)

    def joint(self, voters: tuple[Vnode, ...]) -> "Configuration":
        """The configuration that leads from this simple one to `voters`."""
        remaining = tuple(node for node in self.learners if node not in voters)
        return Configuration(voters, self.voters, remaining)

    def left(self) -> "Configuration":
        """The simple configuration that this joint one leads to."""
        return Configuration(self.voters)

    def cancelled(self) -> "Configuration":
        """The simple configuration that turns this change back."""
        return Configuration(self.old_voters or self.voters)

    def encode(self) -> bytes:
        sets = (self.voters, self.old_voters, self.learners)
        parts = [_COUNTS.pack(_VERSION, *map(len, sets))]
        parts += [_VNODE.pack(*node) for nodes in sets for node in nodes]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "Configuration":
        if len(data) < _COUNTS.size:
            raise InvalidConfiguration(f"{len(data)} bytes are too few for a configuration")
        version, *counts = _COUNTS.unpack_from(data)
        if version != _VERSION:
            raise InvalidConfiguration(
                f"configuration version {version} is not known here; upgrade this node"
            )
        if len(data) != _COUNTS.size + sum(counts) * _VNODE.size:
            raise InvalidConfiguration(f"{len(data)} bytes do not hold {sum(counts)} nodes")
        nodes = [
            Vnode(NodeId(node), revision)
            for node, revision in _VNODE.iter_unpack(data[_COUNTS.size :])
        ]
        voters, old = counts[0], counts[0] + counts[1]
        return cls(tuple(nodes[:voters]), tuple(nodes[voters:old]), tuple(nodes[old:]))

    def __str__(self) -> str:
        text = "(" + " ".join(map(str, self.voters)) + ")"
        if self.old_voters:
            text += "&(" + " ".join(map(str, self.old_voters)) + ")"
        if self.learners:
            text += " learners=(" + " ".join(map(str, self.learners)) + ")"
        return text


EMPTY = Configuration(())
