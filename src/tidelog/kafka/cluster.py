"""DescribeCluster: which nodes there are, and which one the controller is on."""

from collections.abc import Iterator
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.kafka import view
from tidelog.kafka.admin import DONE, Outcome
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.versions import NO_THROTTLE

# Kinds of nodes that a client can ask for: every node is a broker and may be the controller.
BROKERS: Final = 1
CONTROLLERS: Final = 2


async def handle_describe_cluster(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    kind = getattr(request, "endpoint_type", BROKERS)
    outcome = _check(kind)
    brokers = tuple(_brokers(context, answers, request)) if outcome is DONE else ()
    return answers(
        "DescribeClusterResponse",
        throttle_time=NO_THROTTLE,
        error_code=outcome.code,
        error_message=outcome.message,
        endpoint_type=BROKERS,
        cluster_id=context.node.state.cluster_id,
        controller_id=_controller(context) if brokers else view.NO_NODE,
        brokers=brokers,
        cluster_authorized_operations=(
            view.CLUSTER_OPERATIONS
            if request.include_cluster_authorized_operations
            else view.UNKNOWN_OPERATIONS
        ),
    )


def _controller(context: Context) -> int:
    """Return the controller, or this node while that is down: it passes on what shall change."""
    controller = view.controller_id(context)
    return controller if context.node.is_alive(controller) else context.node.id


def _check(kind: int) -> Outcome:
    if kind == BROKERS:
        return DONE
    if kind == CONTROLLERS:
        return Outcome(
            ErrorCode.mismatched_endpoint_type,
            "this listener is for clients of brokers, and there is none for controllers",
        )
    return Outcome(ErrorCode.unsupported_endpoint_type, f"there are no nodes of kind {kind}")


def _brokers(context: Context, answers: Answers, request: Any) -> Iterator[Any]:
    reachable = {broker.id: broker for broker in view.brokers(context)}
    for broker in reachable.values():
        yield answers(
            "DescribeClusterBroker",
            broker_id=broker.id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            is_fenced=False,
        )
    if getattr(request, "include_fenced_brokers", False):
        for member in context.node.state.members.values():
            if member.id not in reachable:
                yield answers(
                    "DescribeClusterBroker",
                    broker_id=member.id,
                    host=member.kafka.host,
                    port=member.kafka.port,
                    rack=member.rack,
                    is_fenced=True,
                )
