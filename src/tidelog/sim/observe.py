"""How the judge sees inside a replica that knows nothing of judges.

The methods through which a replica drives its core, log, machines and snapshot files are wrapped on
the instances, so that each call comes with a hook. The wrapped code is the product's own,
planted bugs included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.cluster.replica import Replica
from tidelog.raft.events import Event, Output
from tidelog.raft.types import GroupId
from tidelog.records import NO_OFFSET
from tidelog.storage import DamagedLog

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode


def observe(node: SimNode, group: GroupId, replica: Replica) -> None:
    """Let the judge and the trace of the node's world see what this replica does from now on."""
    judge, trace = node.world.judge, node.world.trace
    core, log, machines = replica.core, replica.log, replica.machines
    step = core.step

    def observed_step(event: Event) -> Sequence[Output]:
        judge.before_step(node, group, event)
        try:
            outputs = step(event)
        except DamagedLog:
            judge.on_broken_step(node, group)
            raise
        trace.step(node, group, event, outputs)
        judge.on_step(node, group, event, outputs)
        return outputs

    _replace(core, "step", observed_step)
    _after(log, "append", lambda _, batches: judge.on_append(node, group, batches))
    _before(log, "truncate_suffix", lambda first: judge.on_truncate(node, group, first))
    _after(log, "truncate_prefix", lambda _, first, *__: judge.on_prefix(node, group, first))
    _before(log, "reset", lambda *_: judge.before_reset(node, group))
    _after(log, "reset", lambda _, start, *__: judge.on_reset(node, group, start))
    _after(log, "prepare_flush", lambda job: judge.on_flush_started(node, group, job))
    _after(log, "finish_flush", lambda _, job: judge.on_flush_finished(node, group, job))
    _after(log, "finish_compaction", lambda result, _: judge.on_compacted(node, group, result))
    _after(log, "finish_merge", lambda result, _: judge.on_compacted(node, group, result))
    _after(machines, "apply", lambda _, batches: judge.on_apply(node, group, batches))
    _after(machines, "restore", lambda _, __, offset: judge.on_restore(node, group, offset))
    _after(machines, "reset", lambda _: judge.on_restore(node, group, NO_OFFSET))


def _before(target: object, name: str, hook: Callable[..., None]) -> None:
    """Call `hook(*arguments)` each time before `target.name` is called."""
    method: Callable[..., Any] = getattr(target, name)

    def observed(*arguments: Any, **named: Any) -> Any:
        hook(*arguments, **named)
        return method(*arguments, **named)

    _replace(target, name, observed)


def _after(target: object, name: str, hook: Callable[..., None]) -> None:
    """Call `hook(result, *arguments)` each time `target.name` has returned."""
    method: Callable[..., Any] = getattr(target, name)

    def observed(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        hook(result, *arguments, **named)
        return result

    _replace(target, name, observed)


def _replace(target: object, name: str, method: Callable[..., Any]) -> None:
    setattr(target, name, method)
