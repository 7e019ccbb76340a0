"""The place where the cluster's problems become Kafka's error codes, and epochs are compared."""

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.kafka.dispatch import Context

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition

# NOT_CONTROLLER is a matter between nodes; what is left of it when all tries failed is a timeout.
CODES: Final = {
    Problem.TOPIC_EXISTS: ErrorCode.topic_already_exists,
    Problem.UNKNOWN_TOPIC: ErrorCode.unknown_topic_or_partition,
    Problem.UNKNOWN_PARTITION: ErrorCode.unknown_topic_or_partition,
    Problem.INVALID_NAME: ErrorCode.invalid_topic_exception,
    Problem.INVALID_PARTITIONS: ErrorCode.invalid_partitions,
    Problem.INVALID_REPLICATION: ErrorCode.invalid_replication_factor,
    Problem.INVALID_ASSIGNMENT: ErrorCode.invalid_replica_assignment,
    Problem.INVALID_CONFIG: ErrorCode.invalid_config,
    Problem.UNKNOWN_NODE: ErrorCode.broker_not_available,
    Problem.NODE_EXISTS: ErrorCode.duplicate_broker_registration,
    Problem.NOT_CONTROLLER: ErrorCode.not_controller,
    Problem.TIMEOUT: ErrorCode.request_timed_out,
    Problem.BUSY: ErrorCode.reassignment_in_progress,
    Problem.NOT_CHANGING: ErrorCode.no_reassignment_in_progress,
    Problem.UNAVAILABLE: ErrorCode.request_timed_out,
    Problem.STORAGE: ErrorCode.kafka_storage_error,
    Problem.FORBIDDEN: ErrorCode.cluster_authorization_failed,
}


def code_of(error: ClusterError) -> ErrorCode:
    return CODES[error.problem]


class Refused(Exception):
    """A part of a request cannot be served; the code and the sentence are for the client."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def check_epoch(current_epoch: int, local_epoch: int) -> ErrorCode:
    """Compare the epoch that a client believes in with ours; a negative one is not compared."""
    if current_epoch < 0 or current_epoch == local_epoch:
        return ErrorCode.none
    if current_epoch < local_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch


def leader_for(
    context: Context, topic: str, index: int, current_epoch: int = -1
) -> "Partition | ErrorCode":
    """Return the partition if this node leads it, or why it does not serve the client.

    The epoch is compared before leadership, on followers too: a client whose metadata is older than
    ours, or newer, must hear that, and not that it should ask for metadata that it may have.
    """
    node = context.node
    partition = node.partition(topic, index)
    if partition is None:
        if node.state.group_of(topic, index) is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.not_leader_or_follower
    fenced = check_epoch(current_epoch, partition.epoch)
    if fenced is not ErrorCode.none:
        return fenced
    if partition.is_leader:
        return partition
    if partition.failed is not None:
        return ErrorCode.kafka_storage_error
    return ErrorCode.not_leader_or_follower
