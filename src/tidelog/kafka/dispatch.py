"""Which APIs are served, in which versions, by whom.

There are two kinds of handlers:

- a `Handler` gets a request as an object and returns the answer as an object;
- a `RawHandler` gets the body's bytes and returns the body of the answer as a list of buffers. That
  is for Produce and Fetch, whose bytes are not to be copied. It may be a coroutine function, or a
  plain one that returns a future or the answer itself, which saves a task. None means that the
  client wants no answer (acks=0).

A client's requests are handled one after the other, as Kafka does it, but for *pipelined* ones:
they start in the order of their arrival, without waiting for those before them, as far as these are
pipelined too. A pipelined handler must therefore do what has to happen in order (append to the
log) before it waits for anything. If it has to wait before that, it returns a `Deferred`, and the
connection starts nothing until the handler goes on. It is also brought to its end when the client
goes away.

Answers always leave in the order of the requests.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.cluster.model import Address
from tidelog.kafka import codec
from tidelog.kafka.codec import Buffer

if TYPE_CHECKING:
    from tidelog.cluster.node import Node


class Disconnect(Exception):
    """Raised by a handler: there is no way to answer this request but to close."""


@dataclass(frozen=True, slots=True)
class Context:
    """Who asks, and whom."""

    node: "Node"
    # Where clients reach this node.
    advertised: Address
    connection_id: int
    client_host: str
    client_id: str | None


Handler = Callable[[Context, Any], Awaitable[Any]]
RawAnswer = list[Buffer] | None


@dataclass(frozen=True, slots=True)
class Deferred:
    """A raw handler that waits before it does what has to happen in the order of requests."""

    ready: Awaitable[None]
    # What the handler does then; it returns what the handler would have returned.
    resume: Callable[[], Awaitable[RawAnswer] | RawAnswer]


RawHandler = Callable[[Context, int, memoryview], Awaitable[RawAnswer] | RawAnswer | Deferred]


@dataclass(frozen=True, slots=True)
class Api:
    """One line of the table."""

    key: int
    min_version: int
    max_version: int
    handler: Handler | None = None
    raw: RawHandler | None = None
    pipelined: bool = False
    announced: bool = True  # whether ApiVersions tells of it
    name: str = field(init=False)

    def __post_init__(self) -> None:
        known_min, known_max = codec.known_versions(self.key)
        if not known_min <= self.min_version <= self.max_version <= known_max:
            raise ValueError(
                f"{codec.api_name(self.key)}: versions {self.min_version} to {self.max_version} "
                f"are not within those that are known, {known_min} to {known_max}"
            )
        if (self.handler is None) == (self.raw is None):
            raise ValueError(f"{codec.api_name(self.key)} needs exactly one handler")
        object.__setattr__(self, "name", codec.api_name(self.key))

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


class Table:
    """All APIs that a listener serves. Iterating gives each of them, announced or not."""

    def __init__(self) -> None:
        self._apis: dict[int, Api] = {}

    def add(self, api: Api) -> None:
        if api.key in self._apis:
            raise ValueError(f"{api.name} has a handler already")
        self._apis[api.key] = api

    def add_all(self, handlers: Mapping[int, tuple[int, int, Handler]]) -> None:
        """Add what a coordinator serves: API key to oldest version, newest version, handler."""
        for key, (min_version, max_version, handler) in handlers.items():
            self.add(Api(key, min_version, max_version, handler))

    def get(self, key: int) -> Api | None:
        return self._apis.get(key)

    @property
    def announced(self) -> Iterator[Api]:
        """What ApiVersions tells of."""
        return (api for api in self if api.announced)

    def __iter__(self) -> Iterator[Api]:
        return iter(sorted(self._apis.values(), key=lambda api: api.key))
