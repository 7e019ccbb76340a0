"""ElectLeaders: hand partitions to the replica that should lead them.

Raft elects nobody who lacks what was acknowledged, so the election that Kafka calls unclean does
not exist: it is answered as Kafka answers where it finds nobody to elect.
"""

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.kafka.admin import Deadline, bounded_parts, by_topic, distinct, for_each, tried
from tidelog.kafka.codec import Answers
from tidelog.kafka.dispatch import Context
from tidelog.kafka.errors import Refused
from tidelog.kafka.turns import Turns
from tidelog.kafka.versions import NO_THROTTLE

PREFERRED: Final = 0
UNCLEAN: Final = 1
# What two of the controller's problems mean here.
_CODES: Final = {
    Problem.NOT_CHANGING: ErrorCode.election_not_needed,
    Problem.UNAVAILABLE: ErrorCode.preferred_leader_not_available,
}


async def handle_elect_leaders(context: Context, request: Any) -> Any:
    answers = Answers.to(request)
    deadline = Deadline(request.timeout)
    kind = getattr(request, "election_type", PREFERRED)
    if kind not in {PREFERRED, UNCLEAN}:
        return await _answer(answers, ErrorCode.invalid_request, ())
    everywhere = request.topic_partitions is None

    async def work(place: tuple[str, int]) -> tuple[str, Any]:
        name, index = place
        _, outcome = await tried(_elect(context, kind, name, index, deadline))
        return name, answers(
            "PartitionResult",
            partition_id=index,
            error_code=outcome.code,
            error_message=outcome.message,
        )

    results = await for_each(await _places(context, request), work)
    if everywhere:
        # Who asks for all is only told of those where there was something to do.
        results = [each for each in results if each[1].error_code != ErrorCode.election_not_needed]
    return await _answer(answers, ErrorCode.none, results)


async def _places(context: Context, request: Any) -> list[tuple[str, int]]:
    if request.topic_partitions is None:
        # As they are now: topics may come and go while this request takes turns.
        topics = sorted(context.node.state.topics.items())
        everywhere = ((name, each.index) for name, topic in topics for each in topic.partitions)
        return await Turns().each(everywhere)
    return await distinct(await bounded_parts(request.topic_partitions, name="topic"))


async def _answer(answers: Answers, error: ErrorCode, results: Sequence[tuple[str, Any]]) -> Any:
    return answers(
        "ElectLeadersResponse",
        throttle_time=NO_THROTTLE,
        error_code=error,
        replica_election_results=await by_topic(
            results,
            lambda name, partitions: answers(
                "ReplicaElectionResult", topic=name, partition_result=partitions
            ),
        ),
    )


async def _elect(context: Context, kind: int, name: str, index: int, deadline: Deadline) -> None:
    node = context.node
    node.state.partition_at(name, index)
    if kind == UNCLEAN:
        leader, _ = node.leader_of(name, index)
        if leader is not None and (leader == node.id or node.is_alive(leader)):
            raise Refused(ErrorCode.election_not_needed, f"node {leader} leads {name}/{index}")
        raise Refused(
            ErrorCode.eligible_leaders_not_available,
            f"no replica that has all acknowledged records of {name}/{index} can be elected, and no"
            " other may be: start the nodes of its replicas",
        )
    try:
        await node.controller.elect_leader(name, index, timeout=deadline.left())
    except ClusterError as error:
        if error.problem not in _CODES:
            raise
        raise Refused(_CODES[error.problem], error.message) from error
