"""What a leader may believe of a follower, whatever arrives in whatever order."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelog.raft.progress import Progress, State
from tidelog.records import NO_OFFSET, Offset


def replicating(match: int = 4) -> Progress:
    progress = Progress(Offset(match + 1))
    progress.next_seq()
    progress.is_news(1, Offset(match))
    progress.saw(Offset(match), Offset(match))
    progress.matched(Offset(match))
    return progress


def test_a_probe_sends_one_request_and_waits() -> None:
    progress = Progress(Offset(5))
    assert progress.may_send(1000)
    progress.sent(Offset(9), 100)
    assert not progress.may_send(1000)
    assert progress.next == 5, "a probe that may fail moves nothing"


def test_success_turns_a_probe_into_a_stream() -> None:
    progress = replicating(4)
    assert progress.state is State.REPLICATE
    assert (progress.match, progress.next) == (4, 5)


def test_a_stream_runs_ahead_up_to_its_bound_and_goes_on_when_acknowledged() -> None:
    progress = replicating(4)
    progress.sent(Offset(9), 60)
    assert progress.may_send(100)
    progress.sent(Offset(14), 60)
    assert not progress.may_send(100)
    assert progress.next == 15
    progress.saw(Offset(9), Offset(4))
    progress.matched(Offset(9))
    assert progress.inflight_bytes == 60
    assert progress.may_send(100)


def test_one_acknowledgement_speaks_for_all_requests_before_it() -> None:
    progress = replicating(4)
    for last in (9, 14, 19):
        progress.sent(Offset(last), 10)
    progress.saw(Offset(19), Offset(4))
    progress.matched(Offset(19))
    assert not progress.inflight
    assert progress.inflight_bytes == 0


def test_durable_and_replicated_count_only_as_far_as_the_logs_match() -> None:
    progress = replicating(4)
    progress.saw(Offset(99), Offset(50))
    assert progress.replicated == 4
    assert progress.durable == 4
    progress.saw(Offset(4), Offset(2))
    assert progress.durable == 2


def test_a_follower_that_lost_its_dirty_end_no_longer_matches_there() -> None:
    progress = replicating(9)
    progress.saw(Offset(6), Offset(6))
    assert progress.match == 6


def test_old_replies_and_replies_from_the_future_are_no_news() -> None:
    progress = Progress(Offset(0))
    for _ in range(5):
        progress.next_seq()
    assert progress.is_news(3, Offset(4))
    assert not progress.is_news(2, Offset(4))
    assert progress.is_news(3, Offset(4)), "one request may be answered twice"
    assert not progress.is_news(6, Offset(4)), "was never asked"


def test_of_two_answers_to_one_request_the_one_that_matches_less_is_old() -> None:
    progress = Progress(Offset(0))
    progress.next_seq()
    assert progress.is_news(1, NO_OFFSET), "a refusal"
    assert progress.is_news(1, Offset(9))
    assert not progress.is_news(1, NO_OFFSET)
    assert not progress.is_news(1, Offset(4))
    progress.next_seq()
    assert progress.is_news(2, NO_OFFSET), "the log may have lost its end meanwhile"


def test_a_request_in_flight_for_two_heartbeats_is_lost() -> None:
    progress = replicating(4)
    assert not progress.is_stuck()
    progress.sent(Offset(9), 10)
    assert not progress.is_stuck()
    assert progress.is_stuck()
    progress.become_probe(Offset(5))
    assert not progress.is_stuck(), "what was in flight is forgotten"


def test_a_stream_that_moves_is_not_stuck() -> None:
    progress = replicating(4)
    for last in (9, 14, 19):
        progress.sent(Offset(last), 10)
        assert not progress.is_stuck()
        progress.saw(Offset(last), Offset(4))
        progress.matched(Offset(last))


def test_probing_never_goes_below_what_matched() -> None:
    progress = replicating(9)
    progress.become_probe(Offset(3))
    assert progress.next == 10


@given(st.integers(-1, 20), st.integers(0, 25))
def test_a_broken_stream_asks_again_for_the_flushes_it_asked_for(match: int, asked: int) -> None:
    progress = replicating(match)
    progress.saw(Offset(match), Offset(min(match, 3)))
    progress.flush_asked = Offset(asked)
    progress.become_probe(Offset(match + 1))
    assert progress.flush_asked == progress.durable


class Follower(RuleBasedStateMachine):
    """A leader's progress beside the follower's true log, with replies late, lost and repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress(Offset(0))
        self.end = 0  # of the leader's log
        self.log = NO_OFFSET  # the follower's true dirty offset, all of it the leader's
        self.flushed = NO_OFFSET
        self.wire: list[tuple[int, int, int]] = []  # requests: seq, first, last
        self.replies: list[tuple[int, int | None, int, int]] = []  # seq, match, dirty, flushed

    @rule(more=st.integers(1, 5))
    def the_leader_appends(self, more: int) -> None:
        self.end += more

    @precondition(lambda self: self.progress.may_send(50) and self.progress.next <= self.end)
    @rule(size=st.integers(1, 3))
    def send(self, size: int) -> None:
        first = self.progress.next
        last = min(first + size - 1, self.end)
        self.wire.append((self.progress.next_seq(), first, last))
        self.progress.sent(Offset(last), 10)

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def a_request_arrives(self, data: st.DataObject) -> None:
        seq, first, last = self.wire[data.draw(st.integers(0, len(self.wire) - 1))]
        if first - 1 > self.log:
            self.replies.append((seq, None, self.log, self.flushed))
        else:
            self.log = max(self.log, Offset(last))
            self.replies.append((seq, last, self.log, self.flushed))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def a_request_is_lost(self, data: st.DataObject) -> None:
        self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1)))

    @rule()
    def the_follower_flushes(self) -> None:
        self.flushed = self.log

    @precondition(lambda self: self.replies)
    @rule(data=st.data())
    def a_reply_arrives(self, data: st.DataObject) -> None:
        seq, match, dirty, flushed = self.replies[data.draw(st.integers(0, len(self.replies) - 1))]
        if not self.progress.is_news(seq, NO_OFFSET if match is None else Offset(match)):
            return
        self.progress.saw(Offset(dirty), Offset(flushed))
        if match is not None:
            self.progress.matched(Offset(match))
        else:
            self.progress.become_probe(Offset(dirty + 1))

    @rule()
    def a_heartbeat_is_due(self) -> None:
        if self.progress.is_stuck():
            self.progress.become_probe(Offset(self.progress.match + 1))
        self.progress.waiting = False

    @invariant()
    def nothing_is_believed_that_is_not_true(self) -> None:
        self.progress.check_invariants()
        assert self.progress.match <= self.log
        assert self.progress.durable <= self.flushed
        assert self.progress.replicated <= self.log
        assert self.progress.inflight_bytes <= 50 + 10


TestFollower = Follower.TestCase


def test_it_prints_itself_in_one_line() -> None:
    progress = replicating(4)
    assert str(progress) == "replicate match=4 next=5 dirty=4 flushed=4"
    progress.sent(Offset(9), 100)
    assert str(progress) == "replicate match=4 next=10 dirty=4 flushed=4 inflight=1/100B"
    progress.become_probe(Offset(5))
    progress.sent(Offset(9), 100)
    assert str(progress) == "probe match=4 next=5 dirty=4 flushed=4 waiting"
