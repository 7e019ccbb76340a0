"""The partitions of one node: opened, configured, moved and removed as the cluster's state says.

The state says which replicas this node should have; this is what makes it so. Files are opened and
removed in a thread, because a topic may have a thousand partitions.

A partition that is being moved is changed by its own leader: it asks Raft for the new replicas, and
reports to the controller when they are in force. Whoever leads does that, so a leader that dies on
the way is no matter.
"""

import asyncio
import itertools
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.cluster import commands as cmd
from tidelog.cluster.configs import TopicConfig
from tidelog.cluster.errors import ClusterError, reason_of
from tidelog.cluster.groups import Hosted
from tidelog.cluster.healing import Failed, Healing
from tidelog.cluster.inheriting import Inherited, take_over, tell
from tidelog.cluster.leaders import Claim
from tidelog.cluster.leftovers import former_controllers, remove
from tidelog.cluster.legacy import Legacy
from tidelog.cluster.lost import LostReplicas
from tidelog.cluster.model import CONTROLLER_GROUP, Heir, PartitionState, TopicState
from tidelog.cluster.partition import Partition, machines_of_a_topic
from tidelog.cluster.registrar import Registrar
from tidelog.raft import events as ev
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.types import GroupId, ShippingMode, Vnode
from tidelog.storage import DamagedLog, wall_ms

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

TOPICS: Final = "topics"  # the directory below which partitions live
# A group that was just opened has no leader. Its preferred replica stands at once, and again after
# these pauses, because the others may not have opened theirs yet; the next one does the same a
# little later, for the case that the preferred one is not there.
STAND_AGAIN_S: Final = (0.02, 0.03, 0.05, 0.1, 0.15, 0.25, 0.4)
NEXT_STANDS_S: Final = 0.3
TEND_S: Final = 0.25  # how often partitions that are being moved are looked after
LOOKS_PER_REVIEW: Final = 20  # how many times less often all others are
CHANGE_TIMEOUT_S: Final = 600.0
FINISH_TIMEOUT_S: Final = 5.0
HANDOVER_S: Final = 2.0  # how long a lost leader may take to hand over
PREDECESSOR_S: Final = 0.1  # how soon to look again whether a closed replica is done with its files
HOUSEKEEPING_BATCH: Final = 50  # partitions looked after before others get the loop
# Partitions that have become quiet and are saved in one round. Each takes some six syncs, which
# those that are busy should hardly notice.
MAX_RESTS: Final = 50
_DIRECTORY: Final = re.compile(r"\d+-g(\d+)-r(\d+)", re.ASCII)


class Hosting:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_group: dict[GroupId, Partition] = {}
        self._opening: dict[GroupId, Vnode] = {}
        self._directories: dict[GroupId, str] = {}
        self._ending: dict[GroupId, Hosted] = {}  # closed, with a job that may use their files yet
        self._seen: dict[str, TopicState] = {}
        self._settings: tuple[object, object] = (None, None)
        self._led: set[GroupId] = set()  # groups whose confirmed leader is here
        self._tasks: set[asyncio.Task[None]] = set()
        # Changes of replicas that were asked for and are under way, and where they lead.
        self._changing: dict[GroupId, tuple[Vnode, ...]] = {}
        self._listeners: list[Callable[[Partition], None]] = []
        self._scheduled = False
        self._closed = False
        self.healing = Healing(node, self._reopen)
        self.lost = LostReplicas(node)
        self._registrar = Registrar(node)
        self._version = 0  # of the state that was acted upon last

    # --- Looking up ------------------------------------------------------------------------------

    def get(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def by_group(self, group: GroupId) -> Partition | None:
        return self._by_group.get(group)

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def led(self) -> int:
        return len(self._led)

    def on_leadership(self, listener: Callable[[Partition], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- Making it so ----------------------------------------------------------------------------

    def start(self) -> None:
        self._node.state.on_change(self.look)
        self._spawn(self._tend())
        self._spawn(self._housekeep())
        self.look()

    def look(self) -> None:
        """The cluster's state may have changed: act on it at the end of this turn."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._node.loop.call_soon(self._reconcile)

    def _reconcile(self) -> None:
        self._scheduled = False
        state = self._node.state
        if self._closed or state.version < self._version:
            return  # what an older state does not have is not gone
        self._version = state.version
        settings = (state.config, state.features)
        all_changed = settings != self._settings
        self._settings = settings
        for name, topic in tuple(state.topics.items()):
            before = self._seen.get(name)
            if all_changed or before is not topic:
                self._seen[name] = topic
                self._reconcile_topic(topic)
                if before is not None and before is not topic:
                    self._remove_replaced(before, topic)
        for group in [group for group in self._by_group if state.partition(group) is None]:
            self._remove(group)
        for group, failed in self.healing:
            wanted = group == CONTROLLER_GROUP or state.partition(group) is not None
            if not wanted and group not in self._opening:
                self.healing.forget(group)
                self._discard_failed(group, failed.vnode)
        gone = self._seen.keys() - state.topics.keys()
        if gone:
            for name in gone:
                del self._seen[name]
            groups = {partition.group for _, partition in state.partitions()}
            self._node.leaders.keep_only(groups | {CONTROLLER_GROUP}, state.next_group)

    def _reconcile_topic(self, topic: TopicState) -> None:
        config = TopicConfig.from_strings(topic.config, self._node.state.config)
        for partition in topic.partitions:
            mine = partition.replica_on(self._node.id)
            hosted = self._by_group.get(partition.group)
            if hosted is not None and hosted.core.vnode != mine:
                self._remove(partition.group)
                hosted = None
            if hosted is not None:
                self._configure(hosted, config)
            elif (
                mine is not None
                and self._opening.get(partition.group) != mine
                and self.lost.why(partition.group, mine) is None
                and not self.healing.holds(partition.group, mine)
            ):
                self._open(topic, partition, mine, config)

    def _configure(self, hosted: Partition, config: TopicConfig) -> None:
        hosted.configure(config)
        options = replace(
            hosted.core.options, flush_bytes=config.flush_bytes, shipping=self._shipping()
        )
        if options != hosted.core.options:
            hosted.core.options = options

    def _shipping(self) -> ShippingMode:
        enabled = self._node.state.features.get("side-snapshots", 0) > 0
        return ShippingMode.SIDE if enabled else ShippingMode.LOG

    def _open(
        self,
        topic: TopicState,
        partition: PartitionState,
        mine: Vnode,
        config: TopicConfig,
        legacy: Legacy | None = None,
    ) -> None:
        registry = self._node.joining.registry
        known = registry.hosts(partition.group, mine.revision)
        why = registry.why_lost(partition.group, mine.revision)
        heir = self._node.state.heirs.get(partition.group)
        takes_over = heir if heir is not None and heir.vnode == mine and not known else None
        if takes_over is not None and not self._is_vacant(partition.group):
            self._node.loop.call_later(PREDECESSOR_S, self._look_again, topic.name)
            return
        if why is None and not known and mine.revision <= self._node.joining.identity.since:
            why = "the data directory of this node is newer than the replica"
        if why is not None:
            self.lost.add(partition.group, mine, why)
            return
        self._opening[partition.group] = mine
        # A newcomer, in whosever place, learns from the leader who takes part.
        founding = partition.founding
        initial = Configuration(founding) if mine in founding else None
        loaded: list[Hosted] = []
        inherited: list[Inherited | None] = []

        def load() -> None:
            if takes_over is not None:
                inherited.append(self._take_over(topic.name, partition, takes_over, config))
            loaded.append(
                self._node.groups.load(
                    partition.group,
                    directory_of(topic.name, partition, mine),
                    vnode=mine,
                    initial=initial,
                    options=Options(flush_bytes=config.flush_bytes, shipping=self._shipping()),
                    log_config=config.log_config(),
                    flush_ms=config.flush_ms,
                    machines=machines_of_a_topic,
                    known=known or takes_over is not None,
                    legacy=legacy or self._node.marks.get(partition.group, mine.revision),
                )
            )

        def done(error: OSError | None) -> None:
            if inherited:
                tell(f"{topic.name}/{partition.index}", inherited[0])
            if error is None and not known and takes_over is None:
                self._registrar.add(partition.group, mine.revision, registered)
            else:
                registered(error)

        def registered(error: OSError | None) -> None:
            if self._opening.get(partition.group) == mine:
                del self._opening[partition.group]
            if error is not None and loaded:
                loaded[0].replica.close()
            if isinstance(error, DamagedLog):
                self._lose(partition.group, mine, str(error))
                return
            if error is not None:
                self.healing.add(partition.group, mine, reason_of(error), None)
                return
            self.healing.opened(partition.group)
            self._opened(topic.name, partition, loaded[0])

        self._node.executor.submit("open", load, done)

    def _is_vacant(self, group: GroupId) -> bool:
        """Whether no other replica of a group here has its files open."""
        ending = self._ending.get(group)
        if ending is not None and ending.idle:
            del self._ending[group]
        return group not in self._opening and group not in self._ending

    def _look_again(self, name: str) -> None:
        self._seen.pop(name, None)
        self.look()

    def _take_over(
        self, name: str, partition: PartitionState, heir: Heir, config: TopicConfig
    ) -> Inherited | None:
        """Make the files of a replica those of its heir, in a thread; raises `DamagedLog`."""
        node, former = self._node, heir.former
        return take_over(
            node.groups.disk,
            node.config.data,
            node.joining.registry,
            heir,
            None if former is None else directory_of(name, partition, former),
            directory_of(name, partition, heir.vnode),
            config.log_config(),
        )

    def _opened(self, name: str, partition: PartitionState, hosted: Hosted) -> None:
        state = self._node.state
        current = state.partition(partition.group)
        mine = None if current is None else current.replica_on(self._node.id)
        if self._closed or hosted.replica.core.vnode != mine:
            hosted.replica.close()  # it was deleted, or moved away, in the meantime
            self._discard(partition.group, hosted.replica.core.vnode, name, partition)
            return
        hosted.replica.on_stopped = lambda why: _complain_of_release(name, partition.index, why)
        self._node.groups.admit(hosted)
        topic = state.topics[name]
        config = TopicConfig.from_strings(topic.config, state.config)
        opened = Partition(self._node.groups, hosted, name, partition.index, config)
        hosted.replica.core.voter.electable = self._node.may_lead
        hosted.replica.on_lost = lambda why: self._lose(
            opened.group, hosted.replica.core.vnode, why
        )
        hosted.replica.on_failed = lambda why: self.healing.add(
            opened.group, hosted.replica.core.vnode, why, hosted
        )
        self._node.space.admit(hosted)
        self._partitions[name, partition.index] = opened
        self._by_group[partition.group] = opened
        self._directories[partition.group] = directory_of(
            name, partition, hosted.replica.core.vnode
        )
        opened.watch(lambda: self._watch(opened))
        self._configure(opened, config)
        self._watch(opened)
        heir = state.heirs.get(partition.group)
        if heir is not None and heir.vnode == mine:
            self._node.groups.stand(hosted, STAND_AGAIN_S)
        elif mine in partition.founding:
            delay = partition.founding.index(mine) * NEXT_STANDS_S
            self._node.loop.call_later(delay, self._node.groups.stand, hosted, STAND_AGAIN_S)

    # --- Healing ---------------------------------------------------------------------------------

    def _reopen(self, group: GroupId, failed: Failed) -> None:
        """Open a failed replica again; one that is open yet is closed first."""
        if group == CONTROLLER_GROUP:
            self._node.group_zero.reopen(failed)
            return
        if failed.hosted is not None:
            failed.legacy = failed.hosted.replica.legacy(machines=False)
            partition = self._by_group.get(group)
            if partition is not None and partition.hosted is failed.hosted:
                self._forget(partition)
            failed.hosted = None
        state = self._node.state
        current = state.partition(group)
        place = state.partition_of(group)
        if current is None or place is None or current.replica_on(self._node.id) != failed.vnode:
            self.healing.forget(group)
            self._discard_failed(group, failed.vnode)
            return
        topic = state.topics[place[0]]
        config = TopicConfig.from_strings(topic.config, state.config)
        self._open(topic, current, failed.vnode, config, failed.legacy)

    def _discard_failed(self, group: GroupId, vnode: Vnode) -> None:
        """Delete what a replica leaves that is closed and no longer wanted."""
        if self._node.state.knows(group, vnode):
            return
        for path in _replicas_below(self._node.config.data):
            if _place_of(path.name) == (group, vnode.revision):
                self._delete_soon(f"{TOPICS}/{path.parent.name}/{path.name}", vnode, group)

    # --- Losing ----------------------------------------------------------------------------------

    def replica_lost(self, group: GroupId, why: str) -> None:
        """A replica here forgot, or holds what is damaged: it ends, and a new one is built from its
        peers.

        It hands leadership over first if it can. Its files stay until the new one has caught up.
        """
        partition = self._by_group.get(group)
        if partition is not None:
            partition.replica.lose(why)

    def _lose(self, group: GroupId, vnode: Vnode, why: str) -> None:
        """Count a replica as lost; it takes no part, now and after a restart."""
        self.healing.forget(group)
        self.lost.add(group, vnode, why)
        registry = self._node.joining.registry
        self._node.executor.submit(
            "vote", lambda: registry.lose(group, vnode.revision, why), _complain_of_registry
        )
        partition = self._by_group.get(group)
        if partition is not None and partition.core.vnode == vnode:
            self._spawn(self._give_up(partition, why))

    async def _give_up(self, partition: Partition, why: str) -> None:
        heir = partition.hosted.heir(self._node.presence.is_alive)
        if heir is not None:
            await self._node.groups.transfer(partition.hosted, heir, HANDOVER_S)
        if self._by_group.get(partition.group) is partition:
            partition.hosted.step(ev.StorageLost(why))
            self._forget(partition)
            self.look()

    # --- Removing --------------------------------------------------------------------------------

    def _remove(self, group: GroupId) -> None:
        """Close a replica, and delete its files unless it was lost: those stay a while."""
        partition = self._by_group[group]
        self.healing.forget(group)
        directory = self._forget(partition)
        if not self._node.state.knows(group, partition.core.vnode):
            self._delete_soon(directory, partition.core.vnode, group)

    def _forget(self, partition: Partition) -> str:
        """Close a replica; return where its files are."""
        del self._by_group[partition.group]
        del self._partitions[partition.topic, partition.index]
        if not partition.hosted.idle:
            self._ending[partition.group] = partition.hosted
        self._close(partition)
        self._changing.pop(partition.group, None)
        return self._directories.pop(partition.group)

    def _remove_replaced(self, before: TopicState, after: TopicState) -> None:
        """Delete the files of replicas here that were lost and are no longer needed."""
        for was, now in zip(before.partitions, after.partitions, strict=False):
            if was.group == now.group and was.known != now.known:
                for vnode in was.known:
                    hosted = self._by_group.get(was.group)
                    here = hosted is not None and hosted.core.vnode == vnode
                    known = self._node.state.knows(now.group, vnode)
                    if vnode.id == self._node.id and not known and not here:
                        self._delete_soon(directory_of(after.name, now, vnode), vnode, now.group)

    def _delete_soon(self, directory: str, vnode: Vnode, group: GroupId) -> None:
        registry = self._node.joining.registry

        def delete() -> None:
            self._delete(directory)
            registry.remove([(group, vnode.revision)])

        self._node.executor.submit("open", delete, lambda error: _complain(directory, error))

    def _close(self, partition: Partition) -> None:
        partition.closed = True
        self._led.discard(partition.group)
        self._node.presence.lead_no_more(partition.group)
        self._node.groups.close(partition.group)
        partition.wake()
        self._notify(partition)

    def _discard(self, group: GroupId, vnode: Vnode, name: str, partition: PartitionState) -> None:
        if self._node.state.knows(group, vnode):
            return
        if not self._closed and group not in self._opening and group not in self._by_group:
            self._delete_soon(directory_of(name, partition, vnode), vnode, group)

    def _delete(self, directory: str) -> None:
        path = self._node.config.data / directory
        if path.exists():
            shutil.rmtree(path)
        parent = path.parent
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()

    def delete_leftovers(self) -> None:
        """Delete replicas that a crash kept this node from deleting; its state must be current.

        Only what this node is known to have hosted, and what the cluster once assigned and took
        back: a group that the state never gave out is one that the state forgot.
        """
        state, registry = self._node.state, self._node.joining.registry
        self._sweep()
        strange = 0
        for path in _replicas_below(self._node.config.data):
            place = _place_of(path.name)
            if place is None or not registry.hosts(*place):
                strange += place is None or not self._is_known(*place)
                continue
            group, revision = place
            if not state.gave_out(group) or self._is_known(group, revision):
                strange += not state.gave_out(group)
                continue
            directory = f"{TOPICS}/{path.parent.name}/{path.name}"
            log.info("deleting %s: the cluster took this replica off this node", directory)
            self._delete_soon(directory, Vnode(self._node.id, revision), group)
        if strange:
            log.warning(
                "%d directories below %s belong to no replica that this node knows of: they stay",
                strange,
                self._node.config.data / TOPICS,
            )

    def _sweep(self) -> None:
        """Remove what is left of former replicas of group 0, and of topics."""
        data, joining = self._node.config.data, self._node.joining
        revision = joining.identity.revision
        assert revision is not None
        former = former_controllers(data, revision)
        for _, path in former:
            log.info("deleting %s: another replica of group 0 took its place", path.name)

        def sweep() -> None:
            remove(former, data / TOPICS)
            joining.registry.remove([(CONTROLLER_GROUP, each) for each, _ in former])

        self._node.executor.submit("open", sweep, lambda error: _complain(TOPICS, error))

    def _is_known(self, group: GroupId, revision: int) -> bool:
        return self._node.state.knows(group, Vnode(self._node.id, revision))

    # --- Leadership ------------------------------------------------------------------------------

    def _watch(self, partition: Partition) -> None:
        """Something moved; tell whoever wants to know if it is leadership."""
        leads = partition.is_leader
        if leads == (partition.group in self._led):
            return
        if leads:
            self._led.add(partition.group)
            self._node.presence.lead(
                Claim(partition.group, partition.core.term, partition.in_sync())
            )
        else:
            self._led.discard(partition.group)
            self._changing.pop(partition.group, None)
            self._node.presence.lead_no_more(partition.group)
        self._notify(partition)

    def _notify(self, partition: Partition) -> None:
        for listener in tuple(self._listeners):
            listener(partition)

    # --- Moving ----------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Move on the partitions that are led here and should be elsewhere."""
        for look in itertools.count():
            await asyncio.sleep(TEND_S)
            moving = self._led & self._node.state.moving
            if look % LOOKS_PER_REVIEW == 0:
                moving |= self._with_learners()
            for group in moving:
                state = self._node.state.partition(group)
                partition = self._by_group.get(group)
                if state is not None and partition is not None:
                    self._move_on(partition, state)

    def _with_learners(self) -> set[GroupId]:
        """Groups that are led here and have somebody left over from a change that did not end."""
        return {
            group
            for group in self._led
            if (partition := self._by_group.get(group)) is not None
            and partition.core.configuration.learners
        }

    def _move_on(self, partition: Partition, state: PartitionState) -> None:
        core = partition.core
        goal = state.target or state.replicas
        current = core.configuration
        if current == Configuration(goal):
            self._node.presence.look_again(partition.group)
            if state.target is not None and core.configuration_offset <= core.committed:
                self._spawn(self._finish(partition.group, goal))
            return
        goal = self._within_reach(partition, goal)
        if current == Configuration(goal):
            return
        under_way = self._changing.get(partition.group)
        if under_way is None:
            self._changing[partition.group] = goal
            self._spawn(self._change(partition, goal))
        elif under_way != goal:
            self._changing[partition.group] = goal
            self._spawn(self._cancel(partition))

    def _within_reach(self, partition: Partition, goal: tuple[Vnode, ...]) -> tuple[Vnode, ...]:
        """Where a partition can go now: one with a single copy waits for no node that is gone."""
        if partition.group not in self._node.state.heirs:
            return goal
        voters = partition.core.configuration.voters
        return tuple(v for v in goal if v in voters or self._node.presence.is_alive(v.id))

    async def _change(self, partition: Partition, goal: tuple[Vnode, ...]) -> None:
        outcome = await self._node.groups.ask(
            partition.hosted, lambda token: ev.ChangeConfiguration(token, goal), CHANGE_TIMEOUT_S
        )
        self._changing.pop(partition.group, None)
        if isinstance(outcome, ev.Refused):
            log.info(
                "%s/%d is not moved yet: %s", partition.topic, partition.index, outcome.why.value
            )

    async def _cancel(self, partition: Partition) -> None:
        await self._node.groups.ask(partition.hosted, ev.CancelChange, CHANGE_TIMEOUT_S)

    async def _finish(self, group: GroupId, goal: tuple[Vnode, ...]) -> None:
        if group in self._changing:
            return
        self._changing[group] = goal
        try:
            await self._node.controller.propose(
                cmd.FinishReassign(token=cmd.new_token(), group=group, target=goal),
                FINISH_TIMEOUT_S,
            )
        except ClusterError as error:
            log.debug("group %d has moved, but that is not known yet: %s", group, error)
        finally:
            self._changing.pop(group, None)

    # --- Housekeeping ----------------------------------------------------------------------------

    async def _housekeep(self) -> None:
        while True:
            await asyncio.sleep(self._node.config.housekeeping_s)
            now = wall_ms()
            rests = 0
            for number, partition in enumerate(self):
                if not partition.closed:
                    partition.housekeep(now)
                    if rests < MAX_RESTS:
                        rests += partition.replica.rest()
                if number % HOUSEKEEPING_BATCH == HOUSEKEEPING_BATCH - 1:
                    await asyncio.sleep(0)

    # --- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        self.lost.close()
        self.healing.close()
        for task in self._tasks:
            task.cancel()
        for partition in self:
            self._close(partition)
        self._partitions.clear()
        self._by_group.clear()

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._node.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def directory_of(topic: str, partition: PartitionState, vnode: Vnode) -> str:
    """Where a replica lives. Topics may be deleted and created anew, and replicas may come back."""
    return f"{TOPICS}/{topic}/{partition.index}-g{partition.group}-r{vnode.revision}"


def _replicas_below(root: Path) -> list[Path]:
    topics = root / TOPICS
    if not topics.is_dir():
        return []
    return [each for topic in topics.iterdir() if topic.is_dir() for each in topic.iterdir()]


def _place_of(name: str) -> tuple[GroupId, int] | None:
    """Which replica a directory is of, by its name; see `directory_of`."""
    found = _DIRECTORY.fullmatch(name)
    return None if found is None else (GroupId(int(found[1])), int(found[2]))


def _complain_of_registry(error: OSError | None) -> None:
    if error is not None:
        log.warning("a lost replica could not be noted, and is found again at a start: %s", error)


def _complain_of_release(topic: str, index: int, why: str) -> None:
    log.error("the replica of %s/%d on this node goes no further: %s", topic, index, why)


def _complain(directory: str, error: OSError | None) -> None:
    if error is not None:
        log.warning("%s could not be deleted: %s", directory, error)
