"""Reading all files of a replica again, as `cluster.verifying` does in the background."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from tidelog.cluster.registry import NAME as REGISTRY
from tidelog.raft.types import GroupId
from tidelog.sim.host import VERIFY
from tidelog.storage import DamagedLog

if TYPE_CHECKING:
    from tidelog.cluster.replica import Replica
    from tidelog.sim.node import Harm, SimNode

STEP: Final = 1 << 20


def verify(node: SimNode, group: GroupId) -> None:
    """Read everything again, and compare names; damage makes the replica lost.

    What was harmed, opened again and found sound by this is harmed no more.
    """
    replica = node.replicas.get(group)
    if replica is None or replica.failed is not None or replica.lost is not None:
        return
    host, log, files = node.hosts[group], replica.log, replica.snapshots
    if host.is_verifying:
        return
    harm = node.harm.get(group)
    reopened = harm is not None and harm.reopened
    jobs = [each for base in log.verifiable() if (each := log.verify_job(node.disk, base))]
    names, newest, found = log.names(), files.latest(), set[str]()

    def read() -> None:
        for job in jobs:
            with contextlib.closing(job):
                while not job.done:
                    job.step(STEP)
        with contextlib.suppress(FileNotFoundError):  # a directory that is gone has no names
            found.update(node.disk.list(log.directory))
        if newest is not None:
            files.check(newest)

    def done(error: OSError | None) -> None:
        if replica.failed is not None or replica.lost is not None:
            return
        damages = [log.confirm(job) for job in jobs]
        if error is None:
            damages.append(log.missing(found, names))
        elif isinstance(error, DamagedLog) and files.latest() == newest:
            damages.append(error)
        damage = next(filter(None, damages), None)
        if damage is not None:
            replica.damaged(damage)
        elif error is None and reopened:
            _mended(node, group, replica, harm)

    host.submit(VERIFY, read, done)


def _mended(node: SimNode, group: GroupId, replica: Replica, harm: Harm | None) -> None:
    """Nothing is wrong any more with files that were harmed, if all of them were read."""
    if harm is None or node.harm.get(group) is not harm:
        return
    if harm.path == REGISTRY and not node.disk.exists(REGISTRY):
        return  # only the next start of the node will miss it
    newest = replica.snapshots.latest()
    checked = newest is not None and harm.path.endswith(
        f"/{newest.offset}-{newest.term}-v1.snapshot"
    )
    if harm.path.endswith(".snapshot") and not checked and node.disk.exists(harm.path):
        return  # an older one, which nothing reads in vain
    node.world.trace.note(node, group, f"is sound again: {harm.what}")
    del node.harm[group]
    node.world.judge.on_mended(node, group)
