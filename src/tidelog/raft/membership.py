"""The leader's side of a configuration change: one step at a time, each committed before the next.

    change     newcomers?  -> append (voters, learners=newcomers)
    advance    learners caught up, snapshot safe -> append joint; joint committed -> append simple
    cancel     learners -> append simple(voters); joint -> leave it towards the old voters

A snapshot is safe when a majority of the new voters stores one that covers all that was compacted:
whatever a log lacks can then be had from any majority, before and after the change (seed 3).

A new leader finds the configuration in the log and goes on from there: it leaves a joint one by
itself; learners that it finds stay learners until somebody asks for a change again.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.raft import events as ev
from tidelog.raft.configuration import Configuration, InvalidConfiguration
from tidelog.raft.progress import State
from tidelog.raft.types import Vnode

if TYPE_CHECKING:
    from tidelog.raft.leader import Leader


@dataclass(slots=True)
class _Change:
    token: int
    voters: tuple[Vnode, ...]
    cancel: int | None = None  # token of the one who cancelled


class Membership:
    __slots__ = ("_change", "leader")

    def __init__(self, leader: "Leader") -> None:
        self.leader = leader
        self._change: _Change | None = None

    @property
    def target(self) -> tuple[Vnode, ...] | None:
        """The voters that the change under way leads to; None if there is none."""
        return self._change.voters if self._change is not None else None

    def abandon(self) -> None:
        """Leadership is lost; a later leader may or may not finish the change."""
        if self._change is not None:
            self._resolve(ev.Refusal.UNKNOWN)

    def refused(self) -> None:
        """The disk did not take a step: whoever asked for the change may ask again."""
        if self._change is not None:
            self._resolve(ev.Refusal.STORAGE)

    def change(self, event: ev.ChangeConfiguration) -> None:
        core = self.leader.core
        current = core.configuration
        if not core.confirmed:
            core.refuse(event.token, ev.Refusal.NOT_READY)
            return
        if self.leader.transferring:
            core.refuse(event.token, ev.Refusal.TRANSFERRING)
            return
        if self._change is not None or current.is_joint or not self._is_committed():
            core.refuse(event.token, ev.Refusal.CHANGING)
            return
        newcomers = tuple(node for node in event.voters if node not in current.voters)
        try:
            target = Configuration(event.voters)
            step = Configuration(current.voters, (), newcomers)
        except InvalidConfiguration:
            core.refuse(event.token, ev.Refusal.INVALID)
            return
        if not event.voters:
            core.refuse(event.token, ev.Refusal.INVALID)
            return
        if target == current:
            core.done(event.token, core.configuration_offset)
            return
        self._change = _Change(event.token, event.voters)
        if newcomers:
            self.leader.append_configuration(step)
        else:
            self.advance()

    def cancel(self, event: ev.CancelChange) -> None:
        core = self.leader.core
        if self._change is None or self._change.cancel is not None:
            core.refuse(event.token, ev.Refusal.NOT_CHANGING)
            return
        self._change.cancel = event.token
        self.advance()

    def advance(self) -> None:
        """Take the next step if the last one is committed."""
        core = self.leader.core
        if not core.confirmed or not self._is_committed():
            return
        current = core.configuration
        cancelled = self._change is not None and self._change.cancel is not None
        if current.is_joint:
            self.leader.append_configuration(current.cancelled() if cancelled else current.left())
        elif self._change is None:
            self._leave_if_removed()
        elif current == Configuration(self._change.voters):
            self._resolve(None)
            self._leave_if_removed()
        elif cancelled and current.learners:
            self.leader.append_configuration(current.cancelled())
        elif cancelled:
            self._resolve(ev.Refusal.NOT_CHANGING)
        elif all(map(self._caught_up, current.learners)) and core.shipping.is_covered(
            self._change.voters
        ):
            self.leader.append_configuration(current.joint(self._change.voters))

    def _is_committed(self) -> bool:
        core = self.leader.core
        return core.configuration_offset <= core.committed

    def _caught_up(self, learner: Vnode) -> bool:
        progress = self.leader.progress[learner]
        return progress.state is State.REPLICATE and progress.match >= self.leader.core.committed

    def _resolve(self, why: ev.Refusal | None) -> None:
        """Answer the change and, with the opposite news, whoever cancelled it."""
        core = self.leader.core
        change, self._change = self._change, None
        assert change is not None
        if why is None:
            core.done(change.token, core.configuration_offset)
            if change.cancel is not None:
                core.refuse(change.cancel, ev.Refusal.NOT_CHANGING)
        else:
            core.refuse(change.token, why)
            if change.cancel is not None and why is ev.Refusal.NOT_CHANGING:
                core.done(change.cancel, core.configuration_offset)
            elif change.cancel is not None:
                core.refuse(change.cancel, why)

    def _leave_if_removed(self) -> None:
        """A leader that is no voter any more hands over to the one with the longest log."""
        core = self.leader.core
        if core.configuration.is_voter(core.vnode):
            return
        heirs = [node for node in core.configuration.voters if node in self.leader.progress]
        if heirs:
            best = max(heirs, key=lambda node: self.leader.progress[node].match)
            self.leader.send_timeout_now(best)
        core.become_follower(core.term, None)
