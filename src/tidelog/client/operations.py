"""Tidelog's own operations: what Kafka's protocol has no words for, asked over the same listener.

The request is API 16000 in version 0, with the plain header of Kafka's requests. Its body is JSON:

    {"operation": "log", "arguments": {"topic": "orders", "partition": 0}}

and so is the answer's, which has a "result" or an "error" with a "problem" and a "message".
A cluster of another make closes the connection.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tidelog.client.cluster import LOST, REQUEST_SECONDS, Cluster
from tidelog.client.errors import BadAnswer, ClientError, Disconnected, Silent, Unsupported
from tidelog.client.retry import Deadline

OPERATION: Final = 16000
VERSION: Final = 0
ATTEMPTS: Final = 2


class OperationRefused(ClientError):
    """The cluster said no to an operation."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(message)
        self.problem = problem


async def operate(
    cluster: Cluster, operation: str, *, timeout: float = 0, **arguments: object
) -> Any:
    """Ask any node for an operation and return its result; raises `ClientError`."""
    deadline = cluster.deadline(timeout)
    body = json.dumps({"operation": operation, "arguments": arguments}).encode()

    async def attempt() -> bytes:
        failure: ClientError | None = None
        for host, port in cluster.candidates():
            try:
                return await _ask(cluster, host, port, body, deadline)
            except LOST as error:
                failure = error
        raise cluster.nobody(failure)

    return _read(await cluster.persist(attempt, deadline))


async def _ask(cluster: Cluster, host: str, port: int, body: bytes, deadline: Deadline) -> bytes:
    # The operations are not announced, since clients complain about keys that they do not know. Who
    # closes the connection twice, and takes a new one in between, does not know them.
    for _ in range(ATTEMPTS):
        connection = await cluster.connect(host, port, deadline)
        try:
            frame, position = await connection.exchange(
                OPERATION, VERSION, (body,), deadline.at_most(REQUEST_SECONDS)
            )
        except Silent:
            raise  # it may well know them, and be busy or stopped
        except Disconnected:
            continue
        return bytes(frame[position:])
    raise Unsupported(
        f"{host}:{port} is not a Tidelog node: it does not know this operation. Commands for "
        "topics, groups, produce and consume work with any Kafka cluster; this one does not."
    )


def _read(data: bytes) -> Any:
    try:
        answer = json.loads(data)
        if "error" not in answer:
            return answer["result"]
        problem, message = str(answer["error"]["problem"]), str(answer["error"]["message"])
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(
            "The cluster sent an unexpected answer to an operation. Is this a Tidelog cluster?"
        ) from None
    raise OperationRefused(problem, message)
