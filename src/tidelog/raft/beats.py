"""Heartbeats and election timers of one node, for all its groups.

A node holds thousands of groups, and most of them are quiet most of the time: nothing was written,
everybody knows everything. Such a group costs its leader and its followers a row of a table and
about two bytes on the wire an interval, and no Python of its own. Only a group whose leader has
something to tell (`Core.quiet` says no) gets a full heartbeat, an `AppendRequest` from its core.

    leader                                    follower
    tick -> light[peer]  -- one beat for all quiet groups --> heard_light: restart the timers
    light_reply          <-- positions that are refused ----- of all groups that are not refused
    refused groups are in `full` at the next tick, so that their cores speak for themselves

A light beat claims "I still lead these groups, and you follow me in my present term". The follower
accepts it for a group only if it is a follower, heard an append of this sender in its own present
term, since it was started, and computes the same check byte over group, term and the revisions of
both ends.

Why this is safe:
- A beat renews two things, the follower's election timer and the leader's evidence that a majority
  follows it. No vote, commit or acknowledgement is derived from either, so a beat that is accepted
  wrongly can delay an election and do nothing else. (A read lease would change that; reads use
  barriers, which are appends.)
- It is not accepted wrongly for long. A leader calls a peer quiet only once the peer acknowledged
  an append of the leader's term, and terms never fall, so the two terms are equal unless the beat
  was delayed over an election. The check byte guards what this argument leaves out (a node that
  was wiped and holds the group under another revision, a mistake in the argument): a wrong beat
  passes with 1/256, independently for each, and it takes many in a row to hold off an election.
- A follower that restarted may have lost dirty data that the leader believes it has. It has heard
  no append since, refuses, and the full beat that follows finds out.
- A reply is credited with the time at which its beat was *sent*, and only if the leader still leads
  in that term with those peers: however late it comes, it proves no more than it saw. Sequences
  begin at random, so a reply to a former life of this node matches nothing.

Time is an argument, in milliseconds, and never goes back. Nothing here waits, sends or reads a
clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidelog.raft.beattable import CANDIDATE, FOLLOWER, NEVER, BeatTable
from tidelog.raft.configuration import Configuration
from tidelog.raft.groupset import (
    CorruptBeat,
    Ints,
    LightBeat,
    LightReply,
    check_bytes,
    decode_beat,
    decode_reply,
    encode_beat,
    encode_reply,
)
from tidelog.raft.types import GroupId, NodeId, Role, Vnode
from tidelog.records import Term

_NO_TIMER: Final = 2**62
# How soon the groups of a node that seems to be gone elect another leader. Its peers see their
# connections break within a few milliseconds of each other.
_SUSPICION_MS: Final = (15, 45)
# How soon the groups whose elections had to wait for others are looked at again.
_CROWDED_MS: Final = 50
# How late a tick may be, in intervals, before the node counts as not running.
_MAX_LATE: Final = 2
# How a role that does not lead is kept in the table.
_STATES: Final = {
    Role.FOLLOWER: FOLLOWER,
    Role.PRECANDIDATE: CANDIDATE,
    Role.CANDIDATE: CANDIDATE,
}


@dataclass(frozen=True, slots=True)
class BeatOptions:
    interval_ms: int = 150
    # Followers wait this long and a random part of it again; a leader that no majority answered
    # for this long steps down. Ten intervals: a few lost beats are no reason to vote.
    election_timeout_ms: int = 1500
    max_groups: int = 1 << 17
    max_peers: int = 64  # of one group: voters of both halves of a change, and learners
    # Beats to one peer that may still be answered. What is older than an election timeout proves
    # nothing, and in one there are about ten.
    max_outstanding: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.interval_ms < self.election_timeout_ms:
            raise ValueError(
                f"heartbeats every {self.interval_ms} ms do not keep off an election after"
                f" {self.election_timeout_ms} ms: make the interval shorter"
            )
        if min(self.max_groups, self.max_peers, self.max_outstanding) < 1:
            raise ValueError("the limits on groups, peers and outstanding beats must be at least 1")


@dataclass(frozen=True, slots=True)
class Due:
    """What has to be done now."""

    elections: list[GroupId]  # no leader was heard for too long: step `ElectionTimeout`
    quorum_lost: list[GroupId]  # led here, and no majority answered: step `QuorumLost`
    full: list[tuple[GroupId, Vnode]]  # step `BeatDue(peer)`
    light: dict[NodeId, bytes]  # send to `heard_light` of that node


class _Sent(NamedTuple):
    """A beat that may still be answered: its rows, in the order of the beat."""

    at: int
    slots: Ints
    columns: Ints
    leaderships: Ints


class Beats:
    def __init__(self, node_id: NodeId, options: BeatOptions, rng: Random) -> None:
        self.node_id = node_id
        self.options = options
        self._rng = rng
        self._table = BeatTable(node_id, max_groups=options.max_groups, max_peers=options.max_peers)
        self._now = NEVER
        self._next_beat = NEVER
        self._earliest = _NO_TIMER  # no election timer ends before this
        self._sequence = rng.getrandbits(62)  # of the last beat
        # Beats that may still be answered, by place of the peer, then sequence; oldest first.
        self._outstanding: dict[int, dict[int, _Sent]] = {}

    def __len__(self) -> int:
        return len(self._table.slots)

    # --- Groups come, go and change ---------------------------------------------------------------

    def add(self, group: GroupId, vnode: Vnode, now: int) -> None:
        """A replica of this group starts here, as a follower that has heard nobody yet."""
        self._advance(now)
        self._restart_timer(self._table.add(group, vnode), now)

    def remove(self, group: GroupId) -> None:
        """The replica is gone; whatever is said about it from now on is refused."""
        self._table.remove(group)

    def publish(
        self,
        group: GroupId,
        role: Role,
        term: Term,
        configuration: Configuration,
        quiet: Callable[[Vnode], bool],
        now: int,
    ) -> None:
        """Take over what a core is after a step that did something.

        `quiet` is `Core.quiet`; it is asked about each peer of a leader.
        """
        self._advance(now)
        table = self._table
        slot = table.slot(group)
        led = table.led.get(slot)
        if role is Role.LEADER:
            if led is not None and table.term[slot] != term:
                table.stop_leading(slot)
                led = None
            if led is None or (
                led.configuration is not configuration and led.configuration != configuration
            ):
                led = table.lead(slot, configuration, now)
            for peer, column in led.may_be_quiet:
                table.quiet[column, slot] = quiet(peer)
        else:
            if led is not None:
                table.stop_leading(slot)
                self._restart_timer(slot, now)
            table.state[slot] = _STATES[role]
        table.term[slot] = term

    def heard(self, group: GroupId, leader: Vnode | None, term: Term, now: int) -> None:
        """Restart the election timer: an append came from `leader` of `term`.

        Without a leader, a vote was granted, and the candidate is given time to win.
        """
        self._advance(now)
        table = self._table
        slot = table.slot(group)
        table.timer[slot] = now
        if leader is not None:
            table.heard_at[slot] = now
            table.seen_node[slot], table.seen_revision[slot] = leader
            table.seen_term[slot] = term

    def replied(self, group: GroupId, peer: Vnode, now: int) -> None:
        """A reply came from a follower in the leader's own term, whatever it says."""
        self._advance(now)
        slot = self._table.slot(group)
        led = self._table.led.get(slot)
        if led is not None and (column := led.columns.get(peer)) is not None:
            self._table.replied_at[column, slot] = now

    def leader_alive(self, group: GroupId, now: int) -> bool:
        """Whether the leader of the present term was heard within the base election timeout."""
        table = self._table
        slot = table.slot(group)
        if slot in table.led:
            return True
        recent = now - table.heard_at[slot] < self.options.election_timeout_ms
        return bool(recent and table.seen_term[slot] == table.term[slot])

    def follows(self, node: NodeId) -> bool:
        """Whether a group here heard an append of this node in its present term."""
        table = self._table
        follows = (table.state == FOLLOWER) & (table.seen_node == node)
        return bool((follows & (table.seen_term == table.term)).any())

    def awaits(self, node: NodeId) -> bool:
        """Whether a beat to this node may still be answered."""
        return bool(self._outstanding.get(self._table.places.get(node, -1)))

    def suspect(self, node: NodeId, now: int) -> None:
        """A node seems to be gone: the groups that it led need not wait out an election timeout.

        It no longer counts as alive, so that others get our pre-vote, and the timers end soon: late
        enough for the others to have noticed too, each at a time of its own. An election is always
        safe; a suspicion that was wrong costs one that was not needed.
        """
        self._advance(now)
        table = self._table
        follows = (table.state == FOLLOWER) & (table.seen_node == node)
        slots = np.flatnonzero(follows & (table.seen_term == table.term))
        table.heard_at[slots] = NEVER
        for slot in slots.tolist():
            soon = now + self._rng.randint(*_SUSPICION_MS)
            table.timer[slot] = min(table.timer[slot], soon - table.patience[slot])
            self._earliest = min(self._earliest, soon)

    # --- Time passes ------------------------------------------------------------------------------

    def overslept(self, late: int, now: int) -> None:
        """`tick` is called so many milliseconds after it was due.

        Much later, and this node did not run: it was stopped, or had no turn. What it did not
        listen to proves nothing, so neither its leaders nor its followers count as silent for that
        time. Otherwise each of its groups would hold an election when it wakes up.
        """
        self._advance(now)
        if late <= _MAX_LATE * self.options.interval_ms:
            return
        table = self._table
        table.timer += late
        table.replied_at += late
        if self._earliest < _NO_TIMER:
            self._earliest += late

    def next_due(self, now: int) -> int:
        """The time at which `tick` wants to be called; `now` if something is due already."""
        idle = now + self.options.election_timeout_ms
        return max(now, min(self._earliest, self._next_beat if self._table.led else idle, idle))

    def tick(self, now: int, room: int | None = None) -> Due:
        """Say what has to be done; nothing, and at no cost, before `next_due`.

        `room` is how many elections may begin now. An election puts votes on the disks of a
        majority, and when thousands begin at once none of them is over before its time is: the
        next one begins, and so on without end. Those without room wait for their turn.
        """
        table = self._table
        self._advance(now)
        elections = self._expire(now, room) if now >= self._earliest else []
        if not table.led or now < self._next_beat:
            return Due(elections, [], [], {})
        interval = self.options.interval_ms
        # Keep the rhythm when called a little late; do not catch up on beats that were missed.
        late = now - self._next_beat
        self._next_beat = now + interval if late >= interval else self._next_beat + interval
        led = table.led_slots()
        is_peer = (table.peer[:, led] >= 0).T
        light = (table.quiet[:, led] & ~table.refused[:, led]).T
        return Due(
            elections,
            table.group[led[self._lost(led, now)]].tolist(),
            self._full(led, is_peer & ~light),
            self._light(led, is_peer & light, now),
        )

    def _expire(self, now: int, room: int | None) -> list[GroupId]:
        """Groups whose timer ended; their timers start over, with another patience.

        Of more than there is room for, those go first whose timers ended first.
        """
        table = self._table
        waiting = np.flatnonzero(table.state >= FOLLOWER)
        ends = table.timer[waiting] + table.patience[waiting]
        expired = np.flatnonzero(ends <= now)
        if room is not None and len(expired) > room:
            expired = expired[np.argsort(ends[expired], kind="stable")[:room]]
        expired = waiting[expired]
        for slot in expired.tolist():
            self._restart_timer(slot, now)
        ends = table.timer[waiting] + table.patience[waiting]
        ahead = ends[ends > now]
        self._earliest = int(ahead.min()) if len(ahead) else _NO_TIMER
        if len(ahead) < len(ends):
            self._earliest = min(self._earliest, now + _CROWDED_MS)
        return sorted(table.group[expired].tolist())

    def _lost(self, led: Ints, now: int) -> NDArray[np.bool_]:
        """Which of the led groups no majority answered lately, in either half."""
        table = self._table
        recent = table.replied_at[:, led] > now - self.options.election_timeout_ms
        halves = table.halves[:, led] * recent
        lost = np.zeros(len(led), np.bool_)
        for half in (0, 1):
            answered = (halves >> half & 1).sum(axis=0, dtype=np.int64)
            lost |= answered < table.needed[half, led]
        return lost

    def _full(self, led: Ints, chosen: NDArray[np.bool_]) -> list[tuple[GroupId, Vnode]]:
        table = self._table
        rows, columns = np.nonzero(chosen)
        slots = led[rows]
        table.refused[columns, slots] = False
        return table.name(slots, columns)

    def _light(self, led: Ints, chosen: NDArray[np.bool_], now: int) -> dict[NodeId, bytes]:
        """One beat for each peer that has a quiet group in common with this node."""
        table = self._table
        rows, columns = np.nonzero(chosen)
        slots = led[rows]
        peers = table.peer[columns, slots]
        by_peer = np.argsort(peers, kind="stable")  # ids stay in rising order for each peer
        slots, columns = slots[by_peer], columns[by_peer]
        beats: dict[NodeId, bytes] = {}
        end = 0
        for place, size in enumerate(np.bincount(peers).tolist()):
            if size:
                start, end = end, end + size
                beats[table.nodes[place]] = self._beat(
                    place, slots[start:end], columns[start:end], now
                )
        return beats

    def _beat(self, place: int, slots: Ints, columns: Ints, now: int) -> bytes:
        table = self._table
        self._sequence += 1
        outstanding = self._outstanding.setdefault(place, {})
        if len(outstanding) == self.options.max_outstanding:
            del outstanding[next(iter(outstanding))]
        outstanding[self._sequence] = _Sent(now, slots, columns, table.leadership[slots])
        groups = table.group[slots]
        checks = check_bytes(
            self._sequence,
            groups,
            table.term[slots],
            table.revision[slots],
            table.peer_revision[columns, slots],
        )
        return encode_beat(LightBeat(self._sequence, groups, checks))

    # --- Light beats arrive -----------------------------------------------------------------------

    def heard_light(self, sender: NodeId, body: bytes, now: int) -> bytes:
        """Restart the timers of the groups that follow the sender; return the reply to send.

        Raises `CorruptBeat` for bytes that are no heartbeat.
        """
        table = self._table
        self._advance(now)
        beat = decode_beat(body)
        slots, accepted = table.find(beat.groups)
        terms = table.term[slots]
        accepted &= table.state[slots] == FOLLOWER
        accepted &= table.seen_node[slots] == sender
        accepted &= table.seen_term[slots] == terms
        accepted &= beat.checks == check_bytes(
            beat.sequence, beat.groups, terms, table.seen_revision[slots], table.revision[slots]
        )
        renewed = slots[accepted]
        table.timer[renewed] = now
        table.heard_at[renewed] = now
        return encode_reply(LightReply(beat.sequence, np.flatnonzero(~accepted)))

    def light_reply(self, peer: NodeId, body: bytes, now: int) -> list[tuple[GroupId, Vnode]]:
        """Credit the groups that a beat was accepted for; return those that refused it.

        The refused ones are listed in `full` at the next tick. Raises `CorruptBeat` for bytes that
        are no reply to the beat they name.
        """
        table = self._table
        self._advance(now)
        reply = decode_reply(body)
        outstanding = self._outstanding.get(table.places.get(peer, -1), {})
        sent = outstanding.get(reply.sequence)
        if sent is None:
            return []
        if len(reply.refused) and reply.refused[-1] >= len(sent.slots):
            raise CorruptBeat(
                f"node {peer} refuses group number {reply.refused[-1]} of a heartbeat that has"
                f" {len(sent.slots)}"
            )
        del outstanding[reply.sequence]
        # A slot may have been given to another group since, or to another leadership of the same.
        same = table.leadership[sent.slots] == sent.leaderships
        accepted = same.copy()
        accepted[reply.refused] = False
        slots, columns = sent.slots[accepted], sent.columns[accepted]
        credited = np.maximum(table.replied_at[columns, slots], sent.at)
        table.replied_at[columns, slots] = credited
        refused = same & ~accepted
        slots, columns = sent.slots[refused], sent.columns[refused]
        table.refused[columns, slots] = True
        return table.name(slots, columns)

    # --- Inside -----------------------------------------------------------------------------------

    def _advance(self, now: int) -> None:
        if now < self._now:
            raise ValueError(f"time went back from {self._now} to {now} ms")
        self._now = now

    def _restart_timer(self, slot: int, now: int) -> None:
        timeout = self.options.election_timeout_ms
        patience = timeout + self._rng.randint(0, timeout)
        self._table.timer[slot] = now
        self._table.patience[slot] = patience
        self._earliest = min(self._earliest, now + patience)

    # --- Looking at it ----------------------------------------------------------------------------

    def describe(self, group: GroupId) -> str:
        """One line about a group."""
        table = self._table
        slot = table.slot(group)
        head = f"g{group} {{}} term={table.term[slot]}"
        if slot in table.led:
            peers = "".join(
                f" {peer}={'quiet' if table.quiet[column, slot] else 'full'}"
                f"{'!' if table.refused[column, slot] else ''}"
                for peer, column in table.led[slot].columns.items()
            )
            return head.format("leader") + peers
        leader = "-"
        if table.seen_term[slot] == table.term[slot]:
            node = Vnode(NodeId(int(table.seen_node[slot])), int(table.seen_revision[slot]))
            leader = f"{node}@{table.heard_at[slot]}"
        role = "follower" if table.state[slot] == FOLLOWER else "candidate"
        due = table.timer[slot] + table.patience[slot]
        return f"{head.format(role)} leader={leader} due={due}"

    def check_invariants(self) -> None:
        table = self._table
        table.check_invariants()
        timeout = self.options.election_timeout_ms
        waiting = table.state >= FOLLOWER
        patience = table.patience[waiting]
        assert ((timeout <= patience) & (patience <= 2 * timeout)).all(), patience
        ends = table.timer[waiting] + patience
        # A timer that ended and had no room is looked at again with the next that ends.
        assert ((ends >= self._earliest) | (ends <= self._now)).all(), self._earliest
        for times in (table.timer, table.heard_at, table.replied_at):
            assert (times <= self._now).all(), self._now
        for outstanding in self._outstanding.values():
            assert len(outstanding) <= self.options.max_outstanding, len(outstanding)

    def __str__(self) -> str:
        return f"n{self.node_id} groups={len(self)} led={len(self._table.led)}"
