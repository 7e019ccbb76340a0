"""Commands to a cluster, by hand and by chance, and a state that takes them one after the other."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from hypothesis import strategies as st

from tidelog.cluster import commands as cmd
from tidelog.cluster.errors import Problem
from tidelog.cluster.model import NOTHING_LEFT, Address, MemberStatus
from tidelog.cluster.state import ClusterState, Result
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import BatchType, internal_batch

RPC, KAFKA = Address("10.0.0.1", 9192), Address("10.0.0.1", 9092)


def token(number: int) -> UUID:
    return UUID(int=number)


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


class Town:
    """A `ClusterState` and the means to give it commands, each under a token of its own."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self._tokens = 1 << 64

    @classmethod
    def founded(cls, *members: int) -> "Town":
        """A cluster whose founders have all joined."""
        town = cls()
        town.do(cmd.CreateCluster(token=token(1), cluster_id="harbour", seeds=nodes(*members)))
        for member in members:
            town.do(join(member))
        return town

    def try_(self, command: cmd.Command) -> Result:
        """Carry out a command under a new token; return what came of it."""
        self._tokens += 1
        fresh = replace(command, token=token(self._tokens))
        self.feed(fresh)
        return self.state.results[fresh.token]

    def do(self, command: cmd.Command) -> int | None:
        """Carry out a command that must be carried out."""
        return self.try_(command).get()

    def number(self, command: cmd.Command) -> int:
        """Carry out a command whose result is a number."""
        value = self.do(command)
        assert value is not None
        return value

    def refuses(self, command: cmd.Command) -> Problem:
        """Carry out a command that must be refused and must change nothing; return why."""
        before = contents(self.state)
        result = self.try_(command)
        assert result.problem is not None, f"{command} was carried out"
        assert result.message
        assert contents(self.state) == before
        return result.problem

    def feed(self, command: cmd.Command) -> None:
        self.state.apply(internal_batch(BatchType.CHANGELOG, cmd.encode(command)))
        self.state.check_invariants()

    def copy(self) -> ClusterState:
        other = ClusterState()
        other.restore(self.state.snapshot())
        other.check_invariants()
        return other


def contents(state: ClusterState) -> tuple[object, ...]:
    """All that a state says of a cluster, without the record of commands."""
    return (
        state.cluster_id,
        dict(state.seeds),
        dict(state.members),
        dict(state.topics),
        dict(state.config),
        dict(state.features),
        state.needed_version,
        state.next_group,
        state.next_revision,
        state.next_producer_id,
        {node: count for node, count in state.replica_counts.items() if count},
        {node: count for node, count in state.leader_counts.items() if count},
    )


# --- Commands with sensible fields; the token is given later ------------------------------------

T = token(0)


def join(number: int, *, rack: str | None = None, version: int = 1) -> cmd.AddMember:
    return cmd.AddMember(
        token=T, id=NodeId(number), rack=rack, rpc=RPC, kafka=KAFKA, version=version
    )


def update(number: int, *, rack: str | None = None, version: int = 1) -> cmd.UpdateMember:
    return cmd.UpdateMember(
        token=T, id=NodeId(number), rack=rack, rpc=RPC, kafka=KAFKA, version=version
    )


def create(name: str, *replicas: tuple[int, ...], id: int = 0, **config: str) -> cmd.CreateTopic:
    return cmd.CreateTopic(
        token=T,
        name=name,
        id=token(id or 1000 + sum(name.encode())),
        replicas=tuple(nodes(*each) for each in replicas),
        config=config,
        internal=False,
    )


def status(number: int, status: MemberStatus) -> cmd.SetMemberStatus:
    return cmd.SetMemberStatus(token=T, id=NodeId(number), status=status)


def reassign(name: str, index: int, *replicas: int) -> cmd.Reassign:
    return cmd.Reassign(token=T, name=name, index=index, replicas=nodes(*replicas))


def cancel(name: str, index: int) -> cmd.CancelReassign:
    return cmd.CancelReassign(token=T, name=name, index=index)


def lose(node: int, group: int, revision: int) -> cmd.ReplaceReplicas:
    lost = cmd.LostReplica(GroupId(group), revision)
    return cmd.ReplaceReplicas(token=T, node=NodeId(node), lost=(lost,))


def give_up(node: int, lost: Sequence[int], cluster_id: str = "haven") -> cmd.RecoverCluster:
    return cmd.RecoverCluster(
        token=T,
        node=NodeId(node),
        cluster_id=cluster_id,
        lost=nodes(*lost),
        empty=not cluster_id.islower(),
        at_ms=0,
        end=0,
    )


def go_on(node: int, group: int, revision: int) -> cmd.RecoverPartitions:
    survivor = cmd.Survivor(GroupId(group), NodeId(node), revision)
    return cmd.RecoverPartitions(token=T, node=NodeId(node), survivors=(survivor,), at_ms=0)


def feature(name: str, level: int, needs: int) -> cmd.EnableFeature:
    return cmd.EnableFeature(token=T, name=name, level=level, needs=needs)


# --- Commands by chance: few names and nodes, so that they meet ------------------------------

_tokens = st.integers(0, 2**128 - 1).map(token)
_ids = st.integers(1, 4).map(token)
_nodes = st.integers(0, 5).map(NodeId)
_names = st.sampled_from(["tide", "ebb", "", "no/name"])
_assignments = st.lists(_nodes, max_size=4).map(tuple)
_many = st.lists(_assignments, max_size=3).map(tuple)
_texts = st.sampled_from(["a", "b", "", "x" * 2000])
_option = st.sampled_from(["retention.ms", "segment.bytes", "no name"])
_addresses = st.builds(
    Address, st.sampled_from(["10.0.0.1", ""]), st.sampled_from([9092, 9092, 0, 70000])
)
_racks = st.sampled_from([None, "a", "b", ""])
_versions = st.integers(-1, 3)
_indexes = st.integers(-1, 3)
_vnodes = st.builds(Vnode, _nodes, st.integers(0, 9))
_changes = st.dictionaries(_option, st.none() | _texts, max_size=3)

_survivors = st.builds(
    cmd.Survivor, st.integers(0, 6).map(GroupId), _nodes, st.integers(NOTHING_LEFT, 9)
)

commands: st.SearchStrategy[cmd.Command] = st.one_of(
    st.builds(
        cmd.CreateCluster,
        token=_tokens,
        cluster_id=st.sampled_from(["harbour", ""]),
        seeds=_assignments,
    ),
    st.builds(
        cmd.CreateTopic,
        token=_tokens,
        name=_names,
        id=_ids,
        replicas=_many,
        config=st.dictionaries(_option, _texts, max_size=2),
        internal=st.booleans(),
    ),
    st.builds(cmd.DeleteTopic, token=_tokens, name=_names, id=_ids),
    st.builds(
        cmd.AddPartitions, token=_tokens, name=_names, id=_ids, first=_indexes, replicas=_many
    ),
    st.builds(cmd.SetTopicConfig, token=_tokens, name=_names, changes=_changes),
    st.builds(cmd.SetClusterConfig, token=_tokens, changes=_changes),
    st.builds(
        cmd.AddMember,
        token=_tokens,
        id=_nodes,
        rack=_racks,
        rpc=_addresses,
        kafka=_addresses,
        version=_versions,
    ),
    st.builds(
        cmd.UpdateMember,
        token=_tokens,
        id=_nodes,
        rack=_racks,
        rpc=_addresses,
        kafka=_addresses,
        version=_versions,
    ),
    st.builds(
        cmd.ReplaceMember,
        token=_tokens,
        id=_nodes,
        revision=st.integers(0, 9),
        birth=_texts,
    ),
    st.builds(cmd.SetMemberStatus, token=_tokens, id=_nodes, status=st.sampled_from(MemberStatus)),
    st.builds(cmd.RemoveMember, token=_tokens, id=_nodes),
    st.builds(cmd.Reassign, token=_tokens, name=_names, index=_indexes, replicas=_assignments),
    st.builds(cmd.CancelReassign, token=_tokens, name=_names, index=_indexes),
    st.builds(
        cmd.FinishReassign,
        token=_tokens,
        group=st.integers(0, 6).map(GroupId),
        target=st.lists(_vnodes, max_size=3).map(tuple),
    ),
    st.builds(
        cmd.ReplaceReplicas,
        token=_tokens,
        node=_nodes,
        lost=st.lists(
            st.builds(cmd.LostReplica, st.integers(0, 6).map(GroupId), st.integers(0, 9)),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        cmd.RecoverCluster,
        token=_tokens,
        node=_nodes,
        cluster_id=st.sampled_from(["harbour", "haven", ""]),
        lost=_assignments,
        empty=st.booleans(),
        at_ms=st.just(0),
        end=st.integers(-1, 9),
    ),
    st.builds(
        cmd.RecoverPartitions,
        token=_tokens,
        node=_nodes,
        survivors=st.lists(_survivors, max_size=3).map(tuple),
        at_ms=st.just(0),
    ),
    st.builds(cmd.AllocateProducerIds, token=_tokens, count=st.integers(-1, 1_000_001)),
    st.builds(cmd.EnableFeature, token=_tokens, name=_option, level=_indexes, needs=_versions),
)

# The same, but more often with something that can be carried out.
likely: st.SearchStrategy[cmd.Command] = st.one_of(
    st.builds(join, st.integers(0, 5), version=st.integers(0, 3)),
    st.builds(
        lambda name, replicas: create(name, *replicas),
        st.sampled_from(["tide", "ebb"]),
        st.sampled_from([((0, 1),), ((1, 2), (2, 0)), ((0,), (1,), (2,))]),
    ),
    st.builds(
        reassign,
        st.sampled_from(["tide", "ebb"]),
        st.integers(0, 1),
        *[st.integers(0, 5)] * 2,
    ),
    st.builds(cancel, st.sampled_from(["tide", "ebb"]), st.integers(0, 1)),
    st.builds(lose, st.integers(0, 5), st.integers(1, 4), st.integers(1, 9)),
    st.builds(status, st.integers(0, 5), st.sampled_from(MemberStatus)),
    st.builds(
        give_up,
        st.integers(0, 5),
        st.lists(st.integers(0, 5), max_size=3, unique=True),
        st.text(max_size=3),
    ),
    st.builds(go_on, st.integers(0, 5), st.integers(1, 4), st.integers(NOTHING_LEFT, 9)),
)
