"""What a world may ask of the product: no fault that no protocol survives, no verdict without a
crime."""

from dataclasses import replace
from typing import Any

from tests.sim.cases import GROUP, N1, N2, Story

from tidelog.raft.epochs import NO_EPOCH
from tidelog.raft.events import ChangeConfiguration
from tidelog.raft.types import Level, NodeId
from tidelog.records import NO_OFFSET, Offset, Term
from tidelog.sim.history import Fate, History, Operation
from tidelog.sim.network import NetworkKnobs
from tidelog.sim.readers import serve
from tidelog.sim.run import Run
from tidelog.sim.world import Phase


def warm(**knobs: Any) -> Run:
    """A world of one group that has its first leader."""
    run = Run(1, {"groups": 1, **knobs}, None)
    run.warm_up()
    return run


def test_a_disk_that_a_change_counts_on_is_not_wiped() -> None:
    run = warm(voters=3, spares=1)
    leader = run.world.leader(GROUP)
    assert leader is not None
    spare = run.world.nodes[NodeId(4)]
    assert run.nemesis.faults.may_wipe(spare)
    voters = (leader.vnode_of(GROUP), spare.vnode_of(GROUP))
    leader.step(GROUP, ChangeConfiguration(7, voters))
    assert not run.nemesis.faults.may_wipe(spare), "the leader may make it a voter at any moment"


def test_a_reader_hears_of_confirmed_epochs_only() -> None:
    run = warm(voters=3)
    leader = run.world.leader(GROUP)
    assert leader is not None
    confirmed = leader.replicas[GROUP].core.term
    for node in run.world.nodes.values():
        core = node.replicas[GROUP].core
        core.hard = replace(core.hard, term=Term(confirmed + 5))
        if core.leading is None:
            found = serve(node.replicas[GROUP], Offset(0), None, NO_EPOCH, needs_leader=False)
            assert found.epoch <= confirmed


def test_no_message_is_late_before_the_first_leaders_are_elected() -> None:
    run = Run(1, {"network": NetworkKnobs(straggler=1.0, loss=1.0)}, None)
    run.warm_up()
    assert run.world.phase is Phase.WARMUP
    assert run.world.leader(GROUP) is not None


def relaxed(story: Story, level: Level, acknowledged: int) -> list[str]:
    """The verdict on a write that an idempotent writer sent twice; the second attempt stayed."""
    history = History()
    record = story.write(N2, ("k", "1"), term=2, operation="w-1").records
    story.copy(N2)
    story.commit(N2)
    operation = Operation("w-1", GROUP, level, record, NO_OFFSET, attempts=2)
    operation.fate, operation.offset = Fate.OK, Offset(acknowledged)
    history.operations["w-1"] = operation
    return [text for text in history.judge(GROUP, story.truth) if text.startswith("w-1 (")]


def story_of_a_lost_attempt() -> Story:
    """The first attempt is at offset 4 of a leader that is cut off; a new leader begins there."""
    story = Story()
    story.write(N1, ("k", "1"), term=1, operation="w-1")
    story.configure(N2, story.truth.initial, term=2)
    return story


def test_a_relaxed_write_may_stay_at_another_offset_than_its_lost_first_attempt() -> None:
    assert relaxed(story_of_a_lost_attempt(), Level.LEADER, acknowledged=4) == []


def test_a_quorum_write_stays_where_it_was_acknowledged() -> None:
    found = relaxed(story_of_a_lost_attempt(), Level.QUORUM, acknowledged=4)
    assert any("was acknowledged at 4" in text for text in found)


def test_a_relaxed_write_is_not_acknowledged_where_it_never_was() -> None:
    found = relaxed(story_of_a_lost_attempt(), Level.LEADER, acknowledged=2)
    assert any("was acknowledged at 2" in text for text in found)
