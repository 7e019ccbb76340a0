"""What can go wrong between a client and a cluster, as sentences a user can act on.

Rules:
- `Refused` is the cluster's answer: it was reached, it understood, and it said no.
- `Unreachable`, `Disconnected` and `TimedOut` say nothing about what the cluster did: a request
  whose answer was lost may have been carried out.
- `Unsupported` and `BadAnswer` mean that trying again changes nothing.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

# Codes that a fresh look at the metadata can cure: the leader is elsewhere, or is being elected.
STALE_METADATA: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.listener_not_found,
        ErrorCode.kafka_storage_error,
    }
)
# Codes that say "not here" or "not yet" about a group's coordinator.
STALE_COORDINATOR: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
# The one code of the controller that says nothing about what was asked.
NOT_CONTROLLER: Final = frozenset({ErrorCode.not_controller})
# Codes after which a read or a write may be sent again, to the same node or another.
PASSING: Final = (
    STALE_METADATA
    | STALE_COORDINATOR
    | NOT_CONTROLLER
    | {
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.concurrent_transactions,
        ErrorCode.throttling_quota_exceeded,
    }
)

# What to say where the cluster sent no sentence of its own. {what} is what was asked about.
SENTENCES: Final = {
    ErrorCode.unknown_topic_or_partition: "{what} does not exist.",
    ErrorCode.unknown_topic_id: "{what} was deleted, and perhaps created anew.",
    ErrorCode.topic_already_exists: "{what} exists already.",
    ErrorCode.invalid_topic_exception: (
        "{what} has no valid name: letters, digits, '.', '_' and '-', at most 249 of them."
    ),
    ErrorCode.invalid_partitions: "{what} cannot have that many partitions.",
    ErrorCode.invalid_replication_factor: (
        "{what} cannot have that many replicas: there are not as many nodes alive."
    ),
    ErrorCode.invalid_config: "{what} has no such setting, or the value does not fit it.",
    ErrorCode.leader_not_available: "{what} has no leader at the moment.",
    ErrorCode.not_leader_or_follower: "{what} has moved to another leader, again and again.",
    ErrorCode.message_too_large: (
        "A record for {what} is larger than the topic takes: raise `max.message.bytes`."
    ),
    ErrorCode.not_enough_replicas: (
        "{what} has fewer replicas in sync than `min.insync.replicas` asks for."
    ),
    ErrorCode.offset_out_of_range: "{what} has no record at that offset.",
    ErrorCode.kafka_storage_error: "The disk under {what} refuses writes; see the node's log.",
    ErrorCode.group_id_not_found: "{what} does not exist.",
    ErrorCode.non_empty_group: "{what} still has members: stop its consumers first.",
    ErrorCode.invalid_group_id: "{what} is no valid name of a group.",
    ErrorCode.unknown_member_id: "{what} does not know this member: it was away for too long.",
    ErrorCode.inconsistent_group_protocol: (
        "The members of {what} speak another protocol of assignment than this one."
    ),
    ErrorCode.request_timed_out: "The cluster did not get {what} done in time.",
    ErrorCode.reassignment_in_progress: "{what} is being moved already.",
    ErrorCode.no_reassignment_in_progress: "{what} is not being moved.",
    ErrorCode.election_not_needed: "{what} is led by its preferred replica already.",
    ErrorCode.preferred_leader_not_available: "The preferred leader of {what} is not alive.",
    ErrorCode.topic_authorization_failed: "This client may not use {what}.",
    ErrorCode.group_authorization_failed: "This client may not use {what}.",
    ErrorCode.cluster_authorization_failed: "This client may not do that to the cluster.",
    ErrorCode.unsupported_for_message_format: (
        "{what} is stored in a format from before Kafka 0.11."
    ),
    ErrorCode.policy_violation: "A policy of the cluster forbids that for {what}.",
}


class ClientError(Exception):
    """Something was not done; the message is a sentence that says what, and what to do."""


class Unreachable(ClientError):
    """Nobody answers at an address."""


class Disconnected(ClientError):
    """The connection ended before the answer came."""


class Silent(Disconnected):
    """A node took a request and did not answer; its connection was closed."""


class TimedOut(ClientError):
    """The time that was allowed is over, with all its attempts."""


class Unsupported(ClientError):
    """The cluster has no version of this API that this client knows."""


class BadAnswer(ClientError):
    """What came back is no answer of Kafka's protocol."""


class Refused(ClientError):
    """The cluster said no."""

    def __init__(self, code: ErrorCode, what: str, message: str | None = None) -> None:
        super().__init__(code, what, message)
        self.code = code
        self.what = what  # what was asked about: "topic orders"
        self.message = message  # the cluster's own words; None if it sent none

    def __str__(self) -> str:
        if self.message:
            return self.message
        sentence = SENTENCES.get(self.code)
        if sentence is None:
            return f"The cluster refused {self.what}: {self.code.name.replace('_', ' ')}."
        text = sentence.format(what=self.what)
        return text[:1].upper() + text[1:]


class UnknownTopic(Refused):
    """No node knows a topic of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(ErrorCode.unknown_topic_or_partition, f"topic {name}")


def check(code: ErrorCode, what: str, message: str | None = None) -> None:
    """Raise `Refused` unless the code says that all is well."""
    if code is not ErrorCode.none:
        raise Refused(code, what, message)
