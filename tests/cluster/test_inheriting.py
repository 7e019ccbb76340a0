"""A replica whose files another one takes over: whole, once, and after a crash at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.cluster import inheriting
from tidelog.cluster.inheriting import TERM_MARGIN, take_over
from tidelog.cluster.model import NOTHING_LEFT, Heir
from tidelog.cluster.offline import OfflineHost, lead, write
from tidelog.cluster.registry import Registry
from tidelog.cluster.replica import Replica
from tidelog.machines import Balances
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import NO_OFFSET, Offset, Record, build_batch
from tidelog.storage import DamagedLog, Log, LogConfig, RealDisk, VoteFile

GROUP = GroupId(7)
OLD, NEW = Vnode(NodeId(1), 3), Vnode(NodeId(1), 9)
CONFIG = LogConfig()
FORMER, DIRECTORY = "topics/t/0-g7-r3", "topics/t/0-g7-r9"
HEIR = Heir(GROUP, NEW, OLD.revision)


class Crash(Exception):
    pass


class Place:
    """The directory of a node that had one replica."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = RealDisk(path)
        self.registry = Registry.begin(self.disk, "birth")
        self.balances = Balances()

    def open(self, directory: str, vnode: Vnode, initial: Configuration | None = None) -> Replica:
        self.host = OfflineHost()
        self.balances = Balances()
        return Replica.open(
            self.host,
            self.disk,
            directory,
            group=GROUP,
            vnode=vnode,
            initial=initial,
            options=Options(),
            log_config=CONFIG,
            machines=lambda: [self.balances],
            cache=None,
            clock=lambda: 0,
            known=initial is None,
        )

    def fill(self) -> int:
        """Write some deposits; return the last offset."""
        replica = self.open(FORMER, OLD, Configuration((OLD,)))
        lead(self.host, replica)
        for amount in range(1, 11):
            write(self.host, replica, build_batch([Record(0, 0, b"account", b"%d" % amount)]))
        end = replica.log.dirty
        replica.close()
        self.registry.add([(GROUP, OLD.revision)])
        return end

    def take_over(self, heir: Heir = HEIR) -> inheriting.Inherited | None:
        former = None if heir.former is None else FORMER
        return take_over(self.disk, self.path, self.registry, heir, former, DIRECTORY, CONFIG)

    def check(self, balance: int) -> None:
        """The heir leads by itself, with everything that was there."""
        assert self.registry.hosted == {(GROUP, NEW.revision)}
        replica = self.open(DIRECTORY, NEW)
        lead(self.host, replica)
        assert replica.core.configuration == Configuration((NEW,))
        assert self.balances.account(b"account").balance == balance
        assert replica.core.term > TERM_MARGIN
        replica.close()


def test_the_heir_has_everything_and_is_its_only_voter(tmp_path: Path) -> None:
    place = Place(tmp_path)
    end = place.fill()
    inherited = place.take_over()
    assert inherited is not None
    assert inherited.end == end
    assert inherited.term > TERM_MARGIN
    assert not (tmp_path / FORMER).exists()
    place.check(55)
    assert place.take_over() is None  # a second time changes nothing
    place.check(55)


@pytest.mark.parametrize("step", ["append", "rename", "sync_directory", "add"])
def test_a_crash_at_any_step_is_made_good_by_doing_it_again(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    place.fill()

    owner: object = {"append": Log, "add": place.registry}.get(step, place.disk)
    before = getattr(owner, step)

    def crash(*arguments: object) -> object:
        """Crash instead of the step, if it is about the directory or has no other place."""
        if owner is not place.disk or arguments[-1] in (DIRECTORY, "topics/t"):
            raise Crash
        return before(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, crash)
        with pytest.raises(Crash):
            place.take_over()
    assert (GROUP, NEW.revision) not in place.registry.hosted
    place.take_over()
    place.check(55)


def test_an_heir_of_nothing_begins_empty_and_above_all_terms(tmp_path: Path) -> None:
    place = Place(tmp_path)
    inherited = place.take_over(Heir(GROUP, NEW, NOTHING_LEFT))
    assert inherited is not None
    assert inherited.end == NO_OFFSET
    place.check(0)


def test_what_was_lost_or_is_not_whole_is_not_gone_on_with(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.fill()
    (tmp_path / FORMER / "vote").rename(tmp_path / "vote")
    with pytest.raises(DamagedLog, match="it is missing"):
        place.take_over()
    (tmp_path / "vote").rename(tmp_path / FORMER / "vote")
    place.registry.lose(GROUP, OLD.revision, "its disk lies")
    with pytest.raises(DamagedLog, match="its disk lies"):
        place.take_over()
    assert not (tmp_path / DIRECTORY).exists()


def test_compaction_that_no_snapshot_covers_is_no_obstacle(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.fill()
    vote_file = VoteFile(place.disk, f"{FORMER}/vote")
    vote = vote_file.load()
    assert vote is not None
    vote_file.save(type(vote)(vote.term, vote.node, vote.revision, Offset(5)))
    inherited = place.take_over()
    assert inherited is not None
    assert inherited.inexact
    place.check(55)
