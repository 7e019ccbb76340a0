"""Snapshots that are not truncation (seed 3): both ways to ship them, holes, reads, install.

The machine of these members counts records, so whoever folds over a hole is caught.
"""

from dataclasses import replace

import pytest
from tests.raft.members import LOG_MODE, SIDE_MODE, Group, Member, vnode

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.core import Options
from tidelog.raft.progress import State
from tidelog.raft.types import Level, Role
from tidelog.records import NO_OFFSET, BatchType, Offset

BOTH = pytest.mark.parametrize("options", [LOG_MODE, SIDE_MODE], ids=["log", "side"])


def filled(count: int, options: Options) -> Group:
    """Three members, n1 leads, offsets 1..count hold a record each and are applied everywhere."""
    group = Group.of(3, options=options)
    group.elect(1)
    write(group, count)
    return group


def write(group: Group, count: int) -> None:
    leader = group.leader()
    for _ in range(count):
        leader.propose(1000 + leader.core.dirty)
        group.deliver()
    group.beat(leader.vnode.id)


def compact(group: Group, token: int = 7) -> Offset:
    """Take and ship a snapshot, let every replica compact: all that is below it but the last."""
    leader = group.leader()
    leader.step(ev.Compact(token))
    group.deliver()
    for _ in range(3):
        group.beat(leader.vnode.id)
    outcome = leader.outcome(token)
    assert isinstance(outcome, ev.Done), outcome
    for member in group:
        punch(member)
    return outcome.offset


def punch(member: Member) -> None:
    """Compact: of the data that may go, only the last batch stays."""
    data = [
        batch.base_offset
        for batch in member.log.batches
        if batch.type is BatchType.DATA and batch.last_offset <= member.core.collectible
    ]
    member.log.remove(*data[:-1])


def records(group: Group) -> list[int]:
    return [member.machine.records for member in group]


# --- Shipping -----------------------------------------------------------------------------------


@BOTH
def test_a_compaction_leaves_the_fold_of_every_replica_as_it_was(options: Options) -> None:
    group = filled(5, options)
    at = compact(group)
    assert at == 5
    assert [member.core.collectible for member in group] == [5, 5, 5]
    assert [len(member.log.batches) for member in group] < [6, 6, 6]
    write(group, 2)
    assert records(group) == [7, 7, 7]
    assert not any(member.core.tainted for member in group)


@BOTH
def test_every_replica_has_the_same_snapshot(options: Options) -> None:
    group = filled(5, options)
    at = compact(group)
    assert len({member.snapshots[at] for member in group}) == 1


def test_through_the_log_a_snapshot_takes_an_offset_and_beside_it_none() -> None:
    by_log, beside = filled(3, LOG_MODE), filled(3, SIDE_MODE)
    compact(by_log)
    compact(beside)
    assert by_log[1].core.dirty == 4
    assert by_log[1].log.batches[-1].type is BatchType.SNAPSHOT
    assert beside[1].core.dirty == 3


def test_beside_the_log_nothing_is_compacted_before_a_majority_stores_the_snapshot() -> None:
    group = filled(5, SIDE_MODE)
    leader = group[1]
    group.cut_off = {2, 3}
    leader.step(ev.Compact(7))
    group.deliver()
    group.beat(1)
    assert leader.core.snapshot is not None
    assert leader.core.collectible == NO_OFFSET
    assert leader.core.hard.compacted == NO_OFFSET
    assert leader.outcome(7) is None
    group.cut_off = {3}
    group.beat(1)
    assert leader.core.collectible == 5
    assert leader.is_done(7)


def test_beside_the_log_appends_say_how_far_the_log_is_compacted() -> None:
    group = filled(5, SIDE_MODE)
    assert {each.compacted for each in group[1].said(msg.AppendRequest)} == {NO_OFFSET}
    compact(group)
    write(group, 1)
    assert group[1].said(msg.AppendRequest)[-1].compacted == 5


def test_through_the_log_nothing_is_compacted_before_the_snapshot_is_committed() -> None:
    group = filled(5, LOG_MODE)
    leader = group[1]
    group.cut_off = {2, 3}
    leader.step(ev.Compact(7))
    group.deliver()
    assert leader.log.batches[-1].type is BatchType.SNAPSHOT
    assert leader.core.collectible == NO_OFFSET
    group.cut_off = set()
    group.beat(1)
    group.beat(1)
    assert leader.core.collectible == 5


def test_what_is_compacted_is_on_disk_before_anything_is() -> None:
    group = filled(5, SIDE_MODE)
    leader = group[1]
    leader.slow_vote = True
    leader.step(ev.Compact(7))
    group.deliver()
    assert leader.core.hard.compacted == 5
    assert leader.core.collectible == NO_OFFSET
    leader.finish_votes()
    assert leader.core.collectible == 5


@BOTH
def test_one_snapshot_is_shipped_at_a_time_and_only_by_a_leader_that_is_ready(
    options: Options,
) -> None:
    group = filled(2, options)
    group[2].step(ev.Compact(1))
    assert group[2].refusal(1) is ev.Refusal.NOT_LEADER
    leader = group[1]
    leader.slow_snapshot = True
    leader.step(ev.Compact(2))
    leader.step(ev.Compact(3))
    assert leader.refusal(3) is ev.Refusal.BUSY
    leader.slow_snapshot = False
    leader.finish_snapshots()
    group.deliver()
    assert leader.is_done(2)


@BOTH
def test_there_is_no_second_snapshot_of_the_same_place(options: Options) -> None:
    group = filled(2, options)
    compact(group, 1)
    leader = group[1]
    before = leader.core.applied
    leader.step(ev.Compact(2))
    group.deliver()
    if leader.core.applied == before:
        assert leader.refusal(2) is ev.Refusal.INVALID
    else:
        assert leader.is_done(2), "through the log the snapshot batch itself is something new"


def test_a_shipment_ends_with_leadership() -> None:
    group = filled(2, SIDE_MODE)
    leader = group[1]
    group.cut_off = {2, 3}
    leader.step(ev.Compact(7))
    leader.step(ev.QuorumLost())
    assert leader.refusal(7) is ev.Refusal.NOT_LEADER
    group.drop()
    group.cut_off = set()
    group.elect(1)
    compact(group, 8)


def test_a_snapshot_too_large_for_the_log_is_refused_there() -> None:
    group = filled(2, replace(LOG_MODE, max_log_snapshot=4))
    group[1].step(ev.Compact(7))
    assert group[1].refusal(7) is ev.Refusal.INVALID
    assert group[1].core.collectible == NO_OFFSET


def test_a_snapshot_that_could_not_be_taken_is_told_to_whoever_asked() -> None:
    group = filled(2, SIDE_MODE)
    leader = group[1]
    leader.slow_snapshot = True
    leader.step(ev.Compact(7))
    leader.step(ev.SnapshotFailed("disk full"))
    assert leader.refusal(7) is ev.Refusal.STORAGE


# --- A node behind the compaction horizon -------------------------------------------------------


@BOTH
def test_a_node_behind_the_compaction_horizon_ends_with_the_same_state(options: Options) -> None:
    group = filled(2, options)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    write(group, 1)
    assert group[3].core.dirty == 2
    group.cut_off = set()
    for _ in range(6):
        group.beat(1)
    assert group[3].entries()[3:] == group[1].entries()[1:], "with the leader's holes in it"
    assert len(group[3].log.batches) < group[3].core.dirty + 1
    assert records(group) == [7, 7, 7]
    assert not group[3].core.tainted
    assert group[3].core.readable == group[3].core.visible == group[1].core.committed


@BOTH
def test_reads_from_a_replica_stop_before_a_hole_until_the_snapshot_is_applied(
    options: Options,
) -> None:
    group = filled(2, options)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    behind = group[3]
    group.cut_off = set()
    behind.slow_snapshot = True
    for _ in range(6):
        group.beat(1)
    assert behind.core.committed >= 6
    assert behind.core.readable == 2, "below the first offset that may be a hole"
    assert behind.core.tainted
    behind.slow_snapshot = False
    behind.finish_snapshots()
    for _ in range(3):
        group.beat(1)
    assert not behind.core.tainted
    assert behind.core.readable == behind.core.visible
    assert behind.machine.records == 6


def test_through_the_log_the_machines_go_on_wrongly_and_are_rewound() -> None:
    group = filled(2, LOG_MODE)
    group.cut_off = {3}
    write(group, 4)
    at = compact(group)
    write(group, 1)
    behind = group[3]
    group.cut_off = set()
    behind.slow_snapshot = True
    for _ in range(6):
        group.beat(1)
    assert behind.core.applied > at
    assert behind.machine.records < 7, "the fold over the holes is another one"
    behind.slow_snapshot = False
    behind.finish_snapshots()
    assert ev.Restored(behind.snapshots[at][0]) is not None
    assert behind.machine.records == 7


def test_beside_the_log_the_machines_wait_for_the_snapshot() -> None:
    group = filled(2, SIDE_MODE)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    behind = group[3]
    group.cut_off = set()
    behind.slow_snapshot = True
    for _ in range(6):
        group.beat(1)
    assert behind.core.applied == behind.core.readable == 2


def test_a_replica_whose_disk_refused_the_snapshot_in_the_log_fetches_it_later() -> None:
    group = filled(2, LOG_MODE)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    behind = group[3]
    behind.refuses_snapshots = True
    group.cut_off = set()
    for _ in range(8):
        group.beat(1)
    assert not behind.core.tainted
    assert behind.core.readable == group[1].core.visible
    assert records(group) == [6, 6, 6]
    assert group[1].core.quiet(vnode(3))


def test_a_leader_whose_disk_refused_its_own_snapshot_may_try_again() -> None:
    group = filled(2, LOG_MODE)
    leader = group[1]
    leader.refuses_snapshots = True
    leader.step(ev.Compact(7))
    group.deliver()
    assert leader.refusal(7) is ev.Refusal.STORAGE
    leader.refuses_snapshots = False
    write(group, 1)
    assert compact(group, token=8) > 2


def test_the_configuration_changes_only_once_the_new_voters_have_what_was_compacted() -> None:
    group = filled(2, SIDE_MODE)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    leader, behind = group[1], group[3]
    behind.slow_snapshot = True
    group.cut_off = set()
    leader.step(ev.ChangeConfiguration(8, (vnode(3),)))
    for _ in range(6):
        group.beat(1)
    assert leader.core.progress[vnode(3)].match == leader.core.dirty
    assert not leader.core.configuration.is_joint, "nobody else would have the snapshot"
    behind.slow_snapshot = False
    behind.finish_snapshots()
    for _ in range(6):
        group.beat(group.leader().vnode.id)
    assert leader.is_done(8)
    assert group.leader() is behind
    assert behind.machine.records == 6


def test_a_hole_is_appended_only_after_it_is_noted_on_disk() -> None:
    group = filled(2, SIDE_MODE)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    behind = group[3]
    group.cut_off = set()
    behind.slow_vote = True
    group.beat(1)
    group.beat(1)
    assert behind.core.dirty == 2
    assert group[1].core.progress[vnode(3)].match == 2
    behind.finish_votes()
    group.deliver()
    assert behind.core.dirty > 2
    assert group[1].core.progress[vnode(3)].match == group[1].core.dirty


@BOTH
def test_a_replica_with_holes_knows_it_after_a_restart(options: Options) -> None:
    group = filled(2, options)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    behind = group[3]
    group.cut_off = set()
    behind.slow_snapshot = True
    for _ in range(6):
        group.beat(1)
    behind.step(ev.FlushDue())
    behind.slow_snapshot = False
    behind.snapshots.clear()
    behind.restart()
    assert behind.core.tainted
    assert behind.core.readable == NO_OFFSET
    for _ in range(6):
        group.beat(1)
    assert not behind.core.tainted
    assert behind.machine.records == 6


@BOTH
def test_a_replica_that_has_seen_no_hole_serves_all_that_is_visible(options: Options) -> None:
    group = filled(5, options)
    compact(group)
    write(group, 3)
    assert [member.core.readable for member in group] == [member.core.visible for member in group]
    assert group[2].core.readable == group[1].core.committed


@BOTH
def test_a_restart_restores_the_snapshot_and_applies_the_rest(options: Options) -> None:
    group = filled(5, options)
    compact(group)
    write(group, 2)
    for member in (group[2], group[3]):
        member.restart()
        assert member.core.snapshot is not None
    for _ in range(3):
        group.beat(1)
    assert records(group) == [7, 7, 7]
    group[1].restart()
    group.elect(2)
    assert records(group) == [7, 7, 7]


def test_a_leader_with_holes_is_not_ready_until_it_found_the_snapshot() -> None:
    group = filled(2, SIDE_MODE)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    group.cut_off = set()
    group[3].slow_snapshot = True
    for _ in range(6):
        group.beat(1)
    group[3].step(ev.FlushDue())
    group[3].restart()
    group.cut_off = {1}
    leader = group.elect(3)
    assert leader.core.confirmed
    assert leader.core.tainted
    assert not leader.core.ready
    leader.step(ev.Compact(9))
    assert leader.refusal(9) is ev.Refusal.NOT_READY
    group.beat(3)
    leader.finish_snapshots()  # n2 had it, and now it is stored
    leader.finish_snapshots()  # and restored
    assert leader.core.ready
    assert leader.machine.records == 6


# --- Search and download ------------------------------------------------------------------------


def behind_the_horizon() -> Group:
    """n3 was away while n1 and n2 compacted; now it is back, and everything is reachable."""
    group = filled(2, SIDE_MODE)
    group.cut_off = {3}
    write(group, 4)
    compact(group)
    group.cut_off = set()
    return group


def test_a_download_of_a_leader_outlasts_many_heartbeats() -> None:
    group = behind_the_horizon()
    group[3].slow_snapshot = True
    for _ in range(4):
        group.beat(1)
    group[3].restart()
    group[3].slow_snapshot = False
    group.drop()
    group.time_out(3)
    group.deliver(kinds=(msg.VoteRequest, msg.VoteReply, msg.AppendRequest, msg.AppendReply))
    leader = group[3]
    assert leader.core.role is Role.LEADER
    assert leader.core.tainted
    rounds = 0
    while leader.core.tainted:  # in each interval there is time for one question and its answer
        rounds += 1
        assert rounds < 20
        for peer in list(leader.core.progress):
            leader.step(ev.BeatDue(peer))
        group.deliver(kinds=(msg.AppendRequest, msg.AppendReply))
        for _ in range(2):
            for message in list(group.wire):
                group.wire.remove(message)
                group.hand_over(message)
    assert rounds > 3


def test_any_peer_that_has_the_snapshot_will_do() -> None:
    group = behind_the_horizon()
    group[1].snapshots.clear()
    group[1].core.shipping.snapshot = None
    for _ in range(6):
        group.beat(1)
    assert {each.source for each in group[2].said(msg.SnapshotFound)} == {vnode(2)}
    assert group[3].machine.records == 6


def test_a_snapshot_is_downloaded_in_chunks() -> None:
    group = behind_the_horizon()
    for _ in range(6):
        group.beat(1)
    wanted = [each.position for each in group[3].said(msg.SnapshotRequest)]
    assert wanted == [0, 3, 6], "eight bytes, three at a time"


def test_a_chunk_that_comes_twice_or_late_is_stored_once() -> None:
    group = behind_the_horizon()
    for _ in range(4):
        for peer in (vnode(2), vnode(3)):
            group[1].step(ev.BeatDue(peer))
        while group.wire:
            message = group.wire.pop(0)
            group.hand_over(message)
            if isinstance(message, msg.SnapshotChunk):
                group.hand_over(message)
    assert group[3].machine.records == 6


def test_a_download_whose_source_falls_silent_is_begun_again_elsewhere() -> None:
    group = behind_the_horizon()
    group.beat(1)
    group.beat(1)
    group[1].step(ev.BeatDue(vnode(3)))
    group.deliver_until(lambda: bool(group[3].said(msg.SnapshotRequest)))
    source = group[3].said(msg.SnapshotRequest)[0].target
    group.drop()
    other = 1 if source == vnode(2) else 2
    if source == vnode(1):
        group[1].step(ev.QuorumLost())
        group.cut_off = {1}
        group.elect(other)
    else:
        group.cut_off = {2}
    leader = group.leader().vnode.id
    for _ in range(8):
        group.beat(leader)
    assert not group[3].core.tainted
    assert group[3].machine.records == 6


def test_a_peer_that_lost_the_snapshot_says_so_and_another_is_asked() -> None:
    group = behind_the_horizon()
    group.beat(1)
    group[1].step(ev.BeatDue(vnode(3)))
    group.deliver_until(lambda: bool(group[3].said(msg.SnapshotRequest)))
    source = group[3].said(msg.SnapshotRequest)[0].target
    group[source.id].core.shipping.snapshot = None
    group.deliver()
    assert group[source.id].said(msg.SnapshotChunk)[-1].data == b""
    for _ in range(6):
        group.beat(1)
    assert group[3].machine.records == 6


def test_a_download_whose_bytes_are_damaged_starts_over() -> None:
    group = behind_the_horizon()
    group.beat(1)
    group[1].step(ev.BeatDue(vnode(3)))
    group.deliver_until(lambda: bool(group[3].said(msg.SnapshotRequest)))
    assert group[3].core.snapshot is None
    group[3].step(ev.ChunkRefused(Offset(6)))
    group.drop()
    for _ in range(6):
        group.beat(1)
    assert group[3].machine.records == 6


# --- Install ------------------------------------------------------------------------------------


@BOTH
def test_a_follower_whose_log_ends_before_the_leaders_begins_installs_the_snapshot(
    options: Options,
) -> None:
    group = filled(2, options)
    group.cut_off = {3}
    write(group, 4)
    at = compact(group)
    write(group, 2)
    for member in (group[1], group[2]):
        member.log.drop_prefix(at + 1)
    group.cut_off = set()
    for _ in range(6):
        group.beat(1)
    behind = group[3]
    assert behind.log.start == at + 1
    assert behind.entries() == group[1].entries()
    assert records(group) == [8, 8, 8]
    assert behind.core.committed == group[1].core.committed
    assert group[1].core.progress[vnode(3)].state is State.REPLICATE


@BOTH
def test_a_follower_without_a_log_installs_the_snapshot(options: Options) -> None:
    group = Group.of(3, options=options)
    group.cut_off = {3}
    group.elect(1)
    write(group, 4)
    at = compact(group)
    group[1].log.drop_prefix(at + 1)
    group.cut_off = set()
    for _ in range(6):
        group.beat(1)
    assert group[3].log.start == at + 1
    assert group[3].core.committed == group[1].core.committed
    assert records(group) == [4, 4, 4]


def test_a_divergent_log_is_replaced_by_an_installed_snapshot() -> None:
    group = filled(1, SIDE_MODE)
    old = group[1]
    for token in range(50, 55):
        old.propose(token)
    group.drop()
    group.cut_off = {1}
    leader = group.elect(2)
    write(group, 4)
    at = compact(group)
    leader.log.drop_prefix(at + 1)
    group.cut_off = set()
    for _ in range(6):
        group.beat(2)
    assert old.log.start == at + 1
    assert old.machine.records == leader.machine.records
    assert [old.refusal(token) for token in range(50, 55)] == [ev.Refusal.UNKNOWN] * 5


def test_an_install_never_moves_backwards() -> None:
    group = filled(2, SIDE_MODE)
    group.cut_off = {3}
    write(group, 2)
    compact(group)
    old_offer = msg.SnapshotOffer(
        group[1].core.group,
        vnode(1),
        vnode(3),
        group[1].core.term,
        group[1].snapshots[Offset(4)][0],
        msg.Purpose.INSTALL,
    )
    group.cut_off = set()
    for _ in range(6):
        group.beat(1)
    write(group, 3)
    before = (group[3].core.committed, group[3].core.applied, group[3].entries())
    group[3].step(old_offer)
    group.deliver()
    assert (group[3].core.committed, group[3].core.applied, group[3].entries()) == before
    assert not any(isinstance(output, ev.ResetLog) for output in group[3].outputs)


def test_an_install_that_is_interrupted_by_a_crash_starts_over() -> None:
    group = filled(2, SIDE_MODE)
    group.cut_off = {3}
    write(group, 4)
    at = compact(group)
    for member in (group[1], group[2]):
        member.log.drop_prefix(at + 1)
    group.cut_off = set()
    group.beat(1)
    behind = group[3]
    if behind.log.start == 0:
        group[1].step(ev.BeatDue(vnode(3)))
        group.deliver_until(lambda: bool(behind.said(msg.SnapshotRequest)))
        behind.restart()
    for _ in range(8):
        group.beat(1)
    assert behind.machine.records == 6


def test_a_configuration_that_only_the_snapshot_knows_is_installed_with_it() -> None:
    group = Group.of(4, options=SIDE_MODE, configuration=None)
    group.elect(1)
    group.cut_off = {4}
    leader = group[1]
    leader.step(ev.ChangeConfiguration(9, (vnode(1), vnode(2), vnode(4))))
    for _ in range(4):
        group.beat(1)
    write(group, 2)
    at = compact(group)
    leader.log.drop_prefix(at + 1)
    group.cut_off = set()
    for _ in range(6):
        group.beat(1)
    assert str(group[4].core.configuration) == "(n1 n2 n4)"
    assert group[4].core.role is Role.FOLLOWER


def test_relaxed_writes_during_a_compaction_change_nothing_of_the_above() -> None:
    group = filled(2, SIDE_MODE)
    leader = group[1]
    leader.step(ev.Compact(7))
    for token in range(20, 24):
        leader.propose(token, Level.LEADER)
    group.deliver()
    assert leader.outcome(7) == ev.Done(7, Offset(2)), "the snapshot is of what was applied"
    for member in group:
        member.step(ev.FlushDue())
    group.beat(1)
    group.beat(1)
    assert records(group) == [6, 6, 6]
