"""Why the cluster refuses something: one list of problems; every front maps it to its own codes."""

from enum import Enum


class Problem(Enum):
    TOPIC_EXISTS = "topic exists"
    UNKNOWN_TOPIC = "unknown topic"
    UNKNOWN_PARTITION = "unknown partition"
    INVALID_NAME = "invalid name"
    INVALID_PARTITIONS = "invalid number of partitions"
    INVALID_REPLICATION = "invalid replication factor"
    INVALID_ASSIGNMENT = "invalid assignment of replicas"
    INVALID_CONFIG = "invalid configuration"
    UNKNOWN_NODE = "unknown node"
    NODE_EXISTS = "node exists"
    NOT_CONTROLLER = "not the leader"
    TIMEOUT = "timeout"
    BUSY = "in progress"
    NOT_CHANGING = "nothing in progress"
    UNAVAILABLE = "unavailable"
    STORAGE = "the disk refused"
    FORBIDDEN = "not allowed"


def reason_of(error: Exception) -> str:
    """Return why something failed, in words that are never empty."""
    return str(error) or type(error).__name__


class StartFailed(Exception):
    """This node cannot start; the message says what to do."""


class ClusterError(Exception):
    """Something was not done; the message says what was wrong and what to do, in a sentence."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(problem, message)
        self.problem = problem
        self.message = message

    def __str__(self) -> str:
        return self.message
