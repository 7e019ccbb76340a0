"""The table of all invariants: what each is called, when it is asked, and of what.

After an event only those are asked that read something of what the event brought: an invariant
that loops over `case.saved` has nothing to say where nothing was saved. What one reads is taken
from its code. At rest all are asked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from types import CodeType
from typing import Final

from tidelog.sim.facts import Case
from tidelog.sim.invariants import clients, commit, election, harm, log, snapshots
from tidelog.sim.world import Failure

Check = Callable[[Case], Iterator[str]]


class When(Enum):
    EVENT = "after every event"
    END = "at rest"


# What an event brings: the parts of a case that are empty where it brought nothing of the kind.
_BROUGHT: Final = tuple(
    field.name for field in fields(Case) if field.default_factory in (list, dict)
)


@dataclass(frozen=True, slots=True)
class Invariant:
    number: int
    name: str
    when: When
    check: Check
    reads: tuple[str, ...]  # which parts of a case that an event may bring

    @property
    def label(self) -> str:
        """What it is called in short."""
        return f"invariant {self.number}"

    def __str__(self) -> str:
        return f"{self.label}, {self.name}"


class InvariantViolation(Failure):
    """What should never be, and what was seen of it."""

    def __init__(self, invariant: Invariant, facts: str) -> None:
        super().__init__(f"{invariant}: {facts}")
        self.number = invariant.number
        self.name = invariant.name
        self.facts = facts


def _names(code: CodeType) -> set[str]:
    """Return the names of all attributes that this code reads, comprehensions included."""
    nested = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_names, nested))


def _invariant(check: Check, when: When = When.EVENT) -> Invariant:
    _, number, name = check.__name__.split("_", 2)
    names = _names(check.__code__)
    reads = tuple(part for part in _BROUGHT if part in names)
    return Invariant(int(number), name.replace("_", " "), when, check, reads)


INVARIANTS: tuple[Invariant, ...] = (
    _invariant(commit.invariant_01_commit_needs_a_durable_quorum),
    _invariant(commit.invariant_02_commit_counts_only_the_own_term),
    _invariant(commit.invariant_03_offsets_are_ordered),
    _invariant(commit.invariant_04_commit_never_falls),
    _invariant(election.invariant_05_one_leader_per_term),
    _invariant(election.invariant_06_a_vote_is_durable_and_single),
    _invariant(election.invariant_07_the_term_on_disk_never_falls),
    _invariant(log.invariant_08_logs_match),
    _invariant(commit.invariant_09_leaders_are_complete),
    _invariant(log.invariant_10_committed_content_never_changes),
    _invariant(log.invariant_11_truncation_removes_only_conflicts),
    _invariant(log.invariant_12_a_crash_loses_only_what_was_dirty),
    _invariant(log.invariant_13_a_flush_counts_only_what_is_on_disk),
    _invariant(clients.invariant_14_an_acknowledgement_keeps_its_level),
    _invariant(clients.invariant_15_no_failure_is_reported_as_success),
    _invariant(clients.invariant_16_nothing_uncertain_is_visible),
    _invariant(log.invariant_17_streams_are_contiguous),
    _invariant(log.invariant_18_segments_have_one_term),
    _invariant(snapshots.invariant_19_compaction_stays_below_the_bound),
    _invariant(snapshots.invariant_20_a_snapshot_is_the_fold_of_everything),
    _invariant(snapshots.invariant_21_a_snapshot_covers_what_is_gone),
    _invariant(snapshots.invariant_22_an_install_moves_nothing_backwards),
    _invariant(snapshots.invariant_23_every_entry_is_applied_once),
    _invariant(election.invariant_24_configurations_change_one_step_at_a_time),
    _invariant(commit.invariant_25_match_is_what_the_follower_holds),
    _invariant(clients.invariant_26_epochs_end_where_they_ended),
    _invariant(clients.invariant_27_client_offsets_count_data),
    _invariant(clients.invariant_28_a_retry_is_written_once),
    _invariant(election.invariant_29_no_write_after_the_hand_over),
    _invariant(clients.invariant_30_replicas_end_equal, When.END),
    _invariant(clients.invariant_31_the_clients_history_is_sound, When.END),
    _invariant(snapshots.invariant_32_a_start_goes_on_from_the_fold),
    _invariant(clients.invariant_33_sequences_have_no_holes),
    _invariant(election.invariant_34_a_term_begins_with_a_candidate),
    _invariant(harm.invariant_35_nothing_leaves_a_disk_but_what_was_written),
    _invariant(harm.invariant_36_a_replica_is_lost_only_for_what_it_needs),
)


@cache
def asked_of(brought: tuple[str, ...]) -> tuple[Invariant, ...]:
    """Return the invariants that have something to judge after an event that brought this."""
    return tuple(
        invariant
        for invariant in INVARIANTS
        if invariant.when is When.EVENT and not set(brought).isdisjoint(invariant.reads)
    )


class Bench:
    """Asks the invariants, and counts how often each had something to judge."""

    def __init__(self) -> None:
        self._events: Counter[tuple[str, ...]] = Counter()  # by what they brought
        self._rests = 0

    def judge(self, case: Case, when: When) -> None:
        """Raise the first objection that any invariant has to a case."""
        brought = tuple(part for part in _BROUGHT if getattr(case, part))
        self._events[brought] += 1
        self._rests += when is When.END
        invariants = asked_of(brought) if when is When.EVENT else INVARIANTS
        for invariant in invariants:
            for objection in invariant.check(case):
                raise InvariantViolation(invariant, objection)

    def exercised(self) -> Counter[str]:
        """How often each invariant had something to judge, by `label`."""
        counted: Counter[str] = Counter()
        for brought, events in self._events.items():
            for invariant in asked_of(brought):
                counted[invariant.label] += events
        for invariant in INVARIANTS:
            if invariant.when is When.END:
                counted[invariant.label] += self._rests
        return counted
