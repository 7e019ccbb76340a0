"""The classic protocol: what members are told, and when."""

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.groups.world import (
    GROUP,
    OK,
    REBALANCE,
    SESSION,
    World,
    a_join,
    subscription,
)

from tidelog.kafka.groups.classic import ClassicGroup
from tidelog.kafka.groups.classic_types import Join, Leaving, State
from tidelog.kafka.groups.config import GroupConfig


def group(world: World) -> ClassicGroup:
    found = world.shard.groups[GROUP]
    assert isinstance(found, ClassicGroup)
    return found


def test_the_first_member_leads_and_is_told_about_everybody() -> None:
    world = World(GroupConfig(initial_rebalance_delay=500))
    tickets = [world.join(a_join()) for _ in range(3)]
    assert not world.answers
    world.run(1_000)
    first, *others = (world.joined(ticket) for ticket in tickets)
    assert first.leader == first.member_id
    assert len(first.members) == 3
    assert first.generation == 1
    assert first.protocol == "range"
    for other in others:
        assert other.leader == first.member_id
        assert other.members == ()


def test_everybody_gets_what_the_leader_gave_them_also_those_who_asked_first() -> None:
    world = World(GroupConfig(initial_rebalance_delay=500))
    tickets = [world.join(a_join()) for _ in range(2)]
    world.run(1_000)
    leader, other = (world.joined(ticket) for ticket in tickets)
    early = world.sync(other)
    assert early not in world.answers
    late = world.sync(leader, ((leader.member_id, b"L"), (other.member_id, b"O")))
    assert world.synced(early).assignment == b"O"
    assert world.synced(late).assignment == b"L"
    assert group(world).state is State.STABLE
    assert world.synced(world.sync(other)).assignment == b"O"


def test_each_newcomer_prolongs_the_first_wait_up_to_the_rebalance_timeout() -> None:
    world = World(GroupConfig(initial_rebalance_delay=500))
    tickets = [world.join(a_join(rebalance_timeout=1_200))]
    for _ in range(4):
        world.run(400)
        if tickets[0] in world.answers:
            break
        tickets.append(world.join(a_join(rebalance_timeout=1_200)))
    assert world.now == 1_000_000 + 1_200
    assert len(world.joined(tickets[0]).members) == len(tickets) == 3


def test_a_newcomer_makes_all_join_again() -> None:
    world = World()
    [one] = world.stable(a_join())
    newcomer = world.join(a_join())
    assert newcomer not in world.answers
    assert world.heartbeat(one.member_id, one.generation) is ErrorCode.rebalance_in_progress
    again = world.join(a_join(one.member_id))
    assert world.joined(again).generation == one.generation + 1
    assert world.joined(newcomer).generation == one.generation + 1
    world.divide([again, newcomer])
    assert world.heartbeat(one.member_id, one.generation + 1) is OK
    assert world.heartbeat(one.member_id, one.generation) is ErrorCode.illegal_generation


def test_a_cooperative_rebalance_takes_two_generations_and_both_are_the_clients_affair() -> None:
    world = World()
    sticky = (("cooperative-sticky", subscription("t")),)
    [one] = world.stable(a_join(protocols=sticky))
    newcomer = world.join(a_join(protocols=sticky))
    again = world.join(a_join(one.member_id, protocols=sticky))
    first_phase = world.divide([again, newcomer])
    # The first gives partitions up, so it changes its metadata and joins once more.
    fewer = (("cooperative-sticky", subscription("t") + b"fewer"),)
    leader, other = first_phase
    second = world.join(a_join(leader.member_id, protocols=fewer))
    assert world.heartbeat(other.member_id, other.generation) is ErrorCode.rebalance_in_progress
    follow = world.join(a_join(other.member_id, protocols=sticky))
    told = world.joined(second)
    assert told.generation == leader.generation + 1
    assert [member.metadata for member in told.members] == [fewer[0][1], sticky[0][1]]
    world.divide([second, follow])


def test_who_does_not_join_again_in_time_is_out() -> None:
    world = World()
    [one] = world.stable(a_join(session_timeout=REBALANCE * 2))
    newcomer = world.join(a_join())
    world.run(REBALANCE)
    assert len(world.joined(newcomer).members) == 1
    assert world.heartbeat(one.member_id, one.generation) is ErrorCode.unknown_member_id


def test_who_is_silent_is_out_and_the_others_join_again() -> None:
    world = World()
    leader, other = world.stable(a_join(), a_join())
    world.run(SESSION // 2)
    assert world.heartbeat(leader.member_id, leader.generation) is OK
    world.run(SESSION // 2)
    assert world.heartbeat(leader.member_id, leader.generation) is ErrorCode.rebalance_in_progress
    assert world.heartbeat(other.member_id, other.generation) is ErrorCode.unknown_member_id
    again = world.join(a_join(leader.member_id))
    assert len(world.joined(again).members) == 1


def test_a_leader_that_joins_and_never_divides_is_out() -> None:
    world = World()
    leader, other = world.stable(a_join(), a_join())
    tickets = [
        world.join(a_join(other.member_id, protocols=(("range", b"new"),))),
        world.join(a_join(leader.member_id)),
    ]
    waiting = world.sync(world.joined(tickets[0]))
    world.run(SESSION)
    assert world.synced(waiting).error is ErrorCode.rebalance_in_progress
    again = world.join(a_join(other.member_id))
    assert world.joined(again).leader == other.member_id


def test_a_member_that_joins_and_never_asks_for_its_work_is_out_after_the_rebalance_timeout() -> (
    None
):
    world = World()
    ticket = world.join(a_join(session_timeout=SESSION, rebalance_timeout=SESSION * 2))
    only = world.joined(ticket)
    for _ in range(3):
        assert world.heartbeat(only.member_id, only.generation) is OK
        world.run(SESSION * 2 // 3 + 1)
    assert world.heartbeat(only.member_id, only.generation) is ErrorCode.unknown_member_id
    assert group(world).state is State.EMPTY


def test_the_last_one_who_leaves_makes_the_group_empty() -> None:
    world = World()
    [only] = world.stable(a_join())
    answer = world.leave(Leaving(only.member_id), Leaving("nobody"))
    assert answer.members == (OK, ErrorCode.unknown_member_id)
    assert group(world).state is State.EMPTY
    assert world.leave(Leaving("x"), group="none").error is ErrorCode.unknown_member_id


def test_a_member_without_id_is_told_one_and_the_rebalance_waits_for_it() -> None:
    world = World()
    [one] = world.stable(a_join())
    told = world.joined(world.join(a_join(wants_id_first=True)))
    assert told.error is ErrorCode.member_id_required
    assert told.member_id.startswith("client-")
    newcomer = world.join(a_join())
    again = world.join(a_join(one.member_id))
    assert again not in world.answers, "the one that was told its id is expected"
    third = world.join(a_join(told.member_id, wants_id_first=True))
    assert {world.joined(ticket).generation for ticket in (newcomer, again, third)} == {2}


def test_an_id_that_was_told_and_is_not_used_is_forgotten_after_the_session_timeout() -> None:
    world = World()
    told = world.joined(world.join(a_join(wants_id_first=True)))
    world.run(SESSION)
    assert world.joined(world.join(a_join(told.member_id))).error is ErrorCode.unknown_member_id
    assert world.leave(Leaving(told.member_id)).members == (ErrorCode.unknown_member_id,)


def test_a_static_member_comes_back_to_its_work_without_a_rebalance() -> None:
    world = World()
    leader, other = world.stable(a_join(instance_id="a", knows_skip=True), a_join(instance_id="b"))
    back = world.joined(world.join(a_join(instance_id="b")))
    assert back.generation == other.generation
    assert back.member_id != other.member_id
    assert back.leader == leader.member_id
    ticket = world.sync(back, instance_id="b")
    assert world.synced(ticket).assignment == other.member_id.encode()
    assert world.heartbeat(other.member_id, other.generation, "b") is ErrorCode.fenced_instance_id
    assert world.heartbeat(leader.member_id, leader.generation, "a") is OK


@pytest.mark.parametrize("knows_skip", [True, False])
def test_a_static_leader_comes_back_and_does_not_divide_again(knows_skip: bool) -> None:
    world = World()
    leader, _ = world.stable(a_join(instance_id="a"), a_join(instance_id="b"))
    back = world.joined(world.join(a_join(instance_id="a", knows_skip=knows_skip)))
    assert back.error is OK
    if knows_skip:
        assert back.skip_assignment
        assert back.leader == back.member_id
        assert len(back.members) == 2
    else:
        assert back.leader == leader.member_id
        assert back.members == ()
    ticket = world.sync(back, instance_id="a")
    assert world.synced(ticket).assignment == leader.member_id.encode()


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    world = World()
    leader, other = world.stable(a_join(instance_id="a"), a_join(instance_id="b"))
    for _ in range(3):
        world.run(SESSION // 2)
        world.heartbeat(leader.member_id, leader.generation, "a")
    assert world.heartbeat(other.member_id, other.generation, "b") is ErrorCode.unknown_member_id


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    world = World()
    world.stable(a_join(instance_id="a"), a_join(instance_id="b"))
    answer = world.leave(Leaving("", "b"), Leaving("wrong", "a"), Leaving("", "c"))
    assert answer.members == (OK, ErrorCode.fenced_instance_id, ErrorCode.unknown_member_id)


def test_static_members_that_are_away_keep_their_place_in_a_rebalance() -> None:
    world = World()
    leader, _ = world.stable(
        a_join(instance_id="a"), a_join(instance_id="b", session_timeout=REBALANCE * 2)
    )
    changed = a_join(leader.member_id, instance_id="a", protocols=(("range", b"new"),))
    ticket = world.join(changed)
    world.run(REBALANCE)
    assert len(world.joined(ticket).members) == 2


def test_all_agree_on_the_protocol_that_most_like_best() -> None:
    world = World(GroupConfig(initial_rebalance_delay=500))
    both = (("roundrobin", b"1"), ("range", b"2"))
    tickets = [
        world.join(a_join(protocols=protocols))
        for protocols in (both, both, (("range", b"3"), ("roundrobin", b"4")))
    ]
    only_other = world.join(a_join(protocols=(("sticky", b""),)))
    assert world.joined(only_other).error is ErrorCode.inconsistent_group_protocol
    other_type = world.join(a_join(protocol_type="connect"))
    assert world.joined(other_type).error is ErrorCode.inconsistent_group_protocol
    world.run(1_000)
    leader = world.joined(tickets[0])
    assert leader.protocol == "roundrobin"
    assert [member.metadata for member in leader.members] == [b"1", b"1", b"4"]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (a_join("somebody"), ErrorCode.unknown_member_id),
        (a_join(session_timeout=5_999), ErrorCode.invalid_session_timeout),
        (a_join(session_timeout=1_800_001), ErrorCode.invalid_session_timeout),
        (a_join(protocols=()), ErrorCode.inconsistent_group_protocol),
        (a_join(protocol_type=""), ErrorCode.inconsistent_group_protocol),
        (a_join(protocols=(("range", b"x" * 300_000),)), ErrorCode.invalid_request),
        (a_join(instance_id="é" * 3_000), ErrorCode.invalid_request),
    ],
)
def test_a_join_that_is_refused_leaves_no_trace(request_: Join, error: ErrorCode) -> None:
    world = World()
    answer = world.joined(world.join(request_))
    assert answer.error is error
    assert not world.shard.groups
    assert not world.log


def test_the_name_of_a_group_is_neither_empty_nor_endless() -> None:
    world = World()
    for name in ("", "g" * 5_000):
        ticket = world.join(a_join(), group=name)
        assert world.joined(ticket).error is ErrorCode.invalid_group_id
        assert world.heartbeat("m", 1, group=name) is ErrorCode.invalid_group_id


def test_a_group_that_is_not_there_has_no_members() -> None:
    world = World()
    assert world.heartbeat("m", 1) is ErrorCode.unknown_member_id
    answer = replace(world.joined(world.join(a_join("m"))), member_id="m", generation=1)
    assert world.synced(world.sync(answer)).error is ErrorCode.unknown_member_id


def test_a_full_group_takes_nobody() -> None:
    world = World(GroupConfig(initial_rebalance_delay=500, max_members=2))
    tickets = [world.join(a_join()) for _ in range(3)]
    assert world.joined(tickets[2]).error is ErrorCode.group_max_size_reached
    told = world.join(a_join(wants_id_first=True))
    assert world.joined(told).error is ErrorCode.group_max_size_reached


def test_there_are_only_so_many_groups() -> None:
    world = World(GroupConfig(max_groups=1))
    world.join(a_join(), group="one")
    assert world.joined(world.join(a_join(), group="two")).error is ErrorCode.policy_violation
    assert world.enter("m", "t", group="two").error is ErrorCode.policy_violation


def test_a_sync_with_another_protocol_is_refused() -> None:
    world = World()
    answer = world.joined(world.join(a_join()))
    for field, wrong in (("protocol", "sticky"), ("protocol_type", "connect")):
        ticket = world.sync(answer, (), GROUP, **{field: wrong})
        assert world.synced(ticket).error is ErrorCode.inconsistent_group_protocol
    late = world.sync(replace(answer, generation=answer.generation - 1))
    assert world.synced(late).error is ErrorCode.illegal_generation


def test_a_division_that_the_log_cannot_take_is_refused_and_the_group_goes_on() -> None:
    world = World(GroupConfig(initial_rebalance_delay=0, max_record_bytes=1_000))
    answer = world.joined(world.join(a_join()))
    ticket = world.sync(answer, ((answer.member_id, b"x" * 2_000),))
    assert world.synced(ticket).error is ErrorCode.unknown_server_error
    world.stable(a_join(answer.member_id))


def test_members_go_on_after_a_fail_over_without_noticing() -> None:
    world = World()
    leader, other = world.stable(a_join(instance_id="a"), a_join())
    world.fail_over()
    assert world.heartbeat(leader.member_id, leader.generation, "a") is OK
    assert world.heartbeat(other.member_id, other.generation) is OK
    ticket = world.sync(other)
    assert world.synced(ticket).assignment == other.member_id.encode()
    world.run(SESSION - 1)
    assert world.heartbeat(leader.member_id, leader.generation, "a") is OK
    world.run(1)
    assert world.heartbeat(other.member_id, other.generation) is ErrorCode.unknown_member_id


def test_a_fail_over_in_the_middle_of_a_rebalance_makes_members_join_once_more() -> None:
    world = World()
    [one] = world.stable(a_join())
    world.join(a_join())
    world.fail_over()
    assert world.heartbeat(one.member_id, one.generation) is OK
    newcomer = world.join(a_join())
    again = world.join(a_join(one.member_id))
    assert world.joined(again).generation == one.generation + 1
    world.divide([again, newcomer])


def test_an_empty_group_is_found_empty_with_its_generation() -> None:
    world = World()
    [one] = world.stable(a_join())
    world.leave(Leaving(one.member_id))
    before = group(world).generation
    world.fail_over()
    assert group(world).state is State.EMPTY
    assert world.joined(world.join(a_join())).generation == before + 1


def test_whoever_waits_is_sent_away_when_the_shard_closes() -> None:
    world = World()
    world.stable(a_join())
    waiting = world.join(a_join())
    world.shard.close(ErrorCode.not_coordinator)
    step = world.shard.take()
    assert [ticket for ticket, _ in step.answers] == [waiting]
    assert step.records == []
