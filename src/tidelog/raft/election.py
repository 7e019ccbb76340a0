"""Elections: counting votes, and who should stand first.

Pre-vote, vote and leadership transfer share one request (thesis 3.4, 3.10, 9.6). The tally is a
pure count over the configuration in force; what a vote costs on disk is the core's business.
"""

from collections.abc import Callable
from enum import Enum

from tidelog.raft import quorum
from tidelog.raft.configuration import Configuration
from tidelog.raft.messages import Ballot
from tidelog.raft.types import Vnode


class Outcome(Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Campaign:
    """The votes of one ballot."""

    __slots__ = ("_votes", "ballot", "configuration")

    def __init__(self, ballot: Ballot, configuration: Configuration) -> None:
        self.ballot = ballot
        self.configuration = configuration
        self._votes: dict[Vnode, bool] = {}

    def record(self, voter: Vnode, granted: bool) -> Outcome:
        """Count a vote, the first of each voter; those of learners and strangers count nothing."""
        if self.configuration.is_voter(voter):
            self._votes.setdefault(voter, granted)
        halves = self.configuration.halves
        if quorum.agreed(halves, lambda voter: self._votes.get(voter, False)):
            return Outcome.WON
        if quorum.agreed(halves, lambda voter: self._votes.get(voter, True)):
            return Outcome.PENDING
        return Outcome.LOST

    def __str__(self) -> str:
        votes = " ".join(f"{voter}{'+' if yes else '-'}" for voter, yes in self._votes.items())
        return f"{self.ballot.value} {votes or 'no votes'}"


class Preference:
    """Election priority: the first voters of the configuration stand first.

    A node below the target sits out an election timeout and lowers the target instead, so that the
    preferred node gets a chance to win undisturbed and, if it is gone, everybody's turn comes. The
    leader that was just lost is not waited for.
    """

    __slots__ = ("_target",)

    def __init__(self) -> None:
        self._target: int | None = None  # None: not yet fixed for this round of elections

    def reset(self) -> None:
        """A leader is known: the next election starts afresh."""
        self._target = None

    def should_stand(
        self, node: Vnode, lost_leader: Vnode | None, configuration: Configuration
    ) -> bool:
        priority: Callable[[Vnode], int] = configuration.priority
        if self._target is None:
            candidates = [voter for voter in configuration.members if voter != lost_leader]
            self._target = max(map(priority, candidates), default=1)
        if priority(node) >= self._target:
            return True
        self._target = max(1, self._target - 1)
        return False
