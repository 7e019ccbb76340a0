"""A group of the classic protocol: members join, a leader among them divides the work, all sync.

Rules:
- A *generation* is a set of members and one protocol. A member speaks for itself only with its id
  and the current generation; anything else is refused, so what a lost member does late changes
  nothing.
- The first generation waits for more members (`initial_rebalance_delay`, again for each that comes,
  up to the rebalance timeout). Later ones end when all members have joined again or the largest
  rebalance timeout has passed; who did not join is out.
- A *static* member (group.instance.id, KIP-345) stays while it is away, until its session ends. It
  comes back under a new member id and gets its old assignment without a rebalance; whoever used the
  old id is fenced.
- Assignments are the clients' affair, so cooperative rebalancing needs nothing here.
- A generation is written once, when the leader has divided the work. A coordinator that takes over
  finds the last one, and members go on without noticing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.classic_types import (
    ClassicView,
    Join,
    JoinAnswer,
    Leaving,
    Member,
    State,
    Sync,
    SyncAnswer,
)
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.offsets import Offsets
from tidelog.kafka.groups.outbox import Outbox, Ticket
from tidelog.kafka.groups.records import NO_TIME, ClassicKey, ClassicValue, encode
from tidelog.kafka.groups.roster import Roster, distinct
from tidelog.kafka.groups.timers import Timer, Timers

CONSUMER_PROTOCOL: Final = "consumer"
_MAX_GENERATION: Final = 2**31 - 1


class ClassicGroup:
    """All methods take effect at once; answers and records go to the outbox."""

    def __init__(
        self,
        group_id: str,
        *,
        outbox: Outbox,
        timers: Timers,
        config: GroupConfig,
        new_id: Callable[[], str],
    ) -> None:
        self.id = group_id
        self.offsets = Offsets(group_id, outbox)
        self.state = State.EMPTY
        self.state_time = NO_TIME  # when it came into this state
        self.generation = 0
        self.protocol_type = ""  # "" until somebody joins: a group of bare offsets
        self.protocol: str | None = None  # what the current generation agreed on
        self.roster = Roster()
        # Ids that were handed out and not used yet. A rebalance waits for them.
        self.pending: dict[str, Timer] = {}
        # Members of this generation that have not asked for their assignment yet.
        self.unsynced: set[str] = set()
        self._joined = 0  # members whose join waits
        self._outbox = outbox
        self._timers = timers
        self._config = config
        self._new_id = new_id
        self._rebalance = timers.new(self._rebalance_due)
        self._syncs = timers.new(self._syncs_due)
        # Of the first generation: more members are waited for, so many milliseconds yet.
        self._gathering = False
        self._gathering_left = 0
        self._newcomer = False

    # ------------------------------------------------------------------------------------- join

    def join(self, request: Join, ticket: Ticket, now: int) -> None:
        error = self.refuse_join(request)
        if error is not ErrorCode.none:
            self._refuse(ticket, error, request.member_id)
        elif request.member_id:
            self._join_known(request, ticket, now)
        elif (holder := self.roster.holder(request.instance_id)) is not None:
            self._take_over(holder, request, ticket, now)
        else:
            self._join_unknown(request, ticket, now)

    def refuse_join(self, request: Join) -> ErrorCode:
        """Tell what is wrong with a join, whoever sends it."""
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        size = sum(len(name) + len(content) for name, content in request.protocols)
        if size > self._config.max_member_bytes:
            return ErrorCode.invalid_request
        if not request.protocol_type or not request.protocols:
            return ErrorCode.inconsistent_group_protocol
        agrees = request.protocol_type == self.protocol_type and self.roster.agrees(request)
        if self.roster and not agrees:
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _join_unknown(self, request: Join, ticket: Ticket, now: int) -> None:
        if len(self.roster) >= self._config.max_members:
            self._refuse(ticket, ErrorCode.group_max_size_reached)
            return
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is None and request.wants_id_first:
            self._hand_out(member_id, request, ticket, now)
        else:
            self._add(replace(request, member_id=member_id), ticket, now)

    def _hand_out(self, member_id: str, request: Join, ticket: Ticket, now: int) -> None:
        if len(self.pending) >= self._config.max_pending_members:
            self._refuse(ticket, ErrorCode.group_max_size_reached)
            return
        timer = self._timers.new(lambda at: self._pending_due(member_id, at))
        timer.set(now + request.session_timeout)
        self.pending[member_id] = timer
        self._refuse(ticket, ErrorCode.member_id_required, member_id)

    def _join_known(self, request: Join, ticket: Ticket, now: int) -> None:
        if request.member_id in self.pending:
            if len(self.roster) >= self._config.max_members:
                self._refuse(ticket, ErrorCode.group_max_size_reached, request.member_id)
                return
            self.pending.pop(request.member_id).cancel()
            self._add(request, ticket, now)
            return
        error = self.roster.check(request.member_id, request.instance_id)
        if error is not ErrorCode.none:
            self._refuse(ticket, error, request.member_id)
            return
        member = self.roster[request.member_id]
        unchanged = member.protocols == distinct(request.protocols)
        if self.state is State.COMPLETING and unchanged:
            # It has joined this generation; only the answer was lost.
            self._outbox.answer(ticket, self._joined_answer(member))
            self._touch(member, now)
        elif self.state is State.STABLE and unchanged and member.id != self.roster.leader:
            self._outbox.answer(ticket, self._joined_answer(member))
            self._touch(member, now)
        else:
            # The leader joins again when it wants a new division: topics or subscriptions changed.
            self.roster.update(member, request)
            self._wait_for_join(member, ticket, now)
            self._maybe_prepare(now)

    def _add(self, request: Join, ticket: Ticket, now: int) -> None:
        member = self._new_member(request)
        if not self.roster:
            self.protocol_type = request.protocol_type
        self.roster.add(member)
        self._newcomer = True
        self._wait_for_join(member, ticket, now)
        self._maybe_prepare(now)

    def _wait_for_join(self, member: Member, ticket: Ticket, now: int) -> None:
        if member.joining is not None:
            self._refuse(member.joining, ErrorCode.rebalance_in_progress, member.id)
        else:
            self._joined += 1
        member.joining = ticket
        if member.is_new:
            member.session.set(now + self._config.new_member_timeout)
        else:
            member.session.cancel()

    # -------------------------------------------------------------------------- static members

    def _take_over(self, old: Member, request: Join, ticket: Ticket, now: int) -> None:
        """Let a static member come back under a new id."""
        led = self.roster.leader == old.id
        self._dismiss(old, ErrorCode.fenced_instance_id)
        self._drop(old)
        member = self._new_member(
            replace(request, member_id=f"{request.instance_id}-{self._new_id()}")
        )
        member.assignment = old.assignment
        member.is_new = False
        self.roster.add(member)
        if led:
            self.roster.leader = member.id
        if self.state is State.STABLE and self.roster.select_protocol() == self.protocol:
            self._resume(member, old.id if led else None, request, ticket, now)
            return
        self._wait_for_join(member, ticket, now)
        self._maybe_prepare(now)

    def _resume(
        self, member: Member, old_leader: str | None, request: Join, ticket: Ticket, now: int
    ) -> None:
        """Give a static member its place in this generation back, without a rebalance."""
        if not self._write(self.state_time):
            self._wait_for_join(member, ticket, now)
            self._maybe_prepare(now)
            return
        answer = self._joined_answer(member)
        if old_leader is not None:
            # A leader that is not told to skip would divide the work anew and sync into a stable
            # group. One that cannot be told is told that somebody else leads.
            if request.knows_skip:
                answer = replace(answer, skip_assignment=True)
            else:
                answer = replace(answer, leader=old_leader, members=())
        self._touch(member, now)
        self._outbox.answer(ticket, answer)

    # ---------------------------------------------------------------------------- the rebalance

    def _maybe_prepare(self, now: int) -> None:
        if self.state in {State.EMPTY, State.COMPLETING, State.STABLE}:
            self._prepare(now)
        self._try_complete(now)

    def _prepare(self, now: int) -> None:
        self._abandon_syncs(ErrorCode.rebalance_in_progress, now)
        delay = self._config.initial_rebalance_delay
        self._gathering = self.state is State.EMPTY and delay > 0
        self._become(State.PREPARING, now)
        if self._gathering:
            self._newcomer = False
            self._gathering_left = max(self._rebalance_timeout() - delay, 0)
            self._rebalance.set(now + delay)
        else:
            self._rebalance.set(now + self._rebalance_timeout())

    def _abandon_syncs(self, error: ErrorCode, now: int) -> None:
        self._syncs.cancel()
        self.unsynced.clear()
        for member in self.roster:
            if member.syncing is not None:
                self._outbox.answer(member.syncing, SyncAnswer(error))
                member.syncing = None
                self._touch(member, now)

    def _rebalance_timeout(self) -> int:
        longest = max((member.rebalance_timeout for member in self.roster), default=0)
        return min(longest, self._config.max_rebalance_timeout)

    def _rebalance_due(self, now: int) -> None:
        if self._gathering and self._newcomer and self._gathering_left > 0:
            self._newcomer = False
            delay = min(self._config.initial_rebalance_delay, self._gathering_left)
            self._gathering_left -= delay
            self._rebalance.set(now + delay)
        elif self.state is State.PREPARING:
            self._complete(now)

    def _try_complete(self, now: int) -> None:
        if (
            self.state is State.PREPARING
            and not self._gathering
            and not self.pending
            and self._joined == len(self.roster)
        ):
            self._complete(now)

    def _complete(self, now: int) -> None:
        """End the joining: whoever waits is in the next generation."""
        self._rebalance.cancel()
        self._gathering = False
        for member in self.roster:
            if member.joining is None and member.instance_id is None:
                self._drop(member)
        if not self.roster:
            self._become_empty(now)
            return
        if not self.roster.elect():
            # Static members only, all away: they may still come back while their sessions last.
            self._rebalance.set(now + self._rebalance_timeout())
            return
        self.generation = self.generation % _MAX_GENERATION + 1
        self.protocol = self.roster.select_protocol()
        self._become(State.COMPLETING, now)
        for member in self.roster:
            if member.joining is None:
                continue
            ticket, member.joining = member.joining, None
            member.is_new = False
            member.assignment = b""
            self.unsynced.add(member.id)
            self._touch(member, now)
            self._outbox.answer(ticket, self._joined_answer(member))
        self._joined = 0
        self._syncs.set(now + self._rebalance_timeout())

    def _become_empty(self, now: int) -> None:
        self.generation = self.generation % _MAX_GENERATION + 1
        self.protocol = None
        self._become(State.EMPTY, now)
        self._write(now)

    def _joined_answer(self, member: Member) -> JoinAnswer:
        leads = member.id == self.roster.leader
        return JoinAnswer(
            ErrorCode.none,
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.roster.leader or "",
            members=self.roster.described(self.protocol) if leads else (),
        )

    # ------------------------------------------------------------------------------------- sync

    def sync(self, request: Sync, ticket: Ticket, now: int) -> None:
        error = self._refuse_sync(request)
        if error is not ErrorCode.none:
            self._outbox.answer(ticket, SyncAnswer(error))
            return
        member = self.roster[request.member_id]
        self._synced(member)
        if self.state is State.STABLE:
            self._touch(member, now)
            self._outbox.answer(ticket, self._synced_answer(member))
            return
        if member.syncing is not None:
            self._outbox.answer(member.syncing, SyncAnswer(ErrorCode.rebalance_in_progress))
        member.syncing = ticket
        member.session.cancel()
        if member.id == self.roster.leader:
            self._divide(dict(request.assignments), now)

    def _refuse_sync(self, request: Sync) -> ErrorCode:
        error = self._check(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.none:
            return error
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.inconsistent_group_protocol
        if self.state is State.PREPARING:
            return ErrorCode.rebalance_in_progress
        if request.protocol is not None and request.protocol != self.protocol:
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _divide(self, assignments: dict[str, bytes], now: int) -> None:
        """Take the leader's division of the work, write it down, tell everybody."""
        for member in self.roster:
            member.assignment = assignments.get(member.id, b"")
        if not self._write(now):
            for member in self.roster:
                member.assignment = b""
            self._abandon_syncs(ErrorCode.unknown_server_error, now)
            self._maybe_prepare(now)
            return
        self._become(State.STABLE, now)
        for member in self.roster:
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                self._outbox.answer(ticket, self._synced_answer(member))
                self._touch(member, now)

    def _synced(self, member: Member) -> None:
        self.unsynced.discard(member.id)
        if not self.unsynced:
            self._syncs.cancel()

    def _synced_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.none, self.protocol_type, self.protocol, member.assignment)

    def _syncs_due(self, now: int) -> None:
        """Go on without the members that joined and then never asked for their assignment."""
        late = [self.roster[member_id] for member_id in sorted(self.unsynced)]
        self.unsynced.clear()
        for member in late:
            self._remove(member, now)

    # -------------------------------------------------------------------- heartbeats and leaving

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: int
    ) -> ErrorCode:
        error = self._check(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        self._touch(self.roster[member_id], now)
        if self.state is State.PREPARING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, leaving: Sequence[Leaving], now: int) -> tuple[ErrorCode, ...]:
        """Let members go, each by its id or, by an administrator, by its instance id alone."""
        return tuple(self._leave(one, now) for one in leaving)

    def _leave(self, leaving: Leaving, now: int) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        member_id = leaving.member_id
        if member_id in self.pending and leaving.instance_id is None:
            self.pending.pop(member_id).cancel()
            self._try_complete(now)
            return ErrorCode.none
        if not member_id and leaving.instance_id is not None:
            holder = self.roster.holder(leaving.instance_id)
            member_id = "" if holder is None else holder.id
        error = self.roster.check(member_id, leaving.instance_id)
        if error is ErrorCode.none:
            self._remove(self.roster[member_id], now)
        return error

    def _pending_due(self, member_id: str, now: int) -> None:
        del self.pending[member_id]
        self._try_complete(now)

    def _remove(self, member: Member, now: int) -> None:
        self._dismiss(member, ErrorCode.unknown_member_id)
        self._drop(member)
        self._maybe_prepare(now)

    # ---------------------------------------------------------------------------------- offsets

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: int
    ) -> ErrorCode:
        """Tell whether this member may commit offsets now. A commit is a sign of life, too."""
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.none
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._check(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        self._touch(self.roster[member_id], now)
        if self.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def subscriptions(self) -> frozenset[str]:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return frozenset()
        return self.roster.subscriptions(self.protocol)

    # ----------------------------------------------------------------------- life and fail-over

    def load(self, value: ClassicValue) -> None:
        """Take a generation from the log. Timers start with `activate`."""
        self.protocol_type = value.protocol_type
        self.generation = value.generation
        self.protocol = value.protocol
        self.state_time = value.state_time
        self.state = State.STABLE if value.members else State.EMPTY
        for one in value.members:
            member = self._new_member(
                Join(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.client_host,
                    one.rebalance_timeout,
                    one.session_timeout,
                    value.protocol_type,
                    ((value.protocol or "", one.subscription),),
                )
            )
            member.assignment = one.assignment
            member.is_new = False
            self.roster.add(member)
        if value.leader is not None and value.leader in self.roster:
            self.roster.leader = value.leader

    def activate(self, now: int) -> None:
        """Expect the members that were loaded to speak from now on."""
        for member in self.roster:
            self._touch(member, now)

    def bury(self) -> None:
        """Delete an empty group and its offsets."""
        self.offsets.delete_all()
        self.retire()

    def retire(self) -> None:
        """Delete an empty group but for its offsets: it goes on in the other protocol."""
        if self.generation > 0:
            self._outbox.write(encode(ClassicKey(self.id), None))
        self.state = State.DEAD
        self.close(ErrorCode.coordinator_not_available)

    def close(self, error: ErrorCode) -> None:
        """Send everybody away who waits here, and let no timer fire any more."""
        self._rebalance.cancel()
        self._syncs.cancel()
        for timer in self.pending.values():
            timer.cancel()
        self.pending.clear()
        for member in self.roster:
            self._dismiss(member, error)
            member.session.cancel()

    @property
    def is_empty(self) -> bool:
        return not self.roster and self.state is State.EMPTY

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing but its offsets keeps this group."""
        return self.is_empty and not self.pending

    def view(self) -> ClassicView:
        stable = self.state is State.STABLE
        return ClassicView(
            self.state.value,
            self.protocol_type,
            (self.protocol or "") if stable else "",
            self.roster.views(self.protocol if stable else None),
        )

    def value(self) -> ClassicValue:
        """Return what the log is told about this generation."""
        return ClassicValue(
            self.protocol_type,
            self.generation,
            self.protocol,
            self.roster.leader,
            self.state_time,
            self.roster.values(self.protocol),
        )

    # ------------------------------------------------------------------------------- small parts

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.roster.check(member_id, instance_id)
        if error is ErrorCode.none and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _refuse(self, ticket: Ticket, error: ErrorCode, member_id: str = "") -> None:
        self._outbox.answer(ticket, JoinAnswer(error, member_id=member_id))

    def _dismiss(self, member: Member, error: ErrorCode) -> None:
        """Answer what a member waits for with this error."""
        if member.joining is not None:
            self._refuse(member.joining, error, member.id)
            member.joining = None
            self._joined -= 1
        if member.syncing is not None:
            self._outbox.answer(member.syncing, SyncAnswer(error))
            member.syncing = None

    def _touch(self, member: Member, now: int) -> None:
        if member.joining is None and member.syncing is None:
            member.session.set(now + member.session_timeout)

    def _new_member(self, request: Join) -> Member:
        member = Member(
            request.member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout,
            request.session_timeout,
            distinct(request.protocols),
            self._timers.new(lambda now: self._remove(member, now)),
        )
        return member

    def _drop(self, member: Member) -> None:
        self.unsynced.discard(member.id)
        self.roster.remove(member)

    def _become(self, state: State, now: int) -> None:
        self.state = state
        self.state_time = now

    def _write(self, state_time: int) -> bool:
        """Write this generation down, unless the log cannot take it."""
        record = encode(ClassicKey(self.id), replace(self.value(), state_time=state_time))
        if len(record[1] or b"") > self._config.max_record_bytes:
            return False
        self._outbox.write(record)
        return True

    def check_invariants(self) -> None:
        """Raise AssertionError when this group contradicts itself. For tests."""
        assert self._joined == sum(m.joining is not None for m in self.roster)
        assert (self.state is State.EMPTY) <= (not self.roster)
        assert (self.state in {State.COMPLETING, State.STABLE}) <= bool(self.roster)
        assert all(member_id in self.roster for member_id in self.unsynced)
        assert not any(member_id in self.roster for member_id in self.pending)
        self.roster.check_invariants()
        for member in self.roster:
            assert member.joining is None or self.state is State.PREPARING
            assert member.syncing is None or self.state is State.COMPLETING
            # Nobody can be forgotten for ever: either a session runs, or a rebalance ends.
            assert (
                member.session.due is not None
                or self._rebalance.due is not None
                or self._syncs.due is not None
            ), member
