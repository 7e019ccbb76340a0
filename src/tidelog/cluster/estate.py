"""What the state remembers of recoveries: who goes on alone, and what an operator gave up."""

from tidelog.cluster.catalog import Catalog
from tidelog.cluster.model import GROUP_MARGIN, MAX_RECOVERIES, Heir, Recovery
from tidelog.cluster.succession import Succession
from tidelog.raft.types import GroupId, NodeId, Vnode


class Estate(Catalog):
    """A catalog some of whose partitions may have lost their majority once."""

    next_group: int

    def __init__(self) -> None:
        super().__init__()
        # Replicas that go on alone for now: until the others of their partitions have caught up.
        self.heirs: dict[GroupId, Heir] = {}
        self.recoveries: tuple[Recovery, ...] = ()  # oldest first

    def knows(self, group: GroupId, vnode: Vnode) -> bool:
        """Whether the files of a replica may still be of use, if only to the one that follows."""
        partition, heir = self.partition(group), self.heirs.get(group)
        known = partition is not None and vnode in partition.known
        return known or (heir is not None and heir.former == vnode)

    def gave_out(self, group: GroupId) -> bool:
        """Whether it is known what became of a group: this state gave it its number."""
        return group < self.next_group and not any(
            0 <= each.unseen <= group < each.unseen + GROUP_MARGIN for each in self.recoveries
        )

    def _pass_on(self, name: str, succession: Succession) -> Heir | None:
        heir = succession.heir
        self._replace_partition(name, succession.partition)
        self.heirs.pop(succession.partition.group, None)
        if heir is not None:
            self.heirs[heir.group] = heir
        return heir

    def _note_recovery(
        self,
        heirs: list[Heir | None],
        *,
        at_ms: int,
        node: NodeId,
        before: str,
        after: str,
        lost: tuple[NodeId, ...] = (),
        end: int = -1,
        unseen: int = -1,
    ) -> None:
        found = [heir for heir in heirs if heir is not None]
        empty = sum(heir.former is None for heir in found)
        alone = len(found) - empty
        recovery = Recovery(at_ms, node, before, after, lost, alone, empty, end, unseen)
        self.recoveries = (*self.recoveries, recovery)[-MAX_RECOVERIES:]
