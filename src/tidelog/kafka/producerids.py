"""InitProducerId: numbers for idempotent producers, which no two of them ever share.

The controller hands them out in blocks; a node gives those of its block away one by one, and what
is left of a block when the node stops is lost. A producer that had an error it cannot mend asks for
another number; as in Kafka it gets a new one, since without transactions nothing hangs on the old.

Transactions are not served, so a transactional id is refused with a code that is final for clients.
"""

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import code_of
from tidelog.kafka.versions import NO_THROTTLE

MIN_VERSION: Final = 0
MAX_VERSION: Final = 6
# As many as Kafka takes at a time: a quarter of an hour, at one new producer a second.
BLOCK: Final = 1000
TIMEOUT_S: Final = 5.0
_NO_ID: Final = -1


class ProducerIds:
    """The numbers that this node may give away."""

    def __init__(self) -> None:
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def handle(self, context: Context, request: Any) -> Any:
        error = _objection(request)
        producer_id = _NO_ID
        if error is ErrorCode.none:
            try:
                producer_id = await self._take(context)
            except ClusterError as failure:
                error = code_of(failure)
                if failure.problem is Problem.NOT_CONTROLLER:
                    error = ErrorCode.coordinator_not_available
        return Answers.to(request)(
            "InitProducerIdResponse",
            throttle_time=NO_THROTTLE,
            error_code=error,
            producer_id=producer_id,
            producer_epoch=_NO_ID if producer_id == _NO_ID else 0,
        )

    async def _take(self, context: Context) -> int:
        while self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    first = await context.node.controller.allocate_producer_ids(
                        BLOCK, timeout=TIMEOUT_S
                    )
                    self._next, self._end = first, first + BLOCK
        taken = self._next
        self._next += 1
        return taken


def _objection(request: Any) -> ErrorCode:
    if request.transactional_id == "":
        return ErrorCode.invalid_request
    if request.transactional_id is not None:
        return ErrorCode.unsupported_version
    known = getattr(request, "producer_id", _NO_ID) != _NO_ID
    if known != (getattr(request, "producer_epoch", _NO_ID) != _NO_ID):
        return ErrorCode.invalid_request
    return ErrorCode.none
