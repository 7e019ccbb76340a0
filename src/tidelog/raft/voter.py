"""Standing for election, and voting for others.

A replica asks for pre-votes first, which change nothing anywhere (thesis 9.6), so that somebody who
was cut off cannot raise the term of a group that is well. A vote, its own included, counts only
after term and vote are on disk.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.admission import MAX_TERM
from tidelog.raft.election import Campaign, Outcome, Preference
from tidelog.raft.types import HardState, Role, Vnode
from tidelog.records import Term

if TYPE_CHECKING:
    from tidelog.raft.core import Core


# Timeouts that a reluctant replica lets pass. The others stand one after the other, by preference,
# so a leader among three or five of them is there by then.
MAX_SAT_OUT: Final = 5


class Voter:
    def __init__(self, core: "Core") -> None:
        self.core = core
        self.electable = True  # False: in maintenance, never stands by itself
        self.barred = False  # True: never stands, not even when it is asked to; it votes
        # Its disk is full or fails: it lets all others try first, and stands if none of them wins.
        self.reluctant = False
        self._sat_out = 0  # timeouts since a leader was known
        self.campaign: Campaign | None = None  # while (pre)candidate
        self._preference = Preference()
        self._lost_leader: Vnode | None = None  # the last one known

    def has_leader(self) -> bool:
        core = self.core
        return core.role is Role.LEADER or (core.leader is not None and core.leader_alive())

    def end_campaign(self, leader: Vnode | None) -> None:
        self.campaign = None
        if leader is not None:
            self._lost_leader = leader
            self._preference.reset()
            self._sat_out = 0

    # --- Standing -------------------------------------------------------------------------------

    def on_election_timeout(self, _: ev.ElectionTimeout) -> None:
        core = self.core
        if core.role is Role.LEADER or not self.electable or self.barred:
            return
        if self._is_leaving():
            self._stand(msg.Ballot.PREVOTE)
            return
        if not core.configuration.is_voter(core.vnode):
            return
        if self._lets_others_try():
            self._sat_out += 1
        elif self._preference.should_stand(core.vnode, self._lost_leader, core.configuration):
            self._stand(msg.Ballot.PREVOTE)

    def _lets_others_try(self) -> bool:
        alone = len(self.core.configuration.members) == 1
        # As a tainted leader it would serve nobody until a peer gives it a snapshot.
        unfit = self.reluctant or self.core.tainted
        return unfit and not alone and self._sat_out < MAX_SAT_OUT

    def _is_leaving(self) -> bool:
        """Whether the configuration that removes this voter may not be committed yet.

        Then nobody else may be able to win, because this log is the only one that has it. Its own
        vote does not count (thesis 4.2.2). Each term that this replica led while it was leaving
        wrote the configuration anew, so the one that still counts on it may lie several back.
        """
        core = self.core
        if core.configuration.is_voter(core.vnode):
            return False
        place = core.configuration_offset
        while place > core.committed:
            place, before = core.configuration_before(place)
            if before.is_voter(core.vnode):
                return True
        return False

    def on_timeout_now(self, _: msg.TimeoutNow) -> None:
        core = self.core
        if self.barred or core.role is Role.LEADER:
            return
        if core.configuration.is_voter(core.vnode):
            self._stand(msg.Ballot.TRANSFER)

    def _stand(self, ballot: msg.Ballot) -> None:
        core = self.core
        if core.term == MAX_TERM:
            return  # there is no term to stand in
        core.leader = None
        self.campaign = Campaign(ballot, core.configuration)
        term = Term(core.term + 1)
        if ballot is msg.Ballot.PREVOTE:
            core.take_role(Role.PRECANDIDATE)
        else:
            core.receiver.forget()
            core.persist(HardState(term, core.vnode, core.hard.compacted))
            core.take_role(Role.CANDIDATE)
        last_term = core.log.last_term
        for voter in core.configuration.members:
            if voter != core.vnode and core.configuration.is_voter(voter):
                core.send(
                    msg.VoteRequest(
                        core.group, core.vnode, voter, term, ballot, core.dirty, last_term
                    )
                )
        if ballot is msg.Ballot.PREVOTE:  # promises nothing, so it need not wait for the disk
            self.count(core.vnode, granted=True)

    def count(self, voter: Vnode, *, granted: bool) -> None:
        core = self.core
        assert self.campaign is not None
        outcome = self.campaign.record(voter, granted)
        if outcome is Outcome.LOST:
            core.become_follower(core.term, None)
        elif outcome is Outcome.WON and core.role is Role.PRECANDIDATE:
            self._stand(msg.Ballot.VOTE)
        elif outcome is Outcome.WON:
            core.become_leader()

    def on_vote_reply(self, reply: msg.VoteReply) -> None:
        if self.campaign is None or reply.ballot is not self.campaign.ballot:
            return
        promised = reply.granted and reply.ballot is msg.Ballot.PREVOTE
        if promised and reply.term != self.core.term + 1:
            return  # about another term than the one this replica asks for now
        self.count(reply.source, granted=reply.granted)

    # --- Voting ---------------------------------------------------------------------------------

    def on_vote_request(self, request: msg.VoteRequest) -> None:
        core = self.core
        # Raft 5.4.1, on what is dirty: a longer log may be lost again, but never what is committed.
        log_ok = (request.last_term, request.last_offset) >= (core.log.last_term, core.dirty)
        if request.ballot is msg.Ballot.PREVOTE:
            granted = request.term > core.term and log_ok and not self.has_leader()
            self.answer(request, granted=granted)
            return
        free = core.hard.voted_for is None or core.hard.voted_for == request.source
        granted = log_ok and free and core.role is Role.FOLLOWER
        if granted:
            if core.hard.voted_for is None:
                core.persist(replace(core.hard, voted_for=request.source))
            core.emit(ev.HeardLeader())  # give the candidate time to win
        self.answer(request, granted=granted)

    def answer(self, request: msg.VoteRequest, *, granted: bool) -> None:
        core = self.core
        echo = granted and request.ballot is msg.Ballot.PREVOTE
        term = request.term if echo else core.term
        core.send(
            msg.VoteReply(core.group, core.vnode, request.source, term, request.ballot, granted)
        )
