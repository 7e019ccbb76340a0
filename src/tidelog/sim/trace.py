"""What happened, one readable line an event, and a digest of all of it.

A line reads: time in milliseconds, node, group, what happened, and after `->` what the core asked
for. The digest covers every line whether or not anybody prints them, so that two runs of a seed are
known to be the same from one number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tidelog.raft.events import Append, Event, Output, Propose, Send
from tidelog.raft.messages import AppendReply, AppendRequest, Message, Status
from tidelog.raft.types import GroupId
from tidelog.records import Batch

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode

Sink = Callable[[str], None]


class Trace:
    """Collects the lines of one run."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.lines = 0
        self._sink = sink
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of every line so far."""
        return self._digest.hexdigest()

    def line(self, time: int, text: str) -> None:
        """Record one line."""
        text = f"{time / 1000:11.3f} {text}"
        self.lines += 1
        self._digest.update(text.encode())
        if self._sink is not None:
            self._sink(text)

    def note(self, node: SimNode, group: GroupId | None, text: str) -> None:
        """Record something that happened on a node outside its cores."""
        where = f"n{node.id}" if group is None else f"n{node.id}/g{group}"
        self.line(node.world.now, f"{where:<6} {text}")

    def step(self, node: SimNode, group: GroupId, event: Event, outputs: Sequence[Output]) -> None:
        """Record what a core was told and what it asked for."""
        asked = "; ".join(map(describe, outputs))
        self.note(node, group, f"{describe(event)} -> {asked}" if asked else describe(event))


def describe(thing: Event | Output) -> str:
    """Return an event or an output as a few words."""
    if isinstance(thing, Send):
        return f"send {describe(thing.message)}"
    if isinstance(thing, AppendRequest):
        return _append(thing)
    if isinstance(thing, AppendReply):
        return _reply(thing)
    if isinstance(thing, Message):
        return _ends(thing) + _rest(thing, skip=4)
    if isinstance(thing, Append):
        return f"Append {_batches(thing.batches)}"
    if isinstance(thing, Propose):
        return f"Propose {thing.token} {thing.level.name} {_batches(thing.batches)}"
    return type(thing).__name__ + _rest(thing, skip=0)


def _ends(message: Message) -> str:
    kind = type(message).__name__
    return f"{kind} {message.source}->{message.target} t{message.term}"


def _append(request: AppendRequest) -> str:
    text = f"{_ends(request)} #{request.seq} after {request.prev_offset}/t{request.prev_term}"
    if request.batches:
        text += f" {_batches(request.batches)}"
    text += f" committed={request.committed} visible={request.visible}"
    if request.compacted >= 0:
        text += f" compacted={request.compacted}"
    return f"{text} flush" if request.flush else text


def _reply(reply: AppendReply) -> str:
    text = f"{_ends(reply)} #{reply.seq} {reply.status.value} match={reply.match}"
    if reply.status is Status.MISMATCH:
        text += f" hint={reply.hint_offset}/t{reply.hint_term}"
    return f"{text} dirty={reply.dirty} flushed={reply.flushed}"


def _batches(batches: Iterable[Batch]) -> str:
    return "[" + " ".join(map(_batch, batches)) + "]"


def _batch(batch: Batch) -> str:
    kind = batch.type.name.lower()
    span = f"{batch.base_offset}-{batch.last_offset}/t{batch.term}"
    # The CRC stands for the content, so that the digest covers what was written too.
    return f"{kind} {span} {batch.crc:08x}"


def _rest(thing: object, skip: int) -> str:
    """Return the fields of a dataclass after the first `skip`, as ` name=value`."""
    if not is_dataclass(thing):
        return ""
    return "".join(
        f" {field.name}={_value(getattr(thing, field.name))}" for field in fields(thing)[skip:]
    )


def _value(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)}B"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "(" + " ".join(map(_value, value)) + ")"
    return str(value)
